# SPDX-License-Identifier: Apache-2.0
"""How often vCPUs spin in pause loops: the source ``pause``, on x86.

A CPU that runs a guest under KVM leaves it after some thousand cycles of a
loop with the instruction PAUSE, as of a spin lock: the event that the research
counts as spinning. It is in no counter of KVM. The kernel counts it by the
tracepoint of these exits in each vCPU's thread, and nothing else is read of
it. It counts beside the waits of the source ``spin``, which are others.

While it counts, each exit of these vCPUs, for whatever reason, takes the host
longer: doc/source/admin/recognition.rst has the figure.
"""

from collections.abc import Mapping
import platform

from nova_vqos.agent.quantum.sources import base
from nova_vqos.agent.quantum.sources import spin
from nova_vqos.agent.quantum.sources import thread_events
from nova_vqos.conf import default_path
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import tracepoints
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

# NOTE: KVM_ISA_VMX with EXIT_REASON_PAUSE_INSTRUCTION, and KVM_ISA_SVM with
# SVM_EXIT_PAUSE: arch/x86/kvm/trace.h, include/uapi/asm/{vmx,svm}.h.
FILTER = ('(isa == 1 && exit_reason == 40) || '
          '(isa == 2 && exit_reason == 119)')


class PauseSource(base.Source):
    """Counts exits for pause loops, and adds the hypervisor's waits."""

    def __init__(self, recorded: str = default_path.KVM_EXIT, *,
                 tracing: str = tracepoints.TRACING,
                 machine: str | None = None) -> None:
        """
        :param recorded: path of the record of the tracepoint's number
        :param tracing: directory of tracefs
        :param machine: architecture; None: of this machine
        """
        self._recorded = recorded
        self._tracing = tracing
        self._is_x86 = (machine or platform.machine()) == 'x86_64'
        self._spin = spin.SpinSource()
        self._counted: thread_events.ThreadEvents | None = None

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                          recognition.Sample]:
        waits = self._spin.read(observed)
        exits = self._exits(observed)
        return {key: recognition.Sample(spin_events=rate + (
            waits[key].spin_events or 0.0 if key in waits else 0.0))
            for key, rate in exits.items()}

    def close(self) -> None:
        self._spin.close()
        self._stop()

    def _exits(self, observed: base.Observation) -> Mapping[model.Key, float]:
        """Those for pause loops, per second."""
        if not any(observed.servers.values()):
            # Where no thread is counted, the kernel does not trace.
            self._stop()
            return {}
        if self._counted is None:
            try:
                self._counted = thread_events.ThreadEvents(self._events())
            except tracepoints.Unknown as error:
                self.missing = str(error)
                return {}
        rates = self._counted.read(observed)
        self.missing = self._counted.missing
        if self.missing and not self._counted.watches:
            # With another number next time, if KVM was loaded again.
            self._stop()
        return {key: exits for key, (exits,) in rates.items()}

    def _events(self) -> tuple[perf.Event]:
        """:raises tracepoints.Unknown: when there is none to count"""
        if not self._is_x86:
            raise tracepoints.Unknown(
                'exits for pause loops are counted on x86 only: elsewhere the '
                'source spin has them')
        return (perf.Event(
            perf.TYPE_TRACEPOINT, tracepoints.number(
                tracepoints.KVM_EXIT, self._recorded, self._tracing),
            filter=FILTER),)

    def _stop(self) -> None:
        if self._counted is not None:
            self._counted.close()
            self._counted = None
