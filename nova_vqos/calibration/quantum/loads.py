# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Servers of one kind of work each, as programs whose threads are vCPUs.

They are scripts of sysbench's, by LuaJIT: nothing has to be compiled. What is
not measured right now is stopped, and takes no time.
"""

from collections.abc import Callable, Iterator, Sequence
import contextlib
import importlib.resources
import mmap
import os
import pathlib
import signal
import subprocess
import time
import typing as ty

from nova_vqos.calibration import benchmark
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
_MOST_SAID = 200


class Told(ty.NamedTuple):
    """What a vCPU did since it began.

    :ivar work: nodes, critical sections, or turns of the loop
    :ivar cpu_ns: in so much CPU time
    """

    work: float
    cpu_ns: float


class Board:
    """Memory that threads of loads tell in what they do."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create('nova-vqos-board')
        os.ftruncate(self.descriptor, _BOARD_BYTES)
        self._map = mmap.mmap(self.descriptor, _BOARD_BYTES)
        self._numbers = memoryview(self._map).cast('d')
        self._taken = 0

    def take(self, count: int) -> range:
        """:returns: slots that are nobody's yet"""
        if self._taken + count > _SLOTS:
            raise CalibrationError(f'more than {_SLOTS} vCPUs are too many')
        self._taken += count
        return range(self._taken - count, self._taken)

    def thread(self, slot: int) -> int:
        """:returns: who it is of; 0: nobody has begun yet"""
        return int(self._numbers[slot * _SLOT_NUMBERS + _THREAD])

    def told(self, slot: int) -> Told:
        at = slot * _SLOT_NUMBERS
        return Told(self._numbers[at + _WORK], self._numbers[at + _CPU_NS])

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
        :param enter: is given the new process, to put it where it belongs
        :param socket: file descriptor that requests come from
        :param options: others of the script
        :raises CalibrationError: when it cannot be started
        """
        self._board = board
        self.vcpus = board.take(vcpus)
        self._said = os.memfd_create('nova-vqos-said')
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
                importlib.resources.files('nova_vqos') / 'workload'
                / _SCRIPT) as script:
            try:
                with _uninterrupted():
                    self._process = subprocess.Popen(
                        [program, str(script), *argv], pass_fds=descriptors,
                        # NOTE: sysbench tells errors there, too.
                        stdin=subprocess.DEVNULL, stdout=self._said,
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
        while not all(self._board.told(slot).work for slot in self.vcpus):
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
                f'sysbench ended with {status}: {self._last_words()}')
        return self._process

    def vcpu_threads(self) -> tuple[int, ...]:
        return tuple(map(self._board.thread, self.vcpus))

    def threads(self) -> tuple[int, ...]:
        """All of them, also those that are no vCPUs.

        :raises CalibrationError: when it has ended
        """
        process = self._check_alive().pid
        try:
            return tuple(map(int, os.listdir(f'/proc/{process}/task')))
        except OSError as error:
            raise CalibrationError('sysbench ended just now') from error

    def other_threads(self) -> tuple[int, ...]:
        """Those that are no vCPUs."""
        vcpus = self.vcpu_threads()
        return tuple(thread for thread in self.threads()
                     if thread not in vcpus)

    def pause(self) -> None:
        """Have it stand still; one that has ended does."""
        if self._process is not None:
            self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """
        :raises CalibrationError: when it has ended
        """
        self._check_alive().send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Have it end, without waiting for that."""
        if self._process is not None:
            self._process.kill()

    def _last_words(self) -> str:
        size = os.fstat(self._said).st_size
        said = os.pread(self._said, _MOST_SAID, max(0, size - _MOST_SAID))
        return ' '.join(said.decode(errors='replace').split())

    def close(self) -> None:
        """End it, unless that was done before."""
        if self._is_closed:
            return
        self._is_closed = True
        self.kill()
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
        os.close(self._said)


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Keep signals that end this process until it is known what was started.

    The program keeps them blocked: it is killed.
    """
    before = signal.pthread_sigmask(
        signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def cpu_ns(before: Sequence[Told], after: Sequence[Told]) -> float:
    """CPU time of some vCPUs between two looks."""
    return sum(new.cpu_ns - old.cpu_ns
               for old, new in zip(before, after, strict=True))


def work(before: Sequence[Told], after: Sequence[Told]) -> float:
    """Work of some vCPUs between two looks."""
    return sum(new.work - old.work
               for old, new in zip(before, after, strict=True))


def cost_ns(before: Sequence[Told], after: Sequence[Told]) -> float | None:
    """CPU time of some vCPUs for a unit of their work between two looks.

    :returns: None: they did none
    """
    done = work(before, after)
    return cpu_ns(before, after) / done if done > 0 else None


def check_memory(needed_bytes: int, sysroot: str = '/') -> None:
    """
    :raises CalibrationError: when less is available
    """
    found = _memory_available(sysroot)
    if found is not None and found < needed_bytes:
        raise CalibrationError(
            f'{needed_bytes >> 20} MiB are needed for lists beyond the '
            f'last-level cache, and {found >> 20} MiB are available')


def _memory_available(sysroot: str) -> int | None:
    text = (pathlib.Path(sysroot) / 'proc/meminfo').read_text()
    for line in text.splitlines():
        name, _colon, rest = line.partition(':')
        if name == 'MemAvailable':
            return int(rest.split()[0]) * 1024
    return None
