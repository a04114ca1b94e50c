# SPDX-License-Identifier: Apache-2.0
"""What servers are billed for packets, and what these took, without a guest.

A server here is what the kernel sees of QEMU's I/O: a process that waits for
packets of a tap and reads them, and one that writes packets to it; or workers
of vhost. There is no vCPU, which would hide the host's part. Two servers and
the outside are on one bridge or Open vSwitch, behind a router, or each on a
bridge of its own behind a router. The agent's own biller bills them, by costs
that are calibrated anew in each round, on the same pCPUs.

Windows with packets take turns with windows without, or with those that the
outside sends to where they end at once. Prints JSON: for each round, by way,
CPU time in ns. Run it as root, on an idle machine, with ``bridge``,
``openvswitch``, ``routed`` or ``bridges``, a number of rounds, and ``vhost``
where its workers move the packets::

    unshare --net --mount python -m nova_vqos.tests.host.tap_servers bridge 5
"""

import argparse
import contextlib
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import random
import select
import signal
import subprocess
import tempfile
import time
import typing as ty

from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import meter
from nova_vqos.billing import usage
from nova_vqos.calibration import system
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic
from nova_vqos.calibration.probe import vhost
from nova_vqos.hypervisor.linux import bridges
from nova_vqos.profile import fingerprint
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.unit.billing import test_meter

_FRAME_BYTES = 1024
_BURST = 64
# Of each packet, beside reading it: QEMU has to give it to the guest.
_GUEST_S = 5e-6

_SERVERS = ('tap0', 'tap1')
# Of each: MAC address, and IP address behind that of the router.
_ENDS = {name: (f'02:00:00:00:01:0{number}', f'10.0.{number}.2')
         for number, name in enumerate((*_SERVERS, 'world'))}
_PORTS = {'tap0': 'tap0', 'tap1': 'tap1', 'world': 'port'}
_BEHIND_ROUTER = ('routed', 'bridges')
_NOWHERE = '02:00:00:00:02:00'


@dataclasses.dataclass(slots=True)
class Took:
    """CPU time, in ns, and packets.

    :ivar billed: to all servers
    :ivar modelled: of that, what no thread of theirs was charged for
    :ivar servers: charged to their processes
    :ivar outside: charged to the sender there
    :ivar kernel: charged to the kernel's threads
    :ivar lost: by soakers, of what they were charged for
    """

    billed: float = 0.0
    modelled: float = 0.0
    servers: float = 0.0
    outside: float = 0.0
    kernel: float = 0.0
    lost: float = 0.0
    packets: int = 0

    @property
    def ratio(self):
        """Of the bills to all that was charged to anybody."""
        return self.billed / (self.servers + self.outside + self.kernel)

    def add(self, other, sign=1):
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + sign
                    * getattr(other, field.name))


@dataclasses.dataclass(frozen=True, slots=True)
class Way:
    """A way of packets.

    :ivar through: sends some of them
    :ivar base: does the same in windows to compare with
    :ivar count: of packets that each call sends
    :ivar times: of calls in a window
    :ivar pause_s: after each
    :ivar is_from_outside: whether the sender's time is what packets took
    """

    through: ty.Callable[[], None]
    base: ty.Callable[[], None]
    count: int
    times: int
    pause_s: float
    is_from_outside: bool = False


class Server:
    """The processes that move the packets of a tap.

    :cvar component: of the bill, for their time
    """

    component: ty.ClassVar = 'emulator'

    def __init__(self, name, packets, pcpu, stack):
        """:param packets: that it can send, by whereto"""
        own = stack.enter_context(contextlib.closing(tap.Tap(name)))
        os.set_blocking(own._file, False)
        self._reader = stack.enter_context(contextlib.closing(
            accounts.Child(functools.partial(_read, own), pcpu=pcpu)))
        self._writers = {}
        for target, packet in packets.items():
            receiving, orders = os.pipe()
            self._writers[target] = stack.enter_context(contextlib.closing(
                accounts.Child(functools.partial(
                    _write, own, packet, receiving), pcpu=pcpu))), orders

    def send(self, target, count):
        tap.order(self._writers[target][1], count)

    def make_room(self):
        """For packets of a window: the kernel has it."""

    def cpu_time_ns(self):
        return self._reader.cpu_time_ns() + sum(
            writer.cpu_time_ns() for writer, _ in self._writers.values())


