# SPDX-License-Identifier: Apache-2.0
"""The CPU time and the work of a guest's vCPU, from its first moment on.

The machine reads both every few milliseconds: the CPU time from the kernel,
and the work from where it is counted, without any exit of the guest.

Of an emulated guest QEMU's plugin counts the instructions in a file. The same
program retires the same instructions for the same work, on both hosts. So
instructions count work, and need neither a clock nor rounds. A guest without
operating system counts its rounds in its memory, see rom.COUNT. That memory is
shared, so that the machine can read it.
"""

import array
from collections.abc import Callable
import mmap
import os
import threading
import time
import typing as ty

import numpy as np
import numpy.typing as npt

from nova_vqos.calibration import runner
from nova_vqos.hypervisor.linux import instructions
from nova_vqos_lab import counting
from nova_vqos_lab import host as hosts
from nova_vqos_lab import process
from nova_vqos_lab import rom

_INTERVAL_S = 0.002
_SEARCH_INTERVAL_S = 0.001
# Of a sample's two readings, which are to be of one moment.
_LONGEST_READING_NS = 500_000
_BURST_NS = 10**7
# From one sample to the next; they are wanted each two milliseconds.
_STILL_NS = 5 * 10**7
_QEMU = 'qemu-system-x86'
_MEMORY = '/memfd:memory-backend-memfd'

Integers: ty.TypeAlias = npt.NDArray[np.int64]
Floats: ty.TypeAlias = npt.NDArray[np.float64]


class Counter(ty.Protocol):
    """What counts the work of a vCPU."""

    def read(self) -> int:
        """:raises OSError: when the guest has gone"""

    def close(self) -> None:
        pass


class Instructions:
    """Those that a vCPU retires."""

    def __init__(self, path: str) -> None:
        """:param path: where QEMU's plugin counts them
        :raises OSError: when it cannot be opened
        """
        self._file = os.open(path, os.O_RDONLY)

    def read(self) -> int:
        (count,) = instructions.VCPU.unpack(os.pread(
            self._file, instructions.VCPU.size, instructions.HEADER.size))
        return int(count)

    def close(self) -> None:
        os.close(self._file)


class Rounds:
    """Those that a guest of rom.COUNT counts in its memory, since it was
    opened.

    It has 32 bits there. There must be fewer rounds between two readings.
    """

    def __init__(self, path: str) -> None:
        """:param path: of its memory, shared
        :raises OSError: when it cannot be opened
        :raises ValueError: when it has no memory yet
        """
        page = rom.COUNTER // mmap.PAGESIZE * mmap.PAGESIZE
        memory = os.open(path, os.O_RDONLY)
        try:
            self._memory = mmap.mmap(memory, mmap.PAGESIZE, offset=page,
                                     access=mmap.ACCESS_READ)
        finally:
            os.close(memory)
        # One load of 32 bits: struct would read byte by byte.
        self._words = memoryview(self._memory).cast('I')
        self._at = (rom.COUNTER - page) // self._words.itemsize
        self._wraps_at = 1 << 8 * self._words.itemsize
        self._last = self._words[self._at]
        self._count = 0

    def read(self) -> int:
        now = self._words[self._at]
        self._count += (now - self._last) % self._wraps_at
        self._last = now
        return self._count

    def close(self) -> None:
        self._words.release()
        self._memory.close()


class Uncounted:
    """Of a guest whose work nothing counts."""

    def read(self) -> int:
        return 0

    def close(self) -> None:
        pass


class Vcpu:
    """The only vCPU of a guest, with open files to read."""

    def __init__(self, cpu_path: str, counter: Counter) -> None:
        """:param cpu_path: of its CPU time: ``cpuacct.usage`` or ``cpu.stat``
            of its group, or ``schedstat`` of its thread
        :param counter: of its work, closed with it
        :raises OSError: when it cannot be opened
        """
        self._counter = counter
        try:
            self._cpu = os.open(cpu_path, os.O_RDONLY)
        except OSError:
            counter.close()
            raise

    def close(self) -> None:
        os.close(self._cpu)
        self._counter.close()

    def read(self) -> tuple[int, int]:
        """:returns: CPU time in nanoseconds, and work
        :raises OSError: when the guest has gone
        """
        text = os.pread(self._cpu, 64, 0).split(None, 2)
        cpu_ns = (int(text[1]) * 1000 if text[0] == b'usage_usec'
                  else int(text[0]))
        return cpu_ns, self._counter.read()


