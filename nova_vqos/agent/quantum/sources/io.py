# SPDX-License-Identifier: Apache-2.0
"""The I/O of vCPUs: the source ``io``.

The host counts packets in both directions and disk requests of a server as a
whole, without the vCPU that asked for them. So each vCPU gets a part by how
often it began to run meanwhile: an interrupt wakes a vCPU that waits for I/O.
A vCPU that never rests is not woken, and neither is an idle one. vCPUs that
are alike get equal parts.
"""

from collections.abc import Collection, Mapping

from nova_vqos.agent.quantum.sources import base
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition


class IoSource(base.Source):
    """Divides the hypervisor's counters of a server among its vCPUs."""

    def __init__(self) -> None:
        self._servers: dict[str, _Server] = {}

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                      recognition.Sample]:
        for uuid in self._servers.keys() - observed.servers.keys():
            del self._servers[uuid]
        samples = {}
        known = False
        for uuid, vcpus in observed.servers.items():
            found = observed.activities.get(uuid)
            if found is None:
                continue
            known = known or found.requests is not None
            server = self._servers.get(uuid)
            if server is None or server.run != found.run:
                server = self._servers[uuid] = _Server(found.run)
            for number, rate in server.update(found, vcpus,
                                              observed.now_s).items():
                samples[uuid, number] = recognition.Sample(io_requests=rate)
        if known:
            self.missing = ''
        elif observed.servers:
            self.missing = 'the hypervisor provides no request counters now'
        return samples

    def close(self) -> None:
        self._servers = {}


class _Server:
    """One run of a server."""

    def __init__(self, run: int) -> None:
        self.run = run
        self._devices = base.Rates()
        self._vcpus = base.Rates()

    def update(self, found: recognition.Activity, vcpus: Collection[int],
               now_s: float) -> Mapping[int, float]:
        """Requests per second of each vCPU, by number; empty: unknown."""
        runs = {number: self._vcpus.update(
            number, found.runs[number], now_s) or 0.0
            for number in found.runs.keys() & set(vcpus)}
        if found.requests is None:
            return {}
        self._devices.retain(found.requests)
        rates = [self._devices.update(device, count, now_s)
                 for device, count in found.requests.items()]
        known = [rate for rate in rates if rate is not None]
        if rates and not known:
            return {}
        # A device that was just plugged in has done next to nothing yet.
        requests = sum(known)
        total = sum(runs.values())
        return {number: requests * (runs.get(number, 0.0) / total if total
                                    else 1 / len(vcpus)) for number in vcpus}
