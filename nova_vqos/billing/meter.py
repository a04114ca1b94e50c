# SPDX-License-Identifier: Apache-2.0
"""The bill of a server for the time between two readings. Pure.

Amounts are exact fractions of nanoseconds. So a bill does not depend on the
lengths of the intervals, except where the mean size of requests changes.
Whatever counters do, no usage is billed twice and no bill is negative: in
doubt nothing is billed.
"""

from collections.abc import Container, Mapping
import dataclasses
from fractions import Fraction
import operator
import types
import typing as ty

from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import usage

#: Parts of a bill. The first is the server's own work, the others are the
#: host's work for its I/O.
COMPONENTS = ('vcpu', 'emulator', 'iothread', 'vhost', 'net_rx', 'net_tx',
              'disk')
#: I/O that the kernel charged to threads of the server; the rest is modelled.
MEASURED_IO = ('emulator', 'iothread', 'vhost')
MODELLED_IO = ('net_rx', 'net_tx', 'disk')
#: What others send a server, which it did not ask for.
RECEIVED = 'net_rx'

_Counters = ty.TypeVar('_Counters', usage.InterfaceCounters,
                       usage.DiskCounters)
# dataclasses.astuple copies each value, which took most of a round's time.
_VALUES = {kind: operator.attrgetter(*(
    field.name for field in dataclasses.fields(kind)))
    for kind in (usage.InterfaceCounters, usage.DiskCounters)}


def measured_io(amounts: Mapping[str, int]) -> int:
    """The sum of the amounts of measured I/O."""
    return sum(amounts[name] for name in MEASURED_IO)


def modelled_io(amounts: Mapping[str, int]) -> int:
    """The sum of the amounts of modelled I/O."""
    return sum(amounts[name] for name in MODELLED_IO)


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """The kinds of a server's devices, by name.

    :ivar interfaces: by the interface's name on the host
    :ivar disks: by the name in the guest
    """

    interfaces: Mapping[str, usage.InterfaceKind]
    disks: Mapping[str, usage.DiskKind]


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """The usage of a server in an interval.

    :ivar length_s: of the interval
    :ivar used_ns: CPU time of this host by component, all of COMPONENTS
    :ivar throttled_ns: time that its vCPUs were throttled
    :ivar unmodelled: kinds of requests without a known cost, for people to
        read
    :ivar received: packets, whether they are billed or not
    :ivar dropped: packets for the server that the host dropped, likewise
    :ivar disk_requests: with a known cost, like the next
    :ivar disk_bytes: of all these requests together
    """

    length_s: float
    used_ns: Mapping[str, Fraction]
    throttled_ns: int
    unmodelled: frozenset[str]
    received: int
    dropped: int
    disk_requests: int = 0
    disk_bytes: int = 0


def from_nothing(first: usage.Usage) -> usage.Usage:
    """The baseline of a server that started on this host: all zero.

    :param first: the first reading of its run
    """
    return dataclasses.replace(
        first, vcpu_ns=0, emulator_ns=0, iothread_ns=0, vhost_ns=0,
        migration_ns=0, throttled_ns=0, interfaces={}, disks={})


def baseline(last: usage.Usage, reading: usage.Usage,
             devices: Devices) -> usage.Usage:
    """The reading that the next one is compared with.

    The reading, with the devices that could not be read this time: they return
    with usage that was billed already. Those that the server no longer has are
    forgotten: another one of the same name counts from zero.

    :param last: the baseline so far, of the same run
    """
    disks = reading.disks
    if disks is not None and last.disks is not None:
        disks = _with_unread(last.disks, disks, devices.disks)
    return dataclasses.replace(
        reading, interfaces=_with_unread(
            last.interfaces, reading.interfaces, devices.interfaces),
        disks=last.disks if disks is None else disks)


def bill(last: usage.Usage, reading: usage.Usage, devices: Devices,
         costs: io_costs.IoCosts | None, *,
         dropped_packets: bool = False,
         local_shares: Mapping[str, Fraction] = types.MappingProxyType({})
         ) -> Bill:
    """The bill of a server since the last baseline.

    :param last: of the same run: see :func:`baseline`, :func:`from_nothing`;
        a plain reading where the server's work before it is not billed
    :param costs: of this host; None: it was not calibrated for I/O
    :param dropped_packets: whether dropped packets for the server are billed
        too, as the smallest ones: their bytes are not counted
    :param local_shares: by interface, the part of what it received that
        servers of this host sent: a sender's threads brought that to the
        interface, and their time is in the sender's bill
    :raises ValueError: when the readings are of different runs
    """
    if last.run != reading.run:
        raise ValueError(f'readings of two runs, {last.run} and '
                         f'{reading.run}, cannot be compared')
    used_ns = _measured(last, reading)
    used_ns.update(dict.fromkeys(MODELLED_IO, Fraction(0)))
    unmodelled: set[str] = set()
    packets = {name: _difference(last.interfaces.get(name), now)
               for name, now in reading.interfaces.items()}
    _bill_interfaces(packets, devices, costs, used_ns, unmodelled,
                     dropped_packets=dropped_packets,
                     local_shares=local_shares)
    disk_requests, disk_bytes = _bill_disks(
        last, reading, devices, costs, used_ns, unmodelled)
    return Bill(
        length_s=max(0.0, reading.read_at_s - last.read_at_s),
        used_ns=used_ns,
        throttled_ns=_grown(last.throttled_ns, reading.throttled_ns),
        unmodelled=frozenset(unmodelled),
        received=sum(one.rx_packets for one in packets.values()),
        dropped=sum(one.rx_dropped for one in packets.values()),
        disk_requests=disk_requests, disk_bytes=disk_bytes)


