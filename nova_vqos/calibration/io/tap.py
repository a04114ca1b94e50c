# SPDX-License-Identifier: Apache-2.0
"""A tap device, and the thread that reads and writes it.

As QEMU's network backend does without vhost: a call of the kernel for each
packet, with virtio's header before it.
"""

import fcntl
import os
import struct
import time

from nova_vqos.calibration.benchmark import CalibrationError

_PATH = '/dev/net/tun'
# From include/uapi/linux/if_tun.h.
_TUNSETIFF = 0x400454ca
_TUNSETOFFLOAD = 0x400454d0
_IFF_TAP = 0x0002
_IFF_NO_PI = 0x1000
_IFF_VNET_HDR = 0x4000
_TUN_F_CSUM = 0x01
_TUN_F_TSO4 = 0x02
# From include/uapi/linux/virtio_net.h.
_NEEDS_CSUM = 1
_GSO_TCPV4 = 1

#: Of virtio's header: nothing is left to be done for the packet.
HEADER = bytes(10)
_MOST_BYTES = 65_536 + len(HEADER)
_ORDER_BYTES = 8


class Tap:
    """A tap device of this network namespace, gone when it is closed."""

    def __init__(self, name: str) -> None:
        """
        :raises CalibrationError: when this kernel has none, or not for us
        """
        try:
            self._file = os.open(_PATH, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            raise CalibrationError(
                f'{_PATH} cannot be used ({error.strerror}): the kernel needs '
                'CONFIG_TUN, and this program root') from error
        try:
            fcntl.ioctl(self._file, _TUNSETIFF, struct.pack(
                '16sH22x', name.encode(),
                _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
            # As for a guest that takes large packets: virtio's driver does.
            fcntl.ioctl(self._file, _TUNSETOFFLOAD,
                        _TUN_F_CSUM | _TUN_F_TSO4)
        except OSError as error:
            os.close(self._file)
            raise CalibrationError(
                f'no tap device can be made ({error.strerror}): this program '
                'needs root, or CAP_NET_ADMIN') from error

    def serve(self, orders: int, counts: memoryview) -> None:
        """Read as many packets as are ordered, for ever.

        :param orders: descriptor to read orders from, see :func:`order`
        :param counts: of orders that were done, and of the CPU time that
            packets took in ns
        """
        # One buffer: the cost of a packet's memory in a guest is not measured.
        into = [bytearray(_MOST_BYTES)]
        while True:
            count = int.from_bytes(os.read(orders, _ORDER_BYTES))
            began = time.thread_time_ns()
            for _ in range(count):
                os.readv(self._file, into)
            counts[1] += time.thread_time_ns() - began
            counts[0] += 1

    def write(self, packet: bytes, count: int) -> None:
        """Send a packet several times, one call of the kernel for each.

        :param packet: after virtio's header
        """
        file = self._file
        for _ in range(count):
            os.write(file, packet)

    def close(self) -> None:
        os.close(self._file)


def large_header(headers_bytes: int, segment_bytes: int) -> bytes:
    """Virtio's header of a large packet of TCP over IPv4 (GSO).

    :param headers_bytes: of Ethernet, IPv4 and TCP, the last with 20 bytes
    :param segment_bytes: of TCP in each frame that it stands for
    """
    return struct.pack('=BBHHHH', _NEEDS_CSUM, _GSO_TCPV4, headers_bytes,
                       segment_bytes, headers_bytes - 20, 16)


def order(orders: int, count: int) -> None:
    """Order so many packets to be read, or none.

    :param orders: descriptor of the other end of the pipe
    """
    os.write(orders, count.to_bytes(_ORDER_BYTES))