def of_server(host: hosts.Host, domain: str) -> Vcpu | None:
    """:returns: of a guest of libvirt, whose instructions are counted; None:
        it is not there yet
    """
    return _of_libvirt(host, domain, lambda thread: Instructions(
        _counter_path(host, thread)))


def of_uncounted(host: hosts.Host, domain: str) -> Vcpu | None:
    """:returns: of a guest of libvirt, for its CPU time alone; None: it is not
        there yet
    """
    return _of_libvirt(host, domain, lambda thread: Uncounted())


def of_rom(host: hosts.Host, domain: str) -> Vcpu | None:
    """:returns: of a guest of libvirt that runs rom.COUNT in memory of a
        shared memfd; None: it is not there yet
    """
    return _of_libvirt(host, domain, lambda thread: Rounds(
        _memory_path(thread)))


def _of_libvirt(host: hosts.Host, domain: str,
                counter: Callable[[int], Counter]) -> Vcpu | None:
    group = host.vcpu_cgroup(domain)
    if group is None:
        return None
    accounting = host.hierarchy.directory('cpuacct', group)
    names = (('cpuacct.usage', 'tasks') if host.hierarchy.version == 1
             else ('cpu.stat', 'cgroup.threads'))
    try:
        cpu_path, threads_path = (os.path.join(accounting, name)
                                  for name in names)
        # NOTE: KVM adds an idle one of its own (kvm-nx-lpage-recovery), of the
        # same process.
        thread, *_ = _read(threads_path).split()
        return Vcpu(cpu_path, counter(int(thread)))
    except (OSError, ValueError):
        return None


def of_child(host: hosts.Host, parent: int) -> Vcpu:
    """:param parent: a process on the host, that runs one guest
    :raises LabError: when it runs none
    """
    for name in filter(str.isdigit, os.listdir('/proc')):
        try:
            status = _status(int(name))
            if (status['Name'], status['PPid']) != (_QEMU, str(parent)):
                continue
            # One of a guest that works has all other threads' time many times.
            threads = max((_run_ns(int(name), thread), thread)
                          for thread in os.listdir(f'/proc/{name}/task'))
            return Vcpu(f'/proc/{name}/task/{threads[1]}/schedstat',
                        Instructions(_counter_path(host, int(name))))
        except (OSError, KeyError):
            continue
    raise process.LabError(f'process {parent} on {host.name} runs no guest '
                           'whose instructions are counted')


def _run_ns(pid: int, thread: str) -> int:
    return int(_read(f'/proc/{pid}/task/{thread}/schedstat').split()[0])


def _counter_path(host: hosts.Host, thread: int) -> str:
    """:param thread: of a QEMU, as the machine numbers it"""
    # Its number in each namespace, the host's own last.
    pid = _status(thread)['NStgid'].split()[-1]
    return os.path.join(host.path(counting.DIRECTORY.lstrip('/')), pid)


def _memory_path(thread: int) -> str:
    """:param thread: of a QEMU, as the machine numbers it
    :raises FileNotFoundError: when it has no memory of a memfd
    """
    directory = f'/proc/{thread}/fd'
    for name in os.listdir(directory):
        path = os.path.join(directory, name)
        if os.readlink(path).startswith(_MEMORY):
            return path
    raise FileNotFoundError(f'process {thread} has no memory of a memfd')


def _status(thread: int) -> dict[str, str]:
    lines = (line.partition(':') for line in
             _read(f'/proc/{thread}/status').splitlines())
    return {name: value.strip() for name, _, value in lines}


def _read(path: str) -> str:
    with open(path, encoding='utf-8', errors='replace') as stream:
        return stream.read()