def _bill_interfaces(packets: Mapping[str, usage.InterfaceCounters],
                     devices: Devices, costs: io_costs.IoCosts | None,
                     used_ns: dict[str, Fraction], unmodelled: set[str], *,
                     dropped_packets: bool,
                     local_shares: Mapping[str, Fraction]) -> None:
    for name, done in packets.items():
        dropped = done.rx_dropped if dropped_packets else 0
        if not (done.rx_packets + dropped + done.tx_packets):
            continue
        kind = devices.interfaces.get(name)
        cost = (None if kind is None or costs is None
                else costs.interfaces.get(kind))
        if cost is None:
            unmodelled.add(_interface_text(kind))
            continue
        used_ns['net_rx'] += (1 - local_shares.get(name, 0)) * (
            cost.rx.total_ns(done.rx_packets, done.rx_bytes)
            # Their bytes are not counted.
            + cost.rx.total_ns(dropped, 0))
        used_ns['net_tx'] += cost.tx.total_ns(done.tx_packets, done.tx_bytes)


def _bill_disks(last: usage.Usage, reading: usage.Usage, devices: Devices,
                costs: io_costs.IoCosts | None,
                used_ns: dict[str, Fraction], unmodelled: set[str]
                ) -> tuple[int, int]:
    """:returns: requests with a known cost, and their bytes"""
    requests = size_bytes = 0
    if last.disks is None or reading.disks is None:
        # Billed with the next reading that has them, if there is a baseline.
        return requests, size_bytes
    for name, now in reading.disks.items():
        done = _difference(last.disks.get(name), now)
        if not any(_VALUES[type(done)](done)):
            continue
        kind = devices.disks.get(name)
        cost = (None if kind is None or costs is None
                else costs.disks.get(kind))
        if cost is None:
            unmodelled.add(_disk_text(kind))
            continue
        used_ns['disk'] += (
            cost.read.total_ns(done.read_requests, done.read_bytes)
            + cost.write.total_ns(done.write_requests, done.write_bytes))
        requests += done.read_requests + done.write_requests
        size_bytes += done.read_bytes + done.write_bytes
    return requests, size_bytes


def _measured(last: usage.Usage, reading: usage.Usage
              ) -> dict[str, Fraction]:
    """CPU time that the kernel charged to the server's threads."""
    grown = {name: (getattr(reading, f'{name}_ns')
                    - getattr(last, f'{name}_ns'))
             for name in ('vcpu', *MEASURED_IO, 'migration')}
    # A restarted agent does not know threads that ended before. Their time is
    # in the emulator's time, that of I/O threads in the vCPUs' time. It was
    # billed before, or was not to be billed.
    grown['emulator'] += min(0, grown['vhost']) + min(0, grown['migration'])
    grown['vcpu'] += min(0, grown['iothread'])
    return {name: Fraction(max(0, grown[name]))
            for name in ('vcpu', *MEASURED_IO)}


def _grown(before: int, now: int) -> int:
    """The growth of a counter of CPU time.

    NOTE: it does not restart within a run. It falls where one of its threads
    ends (a vCPU was unplugged), and the rest was billed before.
    """
    return max(0, now - before)


def _difference(before: _Counters | None, now: _Counters) -> _Counters:
    """The growth of a device's counters, all of them where one fell.

    A counter falls where it wraps, or where a new device has this name.
    """
    if before is None:
        return now
    values = _VALUES[type(now)]
    grown = [value - last for value, last in zip(
        values(now), values(before), strict=True)]
    return now if min(grown) < 0 else type(now)(*grown)


def _with_unread(last: Mapping[str, _Counters], now: Mapping[str, _Counters],
                 present: Container[str]) -> dict[str, _Counters]:
    """
    :param present: names of the devices that the server has
    """
    return {**{name: counters for name, counters in last.items()
               if name in present}, **now}


def _interface_text(kind: usage.InterfaceKind | None) -> str:
    if kind is None:
        return 'interface of unknown kind'
    return (f'interface, mode {kind.mode or "unknown"}, '
            f'backend {kind.backend or "unknown"}')


def _disk_text(kind: usage.DiskKind | None) -> str:
    if kind is None:
        return 'disk of unknown kind'
    return f'disk, {kind.source}, {"" if kind.buffered else "not "}buffered'
