# SPDX-License-Identifier: Apache-2.0
"""The traffic between servers of this host and with others.

Of each bridge; of the kernel's Open vSwitch, as one bridge; and of the host as
a router, where taps are no port of anything.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import logging
import os
import time
import typing as ty

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import procfs

LOG = logging.getLogger(__name__)

# Columns of /proc/net/dev after the name (net/core/net-procfs.c).
_RECEIVED, _SENT = 1, 9
# From include/uapi/linux/if_tun.h.
_IFF_TAP = 0x0002
# Ports that come and go change the names; one that only moves to another
# bridge is found later.
_SEARCH_INTERVAL_S = 60.0
#: NOTE: the kernel's Open vSwitch has one device that is the master of all its
#: ports but the host's own ones (net/openvswitch/vport-netdev.c).
OPENVSWITCH = 'ovs-system'


class _Packets(ty.NamedTuple):
    """Of an interface, as the host counts them."""

    received: int
    sent: int


class _Forwarding(ty.NamedTuple):
    """Packets of IP that the host forwarded, and that itself sent."""

    forwarded: int
    sent: int


class _Bridge(ty.NamedTuple):
    """
    :ivar name: '': the host as a router
    :ivar taps: its ports that are servers'
    :ivar others: its other ports
    """

    name: str
    taps: tuple[str, ...]
    others: tuple[str, ...]


class BridgeReader:
    """Reads the counters of all bridges of the kernel, and of its router.

    The host's own ports of Open vSwitch do not count as the outside: what the
    host's programs send from there is brought to a server in their own time.
    """

    def __init__(self, root: str = '/') -> None:
        """:param root: where /proc and /sys are looked for"""
        self._network_path = os.path.join(root, 'proc/net')
        self._interfaces_path = os.path.join(root, 'sys/class/net')
        self._names: frozenset[str] = frozenset()
        self._bridges: tuple[_Bridge, ...] = ()
        self._searched_at_s = float('-inf')
        self._problem = ''

    def read(self) -> Mapping[str, usage.BridgeTraffic]:
        """:returns: the traffic of the bridge of each tap, or of the router,
            by the tap's name; empty where the kernel does not show it
        """
        try:
            # Takes a tenth of the time of reading their counters.
            self._search(os.listdir(self._interfaces_path))
            packets = (_parse(procfs.read_text(os.path.join(
                self._network_path, 'dev')))
                       if self._bridges else {})
            found = {}
            for bridge in self._bridges:
                traffic = (_traffic(bridge, packets) if bridge.name
                           else self._routed(bridge, packets))
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
        bridges = [self._ports(name) for name in sorted(names)
                   if os.path.isdir(self._path(name, 'brif'))]
        masters = {name: self._master(name) for name in names}
        switch = self._divide(OPENVSWITCH, (
            name for name, master in masters.items()
            if master == OPENVSWITCH))
        # A port of anything has a master, such as a bridge. What goes through
        # loopback is the host's own. Bonding has a file there.
        router = self._divide('', (
            name for name, master in masters.items()
            if not master and name not in ('lo', 'bonding_masters')))
        self._bridges = (*bridges, *(
            one for one in (switch, router) if one.taps))
        self._names, self._searched_at_s = names, now_s

    def _master(self, name: str) -> str:
        """:returns: its name; '': there is none"""
        try:
            return os.path.basename(os.readlink(self._path(name, 'master')))
        except OSError:
            return ''

    def _ports(self, bridge: str) -> _Bridge:
        return self._divide(bridge, os.listdir(self._path(bridge, 'brif')))

    def _divide(self, bridge: str, ports: Iterable[str]) -> _Bridge:
        ports = sorted(ports)
        taps = tuple(name for name in ports if self._is_tap(name))
        return _Bridge(bridge, taps, tuple(
            name for name in ports if name not in taps))

    def _is_tap(self, name: str) -> bool:
        flags = procfs.read_text(self._path(name, 'tun_flags'), '')
        return bool(flags) and bool(int(flags, 16) & _IFF_TAP)

    def _path(self, interface: str, name: str) -> str:
        return os.path.join(self._interfaces_path, interface, name)

    def _routed(self, router: _Bridge, packets: Mapping[str, _Packets]
                ) -> usage.BridgeTraffic:
        """
        :raises KeyError: when an interface has just gone, or the kernel does
            not say what it forwarded
        """
        host = _forwarding(
            procfs.read_text(os.path.join(self._network_path, 'snmp')),
            # There is none without IPv6.
            procfs.read_text(os.path.join(self._network_path, 'snmp6'), ''))
        # Its rest went to other interfaces.
        sent = host.sent - packets['lo'].sent
        found = _traffic(router, {**packets, '': _Packets(0, sent)})
        return dataclasses.replace(found, forwarded=host.forwarded)


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


def _forwarding(snmp: str, snmp6: str) -> _Forwarding:
    """
    :param snmp: of IPv4: a line of names, and one of values
    :param snmp6: of IPv6: a name and a value a line
    :raises ValueError: when it is not understood
    :raises KeyError: when something is missing
    """
    names, values = (line.split() for line in snmp.splitlines()
                     if line.startswith('Ip:'))
    ipv4 = dict(zip(names, values, strict=True))
    forwarded, sent = int(ipv4['ForwDatagrams']), int(ipv4['OutRequests'])
    if 'OutTransmits' not in ipv4:
        # NOTE: before Linux 6.7 what was forwarded counts as requested, too
        # (ip_output in net/ipv4/ip_output.c).
        sent -= forwarded
    ipv6 = dict(line.split() for line in snmp6.splitlines())
    return _Forwarding(forwarded + int(ipv6.get('Ip6OutForwDatagrams', 0)),
                       sent + int(ipv6.get('Ip6OutRequests', 0)))
