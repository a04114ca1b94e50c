# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What a server used between two readings of its counters: pure.

The bill is kept in exact fractions of nanoseconds, so that it does not depend
on where a time is cut into intervals, but for what it costs to wake somebody
for a packet. Whatever counters do, nothing is billed
twice and nothing negative: where both cannot be had, nothing is billed.
"""

from collections.abc import Mapping
import dataclasses
from fractions import Fraction
import functools
import itertools
import operator
import typing as ty

from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import usage as usages

#: What a server is billed for. The first is its own work, the others are what
#: the host does for its I/O.
COMPONENTS = ('vcpu', 'emulator', 'iothread', 'vhost', 'net_rx', 'net_tx',
              'disk')
#: Those that the kernel charged to threads of the server, as far as they are
#: I/O; the rest of the I/O is modelled.
MEASURED_IO = ('emulator', 'iothread', 'vhost')
MODELLED_IO = ('net_rx', 'net_tx', 'disk')

# A tenant can plug and unplug devices as often as it likes.
_MOST_GONE_DEVICES = 64

_Counters = ty.TypeVar('_Counters', usages.InterfaceCounters,
                       usages.DiskCounters)
# dataclasses.astuple copies each value, which took most of a round's time.
_VALUES = {kind: operator.attrgetter(*(
    field.name for field in dataclasses.fields(kind)))
    for kind in (usages.InterfaceCounters, usages.DiskCounters)}


def measured_io(amounts: Mapping[str, int]) -> int:
    """What of amounts by component threads used for I/O."""
    return sum(amounts[name] for name in MEASURED_IO)


def modelled_io(amounts: Mapping[str, int]) -> int:
    """What of amounts by component the kernel used for I/O."""
    return sum(amounts[name] for name in MODELLED_IO)


@dataclasses.dataclass(frozen=True, slots=True)
class Devices:
    """What kinds of devices a server has, by name.

    :ivar interfaces: by the interface's name on the host
    :ivar disks: by the name in the guest
    """

    interfaces: Mapping[str, usages.InterfaceKind]
    disks: Mapping[str, usages.DiskKind]


@dataclasses.dataclass(frozen=True, slots=True)
class Bill:
    """What a server used in an interval.

    :ivar length_s: of the interval
    :ivar used_ns: CPU time of this host by component, all of COMPONENTS
    :ivar throttled_ns: how long its vCPUs were held back
    :ivar unmodelled: the kinds of requests that there were and that have no
        known cost, for people to read
    """

    length_s: float
    used_ns: Mapping[str, Fraction]
    throttled_ns: int
    unmodelled: frozenset[str]


def from_nothing(first: usages.Usage) -> usages.Usage:
    """The baseline of a server that began on this host: all is its own.

    :param first: the first reading of its run
    """
    return dataclasses.replace(
        first, vcpu_ns=0, emulator_ns=0, iothread_ns=0, vhost_ns=0,
        migration_ns=0, throttled_ns=0, interfaces={}, disks={}, wakes=0)


def baseline(last: usages.Usage, reading: usages.Usage) -> usages.Usage:
    """What the next reading is to be compared with.

    Like the reading, but that it remembers devices that are gone, or could
    not be read this time: they may come back with what was billed already.

    :param last: the baseline so far, of the same run
    """
    disks = reading.disks
    if disks is not None and last.disks is not None:
        disks = _with_gone(last.disks, disks)
    return dataclasses.replace(
        reading, interfaces=_with_gone(last.interfaces, reading.interfaces),
        disks=last.disks if disks is None else disks)


def bill(last: usages.Usage, reading: usages.Usage, devices: Devices,
         costs: io_costs.IoCosts | None, *,
         dropped_packets: bool = False) -> Bill:
    """What a server used since the last baseline.

    :param last: of the same run: see :func:`baseline`, :func:`from_nothing`;
        a reading where the server's work before it is not to be billed
    :param costs: of this host; None: it was not calibrated for I/O
    :param dropped_packets: whether packets for the server that it was not
        given are billed as well, without their bytes, which nobody counts
    :raises ValueError: when the readings are of different runs
    """
    if last.run != reading.run:
        raise ValueError(f'readings of two runs, {last.run} and '
                         f'{reading.run}, cannot be compared')
    used_ns = _measured(last, reading)
    used_ns.update(dict.fromkeys(MODELLED_IO, Fraction(0)))
    unmodelled: set[str] = set()
    _bill_interfaces(last, reading, devices, costs, used_ns, unmodelled,
                     dropped_packets=dropped_packets)
    _bill_disks(last, reading, devices, costs, used_ns, unmodelled)
    return Bill(
        length_s=max(0.0, reading.read_at_s - last.read_at_s),
        used_ns=used_ns,
        throttled_ns=_grown(last.throttled_ns, reading.throttled_ns),
        unmodelled=frozenset(unmodelled))


def _bill_interfaces(last: usages.Usage, reading: usages.Usage,
                     devices: Devices, costs: io_costs.IoCosts | None,
                     used_ns: dict[str, Fraction], unmodelled: set[str], *,
                     dropped_packets: bool) -> None:
    # NOTE: nobody counts for which packets somebody was woken: for one each
    # time at most, and not for more than there were.
    wakes = _grown(last.wakes, reading.wakes)
    for name, now in reading.interfaces.items():
        done = _difference(last.interfaces.get(name), now)
        received = done.rx_packets + (
            done.rx_dropped if dropped_packets else 0)
        # The kernel counts packets and their bytes one after the other.
        if not (received + done.rx_bytes + done.tx_packets + done.tx_bytes):
            continue
        kind = devices.interfaces.get(name)
        cost = (None if kind is None or costs is None
                else costs.interfaces.get(kind))
        if cost is None:
            unmodelled.add(_interface_text(kind))
            continue
        woken = min(wakes, done.rx_packets)
        wakes -= woken
        used_ns['net_rx'] += (
            _cost_ns(cost.rx, received, done.rx_bytes)
            + woken * Fraction(max(0.0, cost.wake_ns)))
        used_ns['net_tx'] += _cost_ns(cost.tx, done.tx_packets, done.tx_bytes)


def _bill_disks(last: usages.Usage, reading: usages.Usage, devices: Devices,
                costs: io_costs.IoCosts | None,
                used_ns: dict[str, Fraction], unmodelled: set[str]) -> None:
    if last.disks is None or reading.disks is None:
        # Unknown from when on, or billed with the next reading that has them.
        return
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
        used_ns['disk'] += _cost_ns(cost.read, done.read_requests,
                                    done.read_bytes)
        used_ns['disk'] += _cost_ns(cost.write, done.write_requests,
                                    done.write_bytes)


def _measured(last: usages.Usage, reading: usages.Usage
              ) -> dict[str, Fraction]:
    """CPU time that the kernel charged to the server's threads."""
    grown = {name: (getattr(reading, f'{name}_ns')
                    - getattr(last, f'{name}_ns'))
             for name in ('vcpu', *MEASURED_IO, 'migration')}
    # An agent that starts anew does not know of threads that ended before,
    # and finds what they had used where they ran: in the emulator's time,
    # that of I/O threads in the vCPUs'. It was billed, or was nobody's.
    grown['emulator'] += min(0, grown['vhost']) + min(0, grown['migration'])
    grown['vcpu'] += min(0, grown['iothread'])
    return {name: Fraction(max(0, grown[name]))
            for name in ('vcpu', *MEASURED_IO)}


