# SPDX-License-Identifier: Apache-2.0
"""The traffic of bridges, between servers of this host and with others."""

from collections.abc import Iterable, Mapping
import logging
import os
import time
import typing as ty

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import procfs

LOG = logging.getLogger(__name__)

# Columns of /proc/net/dev after the name (net/core/net-procfs.c).
_RECEIVED, _SENT = 1, 9
# Ports that come and go change the names; one that only moves to another
# bridge is found later.
_SEARCH_INTERVAL_S = 60.0


class _Packets(ty.NamedTuple):
    """Of an interface, as the host counts them."""

    received: int
    sent: int


class _Bridge(ty.NamedTuple):
    """
    :ivar taps: its ports that are servers'
    :ivar others: its other ports
    """

    name: str
    taps: tuple[str, ...]
    others: tuple[str, ...]


class BridgeReader:
    """Reads the counters of all bridges of the kernel, which Open vSwitch's
    are not.
    """

    def __init__(self, root: str = '/') -> None:
        """:param root: where /proc and /sys are looked for"""
        self._counters_path = os.path.join(root, 'proc/net/dev')
        self._interfaces_path = os.path.join(root, 'sys/class/net')
        self._names: frozenset[str] = frozenset()
        self._bridges: tuple[_Bridge, ...] = ()
        self._searched_at_s = float('-inf')
        self._problem = ''

    def read(self) -> Mapping[str, usage.BridgeTraffic]:
        """:returns: the traffic of the bridge of each tap, by the tap's name;
            empty where the kernel does not show it
        """
        try:
            # Takes a tenth of the time of reading their counters.
            self._search(os.listdir(self._interfaces_path))
            packets = (_parse(procfs.read_text(self._counters_path))
                       if self._bridges else {})
            found = {}
            for bridge in self._bridges:
                traffic = _traffic(bridge, packets)
                found.update(dict.fromkeys(bridge.taps, traffic))
        except (OSError, ValueError, LookupError) as error:
            if str(error) != self._problem:
                LOG.warning('Packets of bridges cannot be read: %s', error)
            self._problem = str(error)
            return {}
        self._problem = ''
        return found

    def _search(self, names: Iterable[str]) -> None:
        """Find the ports of bridges, where they may have changed."""
        now_s, names = time.monotonic(), frozenset(names)
        if (names == self._names
                and now_s - self._searched_at_s < _SEARCH_INTERVAL_S):
            return
        self._bridges = tuple(
            self._ports(name) for name in sorted(names)
            if os.path.isdir(os.path.join(self._interfaces_path, name,
                                          'brif')))
        self._names, self._searched_at_s = names, now_s

    def _ports(self, bridge: str) -> _Bridge:
        ports = sorted(os.listdir(os.path.join(
            self._interfaces_path, bridge, 'brif')))
        taps = tuple(name for name in ports if os.path.exists(os.path.join(
            self._interfaces_path, name, 'tun_flags')))
        return _Bridge(bridge, taps, tuple(
            name for name in ports if name not in taps))


def _traffic(bridge: _Bridge, packets: Mapping[str, _Packets]
             ) -> usage.BridgeTraffic:
    """:raises KeyError: when a port has just gone"""
    taps = [packets[name] for name in bridge.taps]
    others = [packets[name] for name in bridge.others]
    # The host itself is behind the bridge's own interface, which receives what
    # the host does.
    host = packets[bridge.name]
    return usage.BridgeTraffic(
        frozenset((*bridge.taps, *bridge.others)),
        sent=sum(one.received for one in taps),
        received=sum(one.sent for one in taps),
        left=sum(one.sent for one in others) + host.received,
        arrived=sum(one.received for one in others) + host.sent)


def _parse(text: str) -> dict[str, _Packets]:
    """:raises ValueError: when it is not understood"""
    found = {}
    for line in text.splitlines()[2:]:
        name, _, columns = line.rpartition(':')
        values = columns.split()
        if len(values) <= _SENT:
            raise ValueError(f'a line of /proc/net/dev is {line!r}')
        found[name.strip()] = _Packets(int(values[_RECEIVED]),
                                       int(values[_SENT]))
    return found
