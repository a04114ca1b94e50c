# SPDX-License-Identifier: Apache-2.0
"""Two taps and a way out, on a bridge or routed, in a network namespace.

Prints, as JSON, what part of what the taps received came from the other one,
as the agent reads it: of packets from one to the other, of packets from
outside, and of both at once. Run it as root, with ``bridge`` or ``routed``::

    unshare --net --mount python -m nova_vqos.tests.host.bridge_ports bridge
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import time

from nova_vqos.calibration import system
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic
from nova_vqos.hypervisor.linux import bridges

# A queue of a tap holds 500.
LOCAL, OUTSIDE = 200, 100

_TAPS = ('tap0', 'tap1')
# Of each: MAC address, and the interface that it is behind.
_ENDS = {name: (f'02:00:00:00:00:{number:02x}', port)
         for number, (name, port) in enumerate(
             [*zip(_TAPS, _TAPS, strict=True), ('world', 'eth0')])}
_ROUTER = '02:00:00:00:01:00'
_LIMIT_S = 10
# BR_STATE_FORWARDING of include/uapi/linux/if_bridge.h.
_FORWARDING = '3\n'


class Network:
    """The ports, and the traffic between them."""

    def __init__(self, mode):
        self._is_bridge = mode == 'bridge'
        self._world = self._make_world()
        self._reader = bridges.BridgeReader()
        self._taps = {}
        for name in _TAPS:
            self._taps[name] = tap.Tap(name)
            os.set_blocking(self._taps[name]._file, False)
        if self._is_bridge:
            _ip('link add br0 type bridge forward_delay 0 mcast_snooping 0')
            _ip('link set br0 up')
        pathlib.Path('/proc/sys/net/ipv4/ip_forward').write_text('1')
        for name in _ENDS:
            self._connect(name)
        self._wait_until_forwarding()
        # A bridge learns where each is.
        for source, target in (('tap0', 'tap1'), ('tap1', 'tap0'),
                               ('world', 'tap0')):
            self.send(source, target, 1)

    @staticmethod
    def _make_world():
        """:returns: a packet socket of another namespace, which is gone with
            it
        """
        own = os.open('/proc/thread-self/ns/net', os.O_RDONLY)
        with system.network_namespace():
            _disable_ipv6()
            _ip('link add world type veth peer name eth0 netns '
                f'/proc/{os.getpid()}/fd/{own}')
            _ip('link set world up')
            world = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
            world.bind(('world', 0))
        os.close(own)
        return world

    def _connect(self, name):
        mac, port = _ENDS[name]
        if self._is_bridge:
            _ip(f'link set {port} master br0')
            _ip(f'link set {port} up')
            return
        address = _address(name)
        _ip(f'link set {port} address {_ROUTER}')
        _ip(f'link set {port} up')
        _ip(f'address add {address[:-1]}1/24 dev {port}')
        _ip(f'neighbour add {address} lladdr {mac} dev {port} nud permanent')

    def _wait_until_forwarding(self):
        """The kernel hears later that a link has a carrier."""
        until_s = time.monotonic() + _LIMIT_S
        while self._is_bridge and any(
                pathlib.Path('/sys/class/net', port, 'brport/state'
                             ).read_text() != _FORWARDING
                for _mac, port in _ENDS.values()):
            assert time.monotonic() < until_s
            time.sleep(0.01)

    def send(self, source, target, count):
        own, mac = _ENDS[source][0], _ENDS[target][0]
        frame = traffic.frame(
            mac if self._is_bridge else _ROUTER, own, traffic.IPV4,
            traffic.datagram(_address(source), _address(target), (4000, 4001),
                             traffic.LEAST_BYTES))
        if source != 'world':
            self._taps[source].write(tap.HEADER + frame, count)
            return
        for _ in range(count):
            self._world.send(frame)

    def receive(self, count=0):
        """The kernel counts what a guest has read.

        :param count: of packets that are on their way: on a busy machine those
            from outside come later
        """
        until_s = time.monotonic() + _LIMIT_S
        while True:
            for one in self._taps.values():
                with contextlib.suppress(BlockingIOError):
                    while os.read(one._file, 2048):
                        count -= 1
            if count <= 0:
                return
            assert time.monotonic() < until_s, f'{count} packets did not come'
            time.sleep(0.01)

    def share(self, *sent):
        """:returns: the part of it that is local

        :param sent: source, target and number of packets
        """
        self.receive()
        before = self._reader.read()['tap0']
        for one in sent:
            self.send(*one)
        # A bridge sends nothing back to where it came from.
        self.receive(sum(
            count for source, target, count in sent if target != 'world'
            and not (self._is_bridge and source == target)))
        return float(self._reader.read()['tap0'].local_share(before))


def main():
    subprocess.run(['mount', '-t', 'sysfs', 'sysfs', '/sys'], check=True)
    _disable_ipv6()
    share = Network(sys.argv[1]).share
    print(json.dumps({
        'local': share(('tap0', 'tap1', LOCAL)),
        'outside': share(('world', 'tap1', OUTSIDE),
                         ('tap0', 'world', LOCAL)),
        'both': share(('tap1', 'tap0', LOCAL), ('world', 'tap0', OUTSIDE),
                      ('tap0', 'world', LOCAL)),
        'to itself': share(('world', 'tap0', OUTSIDE),
                           ('tap0', 'tap0', LOCAL))}))


def _disable_ipv6():
    """Let no interface look for routers: only this program sends packets."""
    pathlib.Path('/proc/sys/net/ipv6/conf/default/disable_ipv6').write_text(
        '1')


def _address(name):
    return f'10.0.{list(_ENDS).index(name)}.2'


def _ip(arguments):
    subprocess.run(['ip', *arguments.split()], check=True)


if __name__ == '__main__':
    main()
