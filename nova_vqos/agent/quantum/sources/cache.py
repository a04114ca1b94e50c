# SPDX-License-Identifier: Apache-2.0
"""How vCPUs use the last-level cache: the source ``cache``.

The CPU's own counters provide references and misses of each vCPU's thread. Not
the kernel's generic events (cache-references, cache-misses): on AMD and arm64
these count other caches. A CPU that does not count its last-level cache for
single threads, as AMD's since Zen, or that has no counters, as most virtual
machines, provides nothing.
"""

from collections.abc import Mapping, Set
import errno

from nova_vqos.agent.quantum.sources import base
from nova_vqos.hypervisor.linux import perf
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

# The last-level cache (2), reads (0 << 8): all, and misses (1 << 16).
_LAST_LEVEL_READS = 2
_MISSES = 1 << 16
EVENTS = (perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS),
          perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS | _MISSES))

#: Each thread takes two files.
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


class CacheSource(base.Source):
    """Counts events in threads; opens each once, and closes it at its end."""

    def __init__(self, events: tuple[perf.Event, perf.Event] = EVENTS, *,
                 max_threads: int = MAX_THREADS) -> None:
        """
        :param events: references and misses
        """
        self._events = events
        self._max_threads = max_threads
        self._watched: dict[int, _Watched] = {}
        self.missing = perf.probe(events)

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                          recognition.Sample]:
        threads = {(uuid, number): thread
                   for uuid, vcpus in observed.servers.items()
                   for number, thread in vcpus.items()}
        for thread in self._watched.keys() - set(threads.values()):
            self._drop(thread)
        # Each time: an operator may grant the right while the agent runs.
        self.missing = perf.probe(self._events)
        if self.missing:
            return {}
        samples = {}
        for key, thread in threads.items():
            rates = self._read_thread(thread, observed.now_s)
            if rates is not None:
                references, misses = rates
                samples[key] = recognition.Sample(references=references,
                                                  misses=misses)
        self._open(set(threads.values()), observed.now_s)
        return samples

    def close(self) -> None:
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
                group = perf.Group(self._events, thread)
            except OSError as error:
                # Not of a thread that is gone.
                if error.errno != errno.ESRCH:
                    reasons.append(perf.reason(error))
                continue
            try:
                self._watched[thread] = _Watched(group, now_s)
            except OSError as error:
                group.close()
                reasons.append(perf.reason(error))
        if reasons:
            self.missing = (f'{len(reasons)} of {len(threads)} vCPUs are not '
                            f'watched: {reasons[0]}')

    def _drop(self, thread: int) -> None:
        self._watched.pop(thread).group.close()
