# SPDX-License-Identifier: Apache-2.0
"""A thread that works for a moment now and then, beside two that always do.

It wants less than its share of the pCPU, as a server does that answers
requests: the kernel owes it time each time that it wakes, and decides by the
slices of all three whether it gets the pCPU at once.
"""

from collections.abc import Iterator, Sequence
import contextlib
import functools
import mmap
import statistics
import time
import typing as ty

from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import spinners
from nova_vqos.hypervisor.linux import sched_attr

# How often it works for so long, on average: with a sixth of the pCPU, of
# which it may have a third, or less. Intervals are from half to one and a half
# of that, evenly spread: where all were a multiple of the tick, waits would
# depend on where in the tick it wakes.
_PERIOD_WORKS = 6
_LEAST_PERIOD_US = 2_000
_GOLDEN = (5 ** 0.5 - 1) / 2

# How long it works, the number of times that it woke, and how long it waited
# each time.
_WORK_NS, _WOKEN, _WAITS_NS = range(3)
# More than in a window.
_WAITS = 4096
# After a change of its slice.
_SETTLE_S = 0.05
_US_NS = 1000


class Waits(ty.NamedTuple):
    """What a thread that wakes and two that are busy did in some time.

    :ivar wall_us: that time
    :ivar run_us: of it, how long one of them ran
    :ivar mean_us: how long the first waited for the pCPU, each time together
    """

    wall_us: float
    run_us: float
    mean_us: float


class Waker:
    """The thread that wakes."""

    def __init__(self, pid: int, busy: Sequence[int],
                 shared: memoryview) -> None:
        """
        :param busy: ids of the other two
        :param shared: its counters, see :func:`_wake`
        """
        self._pid = pid
        self._pids = (pid, *busy)
        self._shared = shared

    def kernels_slice_us(self) -> int | None:
        """The slice that the kernel gives each thread.

        :returns: None: it has none that can be set
        :raises nova_vqos.hypervisor.base.HypervisorError: when it cannot be
            read
        """
        sched_attr.set_slice(self._pid, None)
        return sched_attr.slice_us(self._pid)

    def measure(self, slice_us: int | None, work_us: int,
                window_s: float) -> Waits:
        """Give it a slice, the others have the kernel's, and watch it.

        :param slice_us: None: the kernel's own
        :param work_us: how long it works at a time
        :raises nova_vqos.hypervisor.base.HypervisorError: when it cannot be
            set
        :raises spinners.Starved: when it never woke
        :raises CalibrationError: when the kernel counts no runs
        """
        self._shared[_WORK_NS] = work_us * _US_NS
        sched_attr.set_slice(self._pid, slice_us)
        time.sleep(_SETTLE_S)
        before_us, before_s = self._run_us(), time.monotonic()
        first = self._shared[_WOKEN]
        time.sleep(window_s)
        after_us, after_s = self._run_us(), time.monotonic()
        woken = self._shared[_WOKEN]
        if woken == first:
            raise spinners.Starved('a thread that was to wake did not run')
        return Waits(
            wall_us=(after_s - before_s) * 1e6, run_us=after_us - before_us,
            mean_us=statistics.fmean(
                self._shared[_WAITS_NS + number % _WAITS] / _US_NS
                for number in range(max(first, woken - _WAITS), woken)))

    def _run_us(self) -> float:
        return sum(run.run_ns for run
                   in host_cpus.thread_runs(self._pids)) / _US_NS


@contextlib.contextmanager
def waking(tree: server_groups.Tree, pcpu: int, name: str,
           busy: spinners.Spinners) -> Iterator[Waker]:
    """Let a thread wake on a pCPU now and then; it always ends afterwards.

    :param tree: in which the group of its server is made
    :param name: of that
    :param busy: the two that run there
    :raises CalibrationError: when it cannot be where it should
    """
    shared = memoryview(mmap.mmap(-1, 8 * (_WAITS_NS + _WAITS))).cast('q')
    with spinners.process(
            pcpu, functools.partial(spinners.enter_as_vcpu, tree.server(name)),
            functools.partial(_wake, shared)) as pid:
        yield Waker(pid, busy.pids, shared)


def _wake(shared: memoryview) -> ty.NoReturn:
    """Work now and then, and count how long it took beyond the work."""
    clock_ns, cpu_ns = time.monotonic_ns, time.thread_time_ns
    due_ns = clock_ns()
    spread = 0.0
    while True:
        # One that was too late does not make up for it.
        work_ns = shared[_WORK_NS]
        period_ns = max(_PERIOD_WORKS * work_ns, _LEAST_PERIOD_US * _US_NS)
        spread = (spread + _GOLDEN) % 1
        due_ns = max(due_ns + int((0.5 + spread) * period_ns), clock_ns())
        time.sleep(max(0, due_ns - clock_ns()) / 1e9)
        until_ns = cpu_ns() + work_ns
        while cpu_ns() < until_ns:
            pass
        woken = shared[_WOKEN]
        shared[_WAITS_NS + woken % _WAITS] = (
            clock_ns() - due_ns - work_ns)
        shared[_WOKEN] = woken + 1
