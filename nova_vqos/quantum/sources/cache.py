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

"""How vCPUs use the last-level cache: the source ``cache``.

References and misses of each vCPU's thread, from the CPU's own counters. Not
the generic events of the kernel (cache-references, cache-misses): on AMD and
arm64 these are of other caches than the last. Where the CPU does not count its
last-level cache for single threads, as AMD since Zen, or has no counters, as
most virtual machines, there is nothing to be told.
"""

from collections.abc import Mapping, Set

from nova_vqos.quantum import recognition
from nova_vqos.quantum.sources import base
from nova_vqos.quantum.sources import growth
from nova_vqos.quantum.sources import perf

# The last-level cache (2), reads (0 << 8): all, and misses (1 << 16).
_LAST_LEVEL_READS = 2
_MISSES = 1 << 16
EVENTS = (perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS),
          perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS | _MISSES))

#: Threads watched at most: each takes two files.
MOST_THREADS = 4096


class _Watched:
    """A thread whose events are counted."""

    def __init__(self, group: perf.Group, now_s: float) -> None:
        """
        :raises OSError: when it cannot be read
        """
        self.group = group
        self._last = group.read()
        self._read_at_s = now_s

    def per_second(self, now_s: float) -> tuple[float, ...] | None:
        """How often each event happened since the last time.

        :raises OSError: when it cannot be read
        """
        found = self.group.read()
        counted = perf.scaled(self._last, found)
        passed_s = growth.passed_s(self._read_at_s, now_s)
        self._last, self._read_at_s = found, now_s
        if counted is None or passed_s is None:
            return None
        return tuple(count / passed_s for count in counted)


class CacheSource(base.Source):
    """Counts events in threads; each is opened once, and closed at its end."""

    def __init__(self, events: tuple[perf.Event, perf.Event] = EVENTS, *,
                 most_threads: int = MOST_THREADS) -> None:
        """
        :param events: what counts as reference and as miss
        """
        self._events = events
        self._most_threads = most_threads
        self._watched: dict[int, _Watched] = {}
        self._missing = perf.probe(events)

    def available(self) -> str:
        return self._missing

    def read(self, look: base.Look) -> Mapping[base.Key, recognition.Sample]:
        threads = {(uuid, number): thread
                   for uuid, vcpus in look.servers.items()
                   for number, thread in vcpus.items()}
        for thread in self._watched.keys() - set(threads.values()):
            self._drop(thread)
        # Each time: what is missing may be mended while the agent runs.
        self._missing = perf.probe(self._events)
        if self._missing:
            return {}
        samples = {}
        for key, thread in threads.items():
            rates = self._per_second(thread, look.now_s)
            if rates is not None:
                references, misses = rates
                samples[key] = recognition.Sample(references=references,
                                                  misses=misses)
        self._open(set(threads.values()), look.now_s)
        return samples

    def close(self) -> None:
        for thread in list(self._watched):
            self._drop(thread)

    def _per_second(self, thread: int, now_s: float
                    ) -> tuple[float, ...] | None:
        """None: not known this time."""
        watched = self._watched.get(thread)
        if watched is None:
            return None
        try:
            return watched.per_second(now_s)
        except OSError:
            # It is opened anew.
            self._drop(thread)
            return None

    def _open(self, threads: Set[int], now_s: float) -> None:
        reasons = []
        for thread in sorted(threads - self._watched.keys()):
            if len(self._watched) >= self._most_threads:
                reasons.append('these are too many')
                continue
            try:
                group = perf.Group(self._events, thread)
            except OSError as error:
                if error.errno not in perf.GONE:
                    reasons.append(perf.why(error))
                continue
            try:
                self._watched[thread] = _Watched(group, now_s)
            except OSError as error:
                group.close()
                reasons.append(perf.why(error))
        if reasons:
            self._missing = (f'{len(reasons)} of {len(threads)} vCPUs are not '
                             f'watched: {reasons[0]}')

    def _drop(self, thread: int) -> None:
        self._watched.pop(thread).group.close()
