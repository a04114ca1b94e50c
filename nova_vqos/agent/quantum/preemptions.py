# SPDX-License-Identifier: Apache-2.0
"""Count preemptions of servers that spin: PSP of the research.

Needs CAP_PERFMON; without it nothing is counted. Not thread-safe.
"""

from collections.abc import Callable, Mapping, Set
import contextlib
import errno
import logging

from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import switches
from nova_vqos.quantum import sibling_preemptions

LOG = logging.getLogger(__name__)

# Each has a file and two pages.
_MOST_THREADS = 1024
# A shorter while shows too little.
_LEAST_NS = 100_000_000


class PreemptionReader:
    """Reads when the vCPUs of servers ran, as far as the kernel records it."""

    def __init__(self, record: Callable[[int], switches.Recorder]
                 = switches.Recorder) -> None:
        """
        :param record: begins to record a thread
        """
        self._record = record
        self._recorders: dict[int, switches.Recorder] = {}
        self._problem = ''

    def retain(self, threads: Set[int]) -> None:
        """Record no other threads."""
        for thread in self._recorders.keys() - threads:
            self._recorders.pop(thread).close()

    def read(self, vcpus: Mapping[int, int]) -> float | None:
        """How often vCPUs were preempted while another of their server ran.

        :param vcpus: the thread id of each vCPU of a server by its number
        :returns: a second, of all vCPUs together, in some of the time since
            the last reading; None: not known
        """
        if len(vcpus) < 2:
            return None
        if not self._recorders.keys() >= set(vcpus.values()):
            self._open(vcpus)
            return None
        counted = sibling_preemptions.count(
            [self._recorders[thread].read() for thread in vcpus.values()])
        if counted is None or counted.length_ns < _LEAST_NS:
            return None
        return counted.preemptions / (counted.length_ns / 1e9)

    def close(self) -> None:
        """Close all; harmless when repeated."""
        self.retain(frozenset())

    def _open(self, vcpus: Mapping[int, int]) -> None:
        """Record all vCPUs of a server, or none."""
        new = [thread for thread in vcpus.values()
               if thread not in self._recorders]
        if len(self._recorders) + len(new) > _MOST_THREADS:
            self._set_problem(f'they have more than {_MOST_THREADS} vCPUs: '
                              'those of some are left out')
            return
        with contextlib.ExitStack() as opened:
            recorders = {}
            try:
                for thread in new:
                    recorders[thread] = self._record(thread)
                    opened.callback(recorders[thread].close)
            except OSError as error:
                if error.errno != errno.ESRCH:
                    self._set_problem(perf.reason(error))
                return
            opened.pop_all()
        self._recorders.update(recorders)
        self._set_problem('')

    def _set_problem(self, problem: str) -> None:
        if problem and problem != self._problem:
            LOG.info('Preemptions of servers that spin are not counted: %s',
                     problem)
        self._problem = problem
