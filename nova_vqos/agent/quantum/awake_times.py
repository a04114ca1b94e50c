# SPDX-License-Identifier: Apache-2.0
"""How long vCPUs work at a time: from when they wake until they sleep. Pure.

A slice of class io puts a vCPU in front for as long as the slice. One that
works for longer at a time loses its pCPU in between, once for each slice, and
with a shorter slice more often than with the kernel's own.
"""

import collections
from collections.abc import Collection, Mapping
import statistics
import typing as ty

from nova_vqos.hypervisor import base

# Of so little CPU time nothing follows: it counts with the next reading.
_LEAST_RUN_NS = 20_000_000
# One reading alone may be of a moment with more requests than at other times.
_READINGS = 3
# In parts of the longest that the slice suits. Between them nothing changes:
# without the slice requests wait for longer, and more of them are answered
# until the vCPU sleeps again.
_TOO_LONG, _SHORT_ENOUGH = 1.2, 1.1


class _Counters(ty.NamedTuple):
    run_ns: int
    sleeps: int


class AwakeTimes:
    """Those of some vCPUs of a server.

    :ivar us: the mean CPU time of each, by its number, the median of the last
        readings; of one that did not sleep, what it ran for; one that is not
        known is missing
    """

    def __init__(self) -> None:
        self.us: dict[int, float] = {}
        self._before: dict[int, _Counters] = {}
        self._means_us: dict[int, collections.deque[float]] = {}
        self._too_long: set[int] = set()

    def retain(self, numbers: Collection[int]) -> None:
        """Forget all other vCPUs."""
        for number in self._before.keys() - set(numbers):
            self._forget(number)

    def update(self, runs: Mapping[int, base.ThreadRun],
               sleeps: Mapping[int, int], longest_us: float) -> None:
        """Add a reading of counters.

        :param sleeps: how often each slept; one that is missing in either is
            not known from now on
        :param longest_us: the longest that the slice suits
        """
        known = runs.keys() & sleeps.keys()
        self.retain(known)
        for number in known:
            now = _Counters(runs[number].run_ns, sleeps[number])
            before = self._before.setdefault(number, now)
            if now.run_ns < before.run_ns or now.sleeps < before.sleeps:
                # Another thread.
                self._forget(number)
                self._before[number] = now
            elif now.run_ns >= before.run_ns + _LEAST_RUN_NS:
                self._add(number, (now.run_ns - before.run_ns) / 1000
                          / max(1, now.sleeps - before.sleeps))
                self._before[number] = now
            if number in self.us:
                self._judge(number, longest_us)

    def is_too_long(self, number: int) -> bool:
        """Whether a vCPU is known to work for too long at a time."""
        return number in self._too_long

    def _add(self, number: int, mean_us: float) -> None:
        means_us = self._means_us.setdefault(
            number, collections.deque(maxlen=_READINGS))
        means_us.append(mean_us)
        self.us[number] = round(statistics.median(means_us), 1)

    def _judge(self, number: int, longest_us: float) -> None:
        if self.us[number] > _TOO_LONG * longest_us:
            self._too_long.add(number)
        elif self.us[number] <= _SHORT_ENOUGH * longest_us:
            self._too_long.discard(number)

    def _forget(self, number: int) -> None:
        self._before.pop(number, None)
        self._means_us.pop(number, None)
        self.us.pop(number, None)
        self._too_long.discard(number)
