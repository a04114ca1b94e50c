# SPDX-License-Identifier: Apache-2.0
"""How often vCPUs wait for each other: the source ``spin``.

A vCPU that spins waits for another one, which holds a lock or must answer, and
perhaps does not run. Each hypervisor counts such waits in its own way: see
:mod:`nova_vqos.hypervisor.libvirt.activity`.
"""

from collections.abc import Mapping

from nova_vqos.agent.quantum.sources import base
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition


class SpinSource(base.Source):
    """Reads the hypervisor's counters of waits."""

    def __init__(self) -> None:
        self._rates = base.Rates()

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                      recognition.Sample]:
        # The run is part of the key: counters of another run start over.
        counts = {
            (uuid, number, observed.activities[uuid].run): count
            for uuid in observed.servers.keys() & observed.activities.keys()
            for number, count in observed.activities[uuid].waits.items()}
        samples = {}
        for key, count in counts.items():
            rate = self._rates.update(key, count, observed.now_s)
            if rate is not None:
                uuid, number, _run = key
                samples[uuid, number] = recognition.Sample(spin_events=rate)
        if observed.activities:
            self._rates.retain(counts)
            self.missing = '' if counts else (
                'the hypervisor does not count how often vCPUs wait for each '
                'other: this needs KVM on x86, arm64 or s390x, QEMU 7.1 and '
                'libvirt 8.9')
        elif observed.servers:
            self.missing = 'the hypervisor provides no counters now'
        return samples

    def close(self) -> None:
        self._rates.retain(())
