# SPDX-License-Identifier: Apache-2.0
"""Calls of the kernel that Python has no function for (some from 3.12 on)."""

from collections.abc import Iterator
import contextlib
import ctypes
import os
import signal

from nova_vqos.calibration.benchmark import CalibrationError

_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def network_namespace() -> Iterator[None]:
    """Be in a new network namespace, with all that is started or opened then.

    It has no name: it is gone, with all interfaces in it, as soon as nothing
    uses it any more, however this process ends. Only the calling thread is
    in it.

    :raises CalibrationError: when this process may make none
    """
    own = os.open('/proc/thread-self/ns/net', os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            _check(_libc.unshare(_CLONE_NEWNET))
        except OSError as error:
            raise CalibrationError(
                'no network namespace can be made to measure in '
                f'({error.strerror}): run as root') from error
        try:
            yield
        finally:
            _check(_libc.setns(own, _CLONE_NEWNET))
    finally:
        os.close(own)


def die_with_parent() -> None:
    """Have the kernel kill this process when the one that forked it ends."""
    parent = os.getppid()
    _check(_libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0))
    if os.getppid() != parent:
        # It ended before it was asked for.
        os.kill(os.getpid(), signal.SIGKILL)


def sync_filesystem(file: int) -> None:
    """Write back all of a file system, by the kernel's own threads.

    :param file: descriptor of a file on it
    """
    _check(_libc.syncfs(file))


class _Vector(ctypes.Structure):
    _fields_ = (('base', ctypes.c_void_p), ('length', ctypes.c_size_t))


class _Header(ctypes.Structure):
    _fields_ = (('name', ctypes.c_void_p), ('name_length', ctypes.c_uint32),
                ('vectors', ctypes.POINTER(_Vector)),
                ('vector_count', ctypes.c_size_t),
                ('control', ctypes.c_void_p),
                ('control_length', ctypes.c_size_t),
                ('flags', ctypes.c_int))


class _Message(ctypes.Structure):
    _fields_ = (('header', _Header), ('length', ctypes.c_uint))


class Burst:
    """A packet, to be sent several times by one call of the kernel."""

    def __init__(self, packet: bytes, count: int) -> None:
        self._buffer = ctypes.create_string_buffer(packet, len(packet))
        self._vector = _Vector(ctypes.addressof(self._buffer), len(packet))
        self._messages = (_Message * count)()
        for message in self._messages:
            message.header.vectors = ctypes.pointer(self._vector)
            message.header.vector_count = 1
        self._count = count

    def send(self, socket: int) -> None:
        """Send all of them.

        :param socket: its descriptor
        :raises OSError: when not all could be sent
        """
        sent = _check(_libc.sendmmsg(
            ctypes.c_int(socket), self._messages,
            ctypes.c_uint(self._count), ctypes.c_int(0)))
        if sent != self._count:
            raise OSError(f'{sent} of {self._count} packets were sent')


def _check(result: int) -> int:
    """:raises OSError: when a call of the C library failed"""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