class VhostServer:
    """The workers of vhost that move the packets of a tap.

    They are threads of a process that does nothing itself, as QEMU then. See
    :class:`Server`.
    """

    component: ty.ClassVar = 'vhost'

    def __init__(self, name, packets, pcpu, stack):
        own = stack.enter_context(contextlib.closing(tap.Tap(name)))
        self._received = vhost.Queue(bytes(2048), number=vhost.RECEIVE)
        self._sent = {target: vhost.Queue(packet)
                      for target, packet in packets.items()}
        self._owner = stack.enter_context(contextlib.closing(accounts.Child(
            functools.partial(_own_workers, own, [
                self._received, *self._sent.values()]), pcpu=pcpu)))

    def send(self, target, count):
        self._sent[target].add(count)

    def make_room(self):
        self._received.fill()

    def cpu_time_ns(self):
        return self._owner.cpu_time_ns()


def _own_workers(of, queues, _counts):
    kept = [vhost.start_worker(queue, of._file) for queue in queues]
    while kept:
        signal.pause()


def _read(of, _counts):
    """As QEMU's main loop does."""
    waiting = select.poll()
    waiting.register(of._file, select.POLLIN)
    into = [bytearray(2048)]
    while True:
        waiting.poll()
        with contextlib.suppress(BlockingIOError):
            while True:
                os.readv(of._file, into)
                until_s = time.perf_counter() + _GUEST_S
                while time.perf_counter() < until_s:
                    pass


def _write(to, packet, orders, _counts):
    while True:
        to.write(packet, int.from_bytes(os.read(orders, 8)))


_SERVERS_BY_BACKEND = {'qemu': Server, 'vhost': VhostServer}


