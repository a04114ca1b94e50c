#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What a reserve for I/O does for servers that all receive, on one pCPU.

Starts a host of the lab with a libvirtd of its own, real QEMU guests with a
tap on a bridge that compute all the time, the real agent, and clients that
send each guest as many packets; removes everything afterwards. As root::

    tools/bench/io_reserve.py --profile /etc/nova-vqos/profile.yaml

off: all 100 CU of the pCPU are sold, a part to each server.
on: less is sold, by what the agent measured in the former that I/O takes and
nobody pays for, as with ``[vqos] dd_reserve = measured``.
limited: as off, and the emulator threads of all servers together have no more
than a part of the pCPU, by libvirt's ``emulator_quota``, as much to each.
uneven: as limited, but only half of the servers: the host serves them less.

The kernel's work for packets is done on the pCPU of the guests, by receive
packet steering. Packets are counted at the taps, CPU time by the kernel; what
the agent says, after two minutes, is from its metrics. There is no message
bus.
"""

import argparse
from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import math
import sys
import time

import billing_host
import lab_host
from lab_host import say

from nova_vqos import policy
from nova_vqos.billing import io_fairness
from nova_vqos_lab import ioguest
from nova_vqos_lab import ionet
from nova_vqos_lab import process

ARMS = ('off', 'on', 'limited', 'uneven')
_PCPU_CU = 100
_LIMIT_S = 60
# The agent's figures are of whole minutes, which begin when they like.
_LEAST_S = 125
# libvirt has no quota below 1 ms.
_EMULATOR_PERIOD_US = 100_000
_METRICS = (
    'import urllib.request; print(urllib.request.urlopen('
    '"http://127.0.0.1:19177/metrics", timeout=30).read().decode())')


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """All guests at one moment."""

    at_s: float
    packets: Sequence[Mapping[str, int]]
    cpu: Sequence[ioguest.CpuTime]

    @classmethod
    def take(cls, guests: Sequence[ioguest.IoGuest]) -> 'Sample':
        return cls(time.monotonic(), [one.packets() for one in guests],
                   [one.cpu_time() for one in guests])


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """An arm.

    :ivar units: of each server
    :ivar vcpus: of a pCPU, by all vCPUs together, as the next
    :ivar emulators: by all emulators
    :ivar offered: packets a second to all taps, as the next
    :ivar delivered: to all servers
    :ivar jain: of what servers received
    :ivar agent_jain: as the agent says; None: nothing
    :ivar unpaid_cu: as the agent says
    :ivar monitor_ms: for how long a question to a QEMU waited, on average
    """

    units: int
    vcpus: float
    emulators: float
    offered: float
    delivered: float
    jain: float
    agent_jain: float | None
    unpaid_cu: float
    monitor_ms: float


class Arms:
    """The servers, and what is done to them."""

    def __init__(self, bench: billing_host.Bench,
                 servers: Sequence[billing_host.Server]) -> None:
        self._bench = bench
        self._options = bench.options
        self._servers = servers
        self._guests = [server.guest for server in servers]
        self._reserve_cu = 0

    def run(self, name: str) -> Row:
        for guest in self._guests:
            guest.resume()
        sold_cu = _PCPU_CU - (self._reserve_cu if name == 'on' else 0)
        units = sold_cu // len(self._guests)
        for guest in self._guests:
            guest.set_specs(**{policy.UNITS_KEY.replace(':', '_', 1):
                               str(units)})
        self._bench.apply(billing_host.MODES['account'], self._servers,
                          agent='metrics_address = 127.0.0.1')
        for guest in self._guests:
            process.wait_until(lambda guest=guest: _has(guest, units),
                               _LIMIT_S, f'{units} CU for {guest.name}')
        self._limit_emulators({
            'limited': len(self._guests),
            'uneven': len(self._guests) // 2}.get(name, 0))
        # Not a wait for anything: the length of the measurement.
        time.sleep(self._options.settle)
        first = Sample.take(self._guests)
        time.sleep(self._options.seconds)
        row = self._row(units, first, Sample.take(self._guests))
        if name == 'off':
            self._reserve_cu = math.ceil(row.unpaid_cu)
        return row

    def _limit_emulators(self, limited: int) -> None:
        """:param limited: how many of them, each to its part"""
        part = self._options.limit / 100 / len(self._guests)
        for number, guest in enumerate(self._guests):
            guest.set_cpu(
                emulator_period=_EMULATOR_PERIOD_US, emulator_quota=(
                    round(part * _EMULATOR_PERIOD_US) if number < limited
                    else -1))

    def _row(self, units: int, first: Sample, last: Sample) -> Row:
        def rates(*names: str) -> list[float]:
            return [sum(after[name] - before[name] for name in names)
                    / (last.at_s - first.at_s) for before, after
                    in zip(first.packets, last.packets, strict=True)]

        def cpus(name: str) -> float:
            return sum(getattr(after, name) - getattr(before, name)
                       for before, after in zip(first.cpu, last.cpu,
                                                strict=True)
                       ) / 1e9 / (last.at_s - first.at_s)
        delivered = rates('rx')
        began_s = time.monotonic()
        for guest in self._guests:
            guest.disk_requests()
        monitor_s = (time.monotonic() - began_s) / len(self._guests)
        metrics = self._metrics()
        return Row(
            units, cpus('vcpu'), cpus('emulator'),
            sum(rates('rx', 'dropped')), sum(delivered),
            io_fairness.jain(delivered),
            metrics.get('nova_vqos_host_io_jain{direction="received"}'),
            metrics['nova_vqos_host_unpaid_cpu_units'], monitor_s * 1000)

    def _metrics(self) -> dict[str, float]:
        """What the agent exports of its host, by name."""
        # They share the pCPU with the agent, and may leave it little.
        for guest in self._guests:
            guest.pause()
        text = self._bench.host.run([sys.executable, '-c', _METRICS],
                                    limit_s=_LIMIT_S).stdout
        return {name: float(value) for name, _, value in (
            line.rpartition(' ') for line in text.splitlines()
            if line.startswith('nova_vqos_host_'))}


def _has(guest: ioguest.IoGuest, units: int) -> bool:
    """Whether the cap of a guest's vCPU is for so many units."""
    quota_us, period_us = guest.limits()[1]
    return abs(quota_us / period_us * _PCPU_CU - units) < 0.1


