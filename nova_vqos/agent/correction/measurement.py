# SPDX-License-Identifier: Apache-2.0
"""The speed of one server on this host, by what its guest executes. Pure."""

import collections
import math
import statistics

from nova_vqos import speeds
from nova_vqos.billing import usage

# Windows that the speed is the median of, and without which there is none.
_MOST_WINDOWS = 12
LEAST_WINDOWS = 3
# Less CPU time in a window shows little.
_LEAST_CPU_S = 0.1
# A window counts if the cap held the server back: it was throttled for so
# much of the time, or used so much of its cap.
_LEAST_THROTTLED = 0.01
_LEAST_USED = 0.9
# Windows in a row with another speed that show other work.
_CONFIRMATIONS = 3
# A normal distribution's standard deviation over its median absolute one.
_DEVIATION_OVER_MEDIAN = 1.4826
# No mean is more certain: windows in a row are not independent.
_LEAST_DEVIATION = 0.003


class Measurement:
    """Readings of one server in one run.

    :ivar phases: how often its work changed
    """

    def __init__(self) -> None:
        self.phases = 0
        self._last: usage.GuestWork | None = None
        self._logs: collections.deque[float] = collections.deque(
            maxlen=_MOST_WINDOWS)
        self._apart: list[float] = []

    @property
    def windows(self) -> int:
        """How many windows its speed is the median of."""
        return len(self._logs)

    @property
    def speed(self) -> speeds.Speed | None:
        """The speed in the present phase; None: too few windows."""
        if len(self._logs) < LEAST_WINDOWS:
            return None
        deviation = max(_LEAST_DEVIATION,
                        self._deviation() / math.sqrt(len(self._logs)))
        return speeds.Speed(statistics.median(self._logs), deviation ** 2)

    def restart_window(self) -> None:
        """Have the next window begin with the next reading."""
        self._last = None

    def add(self, reading: usage.GuestWork, cap_share: float | None) -> bool:
        """Add a reading, which ends a window.

        :param cap_share: of each vCPU, in pCPUs; None: it has no cap
        :returns: whether the work changed: the speed is another phase's
        """
        last, self._last = self._last, reading
        if last is None or last.run != reading.run:
            return False
        log = _log_of(last, reading, cap_share)
        return log is not None and self._record(log)

    def _record(self, log: float) -> bool:
        if len(self._logs) < LEAST_WINDOWS or not self._is_apart(log):
            self._apart.clear()
            self._logs.append(log)
            return False
        if self._apart and (log > statistics.median(self._logs)) != (
                self._apart[-1] > statistics.median(self._logs)):
            self._apart.clear()
        self._apart.append(log)
        if len(self._apart) < _CONFIRMATIONS:
            return False
        self._logs.clear()
        self._logs.extend(self._apart)
        self._apart.clear()
        self.phases += 1
        return True

    def _is_apart(self, log: float) -> bool:
        return abs(log - statistics.median(self._logs)) > max(
            speeds.APART, speeds.APART_DEVIATIONS * self._deviation())

    def _deviation(self) -> float:
        """Standard deviation of a window, which outliers do not move."""
        middle = statistics.median(self._logs)
        return _DEVIATION_OVER_MEDIAN * statistics.median(
            abs(log - middle) for log in self._logs)


def _log_of(first: usage.GuestWork, second: usage.GuestWork,
            cap_share: float | None) -> float | None:
    """Logarithm of the speed in a window; None: it does not count."""
    over_s = second.read_at_s - first.read_at_s
    cpu_s = (second.vcpu_ns - first.vcpu_ns) / 1e9
    instructions = second.instructions - first.instructions
    vcpus = max(1, second.vcpus)
    if (cap_share is None or over_s <= 0 or cpu_s < _LEAST_CPU_S
            or instructions <= 0 or first.vcpus != second.vcpus):
        return None
    throttled = (second.throttled_ns - first.throttled_ns) / 1e9 / (
        over_s * vcpus)
    if (throttled < _LEAST_THROTTLED
            and cpu_s < _LEAST_USED * cap_share * over_s * vcpus):
        return None
    return math.log(instructions / cpu_s)
