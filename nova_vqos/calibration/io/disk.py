# SPDX-License-Identifier: Apache-2.0
"""The kernel's cost of a disk request, beyond the thread that makes it.

That thread is charged for its own time, which is a server's. The rest is the
kernel's: threads that write back buffers, and interrupts when a request is
done. Interrupts are charged to no thread, but a soaker loses work to them.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import mmap
import os
import random
import stat
import tempfile
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration import system
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import accounts
from nova_vqos.calibration.io import network

OPERATIONS = ('read', 'write')
#: Of requests, in bytes.
SIZES = (4096, 16_384, 65_536, 262_144, 1_048_576)
#: Of the file that is made, and of a device, of which no more is used.
FILE_BYTES = 128 * 1024 * 1024

# Of one round.
_ROUND_BYTES = 4 * 1024 * 1024
_BUFFERED_ROUND_BYTES = 16 * 1024 * 1024
_MOST_REQUESTS = 64
_MOST_BUFFERED_REQUESTS = 1024
# Without requests: as long as with some, roughly.
_IDLE_S = 0.02
_CHECKED_BYTES = 1024 * 1024
# File systems without a disk below them.
_IN_MEMORY = ('tmpfs', 'ramfs')

_random = random.SystemRandom()


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """A kind of disk request.

    :ivar source: ``file`` or ``block``
    :ivar buffered: whether the page cache is used
    """

    source: str
    buffered: bool

    @property
    def name(self) -> str:
        return f'{self.source}, {"buffered" if self.buffered else "direct"}'


class Disk:
    """A file or a block device, open for both ways of using it."""

    def __init__(self, source: str, plain: int, direct: int) -> None:
        """:param plain, direct: its descriptors, closed by it"""
        self.source = source
        self._files = {True: plain, False: direct}

    def file(self, kind: Kind) -> int:
        return self._files[kind.buffered]

    def close(self) -> None:
        for file in self._files.values():
            os.close(file)


def make_file(directory: str) -> Disk:
    """A file without a name: gone with this program, however it ends.

    :raises CalibrationError: when there can be none, or no disk is below it
    """
    kind = filesystem(directory)
    if kind in _IN_MEMORY:
        raise CalibrationError(
            f'{directory} is on {kind}, which has no disk: give the '
            "directory of servers' disks as --disk-directory")
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            block = os.urandom(1024 * 1024)
            for start in range(0, FILE_BYTES, len(block)):
                os.pwrite(file.fileno(), block, start)
            os.fsync(file.fileno())
            return _open('file', f'/proc/self/fd/{file.fileno()}')
    except OSError as error:
        raise CalibrationError(
            f'no file of {FILE_BYTES} bytes can be made in {directory} and '
            f'used without its cache: {error.strerror}') from error


def open_device(path: str) -> Disk:
    """A block device that is unused and empty.

    :raises CalibrationError: when it is none, or something may be on it
    """
    try:
        if not stat.S_ISBLK(os.stat(path).st_mode):
            raise CalibrationError(f'{path} is no block device')
        # NOTE: of a block device O_EXCL fails where it is mounted, or part of
        # something.
        return _open('block', path, os.O_EXCL, check_empty)
    except OSError as error:
        raise CalibrationError(
            f'block device {path} cannot be used: {error.strerror}') from error


def check_empty(path: str, file: int) -> None:
    """Check that a device is large enough, and empty.

    :raises CalibrationError: when it is not
    """
    size = os.lseek(file, 0, os.SEEK_END)
    if size < FILE_BYTES:
        raise CalibrationError(f'block device {path} has {size} bytes, it '
                               f'needs {FILE_BYTES}')
    for start in (0, size - _CHECKED_BYTES):
        if any(os.pread(file, _CHECKED_BYTES, start)):
            raise CalibrationError(
                f'something is on block device {path}, which would be lost: '
                'give one that begins and ends with zeros')


def _open(source: str, path: str, flags: int = 0,
          check: Callable[[str, int], None] = lambda _path, _file: None,
          ) -> Disk:
    plain = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags)
    try:
        check(path, plain)
        return Disk(source, plain, os.open(
            path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC))
    except BaseException:
        os.close(plain)
        raise


def filesystem(path: str) -> str:
    """The kind of file system that a path is on."""
    device = os.stat(path).st_dev
    wanted = f'{os.major(device)}:{os.minor(device)}'
    with open('/proc/self/mountinfo', encoding='utf-8') as file:
        for line in file:
            if line.split()[2] == wanted:
                return line.partition(' - ')[2].split()[0]
    return 'unknown'


class Bench:
    """Disks, and processes beside them, ready to be measured."""

    def __init__(self, disks: Sequence[Disk], pcpus: Sequence[int], *,
                 apart: bool) -> None:
        """
        :param pcpus: where soakers are; the first one makes requests
        :param apart: see :class:`accounts.Accounts`
        """
        self._disks = {disk.source: disk for disk in disks}
        self._threads = accounts.kernel_threads()
        # Writes are of zeros, which a device must hold afterwards.
        self._buffers = {operation: memoryview(mmap.mmap(-1, max(SIZES)))
                         for operation in OPERATIONS}
        with contextlib.ExitStack() as stack:
            self._accounts = stack.enter_context(contextlib.closing(
                accounts.Accounts(pcpus, (), apart=apart)))
            runner.pin(0, pcpus[0])
            runner.go_first()
            self._stack = stack.pop_all()
        self.kinds = tuple(
            Kind(source, buffered) for source in self._disks
            for buffered in (False, True)
            # NOTE: nothing makes the kernel write back a block device by its
            # own threads, as it does some day.
            if source == 'file' or not buffered)

    def close(self) -> None:
        self._stack.close()

    def sweep(self, kind: Kind, operation: str) -> dict[int, network.Sample]:
        """One sample of each size, in a random order."""
        return {size: self._pair(kind, operation, size)
                for size in _random.sample(SIZES, len(SIZES))}

    def _pair(self, kind: Kind, operation: str, size: int) -> network.Sample:
        count = (
            min(_MOST_BUFFERED_REQUESTS, _BUFFERED_ROUND_BYTES // size)
            if kind.buffered and operation == 'write'
            else min(_MOST_REQUESTS, _ROUND_BYTES // size))
        # The cost of a flush itself is no part of a request.
        less = 1 if kind.buffered and operation == 'write' else 0
        # The undisturbed work of soakers, before and after: machines drift.
        idle = self._round(kind, operation, size, 0)
        rounds = {requests: self._round(kind, operation, size, requests)
                  for requests in _random.sample(sorted({count, less}), 2)}
        undisturbed = idle.read.plus(
            self._round(kind, operation, size, 0).read)
        work, base = rounds[count], rounds[less]
        lost = (accounts.lost_ns(work.read, undisturbed)
                - accounts.lost_ns(base.read, undisturbed))
        rest = (work.beside - base.beside + work.read.interrupt_ns
                - base.read.interrupt_ns)
        requests = count - less
        return network.Sample((rest + lost) / requests,
                              (work.own - base.own) / requests,
                              lost / requests)

    def _round(self, kind: Kind, operation: str, size: int,
               count: int) -> accounts.Round:
        file = self._disks[kind.source].file(kind)
        part = self._buffers[operation][:size]
        act = os.preadv if operation == 'read' else os.pwritev
        starts = [number * size for number in _random.sample(
            range(FILE_BYTES // size), count)]
        flushes = count and kind.buffered and operation == 'write'
        if kind.buffered:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        # NOTE: the search for them takes long; a new one was made in here, or
        # a moment before.
        kernel = _times(self._threads)
        before = self._accounts.read()
        own = time.thread_time_ns()
        for start in starts:
            act(file, [part], start)
        own = time.thread_time_ns() - own
        if flushes:
            system.sync_filesystem(file)
        if not count:
            time.sleep(_IDLE_S)
        read = self._accounts.read().since(before)
        self._threads = accounts.kernel_threads()
        return accounts.Round(own, sum(
            ns - kernel.get(thread, 0)
            for thread, ns in _times(self._threads).items()), read)


def _times(threads: Iterable[int]) -> dict[int, int]:
    """:returns: CPU time of each thread that is there, by its id"""
    return {thread: accounts.cpu_time_or_none_ns(thread) for thread in threads}