def steer_packets(bench: billing_host.Bench) -> None:
    """Have packets delivered on the pCPU of the guests.

    Without a network card the sender's pCPU would do it.
    """
    (pcpu,) = bench.host.pcpus
    bench.host.run(['sh', '-c', f'echo {1 << pcpu:x} > /sys/class/net/'
                    f'{ionet.PORT}/queues/rx-0/rps_cpus'])


def main() -> int:
    options = parse()
    lab_host.prepare()
    bench = billing_host.Bench(options)
    rows = {}
    try:
        bench.start()
        steer_packets(bench)
        with contextlib.ExitStack() as stack:
            servers = []
            for number in range(options.guests):
                servers.append(stack.enter_context(bench.server(
                    _PCPU_CU // options.guests, number=number, spin=True)))
                # So that the next one has the pCPU for its boot.
                servers[-1].guest.pause()
            for server in servers:
                stack.enter_context(bench.load(
                    'udp', server.guest.address, '--rate', str(options.rate),
                    '--size', str(options.size)))
            arms = Arms(bench, servers)
            for name in options.arms:
                say(f'{name} ...')
                rows[name] = arms.run(name)
                say(f'   {rows[name]}')
    finally:
        bench.remove()
    show(options, rows)
    lab_host.save({name: dataclasses.asdict(row)
                   for name, row in rows.items()}, options.json)
    return 0


def show(options: argparse.Namespace, rows: Mapping[str, Row]) -> None:
    print(f'{options.guests} servers on one pCPU, {options.rate} packets of '
          f'{options.size} bytes a second to each, {options.seconds:.0f} s')
    print('          units  vCPUs     of  emu-   packets/s  delivered  to  '
          'Jain  agent\'s  unpaid  monitor\n'
          '           each         sold  lators   offered              off  '
          '       Jain      CU       ms')
    for name, row in rows.items():
        sold = row.units * options.guests / _PCPU_CU
        agent_jain = ('-' if row.agent_jain is None
                      else f'{row.agent_jain:.4f}')
        print(f'{name:10}{row.units:5}{row.vcpus:7.1%}'
              f'{row.vcpus / sold:7.1%}{row.emulators:8.1%}'
              f'{row.offered:10.0f}{row.delivered:11.0f}'
              f'{row.delivered / rows["off"].delivered:5.2f}'
              f'{row.jain:8.4f}{agent_jain:>8}{row.unpaid_cu:7.1f}'
              f'{row.monitor_ms:9.1f}')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--arms', default=','.join(ARMS), metavar='LIST',
                        help='off first (default %(default)s)')
    parser.add_argument('--guests', type=int, default=8)
    parser.add_argument('--rate', type=int, default=3000,
                        help='packets a second to each guest (default '
                        '%(default)s)')
    parser.add_argument('--size', type=int, default=64,
                        help='of a frame, in bytes (default %(default)s)')
    parser.add_argument('--limit', type=float, default=10.0,
                        help='of emulators together, in percent of the pCPU '
                        '(default %(default)s)')
    parser.add_argument('--seconds', type=float, default=115,
                        help='of each arm (default %(default)s)')
    parser.add_argument('--settle', type=float, default=10,
                        help='seconds before each (default %(default)s)')
    parser.add_argument('--profile', metavar='FILE',
                        help='host profile to take the costs of I/O from')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    options.arms = options.arms.split(',')
    if options.arms[0] != 'off' or not set(options.arms) <= set(ARMS):
        parser.error(f'--arms takes some of {",".join(ARMS)}, off first')
    if options.settle + options.seconds < _LEAST_S:
        parser.error(f'--settle and --seconds must be {_LEAST_S} together')
    if not 2 <= options.guests <= 32:
        parser.error('--guests must be 2 to 32')
    return options


if __name__ == '__main__':
    sys.exit(main())
