# SPDX-License-Identifier: Apache-2.0
"""How vCPUs use the last-level cache: the source ``cache``.

The CPU's own counters provide references and misses of each vCPU's thread. Not
the kernel's generic events (cache-references, cache-misses): on AMD and arm64
these count other caches. A CPU that does not count its last-level cache for
single threads, as AMD's since Zen, or that has no counters, as most virtual
machines, provides nothing.
"""

from collections.abc import Mapping

from nova_vqos.agent.quantum.sources import base
from nova_vqos.agent.quantum.sources import thread_events
from nova_vqos.hypervisor.linux import perf
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

# The last-level cache (2), reads (0 << 8): all, and misses (1 << 16).
_LAST_LEVEL_READS = 2
_MISSES = 1 << 16
EVENTS = (perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS),
          perf.Event(perf.TYPE_HW_CACHE, _LAST_LEVEL_READS | _MISSES))


class CacheSource(base.Source):
    """Counts references and misses."""

    def __init__(self, events: tuple[perf.Event, perf.Event] = EVENTS, *,
                 max_threads: int = thread_events.MAX_THREADS) -> None:
        """
        :param events: references and misses
        """
        self._counted = thread_events.ThreadEvents(events, max_threads)
        self.missing = self._counted.missing

    def read(self, observed: base.Observation) -> Mapping[model.Key,
                                                          recognition.Sample]:
        rates = self._counted.read(observed)
        self.missing = self._counted.missing
        return {key: recognition.Sample(references=references, misses=misses)
                for key, (references, misses) in rates.items()}

    def close(self) -> None:
        self._counted.close()
