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

"""CPU time of domains, as the kernel accounts it to their cgroups.

libvirt makes a cgroup for each vCPU of a domain, one for each of its I/O
threads, and one for all else of its QEMU, the emulator. The domain's own
counts what they and those that are gone used together. All is read from files
that are kept open: no call to libvirt, no walk through /proc.
"""

from collections.abc import Callable, Iterable
import contextlib
import os
import re
import typing as ty

from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import schedstat
from nova_vqos.hypervisor import thread_list
from nova_vqos.hypervisor import threads

_VCPU = re.compile(r'vcpu[0-9]+')
_IOTHREAD = re.compile(r'iothread[0-9]+')
_START_TIME_FIELD = 22

US_NS = 1000
#: Which file of a cgroup has its CPU time, by the version of cgroups.
TIME_FILES = {1: 'cpuacct.usage', 2: 'cpu.stat'}


class CpuTime(ty.NamedTuple):
    """CPU time of a domain: fields of :class:`usage.Usage`."""

    vcpu_ns: int
    emulator_ns: int
    iothread_ns: int
    vhost_ns: int
    migration_ns: int
    throttled_ns: int
    wakes: int


class VcpuTime(ty.NamedTuple):
    """CPU time of a domain's vCPUs: fields of :class:`usage.VcpuTime`."""

    vcpu_ns: int
    throttled_ns: int
    vcpus: int


class _Parts(ty.NamedTuple):
    """What cgroups alone tell; emulator_ns is of all of its threads."""

    vcpu_ns: int
    emulator_ns: int
    iothread_ns: int
    throttled_ns: int


