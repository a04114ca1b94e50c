# SPDX-License-Identifier: Apache-2.0
"""A bridge with two taps and a way out, in a network namespace of its own.

Prints, as JSON, what part of what the taps received came from the other one,
as the agent reads it: of packets from one to the other, of packets from
outside, and of both at once. Run it as root::

    unshare --net --mount python -m nova_vqos.tests.host.bridge_ports
"""

import contextlib
import json
import os
import pathlib
import socket
import subprocess

from nova_vqos.calibration.io import tap
from nova_vqos.hypervisor.linux import bridges

# A queue of a tap holds 500.
LOCAL, OUTSIDE = 200, 100

_TAPS = ('tap0', 'tap1')
_MACS = {name: bytes.fromhex(f'5254000000{number:02x}')
         for number, name in enumerate((*_TAPS, 'world'))}


class Network:
    """The ports, and the bridge's traffic."""

    def __init__(self, world):
        """:param world: a packet socket"""
        for arguments in (
                'link add br0 type bridge forward_delay 0 mcast_snooping 0',
                'link add eth0 type veth peer name world',
                'link set eth0 master br0', 'link set br0 up',
                'link set eth0 up', 'link set world up'):
            _ip(arguments)
        world.bind(('world', 0))
        self._world = world
        self._reader = bridges.BridgeReader()
        self._taps = {}
        for name in _TAPS:
            self._taps[name] = tap.Tap(name)
            os.set_blocking(self._taps[name]._file, False)
            _ip(f'link set {name} master br0')
            _ip(f'link set {name} up')
        # The bridge learns where each is.
        for source, target in (('tap0', 'tap1'), ('tap1', 'tap0'),
                               ('world', 'tap0')):
            self.send(source, target, 1)

    def send(self, source, target, count):
        frame = _MACS[target] + _MACS[source] + b'\x88\xb5' + bytes(46)
        if source != 'world':
            self._taps[source].write(tap.HEADER + frame, count)
            return
        for _ in range(count):
            self._world.send(frame)

    def receive(self):
        """The kernel counts what a guest has read."""
        for one in self._taps.values():
            with contextlib.suppress(BlockingIOError):
                while os.read(one._file, 2048):
                    pass

    def share(self, *sent):
        """:returns: the part of it that is local

        :param sent: source, target and number of packets
        """
        self.receive()
        before = self._reader.read()['tap0']
        for one in sent:
            self.send(*one)
        self.receive()
        return float(self._reader.read()['tap0'].local_share(before))


def main():
    subprocess.run(['mount', '-t', 'sysfs', 'sysfs', '/sys'], check=True)
    # Nothing but what is sent here is to pass.
    pathlib.Path('/proc/sys/net/ipv6/conf/default/disable_ipv6').write_text(
        '1')
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as world:
        share = Network(world).share
        print(json.dumps({
            'local': share(('tap0', 'tap1', LOCAL)),
            'outside': share(('world', 'tap1', OUTSIDE),
                             ('tap0', 'world', LOCAL)),
            'both': share(('tap1', 'tap0', LOCAL), ('world', 'tap0', OUTSIDE),
                          ('tap0', 'world', LOCAL)),
            'dropped': share(('world', 'tap0', OUTSIDE),
                             ('tap0', 'tap0', LOCAL))}))


def _ip(arguments):
    subprocess.run(['ip', *arguments.split()], check=True)


if __name__ == '__main__':
    main()
