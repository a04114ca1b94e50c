# SPDX-License-Identifier: Apache-2.0
"""How long vCPUs work at a time: from when they wake until they sleep. Pure.

A slice of class io puts a vCPU in front for as long as the slice. One that
works for longer at a time loses its pCPU in between, once for each slice, and
with a shorter slice more often than with the kernel's own.
"""

from collections.abc import Mapping
import typing as ty

from nova_vqos.hypervisor import base

# Of so little CPU time nothing follows: it counts with the next reading.
_LEAST_RUN_NS = 20_000_000
# One that works for about as long as is too long does not flap.
_TOO_LONG = 1.2


class _Reading(ty.NamedTuple):
    run_ns: int
    sleeps: int


class AwakeTimes:
    """Those of the vCPUs of a server.

    :ivar us: the mean CPU time of each, by its number; of one that did not
        sleep, what it ran for; one that is not known is missing
    """

    def __init__(self) -> None:
        self.us: dict[int, float] = {}
        self._before: dict[int, _Reading] = {}
        self._too_long: set[int] = set()

    def update(self, runs: Mapping[int, base.ThreadRun],
               sleeps: Mapping[int, int], longest_us: float) -> None:
        """Add a reading of counters.

        :param sleeps: how often each slept; one that is missing in either is
            not known from now on
        :param longest_us: that is not too long
        """
        for number in self._before.keys() - (runs.keys() & sleeps.keys()):
            self._forget(number)
        for number in runs.keys() & sleeps.keys():
            now = _Reading(runs[number].run_ns, sleeps[number])
            before = self._before.setdefault(number, now)
            if now.run_ns < before.run_ns or now.sleeps < before.sleeps:
                # Another thread.
                self._forget(number)
                self._before[number] = now
            elif now.run_ns >= before.run_ns + _LEAST_RUN_NS:
                self.us[number] = round(
                    (now.run_ns - before.run_ns) / 1000
                    / max(1, now.sleeps - before.sleeps), 1)
                self._before[number] = now
            if number in self.us:
                self._judge(number, longest_us)

    def is_too_long(self, number: int) -> bool:
        """Whether a vCPU is known to work for too long at a time."""
        return number in self._too_long

    def _judge(self, number: int, longest_us: float) -> None:
        if self.us[number] > _TOO_LONG * longest_us:
            self._too_long.add(number)
        elif self.us[number] <= longest_us:
            self._too_long.discard(number)

    def _forget(self, number: int) -> None:
        self._before.pop(number, None)
        self.us.pop(number, None)
        self._too_long.discard(number)
