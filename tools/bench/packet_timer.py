#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""The delay that QEMU's timer for packets adds, and the CPU time it saves.

Guests answer echo requests that arrive at random. They differ in how QEMU
takes their packets from virtio-net: at once (``tx=bh``, the default), or when
a timer ends (``tx=timer``, ``x-txtimer``), no more than a burst each time
(``x-txburst``). The requests come from another network namespace, by turns for
each guest and rate. As root, on an idle machine::

    tools/bench/packet_timer.py --rounds 5

By guest and rate it prints, as mean over all rounds: the delay of an answer,
its part beyond that of a guest without a timer, and what the model of
``nova_vqos/calibration/io/aggregation.py`` has for it; the part of requests
that were answered; and the CPU time of QEMU's own threads for a packet that
the guest sends, the median of the rounds, also as a multiple of that without a
timer. For that, requests that the guest drops take turns with those that it
answers. The times are those of the ledger on the disk, into which the agent's
biller enters them.
"""

import argparse
from collections.abc import Iterator
import contextlib
import ctypes
import dataclasses
import os
import pathlib
import random
import select
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import uuid as uuids

from nova_vqos.calibration import guest
from nova_vqos.calibration.io import aggregation

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'devstack'))

from nova_vqos.tests.fixtures import billing_host

RATES = (100, 300, 1000, 3000, 6000)
#: QEMU's default: as many as its queue holds.
_BURST = 256
_BOOT_S = 120
_DRAIN_S = 0.3
_CLIENT = ('10.9.0.1', '02:00:00:09:00:01')
_PR_SET_TIMERSLACK = 29
_SO_TIMESTAMPNS = 35
_PAYLOAD = struct.Struct('=IQ')
_INIT = """\
#!/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
dmesg -n 1
while read -r module; do
    insmod "/modules/$module"