class Series:
    """What a vCPU had and did.

    :ivar at_ns: when each sample was taken, by the monotonic clock
    :ivar cpu_ns: CPU time by then
    :ivar work: done by then: instructions, or rounds
    """

    def __init__(self, at_ns: Integers, cpu_ns: Integers,
                 work: Integers) -> None:
        self.at_ns = at_ns
        self.cpu_ns = cpu_ns
        self.work = work

    def from_first_instruction(self) -> 'Series':
        """:raises LabError: when there is none"""
        (retired,) = self.work.nonzero()
        if not len(retired):
            raise process.LabError('a guest retired no instructions')
        return self._cut(max(0, int(retired[0]) - 1))

    def from_first_run(self) -> 'Series':
        """From when the vCPU began to run its guest on.

        Where memory counts work, that is no sign of it: it moves, too. From
        then on it has most of the next ten milliseconds, less than any quota
        here. Setting up a guest takes it less.

        :raises LabError: when it never did
        """
        ends_ns = self.at_ns + _BURST_NS
        used_ns = np.interp(ends_ns, self.at_ns, self.cpu_ns) - self.cpu_ns
        (running,) = (used_ns > _BURST_NS * 3 / 4).nonzero()
        if not len(running):
            raise process.LabError('a guest was not seen to run')
        return self._cut(int(running[0]))

    def _cut(self, first: int) -> 'Series':
        return Series(self.at_ns[first:], self.cpu_ns[first:],
                      self.work[first:])

    def edges_ns(self, length_ns: int, after_ns: int = 0) -> Integers:
        """:returns: where windows of this length, one after the other, begin
            and end, from so long after the first sample on
        """
        return np.arange(int(self.at_ns[0]) + after_ns,
                         int(self.at_ns[-1]) + 1, length_ns)

    def cpu_between_ns(self, edges_ns: Integers) -> Floats:
        """:returns: the CPU time in each window"""
        return np.diff(np.interp(edges_ns, self.at_ns, self.cpu_ns))

    def still_between_ns(self, edges_ns: Integers) -> Floats:
        """:returns: for how long in each window nothing could be read, since
            the machine stood still
        """
        gaps_ns = np.diff(self.at_ns, prepend=self.at_ns[:1])
        still_ns = np.cumsum(np.where(gaps_ns > _STILL_NS, gaps_ns, 0))
        return np.diff(np.interp(edges_ns, self.at_ns, still_ns))

    def work_between(self, edges_ns: Integers) -> Floats:
        """:returns: the work in each window"""
        return np.diff(np.interp(edges_ns, self.at_ns, self.work))


class Meter:
    """Samples a vCPU in a thread, from the moment on at which it is found."""

    def __init__(self, find: Callable[[], Vcpu | None], name: str) -> None:
        """:param find: called until it returns the vCPU
        :param name: of the guest, for errors
        """
        self._find = find
        self._name = name
        # Times, CPU times, work.
        self._samples = tuple(array.array('q') for _ in range(3))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._measure, daemon=True)

    def __enter__(self) -> 'Meter':
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10)

    def series(self) -> Series:
        """:returns: all that was seen by now
        :raises LabError: when that is nothing
        """
        count = len(self._samples[-1])
        if not count:
            raise process.LabError(f'{self._name} was not seen to run')
        return Series(*(np.array(samples[:count], dtype=np.int64)
                        for samples in self._samples))

    def _measure(self) -> None:
        runner.go_first()
        vcpu = None
        while vcpu is None:
            if self._stop.wait(_SEARCH_INTERVAL_S):
                return
            vcpu = self._find()
        try:
            while not self._stop.wait(_INTERVAL_S):
                began_ns = time.monotonic_ns()
                sample = vcpu.read()
                ended_ns = time.monotonic_ns()
                if ended_ns - began_ns > _LONGEST_READING_NS:
                    continue
                for samples, value in zip(
                        self._samples,
                        ((began_ns + ended_ns) // 2, *sample), strict=True):
                    samples.append(value)
        except OSError:
            # The guest has left the host.
            pass
        finally:
            vcpu.close()
