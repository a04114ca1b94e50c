# SPDX-License-Identifier: Apache-2.0
"""Set-ups to send packets through, each in a network namespace of its own.

Nothing here reaches the machine's own network: the namespaces have no name
and no link to it, and are gone with the program, however it ends. In each is
a pair of interfaces for the world (``world`` sends what ``port`` receives), a
tap for the guest, and between port and tap the object of the measurement: a
bridge, a router, one that translates addresses, or the kernel's part of Open
vSwitch, without its daemons. Beside them are the same
without anything between, where packets end: ``lone_world`` and ``lone_port``,
and ``lone_tap``.
"""

from collections.abc import Sequence
import contextlib
import dataclasses
import os
import pathlib
import shutil
import socket
import struct
import subprocess

from nova_vqos.calibration import system
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import tap

#: Of Linux, whether rules for IP are asked about bridged packets, too.
BRIDGE_SETTINGS = ('bridge-nf-call-iptables', 'bridge-nf-call-ip6tables',
                   'bridge-nf-call-arptables')
#: How packets get from the world's interface to the tap.
MODES = ('bridge', 'routed', 'nat', 'openvswitch')
#: Of these, those where the host looks at the packet's IP address.
ROUTED_MODES = ('routed', 'nat')
MTU = 9000
#: Of a frame, with the header of Ethernet, as interfaces count bytes.
LEAST_BYTES = 64
MOST_FRAME_BYTES = MTU + 14
#: Of a large packet, which stands for many frames (GSO). The kernel divides
#: larger ones before they get to an interface.
MOST_BYTES = 65_535

_SECONDS = 20
# Of some modes, with their packages.
_TOOLS = {'nat': {'nft': 'nftables'},
          'openvswitch': {'ovs-dpctl': 'openvswitch-switch'}}
# Locally administered. No interface here has the world's, so that packets to
# it end at the interface of the world.
_GUEST = '02:00:00:00:00:02'
_WORLD = '02:00:00:00:00:03'
_PORT = '02:00:00:00:00:04'
_TAP = '02:00:00:00:00:05'
# Networks for documentation (RFC 5737).
_WORLD_IP, _PORT_IP, _PUBLIC_IP = '192.0.2.2', '192.0.2.1', '192.0.2.3'
_GUEST_IP, _TAP_IP = '198.51.100.2', '198.51.100.1'
#: Of Ethernet, for local experiments (IEEE 802): no protocol reads it.
UNKNOWN = 0x88b5
IPV4 = 0x0800
_PORTS = (4000, 4001)
_UDP, _TCP = 17, 6
# Of Ethernet, IPv4 and TCP.
_HEADERS_BYTES = 14 + 20 + 20
# Of TCP in the frames that a large packet stands for, on a network with an MTU
# of 1500 bytes.
_SEGMENT_BYTES = 1460
# From include/uapi/linux/if_packet.h, and of setsockopt(2).
_SOL_PACKET, _PACKET_VNET_HDR = 263, 15
# A burst waits there while the reader is not running.
_QUEUE = '10000'


@dataclasses.dataclass(frozen=True, slots=True)
class Packets:
    """Of one size, for each way that is measured, after virtio's header.

    :ivar rx: from the world to the guest
    :ivar tx: from the guest to the world
    :ivar lost: ended where they arrive, in a set-up with nothing between
    """

    rx: bytes
    tx: bytes
    lost: bytes


def packets(mode: str, size: int) -> Packets:
    """Packets for a mode: a frame of UDP, or a large packet of TCP.

    :param size: in bytes, with the header of Ethernet; above
        :data:`MOST_FRAME_BYTES` it is a large packet
    :raises ValueError: when there can be none
    """
    if not LEAST_BYTES <= size <= MOST_BYTES:
        raise ValueError(f'{size} is no size of a packet from {LEAST_BYTES} '
                         f'to {MOST_BYTES} bytes')
    is_large = size > MOST_FRAME_BYTES
    header, content = (
        (tap.large_header(_HEADERS_BYTES, _SEGMENT_BYTES), segment)
        if is_large else (tap.HEADER, datagram))
    public = _PUBLIC_IP if mode == 'nat' else _GUEST_IP
    via_port, via_tap = ((_PORT, _TAP) if mode in ROUTED_MODES
                         else (_GUEST, _WORLD))
    return Packets(
        rx=header + frame(via_port, _WORLD, IPV4,
                          content(_WORLD_IP, public, _PORTS, size)),
        tx=header + frame(via_tap, _GUEST, IPV4,
                          content(_GUEST_IP, _WORLD_IP, _PORTS[::-1], size)),
        # NOTE: the kernel takes no large packet of an unknown protocol. IPv4
        # drops it at once, too: it is to another MAC address.
        lost=header + frame(_GUEST, _WORLD, IPV4 if is_large else UNKNOWN,
                            content(_WORLD_IP, public, _PORTS, size)))


