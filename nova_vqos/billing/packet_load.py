# SPDX-License-Identifier: Apache-2.0
"""Whether pCPUs have time for the packets that arrive.

A pCPU that receives more packets than it can has no idle time left, drops
packets, and delivers no more however many come (receive livelock: Mogul and
Ramakrishnan, ACM TOCS 15(3), 1997). The time of softirqs alone does not show
that: a kernel may not count it, and ksoftirqd shares the pCPU with the threads
of servers that want to run there.
"""

from collections.abc import Mapping
import dataclasses

from nova_vqos.billing import usage

# A pCPU that idles less has no time for more.
_LEAST_IDLE_SHARE = 0.1
# Growth of what is delivered by which more still gets through.
_FLAT_GROWTH = 0.05
# Part of the highest rate that counts in the next minute.
_REMEMBERED = 0.99
_NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class PcpuSoftirqs:
    """CPU time of a pCPU on packets and timers since the host booted.

    :ivar softirq_s: in all; None: this kernel does not count it
    :ivar ksoftirqd_s: of that, by its ksoftirqd, beside the other threads
        there; None: not shown
    """

    pcpu: int
    softirq_s: float | None
    ksoftirqd_s: float | None


@dataclasses.dataclass(frozen=True, slots=True)
class PacketReport:
    """What pCPUs did with packets in the last minute, for people.

    :ivar softirq_share: of its time that the busiest pCPU spent on packets and
        timers; None: this kernel does not count it
    :ivar dropped_packets: since the agent started, as the next
    :ivar squeezed_polls: that ended before all packets were delivered, since
        their time or budget was over
    :ivar saturated_pcpus: without time for more packets
    :ivar softirqs: of each pCPU that is online; for the host's metrics alone
    """

    softirq_share: float | None
    dropped_packets: int
    squeezed_polls: int
    saturated_pcpus: tuple[int, ...]
    softirqs: tuple[PcpuSoftirqs, ...] = ()


class PacketLoad:
    """Observes the packets that a host receives."""

    def __init__(self) -> None:
        self._last: Mapping[int, usage.PacketWork] = {}
        self._read_at_s = 0.0
        # The most that was delivered in a second lately, by pCPU.
        self._highest: Mapping[int, float] = {}
        self._report: PacketReport | None = None

    def add(self, read_at_s: float,
            work: Mapping[int, usage.PacketWork]) -> None:
        """Add a reading.

        :param work: by pCPU; empty: the kernel does not show it
        """
        last, self._last = self._last, work
        length_s, self._read_at_s = read_at_s - self._read_at_s, read_at_s
        # A pCPU that was offline meanwhile is compared the next time.
        grown = {pcpu: work[pcpu].since(last[pcpu])
                 for pcpu in work.keys() & last.keys()}
        if not grown or length_s <= 0:
            self._highest, self._report = {}, None
            return
        # All zero for ever: this kernel does not count it.
        is_counted = any(one.softirq_ns for one in work.values())
        shares = {pcpu: one.softirq_ns / _NS_PER_S / length_s
                  for pcpu, one in grown.items()}
        rates = {pcpu: one.processed / length_s
                 for pcpu, one in grown.items()}
        saturated = tuple(sorted(
            pcpu for pcpu, one in grown.items()
            if one.dropped
            and one.idle_ns < _LEAST_IDLE_SHARE * length_s * _NS_PER_S
            and pcpu in self._highest
            and rates[pcpu] <= self._highest[pcpu] * (1 + _FLAT_GROWTH)))
        # What is delivered varies from minute to minute, also where it cannot
        # grow.
        self._highest = {
            pcpu: max(rate, _REMEMBERED * self._highest.get(pcpu, 0.0))
            for pcpu, rate in rates.items()}
        before = self._report
        self._report = PacketReport(
            round(max(shares.values()), 4) if is_counted else None,
            sum(one.dropped for one in grown.values())
            + (before.dropped_packets if before else 0),
            sum(one.squeezed for one in grown.values())
            + (before.squeezed_polls if before else 0), saturated,
            tuple(PcpuSoftirqs(
                pcpu, one.softirq_ns / _NS_PER_S if is_counted else None,
                None if one.ksoftirqd_ns is None
                else one.ksoftirqd_ns / _NS_PER_S)
                for pcpu, one in sorted(work.items())))

    @property
    def report(self) -> PacketReport | None:
        """None: before the second reading, or not shown by the kernel."""
        return self._report
