# SPDX-License-Identifier: Apache-2.0
"""Two threads that want one pCPU, and how they take turns on it.

Each is in two nested cgroups, as libvirt makes them for vCPUs, in a group that
is idle as a whole: they take no time from others.
"""

import bisect
from collections.abc import Callable, Iterator, Sequence
import contextlib
import functools
import itertools
import mmap
import os
import signal
import time
import typing as ty

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration import system
from nova_vqos.hypervisor.linux import sched_attr

# How long the threads may take to begin, and to be on their way with another
# slice than before.
_START_LIMIT_S = 1.0
_SETTLE_S = 0.01

# Counters of both, by their place: the owner of this turn, when that began,
# when its owner ran last, how many turns have ended, and how long they were.
_OWNER, _BEGAN_NS, _LAST_NS, _TURNS, _LENGTHS_NS = range(5)
# More turns than a window has.
_LENGTHS = 4096


class Starved(Exception):
    """The pCPU has no time for both threads; the message says so."""


class Turns(ty.NamedTuple):
    """What two threads did on a pCPU in some time.

    :ivar wall_us: that time
    :ivar run_us: of it, how long one or the other ran
    :ivar runs: how often one of them began to run
    :ivar lengths_us: how long one was at it until the other one was, sorted;
        what others took of it in between is part of it
    """

    wall_us: float
    run_us: float
    runs: int
    lengths_us: tuple[float, ...]

    @property
    def mean_run_us(self) -> float:
        """How long one ran at a time."""
        return self.run_us / max(1, self.runs)

    @property
    def cut(self) -> float:
        """The share of runs that ended for other programs."""
        return max(0, self.runs - len(self.lengths_us)) / max(1, self.runs)

    @property
    def half_us(self) -> float:
        """Half of the time is in turns of this length or longer."""
        passed_us = list(itertools.accumulate(self.lengths_us))
        return self.lengths_us[bisect.bisect_right(
            passed_us, passed_us[-1] / 2)]

    @property
    def common_us(self) -> float:
        """What nine of ten turns do not exceed."""
        return self.lengths_us[9 * (len(self.lengths_us) - 1) // 10]


class Spinners:
    """Two threads that run whenever they may.

    :ivar pids: their ids
    """

    def __init__(self, pids: Sequence[int], shared: memoryview) -> None:
        """
        :param shared: their counters, see :func:`_spin`
        """
        self.pids = pids
        self._shared = shared
        self._last_us = 0

    def wait(self) -> None:
        """Wait until both of them have run.

        :raises Starved: when they do not
        """
        until_s = time.monotonic() + _START_LIMIT_S
        # Each of them took over from the other.
        while self._shared[_TURNS] < 2:
            if time.monotonic() > until_s:
                raise Starved('one of two threads did not run within '
                              f'{_START_LIMIT_S:g} s')
            time.sleep(0.001)

    def measure(self, slice_us: int | None, window_s: float) -> Turns:
        """Give both a slice, and watch them for a while.

        :param slice_us: None: the kernel's own
        :raises nova_vqos.hypervisor.base.HypervisorError: when it cannot be
            set
        :raises Starved: when there was no turn that ended
        :raises CalibrationError: when the kernel counts no runs
        """
        for pid in self.pids:
            sched_attr.set_slice(pid, slice_us)
        # The one that runs goes on with the slice that it has.
        time.sleep(_SETTLE_S + self._last_us / 1e6)
        self._last_us = slice_us or 0
        before, before_s = self._read(), time.monotonic()
        first = self._shared[_TURNS]
        time.sleep(window_s)
        after, after_s = self._read(), time.monotonic()
        return Turns(
            wall_us=(after_s - before_s) * 1e6, run_us=after[0] - before[0],
            runs=after[1] - before[1], lengths_us=self._lengths_us(first))

    def _lengths_us(self, first: int) -> tuple[float, ...]:
        """Of the turns that ended since, sorted.

        :param first: number of the first one
        """
        ended = self._shared[_TURNS]
        if ended == first:
            raise Starved('one of two threads did not run')
        return tuple(sorted(
            self._shared[_LENGTHS_NS + number % _LENGTHS] / 1000
            for number in range(max(first, ended - _LENGTHS), ended)))

    def _read(self) -> tuple[float, int]:
        """How long both ran, and how often."""
        found = host_cpus.thread_runs(self.pids)
        return (sum(run.run_ns for run in found) / 1000,
                sum(run.runs for run in found))


@contextlib.contextmanager
def spinning(tree: server_groups.Tree, pcpu: int,
             name: str) -> Iterator[Spinners]:
    """Let two threads run on a pCPU; they are always ended afterwards.

    :param tree: in which the groups of two servers are made
    :param name: prefix of their names
    :raises CalibrationError: when they cannot be where they should
    :raises Starved: when they do not run there
    """
    with contextlib.ExitStack() as stack:
        shared = memoryview(mmap.mmap(-1, 8 * (
            _LENGTHS_NS + _LENGTHS))).cast('q')
        spinners = Spinners([
            stack.enter_context(process(
                pcpu, functools.partial(enter_as_vcpu,
                                        tree.server(f'{name}-{number}')),
                functools.partial(_spin, shared, number)))
            for number in (1, 2)], shared)
        spinners.wait()
        yield spinners


@contextlib.contextmanager
def process(pcpu: int, prepare: Callable[[], None],
            work: Callable[[], ty.NoReturn]) -> Iterator[int]:
    """Run a process on a pCPU; it is always ended afterwards.

    :param prepare: called in it, to go where it should be
    :param work: called in it then
    :returns: its id, once it is prepared
    :raises CalibrationError: when it cannot be prepared
    """
    reader, writer = os.pipe()
    with os.fdopen(reader, 'rb') as said:
        pid = os.fork()
        if pid == 0:
            _work(pcpu, writer, prepare, work)
        try:
            os.close(writer)
            trouble = said.read().decode(errors='replace')
            if trouble:
                raise benchmark.CalibrationError(
                    f'nothing can be tried on pCPU {pcpu}: {trouble}')
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _work(pcpu: int, writer: int, prepare: Callable[[], None],
          work: Callable[[], ty.NoReturn]) -> ty.NoReturn:
    """
    :param writer: gets the reason of a failure; closed before it works
    """
    try:
        for signal_number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            signal.signal(signal_number, signal.SIG_DFL)
        system.die_with_parent()
        try:
            # Of another policy it would have no slice.
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, {pcpu})
            prepare()
        except Exception as error:
            # It is raised again in the process that waits for this one.
            os.write(writer, f'{type(error).__name__}: {error}'.encode())
        else:
            os.close(writer)
            work()
    finally:
        os._exit(1)


def enter_as_vcpu(server: server_groups.Server) -> None:
    """Be the only vCPU of a server: for :func:`process`."""
    server.enter(os.getpid())
    server.move_vcpu(0, os.getpid())


def _spin(shared: memoryview, number: int) -> ty.NoReturn:
    """Count turns, and their lengths."""
    clock_ns = time.monotonic_ns
    while True:
        now_ns = clock_ns()
        if shared[_OWNER] != number:
            ended = shared[_TURNS]
            shared[_LENGTHS_NS + ended % _LENGTHS] = (
                shared[_LAST_NS] - shared[_BEGAN_NS])
            shared[_TURNS] = ended + 1
            shared[_BEGAN_NS] = now_ns
            shared[_OWNER] = number
        shared[_LAST_NS] = now_ns