class Network:
    """Two servers and the outside, and their bills."""

    def __init__(self, mode, backend, pcpus, apart, stack):
        self._mode = mode
        make = _SERVERS_BY_BACKEND[backend]
        self._servers = {
            name: make(name, {to: tap.HEADER + self._frame(name, to)
                              for to in _ENDS if to != name},
                       pcpus[0], stack)
            for name in _SERVERS}
        for arguments in self._commands():
            subprocess.run(['ip', *arguments.split()], check=True)
        if mode == 'openvswitch':
            _switch()
        pathlib.Path('/proc/sys/net/ipv4/ip_forward').write_text('1')
        self._world, self._lone = (
            stack.enter_context(traffic._sending_from(name))
            for name in ('world', 'lone_world'))
        self._bridges = bridges.BridgeReader()
        directory = stack.enter_context(tempfile.TemporaryDirectory())
        self._host = billing_host.Host(pathlib.Path(directory))
        self._accounts = stack.enter_context(contextlib.closing(
            accounts.Accounts(pcpus, accounts.kernel_threads(
                name=r'ksoftirqd/\d+'), apart=apart)))
        for name in _SERVERS:
            self._host.run(name)
            self._host.subjects[name] = dataclasses.replace(
                self._host.subjects[name], devices=meter.Devices(
                    {name: usage.InterfaceKind(_kind(mode), backend)}, {}))

    def _commands(self):
        for name in ('', 'lone_'):
            yield f'link add {name}world type veth peer name {name}port'
        for bridge in sorted({_bridge(self._mode, port)
                              for port in _PORTS.values()} - {''}):
            yield (f'link add {bridge} type bridge forward_delay 0 '
                   'mcast_snooping 0')
            yield f'link set {bridge} up'
        for end, port in _PORTS.items():
            bridge = _bridge(self._mode, port)
            if bridge:
                yield f'link set {port} master {bridge}'
            if self._mode in _BEHIND_ROUTER:
                mac, address = _ENDS[end]
                device = bridge or port
                yield f'link set {device} address {_router(port)}'
                yield f'address add {address[:-1]}1/24 dev {device}'
                yield (f'neighbour add {address} lladdr {mac} dev {device} '
                       'nud permanent')
            yield f'link set {port} txqueuelen 10000'
        for name in ('world', 'port', 'tap0', 'tap1', 'lone_world',
                     'lone_port'):
            yield f'link set {name} up'

    def _frame(self, by, to):
        (own_mac, own), (mac, address) = _ENDS[by], _ENDS[to]
        if self._mode in _BEHIND_ROUTER:
            mac = _router(_PORTS[by])
        return traffic.frame(mac, own_mac, traffic.IPV4, traffic.datagram(
            own, address, (4000, 4001), _FRAME_BYTES))

    def learn(self):
        """The bridge learns where each is."""
        for by, to in (('tap0', 'tap1'), ('tap1', 'tap0')):
            self._servers[by].send(to, 1)
        time.sleep(0.1)
        system.Burst(tap.HEADER + self._frame('world', 'tap0'), 1).send(
            self._world.fileno())
        time.sleep(0.1)

    def ways(self):
        """For each: what sends, what it is compared with, and how often."""
        def burst(frame, count, by):
            return functools.partial(system.Burst(
                tap.HEADER + frame, count).send, by.fileno())
        inward = self._frame('world', 'tap0')
        lone = traffic.frame(_NOWHERE, _ENDS['world'][0], traffic.UNKNOWN,
                             inward[14:])
        send = self._servers['tap1'].send
        return {
            **{name: Way(burst(inward, count, self._world),
                         burst(lone, count, self._lone), count, times, pause_s,
                         True)
               for name, count, times, pause_s in (
                   ('from outside', _BURST, 60, 0.0005),
                   ('from outside, bursts', _BURST, 12, 0.003),
                   ('from outside, singly', 1, 60, 0.003))},
            **{name: Way(functools.partial(send, to, _BURST), lambda: None,
                         _BURST, 12, 0.003)
               for name, to in (('to outside', 'world'),
                                ('local', 'tap0'))}}

    def set_costs(self, costs):
        self._host.costs = costs

    def take(self, way, pairs):
        """What the packets of some pairs of windows took."""
        took, read = Took(packets=pairs * way.count * way.times), {}
        for _ in range(pairs):
            for sign, send in random.sample(
                    [(1, way.through), (-1, way.base)], 2):
                found, of_accounts = self._window(send, way)
                took.add(found, sign)
                read[sign] = (read[sign].plus(of_accounts) if sign in read
                              else of_accounts)
        took.lost = accounts.lost_ns(read[1], read[-1])
        return took

    def _window(self, send, way):
        for server in self._servers.values():
            server.make_room()
        before, own = self._moment(), 0
        for _ in range(way.times):
            began_ns = time.thread_time_ns()
            send()
            own += time.thread_time_ns() - began_ns
            time.sleep(way.pause_s)
        _wait_until_read()
        after = self._moment()
        read = after[2].since(before[2])
        billed = {part: after[0][part] - before[0][part]
                  for part in before[0]}
        return Took(sum(billed.values()), meter.modelled_io(billed),
                    after[1] - before[1], own * way.is_from_outside,
                    read.charged_ns), read

    def _moment(self):
        """:returns: bills by part, CPU time of servers, and other accounts"""
        counted = _counters()
        self._host.now_s = time.monotonic()
        self._host.hypervisor.bridges = self._bridges.read()
        used = {name: server.cpu_time_ns()
                for name, server in self._servers.items()}
        for name in _SERVERS:
            self._host.hypervisor.used[name] = test_meter.reading(
                self._host.now_s, interfaces={name: counted[name]},
                **{f'{self._servers[name].component}_ns': used[name]})
        billed = [one.report.used_here_cu_s
                  for one in self._host.round().values()]
        return ({part: sum(one[part] for one in billed) * 1e7
                 for part in meter.COMPONENTS},
                sum(used.values()), self._accounts.read())


