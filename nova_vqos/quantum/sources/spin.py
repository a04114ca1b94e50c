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

"""How often vCPUs wait for each other: the source ``spin``.

A vCPU that spins waits for one that holds a lock, or is to answer it, and
perhaps does not run. Hypervisors count what they notice of that, each in its
own way: see :mod:`nova_vqos.hypervisor.libvirt_activity`.
"""

from collections.abc import Mapping

from nova_vqos.quantum import recognition
from nova_vqos.quantum.sources import base
from nova_vqos.quantum.sources import growth


class SpinSource(base.Source):
    """Reads what the hypervisor counted."""

    def __init__(self) -> None:
        self._growth = growth.Growth()
        self._missing = base.NOT_LOOKED

    def available(self) -> str:
        return self._missing

    def read(self, look: base.Look) -> Mapping[base.Key, recognition.Sample]:
        # With the run: another begins anew.
        counts = {
            (uuid, number, look.activities[uuid].run): count
            for uuid in look.servers.keys() & look.activities.keys()
            for number, count in look.activities[uuid].waits.items()}
        samples = {}
        for key, count in counts.items():
            rate = self._growth.per_second(key, count, look.now_s)
            if rate is not None:
                uuid, number, _run = key
                samples[uuid, number] = recognition.Sample(spin_events=rate)
        if look.activities:
            self._growth.keep(counts)
            self._missing = '' if counts else (
                'the hypervisor does not count how often vCPUs wait for each '
                'other: that takes KVM on x86, arm64 or s390x, QEMU 7.1 and '
                'libvirt 8.9')
        elif look.servers:
            self._missing = 'the hypervisor tells of no server now'
        return samples

    def close(self) -> None:
        self._growth.keep(())
