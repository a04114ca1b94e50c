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

"""Who was charged for the CPU time that went by, to the nanosecond.

The CPU clock of a thread counts what it was charged for, up to now: without
IRQ time accounting that includes softirq that ran on its back (TRAPS on
softirq). What nobody is charged for shows in what a soaker gets done: a
process that takes all time that is left, and counts its work.
"""

from collections.abc import Callable, Iterable, Sequence
import contextlib
import dataclasses
import hashlib
import mmap
import multiprocessing
import os
import pathlib
import re
import signal
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration.io import system

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
        :param work: what it does, for ever; counts in the first item
        :param pcpu: the only one that it may use
        :param idle: take only time that nobody else wants
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
    # Whoever interrupts the program means the one that forked this.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    system.die_with_parent()
    if pcpu is not None:
        runner.pin(0, pcpu)
    if idle:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        go_first()
    work(counts)


def go_first() -> None:
    """Run before others, which are not to hold up a round; where we may."""
    # NOTE: with cgroup v1 a group may have no time for that.
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


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
        """To anybody but processes."""
        return self.kernel_ns + self.interrupt_ns

    def plus(self, other: 'Reading') -> 'Reading':
        return Reading(
            self.kernel_ns + other.kernel_ns,
            self.interrupt_ns + other.interrupt_ns,
            _sums(self.soaked_ns, other.soaked_ns),
            _sums(self.soaked, other.soaked))

    def since(self, earlier: 'Reading') -> 'Reading':
        return Reading(
            self.kernel_ns - earlier.kernel_ns,
            self.interrupt_ns - earlier.interrupt_ns,
            _differences(self.soaked_ns, earlier.soaked_ns),
            _differences(self.soaked, earlier.soaked))


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
    """What soakers got done less than in the time they were charged for."""
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


def _differences(now: Sequence[int], before: Sequence[int],
                 ) -> tuple[int, ...]:
    return tuple(n - b for n, b in zip(now, before, strict=True))


def _sums(some: Sequence[int], others: Sequence[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip(some, others, strict=True))
