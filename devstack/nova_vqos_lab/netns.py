# SPDX-License-Identifier: Apache-2.0
"""The lab's network: a namespace with a bridge, and one for each host.

No link and no address of the lab is on the machine's own network. The
controller's namespace, ``PREFIX-ctl``, has the bridge with its address on it;
each host's, ``PREFIX-NAME``, an ``eth0`` that leads there. Everything here can
be called again, and remove() also after a crash.
"""

from collections.abc import Iterable, Iterator
import contextlib
import json
import os
import signal

from nova_vqos_lab import paths
from nova_vqos_lab import process

NETNS_DIR = '/run/netns'
BRIDGE = 'br-lab'


class Network:
    """The network namespaces of one lab.

    :ivar prefix: first part of the names of its namespaces
    """

    def __init__(self, prefix: str = paths.PREFIX) -> None:
        """:param prefix: labs of different prefixes share nothing; no dash
            in it, which ends it
        """
        self.prefix = prefix

    @property
    def controller(self) -> str:
        """The name of the controller's namespace."""
        return f'{self.prefix}-ctl'

    def of_host(self, host: str) -> str:
        """:returns: the name of a host's namespace."""
        return f'{self.prefix}-{host}'

    @staticmethod
    def path(namespace: str) -> str:
        """:returns: the file that stands for a namespace."""
        return os.path.join(NETNS_DIR, namespace)

    def exists(self, namespace: str) -> bool:
        """:returns: whether there is a namespace of that name."""
        return os.path.exists(self.path(namespace))

    def create(self) -> None:
        """Make the controller's namespace and the bridge in it.

        :raises LabError: when the machine does not let us
        """
        self._make_namespace(self.controller)
        if BRIDGE not in self._links(self.controller):
            # No forwarding delay: the first packet after a host joined is
            # not to wait for 15 s.
            self._ip(self.controller, 'link', 'add', BRIDGE, 'type', 'bridge',
                     'forward_delay', '0')
        self._ip(self.controller, 'address', 'replace',
                 _with_length(paths.CONTROLLER_ADDRESS), 'dev', BRIDGE)
        self._ip(self.controller, 'link', 'set', BRIDGE, 'up')

    def join(self, host: str, address: str) -> None:
        """Make a host's namespace and connect it with the bridge.

        :param host: name of the host, at most 15 characters
        :param address: of the host, in the lab's network
        :raises LabError: when the machine does not let us, or the
            controller's namespace is not there
        """
        namespace = self.of_host(host)
        self._make_namespace(namespace)
        if 'eth0' not in self._links(namespace):
            if host in self._links(self.controller):
                self._ip(self.controller, 'link', 'delete', host)
            self._ip(self.controller, 'link', 'add', host, 'type', 'veth',
                     'peer', 'name', 'eth0', 'netns', namespace)
        self._ip(self.controller, 'link', 'set', host, 'master', BRIDGE, 'up')
        self._ip(namespace, 'address', 'replace', _with_length(address),
                 'dev', 'eth0')
        self._ip(namespace, 'link', 'set', 'eth0', 'up')

    @contextlib.contextmanager
    def cut(self, host: str) -> Iterator[None]:
        """Let nothing reach a host, or leave it, meanwhile."""
        self._ip(self.controller, 'link', 'set', host, 'down')
        try:
            yield
        finally:
            self._ip(self.controller, 'link', 'set', host, 'up')

    @contextlib.contextmanager
    def slowed(self, host: str, kbit_s: int) -> Iterator[None]:
        """Let a host have a slow link meanwhile, in both directions."""
        ends = ((self.controller, host), (self.of_host(host), 'eth0'))
        try:
            for namespace, link in ends:
                process.run(['tc', '-netns', namespace, 'qdisc', 'replace',
                             'dev', link, 'root', 'tbf', 'rate',
                             f'{kbit_s}kbit', 'burst', '16kb', 'latency',
                             '400ms'])
            yield
        finally:
            for namespace, link in ends:
                process.run(['tc', '-netns', namespace, 'qdisc', 'delete',
                             'dev', link, 'root'], check=False)

    def leave(self, host: str) -> None:
        """Remove a host's namespace with its link to the bridge."""
        self._remove_namespace(self.of_host(host))

    def remove(self) -> None:
        """Remove all namespaces of this lab, and what runs in them."""
        # The hosts first: their ends of the links vanish with them.
        with contextlib.suppress(FileNotFoundError):
            for namespace in sorted(os.listdir(NETNS_DIR)):
                if (namespace.startswith(f'{self.prefix}-')
                        and namespace != self.controller):
                    self._remove_namespace(namespace)
        self._remove_namespace(self.controller)
        _remove_mount_of_namespaces()

    def processes(self, namespace: str) -> list[process.Process]:
        """:returns: what runs in a namespace, other than this process."""
        if not self.exists(namespace):
            return []
        found = process.run(['ip', 'netns', 'pids', namespace], check=False)
        return [process.Process(int(pid)) for pid in found.stdout.split()
                if int(pid) != os.getpid()]

    def _make_namespace(self, namespace: str) -> None:
        if not self.exists(namespace):
            process.run(['ip', 'netns', 'add', namespace])
        self._ip(namespace, 'link', 'set', 'lo', 'up')

    def _remove_namespace(self, namespace: str) -> None:
        running = self.processes(namespace)
        for one in running:
            one.signal(signal.SIGTERM)
        for one in running:
            one.stop(5)
        if self.exists(namespace):
            # Removed at once, not when the kernel gets to it, so that the
            # other end is gone when this returns.
            self._ip(namespace, 'link', 'delete', 'eth0', check=False)
            process.run(['ip', 'netns', 'delete', namespace])

    def _links(self, namespace: str) -> Iterable[str]:
        shown = self._ip(namespace, '-json', 'link', 'show')
        return [link['ifname'] for link in json.loads(shown or '[]')]

    @staticmethod
    def _ip(namespace: str, *arguments: str, check: bool = True) -> str:
        return process.run(['ip', '-netns', namespace, *arguments],
                           check=check).stdout


def _with_length(address: str) -> str:
    return f'{address}/{paths.NETWORK_LENGTH}'


def _remove_mount_of_namespaces() -> None:
    """Undo what the first `ip netns add` of a machine did to /run/netns.

    It mounts the directory onto itself. With namespaces of others in it, it
    stays.
    """
    with contextlib.suppress(OSError):
        if not os.listdir(NETNS_DIR):
            process.run(['umount', NETNS_DIR], check=False)
            os.rmdir(NETNS_DIR)
