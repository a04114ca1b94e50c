# SPDX-License-Identifier: Apache-2.0
"""Usage counters of servers and hosts, from kernel and hypervisor.

A hypervisor driver reads them, the agent bills them. Counters only grow within
a run of a domain's emulator; the next run starts at zero.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from fractions import Fraction
import typing as ty


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceKind:
    """A kind of interface: the cost of a packet depends on it.

    :ivar mode: connection of the interface to the network: ``bridge``,
        ``routed``, ``nat``, ``openvswitch``; '' where unknown
    :ivar backend: moves packets between guest and interface: ``vhost`` or
        ``qemu``; '' where unknown
    """

    mode: str
    backend: str


@dataclasses.dataclass(frozen=True, slots=True)
class DiskKind:
    """A kind of disk: the cost of a request depends on it.

    :ivar source: ``file``, ``block`` or ``network``
    :ivar buffered: whether the host's page cache is used
    """

    source: str
    buffered: bool


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Of one interface; the guest receives rx.

    :ivar rx_dropped: packets for the guest that the host dropped, not in
        rx_packets
    """

    rx_packets: int
    rx_bytes: int
    rx_dropped: int
    tx_packets: int
    tx_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class DiskCounters:
    """Of one disk, finished requests."""

    read_requests: int
    read_bytes: int
    write_requests: int
    write_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """All counters of a domain at one moment.

    :ivar run: id of this run of its emulator on this boot of the host:
        counters of two runs are never compared
    :ivar read_at_s: on the monotonic clock
    :ivar vcpu_ns: CPU time of its vCPU threads
    :ivar emulator_ns: of its emulator threads, without vhost and migration
    :ivar iothread_ns: of its I/O threads
    :ivar vhost_ns: of its vhost workers, threads or kernel threads
    :ivar migration_ns: of threads that only serve a migration, which the
        server did not ask for: not billed
    :ivar throttled_ns: time that limits throttled its vCPUs, and that the
        domain's limit throttled all of its threads, together
    :ivar interfaces: by the interface's name on the host
    :ivar disks: by the name in the guest, such as ``vda``; None: not read this
        time, because another job held the domain, or it was nearly idle
    """

    run: str
    read_at_s: float
    vcpu_ns: int
    emulator_ns: int
    iothread_ns: int
    vhost_ns: int
    migration_ns: int
    throttled_ns: int
    interfaces: Mapping[str, InterfaceCounters]
    disks: Mapping[str, DiskCounters] | None


class ClockTime(ty.NamedTuple):
    """CPU time, and the cycles that the CPU ran in it.

    :ivar ran_ns: 0: the clock is not known
    """

    ran_ns: int
    cycles: float

    @property
    def mhz(self) -> float:
        """The mean clock in it, which must not be empty."""
        return self.cycles / self.ran_ns * 1000


NO_CLOCK_TIME: ty.Final = ClockTime(0, 0.0)


def total_clock(times: Iterable[ClockTime]) -> ClockTime:
    """The sum of some."""
    ran_ns, cycles = 0, 0.0
    for one in times:
        ran_ns, cycles = ran_ns + one.ran_ns, cycles + one.cycles
    return ClockTime(ran_ns, cycles)


class VcpuTime(ty.NamedTuple):
    """The CPU time of a domain's vCPUs at one moment.

    :ivar run: as in :class:`Usage`, like the next three
    :ivar vcpus: how many are online
    :ivar clock: of the part of that time in which cycles were counted
    :ivar total_ns: CPU time of all threads of the domain
    :ivar held_ns: time that the domain's own limit throttled its threads: a
        part of throttled_ns
    """

    run: str
    read_at_s: float
    vcpu_ns: int
    throttled_ns: int
    vcpus: int
    clock: ClockTime = NO_CLOCK_TIME
    total_ns: int = 0
    held_ns: int = 0


class GuestWork(ty.NamedTuple):
    """The instructions of a domain, and the CPU time that they took.

    :ivar run: of one counter within a run of the emulator: it is another one
        whenever counting begins anew. Counters of two runs are never compared
    :ivar read_at_s: on the monotonic clock
    :ivar instructions: that the guest retired on all its vCPUs in this run
    :ivar vcpu_ns: CPU time of its vCPUs at the same moment, as in
        :class:`VcpuTime`, like the next two
    """

    run: str
    read_at_s: float
    instructions: float
    vcpu_ns: int
    throttled_ns: int
    vcpus: int


_WRAPS_AT = 1 << 32


@dataclasses.dataclass(frozen=True, slots=True)
class PacketWork:
    """What one pCPU did with packets that arrived, since the host booted.

    The first three have 32 bits.

    :ivar processed: packets that it delivered, or began to
    :ivar dropped: packets, since its backlog was full
    :ivar squeezed: polls that ended before all packets were delivered
    :ivar softirq_ns: time that it spent on packets, and on other softirqs,
        that of its ksoftirqd included
    :ivar idle_ns: time in which it had nothing to do
    :ivar ksoftirqd_ns: CPU time of its ksoftirqd; None: not shown
    """

    processed: int
    dropped: int
    squeezed: int
    softirq_ns: int
    idle_ns: int
    ksoftirqd_ns: int | None = None

    def since(self, before: 'PacketWork') -> 'PacketWork':
        """What it did since an earlier moment."""
        return PacketWork(
            (self.processed - before.processed) % _WRAPS_AT,
            (self.dropped - before.dropped) % _WRAPS_AT,
            (self.squeezed - before.squeezed) % _WRAPS_AT,
            max(0, self.softirq_ns - before.softirq_ns),
            # NOTE: the kernel's count of it may fall by a little.
            max(0, self.idle_ns - before.idle_ns))


@dataclasses.dataclass(frozen=True, slots=True)
class BridgeTraffic:
    """Packets that passed a bridge, or the host as a router, at one moment.

    :ivar ports: the names of all its ports, or of the router's interfaces
    :ivar sent: packets of servers
    :ivar received: packets for servers
    :ivar left: packets to its other ports, and to the host itself
    :ivar arrived: packets from there
    :ivar forwarded: packets that the router forwarded; None: this is a bridge
    """

    ports: frozenset[str]
    sent: int
    received: int
    left: int
    arrived: int
    forwarded: int | None = None

    def local_share(self, before: 'BridgeTraffic') -> Fraction:
        """The part of what servers received that servers of this host sent.

        At least that: what one packet is for several servers counts as sent by
        others. So does all where ports came or went, as their counters do.

        :param before: its traffic at an earlier moment
        """
        received = self.received - before.received
        if self.ports != before.ports or received <= 0:
            return Fraction(0)
        # Of both bounds, since packets may be dropped, and sent to several.
        local = min((self.sent - before.sent) - (self.left - before.left),
                    received - (self.arrived - before.arrived))
        if self.forwarded is not None and before.forwarded is not None:
            # A program of the host moves the others, and not in the time of
            # the sender.
            local = min(local, self.forwarded - before.forwarded)
        return Fraction(min(max(0, local), received), received)


@dataclasses.dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU time of a whole host at one moment, since it booted.

    :ivar read_at_s: on the monotonic clock
    :ivar total_ns: of all that ran
    :ivar domains_ns: of the parent cgroups of domains, so that domains that
        are gone count too
    :ivar own_ns: of the host's other processes; the rest is the kernel's
    :ivar packets: by pCPU; empty where the kernel does not show it
    """

    read_at_s: float
    total_ns: int
    domains_ns: int
    own_ns: int
    packets: Mapping[int, PacketWork] = dataclasses.field(
        default_factory=dict)
