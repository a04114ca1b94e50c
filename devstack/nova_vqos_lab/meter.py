# SPDX-License-Identifier: Apache-2.0
"""The CPU time and the instructions of a guest's vCPU, from its first one on.

The machine reads both every few milliseconds: the CPU time from the kernel,
the instructions from the file in which QEMU's plugin counts them, where it
does (counting.py). The same program retires the same instructions for the same
work, on both hosts. So instructions count work, and need neither a clock nor
rounds.
"""

import array
from collections.abc import Callable
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

_INTERVAL_S = 0.002
_SEARCH_INTERVAL_S = 0.001
# Of a sample's two readings, which are to be of one moment.
_LONGEST_READING_NS = 500_000
_BURST_NS = 10**7
_QEMU = 'qemu-system-x86'

Integers: ty.TypeAlias = npt.NDArray[np.int64]
Floats: ty.TypeAlias = npt.NDArray[np.float64]


class Vcpu:
    """The only vCPU of a guest, with open files to read."""

    def __init__(self, cpu_path: str, counter_path: str | None) -> None:
        """:param cpu_path: of its CPU time: ``cpuacct.usage`` or ``cpu.stat``
            of its group, or ``schedstat`` of its thread
        :param counter_path: of its instructions; None: nothing counts them
        :raises OSError: when one cannot be opened
        """
        self._cpu = os.open(cpu_path, os.O_RDONLY)
        self._counter = None
        if counter_path is None:
            return
        try:
            self._counter = os.open(counter_path, os.O_RDONLY)
        except OSError:
            os.close(self._cpu)
            raise

    def close(self) -> None:
        os.close(self._cpu)
        if self._counter is not None:
            os.close(self._counter)

    def read(self) -> tuple[int, int]:
        """:returns: CPU time in nanoseconds, and instructions, 0 where nothing
            counts them
        :raises OSError: when the guest has gone
        """
        text = os.pread(self._cpu, 64, 0).split(None, 2)
        cpu_ns = (int(text[1]) * 1000 if text[0] == b'usage_usec'
                  else int(text[0]))
        if self._counter is None:
            return cpu_ns, 0
        (count,) = instructions.VCPU.unpack(os.pread(
            self._counter, instructions.VCPU.size, instructions.HEADER.size))
        return cpu_ns, count


def of_server(host: hosts.Host, domain: str) -> Vcpu | None:
    """:returns: of a guest of libvirt; None: it is not there yet"""
    is_counted = counting.is_wanted()
    group = host.vcpu_cgroup(domain)
    if group is None:
        return None
    accounting = host.hierarchy.directory('cpuacct', group)
    names = (('cpuacct.usage', 'tasks') if host.hierarchy.version == 1
             else ('cpu.stat', 'cgroup.threads'))
    try:
        cpu_path, threads_path = (os.path.join(accounting, name)
                                  for name in names)
        (thread,) = _read(threads_path).split()
        return Vcpu(cpu_path, _counter_path(host, int(thread))
                    if is_counted else None)
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
                        _counter_path(host, int(name)))
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
    :ivar instructions: retired by then
    """

    def __init__(self, at_ns: Integers, cpu_ns: Integers,
                 counted: Integers) -> None:
        self.at_ns = at_ns
        self.cpu_ns = cpu_ns
        self.instructions = counted

    def from_first_instruction(self) -> 'Series':
        """:raises LabError: when there is none"""
        (retired,) = self.instructions.nonzero()
        if not len(retired):
            raise process.LabError('a guest retired no instructions')
        first = max(0, int(retired[0]) - 1)
        return Series(self.at_ns[first:], self.cpu_ns[first:],
                      self.instructions[first:])

    def from_first_run(self) -> 'Series':
        """:returns: from the moment on at which the vCPU began to run its
            guest: from then on it has most of the next ten milliseconds, less
            than any quota here. Setting up a guest takes it less.
        :raises LabError: when it never did
        """
        ends_ns = self.at_ns + _BURST_NS
        used_ns = np.interp(ends_ns, self.at_ns, self.cpu_ns) - self.cpu_ns
        (running,) = (used_ns > _BURST_NS * 3 / 4).nonzero()
        if not len(running):
            raise process.LabError('a guest was not seen to run')
        first = int(running[0])
        return Series(self.at_ns[first:], self.cpu_ns[first:],
                      self.instructions[first:])

    def edges_ns(self, length_ns: int, after_ns: int = 0) -> Integers:
        """:returns: where windows of this length, one after the other, begin
            and end, from so long after the first sample on
        """
        return np.arange(int(self.at_ns[0]) + after_ns,
                         int(self.at_ns[-1]) + 1, length_ns)

    def cpu_between_ns(self, edges_ns: Integers) -> Floats:
        """:returns: the CPU time in each window"""
        return np.diff(np.interp(edges_ns, self.at_ns, self.cpu_ns))

    def instructions_between(self, edges_ns: Integers) -> Floats:
        """:returns: the instructions in each window"""
        return np.diff(np.interp(edges_ns, self.at_ns, self.instructions))


class Meter:
    """Samples a vCPU in a thread, from the moment on at which it is found."""

    def __init__(self, find: Callable[[], Vcpu | None], name: str) -> None:
        """:param find: called until it returns the vCPU
        :param name: of the guest, for errors
        """
        self._find = find
        self._name = name
        # Times, CPU times, instructions.
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
