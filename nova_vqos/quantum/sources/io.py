# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""How much I/O vCPUs do: the source ``io``.

Packets in both directions and disk requests are what the host counts, for a
server as a whole: which vCPU asked for them it does not see. So they are
divided among its vCPUs by how often each began to run meanwhile: whoever waits
for I/O is woken by its interrupt. A vCPU that never rests is not, and neither
is one that does nothing; where all of a server are alike they get the same.
"""

from collections.abc import Collection, Mapping

from nova_vqos.quantum import activity
from nova_vqos.quantum import recognition
from nova_vqos.quantum.sources import base
from nova_vqos.quantum.sources import growth


class IoSource(base.Source):
    """Reads what the hypervisor counted."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}
        self._missing = base.NOT_LOOKED

    def available(self) -> str:
        return self._missing

    def read(self, look: base.Look) -> Mapping[base.Key, recognition.Sample]:
        for uuid in self._servers.keys() - look.servers.keys():
            del self._servers[uuid]
        samples = {}
        known = False
        for uuid, vcpus in look.servers.items():
            found = look.activities.get(uuid)
            if found is None:
                continue
            known = known or found.requests is not None
            server = self._servers.get(uuid)
            if server is None or server.run != found.run:
                server = self._servers[uuid] = _Server(found.run)
            for number, rate in server.per_second(found, vcpus,
                                                  look.now_s).items():
                samples[uuid, number] = recognition.Sample(io_requests=rate)
        if known:
            self._missing = ''
        elif look.servers:
            self._missing = 'the hypervisor tells of no requests now'
        return samples

    def close(self) -> None:
        self._servers = {}


class _Server:
    """One run of a server."""

    def __init__(self, run: int) -> None:
        self.run = run
        self._devices = growth.Growth()
        self._vcpus = growth.Growth()

    def per_second(self, found: activity.Activity, vcpus: Collection[int],
                   now_s: float) -> Mapping[int, float]:
        """Requests of each vCPU, by its number; empty: not known."""
        runs = {number: self._vcpus.per_second(
            number, found.runs[number], now_s) or 0.0
            for number in found.runs.keys() & set(vcpus)}
        if found.requests is None:
            return {}
        self._devices.keep(found.requests)
        rates = [self._devices.per_second(device, count, now_s)
                 for device, count in found.requests.items()]
        known = [rate for rate in rates if rate is not None]
        if rates and not known:
            return {}
        # One that was just plugged in did next to nothing yet.
        total = sum(known)
        return {number: total * share for number, share in _shares(
            {number: runs.get(number, 0.0) for number in vcpus}).items()}


def _shares(runs: Mapping[int, float]) -> Mapping[int, float]:
    """The part of each vCPU, by its number.

    :param runs: how often each began to run
    """
    total = sum(runs.values())
    if not total:
        return {number: 1 / len(runs) for number in runs}
    return {number: count / total for number, count in runs.items()}