def _grown(before: int, now: int) -> int:
    """What a counter of CPU time grew by.

    NOTE: it does not begin anew within a run. Where it fell, a thread that
    it was the sum of is gone (a vCPU was unplugged), and what is left was
    billed already.
    """
    return max(0, now - before)


def _difference(before: _Counters | None, now: _Counters) -> _Counters:
    """What a device did, all of it where it is another one by now.

    A counter that fell wrapped, or is that of another device of this name.
    """
    if before is None:
        return now
    values = _VALUES[type(now)]
    grown = [value - last for value, last in zip(
        values(now), values(before), strict=True)]
    return now if min(grown) < 0 else type(now)(*grown)


def _with_gone(last: Mapping[str, _Counters],
               now: Mapping[str, _Counters]) -> dict[str, _Counters]:
    gone = [(name, counters) for name, counters in last.items()
            if name not in now]
    return dict(itertools.chain(gone[-_MOST_GONE_DEVICES:], now.items()))


def _cost_ns(cost: io_costs.RequestCost, requests: int,
             size_bytes: int) -> Fraction:
    request_ns, byte_ns = _exact(cost)
    return requests * request_ns + size_bytes * byte_ns


@functools.lru_cache(maxsize=256)
def _exact(cost: io_costs.RequestCost) -> tuple[Fraction, Fraction]:
    # NOTE: a least-squares fit may leave one of them just below zero.
    return (Fraction(max(0.0, cost.request_ns)),
            Fraction(max(0.0, cost.byte_ns)))


def _interface_text(kind: usages.InterfaceKind | None) -> str:
    if kind is None:
        return 'interface of unknown kind'
    return (f'interface, mode {kind.mode or "unknown"}, '
            f'backend {kind.backend or "unknown"}')


def _disk_text(kind: usages.DiskKind | None) -> str:
    if kind is None:
        return 'disk of unknown kind'
    return f'disk, {kind.source}, {"" if kind.buffered else "not "}buffered'
