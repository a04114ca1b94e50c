# SPDX-License-Identifier: Apache-2.0
"""A bridge for the guests of a host, and a namespace of clients on it.

The bridge is in the host's network namespace, where libvirt puts the guests'
taps onto it; nothing else is on it but the clients' link. No frame leaves the
two namespaces.
"""

from collections.abc import Sequence
import os
import subprocess
import sys

from nova_vqos_lab import host as hosts
from nova_vqos_lab import netns
from nova_vqos_lab import process

BRIDGE = 'br-guests'
# The clients' link, as the host sees it.
PORT = 'clients'
# Another one, which leads nowhere: what clients send there ends where it
# arrives.
LONE_PORT = 'clients-lone'
_NETWORK = '198.18.1'
_LENGTH = 24
_LOAD = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'ioload.py')


class ClientNetwork:
    """The bridge of one host, and its clients.

    :ivar host: that the bridge is in
    :ivar namespace: name of the clients' network namespace
    """

    def __init__(self, host: hosts.Host, network: netns.Network) -> None:
        """:param network: of the lab that the host is part of, which removes
            the clients with everything else
        """
        self.host = host
        self.namespace = network.of_host(f'{host.name}-io')
        self._host_namespace = network.of_host(host.name)

    def create(self) -> None:
        """Make bridge, namespace, and the link between them.

        :raises LabError: when the machine does not let us, or the host is not
            up
        """
        self.remove()
        _ip('netns', 'add', self.namespace)
        self._in_host('link', 'add', BRIDGE, 'type', 'bridge',
                      'forward_delay', '0', 'mcast_snooping', '0')
        self._in_host('link', 'set', BRIDGE, 'up')
        for name, peer in ((PORT, 'eth0'), (LONE_PORT, 'eth1')):
            self._in_host('link', 'add', name, 'type', 'veth', 'peer', 'name',
                          peer, 'netns', self.namespace)
        self._in_host('link', 'set', PORT, 'master', BRIDGE, 'up')
        self._in_host('link', 'set', LONE_PORT, 'up')
        for arguments in (
                ['link', 'set', 'lo', 'up'],
                ['address', 'add', f'{_NETWORK}.1/{_LENGTH}', 'dev', 'eth0'],
                ['link', 'set', 'eth0', 'up'],
                ['link', 'set', 'eth1', 'up']):
            _ip('-netns', self.namespace, *arguments)

    def remove(self) -> None:
        """Remove both, also where nothing is there; ends the clients."""
        if os.path.exists(netns.Network.path(self.namespace)):
            pids = _ip('netns', 'pids', self.namespace).split()
            for pid in pids:
                process.Process(int(pid)).stop(5)
            for name in ('eth0', 'eth1'):
                _ip('-netns', self.namespace, 'link', 'delete', name,
                    check=False)
            _ip('netns', 'delete', self.namespace)
        if os.path.exists(netns.Network.path(self._host_namespace)):
            self._in_host('link', 'delete', BRIDGE, check=False)

    @staticmethod
    def address(number: int) -> str:
        """:returns: that of a guest, with the length of the network"""
        return f'{_NETWORK}.{10 + number}/{_LENGTH}'

    def know(self, guest_address: str, mac: str) -> None:
        """Have the clients know a guest for good, whether it answers or not.
        """
        _ip('-netns', self.namespace, 'neighbour', 'replace', guest_address,
            'lladdr', mac, 'dev', 'eth0', 'nud', 'permanent')

    def load(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a load from among the clients.

        :param arguments: of ioload.py
        :returns: its process; its output are lines of JSON
        """
        return subprocess.Popen(
            self.enter([sys.executable, '-I', '-S', _LOAD, *arguments]),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)

    def enter(self, argv: Sequence[str]) -> list[str]:
        """:returns: what runs a command among the clients"""
        return ['ip', 'netns', 'exec', self.namespace, *argv]

    def _in_host(self, *arguments: str, check: bool = True) -> str:
        return _ip('-netns', self._host_namespace, *arguments, check=check)


def _ip(*arguments: str, check: bool = True) -> str:
    return process.run(['ip', *arguments], check=check).stdout
