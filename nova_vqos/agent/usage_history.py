# SPDX-License-Identifier: Apache-2.0
"""What a server's vCPUs used, as it was counted again and again. Pure."""

import collections

from nova_vqos import units
from nova_vqos.agent import messages
from nova_vqos.billing import usage

# What "lately" is, and how old the last reading of it may be.
_WINDOW_S = 60.0
_STALE_S = 90.0


class History:
    """Readings of the last minute, of one run of a server's emulator."""

    def __init__(self) -> None:
        self._readings: collections.deque[usage.VcpuTime] = (
            collections.deque())

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
        elif last is not None:
            reading = reading._replace(
                vcpu_ns=max(last.vcpu_ns, reading.vcpu_ns),
                throttled_ns=max(last.throttled_ns, reading.throttled_ns))
        self._readings.append(reading)
        while (len(self._readings) > 2 and reading.read_at_s
                - self._readings[1].read_at_s >= _WINDOW_S):
            self._readings.popleft()

    def rates(self, coefficient: float | None,
              now_s: float) -> messages.Rates | None:
        """What there was of it in the last minute.

        :param coefficient: of the pCPUs; None: it is not known
        :param now_s: on the monotonic clock
        :returns: None where there are no two samples, or no recent one
        """
        last = self.last
        if last is None or now_s - last.read_at_s > _STALE_S:
            return None
        first = self._readings[0]
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
        return messages.Rates(over_s, delivered_cu, min(1.0, throttled))
