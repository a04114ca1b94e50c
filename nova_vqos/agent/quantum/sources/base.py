# SPDX-License-Identifier: Apache-2.0
"""The contract of recognition sources, and the rates of counters.

A source provides one or two of the four rates of a
:class:`~nova_vqos.quantum.recognition.Sample`. stevedore finds it by its name
in the namespace ``nova_vqos.quantum_sources``, and makes it without arguments.
Where two sources provide the same rate the first counts. A source that cannot
work on this host says why, and provides nothing.
"""

import abc
from collections.abc import Container, Hashable, Mapping
import dataclasses

from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

#: Why a source that reads servers lacks rates before the first of them.
NOT_READ = 'no server has been read yet'

# A rate over a longer time says little of the present.
_MAX_ELAPSED_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """All servers that are to be recognised, at one moment.

    :ivar now_s: on the monotonic clock
    :ivar servers: by UUID, the thread id of each vCPU by its number
    :ivar activities: by UUID, the hypervisor's counters; without servers
        whose counters are unknown now
    """

    now_s: float
    servers: Mapping[str, Mapping[int, int]]
    activities: Mapping[str, recognition.Activity]


class Source(abc.ABC):
    """Provides rates of one kind of work.

    :ivar missing: why the last observation had no rates; '': it had some
    """

    missing = NOT_READ

    def available(self) -> str:
        """Whether the last observation had rates.

        :returns: '' if so; else the reason, for an operator
        """
        return self.missing

    @abc.abstractmethod
    def read(self, observed: Observation) -> Mapping[model.Key,
                                                 recognition.Sample]:
        """The rates of vCPUs since the last observation.

        Drops whatever belongs to servers that are not observed any more.
        Never raises when a single server or thread disappears meanwhile.

        :returns: the known rates by vCPU; other rates are None
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Release everything; harmless when repeated. Never raises."""


class Rates:
    """The rates of counters, each under a key of the caller's.

    A counter that is new, or that fell, starts over: its rate is known from
    the next reading on.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[int, float]] = {}

    def update(self, key: Hashable, count: int, now_s: float) -> float | None:
        """Add a reading of a counter.

        :returns: its growth per second since the last one; None: unknown
        """
        last_count, last_s = self._last.get(key, (count, now_s))
        self._last[key] = count, now_s
        elapsed = elapsed_s(last_s, now_s)
        if elapsed is None or count < last_count:
            return None
        return (count - last_count) / elapsed

    def retain(self, keys: Container[Hashable]) -> None:
        """Drop all other counters."""
        for key in [key for key in self._last if key not in keys]:
            del self._last[key]


def elapsed_s(before_s: float, now_s: float) -> float | None:
    """The time between two readings.

    :returns: None where they cannot be compared: the clock stood still, went
        back, or leapt
    """
    elapsed = now_s - before_s
    return elapsed if 0 < elapsed <= _MAX_ELAPSED_S else None
