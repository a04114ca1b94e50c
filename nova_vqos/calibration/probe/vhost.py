# SPDX-License-Identifier: Apache-2.0
"""Whether this kernel's CPU limits hold workers of vhost, by a trial.

A worker moves the packets of a server in the kernel. Since Linux 6.18 a thread
over its limit is stopped when it returns to user mode, which a worker never
does. So its time may be taken from a limit that it shares with others, and not
be limited itself.

The trial gives a worker work that never ends: its queue is filled again and
again. It sends to a packet socket that belongs to no interface: each packet
fails, and none is on any network.
"""

from collections.abc import Collection, Sequence
import ctypes
import fcntl
import mmap
import os
import signal
import socket
import struct
import time
import typing as ty

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import probe
from nova_vqos.calibration.probe import spinners
from nova_vqos.quantum import probe_result

#: What a worker is limited to, as a part of a pCPU.
LIMIT = 0.2
DEVICE = '/dev/vhost-net'

# NOTE: include/uapi/linux/vhost.h.
_SET_FEATURES = 0x4008AF00
_SET_OWNER = 0xAF01
_SET_MEMORY = 0x4008AF03
_SET_SIZE = 0x4008AF10
_SET_ADDRESSES = 0x4028AF11
_SET_BASE = 0x4008AF12
_SET_KICK = 0x4008AF20
_SET_BACKEND = 0x4008AF30
# The worker strips the header that a guest puts before each packet.
_STRIPS_HEADER = 1 << 27
#: Numbers of the queues of packets for the guest, and from it.
RECEIVE, TRANSMIT = 0, 1
# Of a descriptor, its buffer is for the worker to write to.
_WRITABLE = 2

#: The most that a queue holds: a worker needs milliseconds for so many.
SIZE = 32768
# After virtio's header, to all, of a protocol that no program receives.
_PACKET = (b'\0' * 10 + b'\xff' * 6 + b'\2' + b'\0' * 5 + b'\x88\xb5').ljust(
    74, b'\0')
_FILL_S = 0.001

_PERIOD_US = 50_000
_SETTLE_S = 0.1
_WINDOW_S = 0.5
# A machine that stands still in one of them has a worker seem to run for all
# that time.
_WINDOWS = 3
# One that was held has no more than this, in limits.
_MOST = 1.5


class Queue:
    """The memory that a guest shares with vhost, as far as packets need it.

    NOTE: include/uapi/linux/virtio_ring.h. All descriptors are of one buffer,
    so packets that are received overwrite each other.
    """

    def __init__(self, packet: bytes = _PACKET, *,
                 number: int = TRANSMIT) -> None:
        """
        :param packet: after virtio's header; one to receive is as large
        :param number: :data:`RECEIVE` or :data:`TRANSMIT`
        """
        self.number, self.kick = number, os.eventfd(0)
        self._memory = mmap.mmap(-1, 1 << 20)
        self.bytes = len(self._memory)
        self.address = ctypes.addressof(
            ctypes.c_char.from_buffer(self._memory))
        self.descriptors = self.address
        self._available = 16 * SIZE
        self.available = self.address + self._available
        self._used = self._available + 8 + 2 * SIZE
        self.used = self.address + self._used
        buffer = self._used + 8 + 8 * SIZE
        self._memory[buffer:buffer + len(packet)] = packet
        descriptor = struct.pack(
            '=QIHH', self.address + buffer, len(packet),
            _WRITABLE if number == RECEIVE else 0, 0)
        self._memory[:16 * SIZE] = descriptor * SIZE
        struct.pack_into(f'={SIZE}H', self._memory, self._available + 4,
                         *range(SIZE))

    @property
    def done(self) -> int:
        """How many packets the worker has moved, modulo 65536."""
        return int(struct.unpack_from('=H', self._memory, self._used + 2)[0])

    def add(self, count: int) -> None:
        """Have the worker move so many packets more, and wake it up.

        :param count: with those before that it has not moved, up to
            :data:`SIZE`
        """
        self._set_available(struct.unpack_from(
            '=H', self._memory, self._available + 2)[0] + count)

    def fill(self) -> None:
        """Have the worker move as many as the queue holds, and wake it up."""
        self._set_available(self.done + SIZE)

    def _set_available(self, index: int) -> None:
        struct.pack_into('=H', self._memory, self._available + 2,
                         index & 0xFFFF)
        os.eventfd_write(self.kick, 1)