def commands(mode: str) -> list[list[str]]:
    """Commands that set up a mode whose taps exist."""
    done = [
        _ip('link', 'set', 'lo', 'up'),
        *(_ip('link', 'add', f'{name}world', 'mtu', str(MTU), 'type', 'veth',
              'peer', 'name', f'{name}port', 'mtu', str(MTU))
          for name in ('', 'lone_')),
        _ip('link', 'set', 'port', 'address', _PORT),
        _ip('link', 'set', 'tap', 'address', _TAP),
        *(_ip('link', 'set', name, 'mtu', str(MTU), 'txqueuelen', _QUEUE)
          for name in ('tap', 'lone_tap'))]
    if mode == 'bridge':
        done += [
            _ip('link', 'add', 'name', 'switch', 'mtu', str(MTU), 'type',
                'bridge', 'forward_delay', '0', 'mcast_snooping', '0'),
            *(_ip('link', 'set', name, 'master', 'switch')
              for name in ('port', 'tap')),
            _ip('link', 'set', 'switch', 'up')]
    done += [_ip('link', 'set', name, 'up')
             for name in ('world', 'port', 'tap', 'lone_world', 'lone_port',
                          'lone_tap')]
    if mode == 'openvswitch':
        done += [
            ['ovs-dpctl', 'add-dp', 'switch'],
            ['ovs-dpctl', 'add-if', 'switch', 'port,port_no=1',
             'tap,port_no=2'],
            # As a bridge: nothing asks for the state of connections.
            *(['ovs-dpctl', 'add-flow', 'switch',
               f'in_port({by}),eth(),eth_type(0x0800),ipv4()', to]
              for by, to in (('1', '2'), ('2', '1')))]
    if mode in ROUTED_MODES:
        for name, own, other, address in (
                ('port', _PORT_IP, _WORLD_IP, _WORLD),
                ('tap', _TAP_IP, _GUEST_IP, _GUEST)):
            done += [
                _ip('address', 'add', f'{own}/24', 'dev', name),
                _ip('neighbour', 'add', other, 'lladdr', address, 'dev', name,
                    'nud', 'permanent')]
    if mode == 'nat':
        done += [
            ['nft', 'add', 'table', 'ip', 'nova_vqos'],
            ['nft', 'add', 'chain', 'ip', 'nova_vqos', 'in',
             '{ type nat hook prerouting priority -100 ; }'],
            ['nft', 'add', 'chain', 'ip', 'nova_vqos', 'out',
             '{ type nat hook postrouting priority 100 ; }'],
            ['nft', 'add', 'rule', 'ip', 'nova_vqos', 'in', 'ip', 'daddr',
             _PUBLIC_IP, 'dnat', 'to', _GUEST_IP],
            ['nft', 'add', 'rule', 'ip', 'nova_vqos', 'out', 'ip', 'saddr',
             _GUEST_IP, 'snat', 'to', _PUBLIC_IP]]
    return done


def settings(mode: str) -> dict[str, str]:
    """Settings below /proc/sys, before the interfaces are made."""
    # Else IPv6 would send packets of its own.
    quiet = {f'net/ipv6/conf/{name}/disable_ipv6': '1'
             for name in ('all', 'default')}
    return quiet | ({'net/ipv4/ip_forward': '1'} if mode in ROUTED_MODES
                    else {})


def missing_tool(mode: str, sysroot: str = '/') -> str:
    """The missing tools of a mode, with their packages; '': none."""
    if mode == 'openvswitch' and not os.path.isdir(
            os.path.join(sysroot, 'sys/module/openvswitch')):
        return 'the kernel has not loaded openvswitch'
    tools = {'ip': 'iproute2', **_TOOLS.get(mode, {})}
    return ', '.join(f'{tool} is missing: install the package {package}'
                     for tool, package in tools.items()
                     if shutil.which(tool) is None)


