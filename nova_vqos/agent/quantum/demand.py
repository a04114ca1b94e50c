# SPDX-License-Identifier: Apache-2.0
"""How much CPU time vCPUs want, as they were seen to. Pure."""

from collections.abc import Mapping
import math

from nova_vqos.hypervisor import base
from nova_vqos.quantum import model

# A vCPU counts as wanting less only where it does by so much, in tenths:
# plans are to be steady.
_MARGIN = 0.5
_TENTH_NS = 1e8
# Over a longer time, unless readings are that rare, a mean says little of the
# present: what was known stays.
_LONGEST_S = 300.0


class Demand:
    """What the vCPUs of a server wanted in the last interval.

    :ivar tenths: of a pCPU that each wanted at most, by its number; one that
        is not known is missing
    """

    def __init__(self) -> None:
        self.tenths: dict[int, int] = {}
        self._before: Mapping[int, base.ThreadRun] = {}
        self._began_s: float | None = None

    def update(self, runs: Mapping[int, base.ThreadRun], now_s: float,
               interval_s: float) -> None:
        """Add a reading of counters.

        :param runs: {}: they could not be read
        :param interval_s: that demand is averaged over, at least
        """
        if not runs:
            return
        if self._began_s is not None:
            if now_s < self._began_s + interval_s:
                return
            elapsed_s = now_s - self._began_s
            if elapsed_s > max(_LONGEST_S, 2 * interval_s):
                self._before, self._began_s = runs, now_s
                return
            for number in self.tenths.keys() | runs.keys():
                wanted = _wanted(self._before.get(number), runs.get(number))
                if wanted is None:
                    self.tenths.pop(number, None)
                else:
                    before = self.tenths.get(number, model.TENTHS)
                    self.tenths[number] = _steady(wanted / elapsed_s, before)
        self._before, self._began_s = runs, now_s


def _wanted(before: base.ThreadRun | None,
            now: base.ThreadRun | None) -> float | None:
    """For how long a vCPU ran or wanted to, in tenths of seconds.

    :returns: None: its thread is another one, or was not read
    """
    if before is None or now is None or (
            now.run_ns < before.run_ns or now.waited_ns < before.waited_ns):
        return None
    return (now.run_ns - before.run_ns
            + now.waited_ns - before.waited_ns) / _TENTH_NS


def _steady(tenths: float, before: int) -> int:
    """More at once, less where it is clearly less."""
    if before - 1 - _MARGIN <= tenths <= before:
        return before
    return max(1, min(model.TENTHS, math.ceil(tenths)))