def start_worker(queue: Queue, backend: int | None = None) -> object:
    """Start a worker of this process that moves the packets of a queue.

    :param backend: descriptor of a tap; None: a socket of no interface, where
        each packet fails
    :returns: to be kept as long as it runs: it ends with this process, or
        when nothing has its device open
    :raises OSError: when there is no vhost
    """
    device = os.open(DEVICE, os.O_RDWR | os.O_CLOEXEC)
    fcntl.ioctl(device, _SET_OWNER)
    # A tap takes virtio's header.
    features = _STRIPS_HEADER if backend is None else 0
    nowhere = (socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
               if backend is None else None)
    for request, argument in (
            (_SET_FEATURES, struct.pack('=Q', features)),
            (_SET_MEMORY, struct.pack(
                '=IIQQQQ', 1, 0, queue.address, queue.bytes, queue.address,
                0)),
            (_SET_SIZE, struct.pack('=II', queue.number, SIZE)),
            (_SET_BASE, struct.pack('=II', queue.number, 0)),
            (_SET_ADDRESSES, struct.pack(
                '=IIQQQQ', queue.number, 0, queue.descriptors, queue.used,
                queue.available, 0)),
            (_SET_KICK, struct.pack('=Ii', queue.number, queue.kick)),
            (_SET_BACKEND, struct.pack(
                '=Ii', queue.number,
                nowhere.fileno() if nowhere else backend))):
        fcntl.ioctl(device, request, argument)
    return device, nowhere


def measure(root: str = '/') -> probe_result.Vhost:
    """See whether a limit on a server's group holds its worker.

    :param root: where /proc and /sys are looked for, for tests
    """
    if not os.path.exists(DEVICE):
        return _not_measured(f'there is no {DEVICE}')
    try:
        with server_groups.Tree(probe.NAME, root) as tree:
            pcpus, busiest = probe.idle_pcpus(root)
            if not pcpus:
                return _not_measured(
                    f'no pCPU was idle: the least busy one, {busiest}')
            windows = _try(tree, pcpus[0])
    except (OSError, ValueError, benchmark.CalibrationError) as error:
        # Slices were measured all the same.
        return _not_measured(str(error))
    return judge_all(windows)


def judge_all(windows: Sequence[tuple[float, int]]) -> probe_result.Vhost:
    """Decide by what most windows show, if no other shows the contrary.

    :param windows: what :func:`judge` takes, of each
    """
    found = [judge(*window) for window in windows]
    decided = [one for one in found if one.limited is not None]
    if 2 * len(decided) <= len(found):
        return next(one for one in found if one.limited is None)
    if len({one.limited for one in decided}) > 1:
        return _not_measured(
            'a worker was held in one window and not in another: ' + ', '.join(
                f'{share:.0%}' for share, _held_us in windows))
    return decided[-1]


def judge(share: float, held_us: int) -> probe_result.Vhost:
    """Decide whether a worker was held to LIMIT.

    :param share: of a pCPU's time that it had
    :param held_us: for how long the kernel says that the limit stopped it
    """
    if share > _MOST * LIMIT:
        return probe_result.Vhost(
            share, limited=False,
            reason=f'a worker had {share:.0%} of a pCPU, its limit was '
                   f'{LIMIT:.0%}')
    if not held_us:
        # Others were at work, or its queue was filled too late.
        return _not_measured(f'a worker had {share:.0%} of a pCPU, and never '
                             f'reached its limit of {LIMIT:.0%}')
    return probe_result.Vhost(share, limited=True)


def _not_measured(reason: str) -> probe_result.Vhost:
    return probe_result.Vhost(None, limited=None,
                              reason=f'not measured: {reason}')


def _try(tree: server_groups.Tree, pcpu: int) -> list[tuple[float, int]]:
    """:returns: see :func:`judge_all`"""
    queue = Queue()
    server = tree.server('vhost')
    server.limit(round(LIMIT * _PERIOD_US), _PERIOD_US)

    def prepare() -> None:
        server.enter(os.getpid())
        server.move_other(os.getpid())
        kept.append(start_worker(queue))

    # Not closed as long as it runs.
    kept: list[object] = []
    with spinners.process(pcpu, prepare, rest) as pid:
        workers = server.others() - {pid}
        for worker in workers:
            os.sched_setaffinity(worker, {pcpu})
        feed(queue, _SETTLE_S)
        return [_window(queue, server, workers) for _ in range(_WINDOWS)]


def _window(queue: Queue, server: server_groups.Server,
            workers: Collection[int]) -> tuple[float, int]:
    """:returns: see :func:`judge`"""
    before, before_s = host_cpus.thread_runs(workers), time.monotonic()
    held_us = server.held_us()
    feed(queue, _WINDOW_S)
    after, after_s = host_cpus.thread_runs(workers), time.monotonic()
    return (sum(run.run_ns for run in after)
            - sum(run.run_ns for run in before)) / (
                after_s - before_s) / 1e9, server.held_us() - held_us


def feed(queue: Queue, length_s: float) -> None:
    """Leave a worker something to do all the time."""
    until_s = time.monotonic() + length_s
    while time.monotonic() < until_s:
        queue.fill()
        time.sleep(_FILL_S)


def rest() -> ty.NoReturn:
    """Do nothing, as the owner of a worker."""
    while True:
        signal.pause()