class Setup:
    """One mode, set up.

    :ivar tap: the guest's end
    :ivar lone_tap: one whose packets lead nowhere
    :ivar world: descriptor of a socket that sends from the world
    :ivar lone_world: of one whose packets lead nowhere
    """

    def __init__(self, mode: str, stack: contextlib.ExitStack) -> None:
        """
        :param stack: where what ends it is left
        :raises CalibrationError: when it cannot be set up
        """
        done = settings(mode) | {f'net/bridge/{name}': value for name, value
                                 in bridge_settings().items()}
        with system.network_namespace():
            for path, value in done.items():
                _set(path, value)
            self.tap, self.lone_tap = (
                stack.enter_context(contextlib.closing(tap.Tap(name)))
                for name in ('tap', 'lone_tap'))
            for command in commands(mode):
                _run(command)
            self.world, self.lone_world = (
                stack.enter_context(_sending_from(name)).fileno()
                for name in ('world', 'lone_world'))


def _sending_from(name: str) -> socket.socket:
    """A socket that sends whole packets from an interface, and gets none.

    They are sent after virtio's header, as by a tap.
    """
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    made.bind((name, 0))
    return made


def _ip(*arguments: str) -> list[str]:
    return ['ip', *arguments]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False,
                              timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CalibrationError(f'{command[0]} failed: {error}') from error
    if done.returncode:
        raise CalibrationError(
            f'{" ".join(command)} ended with {done.returncode}: '
            f'{done.stderr.strip()[-200:]}')


def bridge_settings() -> dict[str, str]:
    """Those of the host, which a new namespace does not have."""
    found = {}
    for name in BRIDGE_SETTINGS:
        with contextlib.suppress(OSError):
            found[name] = pathlib.Path(
                '/proc/sys/net/bridge', name).read_text().strip()
    return found


def _set(path: str, value: str) -> None:
    # NOTE: below /proc/sys/net are those of the namespace of who opens it.
    try:
        pathlib.Path('/proc/sys', path).write_text(value)
    except FileNotFoundError:
        # This kernel has no IPv6.
        if 'ipv6' not in path:
            raise


def frame(to: str, by: str, protocol: int, content: bytes) -> bytes:
    """A packet as it is sent, from one MAC address to another."""
    return (_address(to) + _address(by) + struct.pack('!H', protocol)
            + content)


def _address(text: str) -> bytes:
    return bytes.fromhex(text.replace(':', ''))


def datagram(by: str, to: str, ports: tuple[int, int],
             frame_size: int) -> bytes:
    """A UDP packet over IPv4, without content.

    :param frame_size: of the whole packet, in bytes
    """
    size = frame_size - 14 - 20
    # Without a checksum of its own, as UDP may be.
    return _ipv4(by, to, _UDP, struct.pack('!4H', *ports, size, 0), size)


def segment(by: str, to: str, ports: tuple[int, int],
            frame_size: int) -> bytes:
    """A TCP packet over IPv4, without content; see :func:`datagram`.

    Its checksum is left to the receiver: it has the sum of addresses and
    length only.
    """
    size = frame_size - 14 - 20
    addresses = struct.pack('!4s4sHH', socket.inet_aton(by),
                            socket.inet_aton(to), _TCP, size)
    return _ipv4(by, to, _TCP, struct.pack(
        # An acknowledgement within an open connection.
        '!HHIIBBHHH', *ports, 1, 1, 5 << 4, 0x10, 0xffff,
        _sum(addresses), 0), size)


def _ipv4(by: str, to: str, protocol: int, start: bytes,
          size: int) -> bytes:
    """:param start: of what follows its header, filled up to the size"""
    header = struct.pack(
        '!BBHHHBBH4s4s', 0x45, 0, 20 + size, 0, 0x4000, 64, protocol, 0,
        socket.inet_aton(by), socket.inet_aton(to))
    return (header[:10] + struct.pack('!H', ~_sum(header) & 0xffff)
            + header[12:] + start.ljust(size, b'\0'))


def _sum(content: bytes) -> int:
    """Of RFC 1071, before it is inverted; of an even number of bytes."""
    total: int = sum(struct.unpack(f'!{len(content) // 2}H', content))
    while total > 0xffff:
        total = (total & 0xffff) + (total >> 16)
    return total