def _wait_until_read():
    """On a busy machine a server comes to its packets late."""
    last = -1
    while (now := sum(_counters()[name].rx_packets
                      for name in _SERVERS)) != last:
        last = now
        time.sleep(0.02)


def _kind(mode):
    return 'bridge' if mode == 'bridges' else mode


def _bridge(mode, port):
    """:returns: that a port is on; '': none"""
    return {'bridge': 'br0', 'bridges': f'br-{port}'}.get(mode, '')


def _switch():
    """Have the kernel's Open vSwitch connect all, without its daemons."""
    def control(*words):
        subprocess.run(['ovs-dpctl', *words], check=True)
    numbers = {port: number for number, port in enumerate(
        _PORTS.values(), 1)}
    control('add-dp', bridges.OPENVSWITCH)
    control('add-if', bridges.OPENVSWITCH, *(
        f'{port},port_no={number}' for port, number in numbers.items()))
    for by, to in itertools.permutations(_PORTS, 2):
        control('add-flow', bridges.OPENVSWITCH,
                f'in_port({numbers[_PORTS[by]]}),eth(dst={_ENDS[to][0]}),'
                'eth_type(0x0800),ipv4()', str(numbers[_PORTS[to]]))


def _router(port):
    return f'02:00:00:00:03:{sorted(_PORTS.values()).index(port):02x}'


def _counters():
    found = {}
    for line in pathlib.Path('/proc/net/dev').read_text().splitlines()[2:]:
        name, _, columns = line.partition(':')
        values = [int(word) for word in columns.split()]
        # What a tap sends, the guest receives.
        found[name.strip()] = usage.InterfaceCounters(
            values[9], values[8], values[11], values[1], values[0])
    return found


def main():
    parser = argparse.ArgumentParser(prog=f'python -m {__spec__.name}')
    parser.add_argument('mode', choices=['bridge', 'openvswitch',
                                         *_BEHIND_ROUTER])
    parser.add_argument('rounds', type=int)
    parser.add_argument('backend', nargs='?', default='qemu',
                        choices=_SERVERS_BY_BACKEND)
    parser.add_argument('--sweeps', type=int, default=60,
                        help='of the calibration in a round')
    parser.add_argument('--pairs', type=int, default=30,
                        help='of windows of each way in a round')
    given = parser.parse_args()
    subprocess.run(['mount', '-t', 'sysfs', 'sysfs', '/sys'], check=True)
    for name in ('all', 'default'):
        pathlib.Path(f'/proc/sys/net/ipv6/conf/{name}/disable_ipv6'
                     ).write_text('1')
    apart = fingerprint.of_host().get('irq_time_accounting') == 'y'
    pcpus = sorted(os.sched_getaffinity(0))
    pcpus = pcpus[0], pcpus[-1]
    with contextlib.ExitStack() as stack:
        bench = stack.enter_context(contextlib.closing(network.Bench(
            [_kind(given.mode)], pcpus[::-1], apart=apart,
            sizes=(_FRAME_BYTES,))))
        made = Network(given.mode, given.backend, pcpus, apart, stack)
        made.learn()
        for _ in range(given.rounds):
            made.set_costs(calibrated(bench, _kind(given.mode), given.sweeps))
            took = {name: made.take(way, given.pairs)
                    for name, way in made.ways().items()}
            print(json.dumps({
                name: {'ratio': round(one.ratio, 4),
                       **dataclasses.asdict(one)}
                for name, one in took.items()}), flush=True)


def calibrated(bench, mode, sweeps):
    found = measure.sweep(
        'network', [(mode, direction) for direction in network.DIRECTIONS],
        bench.sweep, sweeps, float('inf'))
    # A profile has the same cost for both.
    return io_costs.IoCosts(dict.fromkeys(
        (usage.InterfaceKind(mode, backend) for backend in io.BACKENDS),
        io_costs.InterfaceCost(*(
            measure.summary(found[mode, direction]).cost
            for direction in network.DIRECTIONS))), {})


if __name__ == '__main__':
    main()