done < /modules/order
read -r options < /proc/cmdline
ip address add "${options##*address=}" dev eth0
ip link set eth0 up
ip neighbour add %s lladdr %s dev eth0 nud permanent
echo ready
while :; do sleep 1000; done
""" % _CLIENT


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """How QEMU takes packets from a guest.

    :ivar timer_us: 0: at once
    :ivar burst: packets that it takes at most each time
    """

    timer_us: int
    burst: int = _BURST

    def __str__(self) -> str:
        if not self.timer_us:
            return 'at once'
        return f'{self.timer_us} us' + (
            '' if self.burst == _BURST else f', {self.burst} packets')

    @property
    def properties(self) -> str:
        if not self.timer_us:
            return ''
        return (f',tx=timer,x-txtimer={self.timer_us * 1000},'
                f'x-txburst={self.burst}')

    def modelled_us(self, rate: float) -> float:
        """NOTE: a burst closes nothing, it only limits the packets that the
        timer takes.
        """
        if not self.timer_us:
            return 0.0
        return aggregation.Filling(aggregation.MOST_PACKETS, rate,
                                   self.timer_us / 1e6).wait_s * 1e6


WAYS = (Way(0), Way(150), Way(1000), Way(4000), Way(1000, 4))


class Host:
    """A network namespace with a bridge, and a link to it from here."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        # It ends, and the namespace with it, when this program does.
        holder = stack.enter_context(subprocess.Popen(
            ['unshare', '--net', 'sh', '-c', 'echo; exec cat'],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(holder.kill)
        assert holder.stdout is not None
        holder.stdout.readline()
        self.enter = ['nsenter', f'--net=/proc/{holder.pid}/ns/net']
        _ip(f'link add world address {_CLIENT[1]} type veth peer name port '
            f'netns {holder.pid}')
        _ip(f'address add {_CLIENT[0]}/24 dev world')
        _ip('link set world up')
        self.ip('link add br0 type bridge forward_delay 0 mcast_snooping 0')
        self.ip('link set port master br0 up')
        self.ip('link set br0 up')

    def ip(self, arguments: str) -> None:
        _ip(arguments, self.enter)


class Machine:
    """A guest, and the process of QEMU that runs it."""

    def __init__(self, host: Host, number: int, way: Way, kernel: str,
                 directory: pathlib.Path, stack: contextlib.ExitStack) -> None:
        self.number, self.way = number, way
        self.uuid = str(uuids.UUID(int=number))
        self.address = f'10.9.0.{10 + number}'
        tap, mac = f'tap{number}', f'02:00:00:09:00:{16 + number:02x}'
        host.ip(f'tuntap add {tap} mode tap vnet_hdr')
        host.ip(f'link set {tap} master br0 up')
        _ip(f'neighbour add {self.address} lladdr {mac} dev world nud '
            'permanent')
        self._console = directory / f'{number}.console'
        self._process = stack.enter_context(subprocess.Popen([
            *host.enter, 'qemu-system-x86_64', '-name',
            f'timer{number},debug-threads=on', '-machine', 'pc,accel=tcg',
            '-m', '96', '-nodefaults', '-display', 'none', '-serial',
            f'file:{self._console}', '-kernel', kernel, '-initrd',
            str(directory / 'initrd'), '-append',
            'console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable '
            'ipv6.disable=1 '
            f'address={self.address}/24', '-netdev',
            f'tap,id=net,ifname={tap},script=no,downscript=no', '-device',
            f'virtio-net-pci,netdev=net,mac={mac}{way.properties}']))
        stack.callback(self._process.kill)

    def wait_ready(self) -> None:
        until_s = time.monotonic() + _BOOT_S
        while 'ready' not in (self._console.read_text(errors='replace')
                              if self._console.exists() else ''):
            if time.monotonic() > until_s or self._process.poll() is not None:
                raise SystemExit(f'guest {self.number} does not boot')
            time.sleep(0.1)

    def own_ns(self) -> int:
        """CPU time of QEMU's threads but vCPUs."""
        found = 0
        for task in pathlib.Path(
                f'/proc/{self._process.pid}/task').iterdir():
            with contextlib.suppress(OSError):
                if not (task / 'comm').read_text().startswith('CPU '):
                    found += int((task / 'schedstat').read_text().split()[0])
        return found


@dataclasses.dataclass(slots=True)
class Took:
    """What windows of one guest and rate took.

    :ivar delays_ns: of answers
    :ivar asked: requests that should be answered
    :ivar own_ns: CPU time of QEMU for a request, as the ledger has it, of
        answered ones and of dropped ones, by round
    """

    delays_ns: list[int] = dataclasses.field(default_factory=list)
    asked: int = 0
    own_ns: dict[bool, list[float]] = dataclasses.field(
        default_factory=lambda: {True: [], False: []})

    @property
    def delay_us(self) -> float:
        return statistics.fmean(self.delays_ns) / 1e3

    @property
    def late_us(self) -> float:
        """Of one of a hundred at least."""
        return sorted(self.delays_ns)[len(self.delays_ns) * 99 // 100] / 1e3

    @property
    def sending_ns(self) -> float:
        return statistics.median(
            answered - dropped for answered, dropped in zip(
                self.own_ns[True], self.own_ns[False], strict=True))


class Client:
    """Sends echo requests, and keeps how long answers took."""

    def __init__(self, ledger: billing_host.Host) -> None:
        self._ledger = ledger
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_RAW,
                                     socket.IPPROTO_ICMP)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        self._socket.setblocking(False)
        self._random = random.Random(4)

    def window(self, machine: Machine, rate: float, seconds: float,
               took: Took, *, answered: bool) -> None:
        """Send requests at random times, and wait for the last answers."""
        list(self._answers(machine.number))
        before_ns, began_s = machine.own_ns(), time.monotonic()
        due_s, sent = began_s, 0
        while True:
            due_s += self._random.expovariate(rate)
            if due_s - began_s > seconds:
                break
            while (left_s := due_s - time.monotonic()) > 0:
                select.select([self._socket], [], [], left_s)
                took.delays_ns += self._answers(machine.number)
            self._socket.sendto(_request(machine.number, answered),
                                (machine.address, 0))
            sent += 1
        until_s = time.monotonic() + _DRAIN_S
        while (left_s := until_s - time.monotonic()) > 0:
            select.select([self._socket], [], [], left_s)
            took.delays_ns += self._answers(machine.number)
        if answered:
            took.asked += sent
        took.own_ns[answered].append(self._entered_ns(
            machine, machine.own_ns() - before_ns,
            time.monotonic() - began_s) / sent)

    def _entered_ns(self, machine: Machine, used_ns: int,
                    length_s: float) -> float:
        """:returns: what the ledger has more after it was billed"""
        before_cu_s = self._ledger.used_cu_s(uuid=machine.uuid)
        self._ledger.use(machine.uuid, length_s, emulator_ns=used_ns)
        # On a pCPU of 100 CU.
        return 1e7 * (self._ledger.used_cu_s(uuid=machine.uuid) - before_cu_s)

    def _answers(self, number: int) -> Iterator[int]:
        while True:
            try:
                data, extra, _flags, _ = self._socket.recvmsg(256, 64)
            except BlockingIOError:
                return
            # After the header of IPv4; an answer has type 0.
            kind, _code, _sum, mine, _sequence = struct.unpack_from(
                '!BBHHH', data, 20)
            if kind == 0 and mine == number:
                seconds, rest_ns = struct.unpack('=qq', extra[0][2])
                _, sent_ns = _PAYLOAD.unpack_from(data, 28)
                yield seconds * 1_000_000_000 + rest_ns - sent_ns


def main() -> int:
    options = parse()
    if not options.inside:
        os.execvp('unshare', ['unshare', '--net', sys.executable,
                              os.path.abspath(__file__), *sys.argv[1:],
                              '--inside'])
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    with contextlib.ExitStack() as stack:
        directory = pathlib.Path(stack.enter_context(
            tempfile.TemporaryDirectory()))
        kernel, modules = guest.find_kernel_with_modules()
        guest.build_initramfs(
            str(directory / 'initrd'), tools=(), init=_INIT, contents={
                '/modules/order': ''.join(
                    f'{name}\n' for name in modules).encode(),
                **{f'/modules/{name}': content
                   for name, content in modules.items()}})
        host = Host(stack)
        machines = [Machine(host, number, way, kernel, directory, stack)
                    for number, way in enumerate(WAYS)]
        for machine in machines:
            machine.wait_ready()
        ledger = billing_host.Host(directory)
        for machine in machines:
            ledger.begin(machine.uuid)
        took = measure(machines, Client(ledger), options)
    for rate in options.rates:
        show(rate, {way: took[way, rate] for way in WAYS})
    return 0


def measure(machines: list[Machine], client: Client,
            options: argparse.Namespace) -> dict[tuple[Way, float], Took]:
    """All guests and rates by turns, in a random order in each round."""
    took = {(machine.way, rate): Took() for machine in machines
            for rate in options.rates}
    for number in range(options.rounds + 1):
        turns = [(machine, rate, answered) for machine in machines
                 for rate in options.rates for answered in (True, False)]
        random.shuffle(turns)
        for machine, rate, answered in turns:
            # The first round only warms up QEMU's translations.
            client.window(machine, rate, options.seconds,
                          took[machine.way, rate] if number else Took(),
                          answered=answered)
    return took


def show(rate: float, took: dict[Way, Took]) -> None:
    base = took[WAYS[0]]
    print(f'\n{rate:g} packets/s\n{"taken":>20}  delay us    99 %  beyond  '
          'model  packets  answered  QEMU ns  ratio')
    for way, one in took.items():
        if not one.delays_ns:
            print(f'{way!s:>20}  no answer')
            continue
        packets = min(way.burst, aggregation.Filling(
            aggregation.MOST_PACKETS, rate, way.timer_us / 1e6
            ).packets) if way.timer_us else 1
        print(f'{way!s:>20}{one.delay_us:10.0f}{one.late_us:8.0f}'
              f'{one.delay_us - base.delay_us:8.0f}'
              f'{way.modelled_us(rate):7.0f}{packets:9.1f}'
              f'{len(one.delays_ns) / one.asked:10.1%}'
              f'{one.sending_ns:9.0f}'
              f'{one.sending_ns / base.sending_ns:7.2f}')


def _request(number: int, answered: bool) -> bytes:
    """:param answered: or with a checksum that has the guest drop it"""
    data = struct.pack('!BBHHH', 8, 0, 0, number, 0) + _PAYLOAD.pack(
        0, time.time_ns())
    found = sum(struct.unpack(f'!{len(data) // 2}H', data))
    while found >> 16:
        found = (found & 0xFFFF) + (found >> 16)
    checksum = ~found & 0xFFFF
    return (data[:2] + struct.pack('!H', checksum if answered
                                   else checksum ^ 1) + data[4:])


def _ip(arguments: str, enter: list[str] | None = None) -> None:
    subprocess.run([*(enter or []), 'ip', *arguments.split()], check=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=3)
    parser.add_argument('--seconds', type=float, default=1.0,
                        help='of each window')
    parser.add_argument('--rates', default=','.join(map(str, RATES)),
                        metavar='LIST', help='requests per second')
    parser.add_argument('--inside', action='store_true',
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.rates = [float(rate) for rate in options.rates.split(',')]
    if options.rounds < 1 or options.seconds <= 0 or min(options.rates) <= 0:
        parser.error('--rounds, --seconds and --rates take numbers above 0')
    return options


if __name__ == '__main__':
    sys.exit(main())
