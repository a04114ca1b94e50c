# SPDX-License-Identifier: Apache-2.0
"""Rates of performance events in the threads of vCPUs."""

from collections.abc import Mapping, Sequence, Set
import errno

from nova_vqos.agent.quantum.sources import base
from nova_vqos.hypervisor.linux import perf
from nova_vqos.quantum import model

#: Each thread takes a file for each event, at most two.
MAX_THREADS = 4096


class _Watched:
    """A thread whose events are counted."""

    def __init__(self, group: perf.Group, now_s: float) -> None:
        """
        :raises OSError: when it cannot be read
        """
        self.group = group
        self._last = group.read()
        self._read_at_s = now_s

    def read(self, now_s: float) -> tuple[float, ...] | None:
        """The rate of each event since the last reading; None: unknown.

        :raises OSError: when it cannot be read
        """
        found = self.group.read()
        counted = perf.scaled(self._last, found)
        elapsed_s = base.elapsed_s(self._read_at_s, now_s)
        self._last, self._read_at_s = found, now_s
        if counted is None or elapsed_s is None:
            return None
        return tuple(count / elapsed_s for count in counted)


class ThreadEvents:
    """Counts events in threads; opens each once, and closes it at its end.

    :ivar events: that are counted
    :ivar missing: why some or all are not counted; '': they are
    """

    def __init__(self, events: Sequence[perf.Event],
                 max_threads: int = MAX_THREADS) -> None:
        self.events = events
        self._max_threads = max_threads
        self._watched: dict[int, _Watched] = {}
        self.missing = perf.probe(events)

    @property
    def watches(self) -> bool:
        """Whether it counts in any thread now."""
        return bool(self._watched)

    def read(self, observed: base.Observation
             ) -> Mapping[model.Key, tuple[float, ...]]:
        """The known rates of events since the last reading, by vCPU."""
        threads = {(uuid, number): thread
                   for uuid, vcpus in observed.servers.items()
                   for number, thread in vcpus.items()}
        for thread in self._watched.keys() - set(threads.values()):
            self._drop(thread)
        # Each time: an operator may grant the right while the agent runs.
        self.missing = perf.probe(self.events)
        if self.missing:
            return {}
        found = {}
        for key, thread in threads.items():
            rates = self._read_thread(thread, observed.now_s)
            if rates is not None:
                found[key] = rates
        self._open(set(threads.values()), observed.now_s)
        return found

    def close(self) -> None:
        """Close all; harmless when repeated."""
        for thread in list(self._watched):
            self._drop(thread)

    def _read_thread(self, thread: int, now_s: float
                     ) -> tuple[float, ...] | None:
        """None: unknown this time."""
        watched = self._watched.get(thread)
        if watched is None:
            return None
        try:
            return watched.read(now_s)
        except OSError:
            # It is opened again at the end.
            self._drop(thread)
            return None

    def _open(self, threads: Set[int], now_s: float) -> None:
        reasons = []
        for thread in sorted(threads - self._watched.keys()):
            if len(self._watched) >= self._max_threads:
                reasons.append('these are too many')
                continue
            try:
                group = perf.Group(self.events, thread)
            except OSError as error:
                # Not of a thread that is gone.
                if error.errno != errno.ESRCH:
                    reasons.append(perf.reason(error, self.events))
                continue
            try:
                self._watched[thread] = _Watched(group, now_s)
            except OSError as error:
                group.close()
                reasons.append(perf.reason(error, self.events))
        if reasons:
            self.missing = (f'{len(reasons)} of {len(threads)} vCPUs are not '
                            f'watched: {reasons[0]}')

    def _drop(self, thread: int) -> None:
        self._watched.pop(thread).group.close()
