# SPDX-License-Identifier: Apache-2.0
"""The CPU time that was charged to each, to the nanosecond.

The CPU clock of a thread counts the time that it was charged for, up to now:
without IRQ time accounting that includes softirq that ran on its back. Time
that is charged to no thread shows in the work of a soaker: a process that uses
all time that is left, and counts its work.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import hashlib
import mmap
import multiprocessing
import operator
import os
import pathlib
import re
import signal
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration import system

# One piece of a soaker's work: fits the smallest cache, and takes a few
# microseconds.
_PIECE = bytes(4096)
_JOIN_S = 5


def cpu_time_ns(process: int) -> int:
    """CPU time of a process, running ones up to now.

    :raises OSError: when there is none
    """
    # NOTE: the clock of a process by its id, see clock_getcpuclockid(3),
    # which Python has for threads of its own only.
    return time.clock_gettime_ns((~process << 3) | 2)


class Child:
    """A process of ours, forked; killed at the latest when this one ends.

    :ivar counts: what it counted so far
    """

    def __init__(self, work: Callable[[memoryview], None], *,
                 pcpu: int | None = None, idle: bool = False) -> None:
        """
        :param work: runs for ever, and counts in the first item
        :param pcpu: the only one that it may use
        :param idle: use only idle time
        """
        self._shared = mmap.mmap(-1, mmap.PAGESIZE)
        self.counts = memoryview(self._shared).cast('Q')
        # NOTE: spawned ones would have no namespace, and no tap.
        self._process = multiprocessing.get_context('fork').Process(
            target=_run, args=(work, self.counts, pcpu, idle), daemon=True)
        self._process.start()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def cpu_time_ns(self) -> int:
        """:raises OSError: when it has ended"""
        return cpu_time_ns(self._process.pid or 0)

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join(_JOIN_S)
        self.counts.release()
        self._shared.close()


def _run(work: Callable[[memoryview], None], counts: memoryview,
         pcpu: int | None, idle: bool) -> None:
    # An interrupt of the program is meant for the process that forked this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    system.die_with_parent()
    if pcpu is not None:
        runner.pin(0, pcpu)
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        runner.go_first()
    work(counts)


def soak(counts: memoryview) -> None:
    """Work for ever, counting pieces: what a soaker does."""
    while True:
        hashlib.sha256(_PIECE)
        counts[0] += 1


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """All accounts at one moment, or between two.

    :ivar kernel_ns: charged to the kernel's own threads that are watched
    :ivar interrupt_ns: of interrupts and softirq, where the kernel accounts
        for them apart from threads; else 0
    :ivar soaked_ns: charged to each soaker
    :ivar soaked: pieces of work that each soaker did
    """

    kernel_ns: int
    interrupt_ns: int
    soaked_ns: tuple[int, ...]
    soaked: tuple[int, ...]

    @property
    def charged_ns(self) -> int:
        """To all but processes."""
        return self.kernel_ns + self.interrupt_ns

    def plus(self, other: 'Reading') -> 'Reading':
        return self._with(operator.add, other)

    def since(self, earlier: 'Reading') -> 'Reading':
        return self._with(operator.sub, earlier)

    def _with(self, work: Callable[[int, int], int],
              other: 'Reading') -> 'Reading':
        return Reading(
            work(self.kernel_ns, other.kernel_ns),
            work(self.interrupt_ns, other.interrupt_ns), *(
                tuple(work(a, b) for a, b in zip(mine, theirs, strict=True))
                for mine, theirs in ((self.soaked_ns, other.soaked_ns),
                                     (self.soaked, other.soaked))))


@dataclasses.dataclass(frozen=True, slots=True)
class Round:
    """One round; times in ns, of all its packets or requests.

    :ivar own: of the process that sends them
    :ivar beside: of the backend's process, or of the kernel's threads
    """

    own: int
    beside: int
    read: Reading


class Accounts:
    """The accounts of some pCPUs, which soakers keep busy."""

    def __init__(self, pcpus: Sequence[int], kernel_threads: Iterable[int], *,
                 apart: bool, sysroot: str = '/') -> None:
        """
        :param kernel_threads: to watch
        :param apart: whether this kernel accounts for interrupts apart
            (CONFIG_IRQ_TIME_ACCOUNTING)
        """
        self._pcpus = pcpus
        self._kernel_threads = tuple(kernel_threads)
        self._stat = pathlib.Path(sysroot) / 'proc/stat' if apart else None
        self._soakers: list[Child] = []
        try:
            for pcpu in pcpus:
                self._soakers.append(Child(soak, pcpu=pcpu, idle=True))
        except BaseException:
            self.close()
            raise

    def read(self) -> Reading:
        return Reading(
            sum(map(cpu_time_or_none_ns, self._kernel_threads)),
            interrupt_ns(self._stat.read_text(), self._pcpus)
            if self._stat else 0,
            tuple(soaker.cpu_time_ns() for soaker in self._soakers),
            tuple(soaker.counts[0] for soaker in self._soakers))

    def close(self) -> None:
        for soaker in self._soakers:
            soaker.close()


def lost_ns(path: Reading, base: Reading) -> float:
    """The time that soakers were charged for, and did no work in."""
    return sum(
        ns - pieces * base_ns / max(1, base_pieces)
        for ns, pieces, base_ns, base_pieces in zip(
            path.soaked_ns, path.soaked, base.soaked_ns, base.soaked,
            strict=True))


def kernel_threads(sysroot: str = '/', *, name: str = '') -> list[int]:
    """The kernel's own threads.

    :param name: regular expression of their names; '': all
    """
    found = []
    for process in (pathlib.Path(sysroot) / 'proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            before, _, after = (process / 'stat').read_text().rpartition(')')
            # Their flags have PF_KTHREAD, from include/linux/sched.h.
            if int(after.split()[6]) & 0x00200000 and re.fullmatch(
                    name or '.*', before.partition('(')[2]):
                found.append(int(process.name))
    return sorted(found)


def interrupt_ns(stat: str, pcpus: Iterable[int]) -> int:
    """Time of interrupts and softirq of some pCPUs.

    :param stat: text of /proc/stat
    """
    ticks = 0
    for pcpu in pcpus:
        found = re.search(rf'^cpu{pcpu} (.+)$', stat, re.MULTILINE)
        # user nice system idle iowait irq softirq
        ticks += sum(map(int, found[1].split()[5:7])) if found else 0
    return ticks * (1_000_000_000 // os.sysconf('SC_CLK_TCK'))


def cpu_time_or_none_ns(thread: int) -> int:
    """A kernel's worker may end at any time."""
    try:
        return cpu_time_ns(thread)
    except OSError:
        return 0
