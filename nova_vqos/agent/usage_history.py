# SPDX-License-Identifier: Apache-2.0
"""What a server's vCPUs used, as it was counted again and again. Pure."""

import bisect
import operator

from nova_vqos import units
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import usage

# What "lately" is, and how old the last reading may be.
_LATELY_S = 60.0
_STALE_S = 90.0
# The longest that rates are asked for.
_LONGEST_S = 300.0
# A reading is taken at a tick, so some may be nearer than their interval.
_SLACK_S = 1.0

_READ_AT_S = operator.attrgetter('read_at_s')


class History:
    """Readings of five minutes, of one run of a server's emulator."""

    def __init__(self) -> None:
        self._readings: list[usage.VcpuTime] = []

    @property
    def last(self) -> usage.VcpuTime | None:
        """The newest; None: there was none."""
        return self._readings[-1] if self._readings else None

    def add(self, reading: usage.VcpuTime) -> None:
        """Take a reading in; a counter that fell stays where it was.

        Those of another run begin anew.
        """
        last = self.last
        if last is not None and last.run != reading.run:
            self._readings.clear()
        elif last is not None and (
                reading.vcpu_ns < last.vcpu_ns
                or reading.throttled_ns < last.throttled_ns):
            reading = reading._replace(
                vcpu_ns=max(last.vcpu_ns, reading.vcpu_ns),
                throttled_ns=max(last.throttled_ns, reading.throttled_ns))
        self._readings.append(reading)
        del self._readings[:self._first(_LONGEST_S)]

    def full_rates(self, window_s: float, coefficient: float | None,
                   now_s: float) -> server_report.Rates | None:
        """What there was of it in a window that readings fill.

        :param window_s: its length, 300 at most
        :returns: None where readings cover less, or are so rare that they
            cover more than twice as much; else see :meth:`rates`
        """
        found = self.rates(coefficient, now_s, window_s)
        if found is None or not (
                window_s - _SLACK_S <= found.over_s <= 2 * window_s):
            return None
        return found

    def rates(self, coefficient: float | None, now_s: float,
              window_s: float = _LATELY_S) -> server_report.Rates | None:
        """What there was of it in the last minute, or since the first reading.

        :param coefficient: of the pCPUs; None: it is not known
        :param now_s: on the monotonic clock
        :param window_s: what to take in the place of a minute
        :returns: None where there are no two samples, or no recent one
        """
        last = self.last
        if last is None or now_s - last.read_at_s > min(
                _STALE_S, 2 * window_s):
            return None
        first = self._readings[self._first(window_s)]
        over_s = last.read_at_s - first.read_at_s
        if over_s <= 0:
            return None
        delivered_cu = None if coefficient is None else (
            units.CU_PER_REFERENCE_PCPU * coefficient
            * (last.vcpu_ns - first.vcpu_ns) / 1e9 / over_s)
        # NOTE: the limit of the domain as a whole holds back what runs for
        # it beside its vCPUs, too.
        throttled = (last.throttled_ns - first.throttled_ns) / 1e9 / (
            over_s * max(1, last.vcpus))
        return server_report.Rates(over_s, delivered_cu, min(1.0, throttled))

    def clock(self, now_s: float, *, full: bool = False) -> usage.ClockTime:
        """CPU time in the last minute whose cycles were counted.

        :param full: only where readings fill that minute
        :returns: empty where there was none, or its clock is not known
        """
        last = self.last
        if (last is None or not last.clock.ran_ns
                or now_s - last.read_at_s > _STALE_S):
            return usage.NO_CLOCK_TIME
        first = self._readings[self._first(_LATELY_S)]
        if full and last.read_at_s - first.read_at_s < _LATELY_S - _SLACK_S:
            return usage.NO_CLOCK_TIME
        return usage.ClockTime(last.clock.ran_ns - first.clock.ran_ns,
                               last.clock.cycles - first.clock.cycles)

    def _first(self, window_s: float) -> int:
        """Where the window begins: with the newest reading that is as old."""
        begin_s = self._readings[-1].read_at_s - window_s + _SLACK_S
        return max(0, bisect.bisect_right(
            self._readings, begin_s, key=_READ_AT_S) - 1)
