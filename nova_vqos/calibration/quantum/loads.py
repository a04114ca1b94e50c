# SPDX-License-Identifier: Apache-2.0
"""Servers of one kind of work each, as programs whose threads are vCPUs.

The programs are scripts for sysbench, run by LuaJIT: nothing is compiled. A
server that is not measured is stopped, and uses no CPU time.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import importlib.resources
import mmap
import os
import signal
import subprocess
import time
import typing as ty

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError

#: Of one element of a list that is walked.
LINE_BYTES = 64

_SCRIPT = 'quantum.lua'
# As in the script: slots of 8 doubles, then the lock.
_SLOTS = 32
_SLOT_NUMBERS = 8
_BOARD_BYTES = 4096
_THREAD, _WORK, _CPU_NS = range(3)
_START_S = 60
_POLL_S = 0.01
_END_S = 10
_MOST_OUTPUT = 200


class Done(ty.NamedTuple):
    """Work of vCPUs.

    :ivar work: nodes, critical sections, or turns of the loop
    :ivar cpu_ns: CPU time for it
    """

    work: float
    cpu_ns: float

    @property
    def cost_ns(self) -> float | None:
        """CPU time for a unit of work; None: there was no work."""
        return self.cpu_ns / self.work if self.work > 0 else None


class Board:
    """Memory in which threads of loads count their work."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create('nova-vqos-board')
        os.ftruncate(self.descriptor, _BOARD_BYTES)
        self._map = mmap.mmap(self.descriptor, _BOARD_BYTES)
        self._numbers = memoryview(self._map).cast('d')
        self._reserved = 0

    def reserve(self, count: int) -> range:
        """:returns: free slots"""
        if self._reserved + count > _SLOTS:
            raise CalibrationError(f'more than {_SLOTS} vCPUs are too many')
        self._reserved += count
        return range(self._reserved - count, self._reserved)

    def thread(self, slot: int) -> int:
        """:returns: the id of its thread; 0: that has not begun yet"""
        return int(self._numbers[slot * _SLOT_NUMBERS + _THREAD])

    def read(self, slot: int) -> Done:
        """The work of a vCPU since it began."""
        at = slot * _SLOT_NUMBERS
        return Done(self._numbers[at + _WORK], self._numbers[at + _CPU_NS])

    def close(self) -> None:
        self._numbers.release()
        self._map.close()
        os.close(self.descriptor)


class Server:
    """A program whose threads are the vCPUs of a server.

    :ivar vcpus: slots of the board
    """

    def __init__(self, board: Board, kind: str, *,
                 enter: Callable[[int], None], vcpus: int = 1,
                 socket: int | None = None, **options: int) -> None:
        """Start it, and wait until all its vCPUs work.

        :param kind: of the script
        :param enter: moves the new process into its group
        :param socket: file descriptor of the socket for requests
        :param options: further ones of the script
        :raises CalibrationError: when it cannot be started
        """
        self._board = board
        self.vcpus = board.reserve(vcpus)
        self._output = os.memfd_create('nova-vqos-output')
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        if socket is not None:
            options['socket'] = socket
        argv = [
            f'--threads={vcpus}', '--time=0', '--events=0', f'--kind={kind}',
            f'--board={board.descriptor}', f'--slot={self.vcpus[0]}',
            f'--parent={os.getpid()}',
            *(f'--{name}={value}' for name, value in options.items()), 'run']
        try:
            self._start(argv, [board.descriptor, *(
                [] if socket is None else [socket])], enter)
        except BaseException:
            self.close()
            raise

    def _start(self, argv: list[str], descriptors: list[int],
               enter: Callable[[int], None]) -> None:
        program = benchmark.find_program('sysbench', 'sysbench')
        with importlib.resources.as_file(
                importlib.resources.files('nova_vqos.calibration.guest')
                / 'workload' / _SCRIPT) as script:
            try:
                with _uninterrupted():
                    self._process = subprocess.Popen(
                        [program, str(script), *argv], pass_fds=descriptors,
                        # NOTE: sysbench prints errors there, too.
                        stdin=subprocess.DEVNULL, stdout=self._output,
                        stderr=subprocess.STDOUT)
                enter(self._process.pid)
            except OSError as error:
                if self._process is not None:
                    self._check_alive()
                raise CalibrationError(
                    f'{program} cannot be run in a group of its own: '
                    f'{error.strerror}') from error
            self._wait()

    def _wait(self) -> None:
        """Wait until each of its vCPUs works.

        :raises CalibrationError: when one does not
        """
        deadline_s = time.monotonic() + _START_S
        while not all(self._board.read(slot).work for slot in self.vcpus):
            self._check_alive()
            if time.monotonic() > deadline_s:
                raise CalibrationError(
                    f'sysbench did no work within {_START_S} s')
            time.sleep(_POLL_S)

    def _check_alive(self) -> subprocess.Popen[bytes]:
        """
        :raises CalibrationError: when it has ended
        """
        if self._process is None or self._process.poll() is not None:
            status = self._process and self._process.returncode
            raise CalibrationError(
                f'sysbench ended with {status}: {self._last_output()}')
        return self._process

    def vcpu_threads(self) -> tuple[int, ...]:
        return tuple(map(self._board.thread, self.vcpus))

    def threads(self) -> tuple[int, ...]:
        """All threads, with those that are no vCPUs.

        :raises CalibrationError: when it has ended
        """
        process = self._check_alive().pid
        try:
            return tuple(map(int, os.listdir(f'/proc/{process}/task')))
        except OSError as error:
            raise CalibrationError('sysbench ended just now') from error

    def other_threads(self) -> tuple[int, ...]:
        """The threads that are no vCPUs."""
        vcpus = self.vcpu_threads()
        return tuple(thread for thread in self.threads()
                     if thread not in vcpus)

    def pause(self) -> None:
        """Stop it; one that has ended is left alone."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """
        :raises CalibrationError: when it has ended
        """
        self._check_alive().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, without waiting for its end."""
        if self._process is not None:
            self._process.kill()

    def _last_output(self) -> str:
        size = os.fstat(self._output).st_size
        text = os.pread(self._output, _MOST_OUTPUT,
                        max(0, size - _MOST_OUTPUT))
        return ' '.join(text.decode(errors='replace').split())

    def close(self) -> None:
        """End it, unless that was done before."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        os.close(self._output)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay signals that end this process until the program is known.

    The program keeps them blocked: it is killed.
    """
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def between(before: Sequence[Done], after: Sequence[Done]) -> Done:
    """The work of some vCPUs together from one reading to the next."""
    pairs = list(zip(before, after, strict=True))
    return Done(sum(new.work - old.work for old, new in pairs),
                sum(new.cpu_ns - old.cpu_ns for old, new in pairs))


def check_memory(needed_bytes: int, sysroot: str = '/') -> None:
    """
    :raises CalibrationError: when less is available
    """
    found = host_cpus.available_bytes(sysroot)
    if found < needed_bytes:
        raise CalibrationError(
            f'{needed_bytes >> 20} MiB are needed for lists beyond the '
            f'last-level cache, and {found >> 20} MiB are available')