class DomainAccount:
    """Counters of one run of a domain's emulator.

    None of them ever falls, whatever comes and goes.

    :ivar run: names this run on this boot of the host
    :ivar top: the topmost cgroup that the domain is below
    """

    def __init__(self, root: str, pid: int, version: int,
                 budget: counters.Budget) -> None:
        """Open the files.

        :param root: where /proc and /sys are looked for
        :param pid: of the emulator
        :param version: of cgroups, 1 or 2
        :raises CgroupError: when there is no such process, or no cgroup of it
        """
        place = cgroup.find(root, pid, version, 'cpuacct')
        self.top = place.path.partition('/')[0]
        self._path = place.directory
        self._version = version
        self._budget = budget
        self._last = CpuTime(0, 0, 0, 0, 0, 0, 0)
        self._iothreads: dict[str, counters.CounterFile] = {}
        self._throttled: dict[str, counters.CounterFile] = {}
        self._iothread_tally = counters.Tally()
        self._throttled_tally = counters.Tally()
        self._links = -1
        self._stack = contextlib.ExitStack()
        # In version 1 throttling is of another controller than CPU time.
        self._tuned_path = (
            self._path if version == 2
            else cgroup.find(root, pid, version).directory)
        proc = os.path.join(root, 'proc')
        with self._reading():
            self.run = _run(proc, pid)
            self._directory = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY
                                      | os.O_CLOEXEC)
            self._stack.callback(os.close, self._directory)
            self._total = self._open_time('')
            self._emulator = self._open_time('emulator')
            self._threads = threads.EmulatorThreads(
                os.path.join(self._path, 'emulator',
                             thread_list.FILES[version]),
                proc, _read(f'{proc}/{pid}/comm'), budget)
            self._stack.callback(self._threads.close)
            # Of the thread that the process began with, QEMU's main one.
            self._main: counters.CounterFile | None = None
            with contextlib.suppress(FileNotFoundError):
                self._main = counters.CounterFile(
                    schedstat.path(proc, pid), budget)
                self._stack.callback(self._main.close)

    def read(self) -> CpuTime:
        """Read all counters.

        :raises CgroupError: when the cgroup is gone or not understood
        """
        with self._reading():
            self._look_at_children()
            # Each before what it is a part of: no difference is negative.
            separate = self._threads.read()
            parts = self._read_parts()
            wakes = self._threads.vhost_wakes + self._main_wakes()
        self._last = CpuTime(*map(max, self._last, CpuTime(
            vcpu_ns=parts.vcpu_ns,
            emulator_ns=parts.emulator_ns - sum(separate.values()),
            iothread_ns=parts.iothread_ns,
            vhost_ns=separate[threads.VHOST],
            migration_ns=separate[threads.MIGRATION],
            throttled_ns=parts.throttled_ns, wakes=wakes)))
        return self._last

    def read_vcpus(self) -> VcpuTime:
        """Read no more than what its vCPUs used, for a third of the cost.

        :raises CgroupError: as :meth:`read`
        """
        with self._reading():
            self._look_at_children()
            parts = self._read_parts()
        self._last = self._last._replace(
            vcpu_ns=max(self._last.vcpu_ns, parts.vcpu_ns),
            throttled_ns=max(self._last.throttled_ns, parts.throttled_ns))
        return VcpuTime(self._last.vcpu_ns, self._last.throttled_ns,
                        sum(map(bool, self._throttled)))

    def close(self) -> None:
        """Close the files."""
        for files in self._iothreads, self._throttled:
            for file in files.values():
                file.close()
            files.clear()
        self._stack.close()

    def _look_at_children(self) -> None:
        # NOTE: the link count of a cgroup's directory is that of its
        # children: another one means that one came or went.
        links = os.fstat(self._directory).st_nlink
        if links != self._links:
            self._links = links if self._open_children() else -1

    def _read_parts(self) -> _Parts:
        # As in read(): parts first.
        emulator_ns = self._time_ns(self._emulator.read())
        iothread_ns = self._iothread_tally.update(
            self._read_all(self._iothreads, self._time_ns))
        total_ns = self._time_ns(self._total.read())
        throttled_ns = self._throttled_tally.update(
            self._read_all(self._throttled, self._throttled_ns))
        # What a vCPU used that was unplugged is in the sum for ever.
        return _Parts(total_ns - emulator_ns - iothread_ns, emulator_ns,
                      iothread_ns, throttled_ns)

    def _main_wakes(self) -> int:
        """How often QEMU's main thread began to run.

        Preempted, it counts when it goes on, too: there is no cheaper file
        that tells them apart.
        """
        if self._main is None:
            return 0
        return schedstat.parse(self._main.read()).runs

    def _open_time(self, child: str) -> counters.CounterFile:
        """Open the file that has a cgroup's CPU time."""
        file = counters.CounterFile(os.path.join(
            self._path, child, TIME_FILES[self._version]), self._budget)
        self._stack.callback(file.close)
        return file

    def _open_children(self) -> bool:
        """Open the files of children that are new, close those of others.

        :returns: whether none was just coming or going
        """
        names = os.listdir(self._path)
        # Both are looked at, whatever becomes of the first.
        return all([
            self._open_all(self._iothreads,
                           filter(_IOTHREAD.fullmatch, names), self._path,
                           TIME_FILES[self._version]),
            # '': the domain's own, which holds all of it back.
            self._open_all(self._throttled,
                           ['', *filter(_VCPU.fullmatch, names)],
                           self._tuned_path, 'cpu.stat')])

    def _open_all(self, files: dict[str, counters.CounterFile],
                  names: Iterable[str], path: str, name: str) -> bool:
        wanted = set(names)
        for child in files.keys() - wanted:
            files.pop(child).close()
        for child in wanted - files.keys():
            try:
                files[child] = counters.CounterFile(
                    os.path.join(path, child, name), self._budget)
            except OSError as error:
                if error.errno not in counters.GONE:
                    raise
        return files.keys() == wanted

    def _read_all(self, files: dict[str, counters.CounterFile],
                  parse: Callable[[bytes], int]) -> dict[str, int]:
        """What children have counted; without those that just went."""
        values = {}
        for child in list(files):
            try:
                values[child] = parse(files[child].read())
            except OSError as error:
                if error.errno not in counters.GONE:
                    raise
                # Perhaps another one of this name is there by now.
                files.pop(child).close()
                self._links = -1
        return values

    def _time_ns(self, content: bytes) -> int:
        return time_ns(content, self._version)

    def _throttled_ns(self, content: bytes) -> int:
        if self._version == 1:
            return field(content, b'throttled_time')
        # Only where the cpu controller is enabled.
        return field(content, b'throttled_usec', 0) * US_NS

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return cgroup.reading(self._path, self.close)


def time_ns(content: bytes, version: int) -> int:
    """CPU time of a cgroup, from the content of the file that has it.

    :raises ValueError: when it is not understood
    """
    if version == 1:
        return int(content)
    return field(content, b'usage_usec') * US_NS


def field(content: bytes, name: bytes, default: int | None = None) -> int:
    """A number of a flat-keyed file of cgroupfs.

    :param default: where there is no such field
    :raises ValueError: when there is none, or it is no number
    """
    before, found, rest = (b'\n' + content).partition(b'\n' + name + b' ')
    if not found:
        if default is None:
            raise ValueError(f'no {name.decode()} in {before[:80]!r}')
        return default
    return int(rest.partition(b'\n')[0])


def _run(proc: str, pid: int) -> str:
    """Names a run of an emulator, on this boot of the host."""
    boot = _read(f'{proc}/sys/kernel/random/boot_id')
    # The name of the process, in parentheses, may contain anything.
    stat = _read(f'{proc}/{pid}/stat').rpartition(')')[2].split()
    try:
        # What is left begins with the third field.
        started = stat[_START_TIME_FIELD - 3]
    except IndexError:
        raise ValueError(f'process {pid} has no start time') from None
    return f'{boot}/{pid}/{started}'


def _read(path: str) -> str:
    with open(path, encoding='utf-8', errors='replace') as file:
        return file.read().rstrip('\n')
