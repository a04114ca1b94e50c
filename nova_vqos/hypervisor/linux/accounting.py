# SPDX-License-Identifier: Apache-2.0
"""CPU time of domains and of their host, as the kernel counts it in cgroups.

libvirt makes a cgroup for each vCPU of a domain, one for each of its I/O
threads, and one for all else of its QEMU, the emulator. The domain's own
counts what they and those that are gone used together. All is read from files
that are kept open: no call to libvirt, no walk through /proc.
"""

from collections.abc import Callable, Collection, Iterable
import os
import time
import typing as ty

from nova_vqos.billing import usage
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import emulator_threads
from nova_vqos.hypervisor.linux import packet_work
from nova_vqos.hypervisor.linux import procfs

_START_TIME_FIELD = 22
# NOTE: where libvirt puts domains by default (virSystemdMakeScopeName and
# virCgroupNewPartition's /machine).
_DEFAULT_TOPS = frozenset(['machine', 'machine.slice'])


class CpuTime(ty.NamedTuple):
    """CPU time of a domain: fields of :class:`usage.Usage`."""

    vcpu_ns: int
    emulator_ns: int
    iothread_ns: int
    vhost_ns: int
    migration_ns: int
    throttled_ns: int


class Account:
    """Reads the counters of one run of a domain's emulator.

    None of them ever falls, whatever comes and goes.
    """

    def __init__(self, domain: domain_files.DomainRun,
                 files: domain_files.Files) -> None:
        """Open the files that are not of vCPUs and I/O threads.

        :raises CgroupError: when there is no such process, or no cgroup of it
        :raises OSError: when a file is not there
        :raises ValueError: when the process is not understood
        """
        pid = domain.emulator.pid
        proc = os.path.join(domain.root, 'proc')
        self._domain = domain
        self._files = files
        # In version 1 throttling is of another controller than CPU time.
        self._path, _top = cgroup.find(
            domain.root, pid, domain.version, 'cpuacct')
        self._run = _run(proc, pid)
        self._last = CpuTime(0, 0, 0, 0, 0, 0)
        # That the domain's own limit throttled.
        self._held_ns = 0
        self._children: domain_files.Children | None = None
        self._incomplete = False
        self._iothreads: dict[str, domain_files.File] = {}
        self._throttled: dict[str, domain_files.File] = {}
        self._iothread_tally = procfs.Tally()
        self._throttled_tally = procfs.Tally()
        self._total, self._emulator = (
            domain_files.File(files, os.path.join(
                self._path, child, cgroup.TIME_FILES[domain.version]))
            for child in ('', 'emulator'))
        self._threads = emulator_threads.EmulatorThreads(
            os.path.join(self._path, 'emulator',
                         procfs.THREAD_LISTS[domain.version]),
            proc, procfs.read_text(f'{proc}/{pid}/comm'), files)

    def read(self) -> tuple[str, CpuTime]:
        """Read all counters.

        :returns: what names the run on this boot of the host, and the counters
        :raises OSError: when the cgroup is gone
        :raises ValueError: when it is not understood
        """
        self._open_children()
        # Each before what it is a part of: no difference is negative.
        separate = self._threads.read()
        vcpu_ns, emulator_ns, iothread_ns, throttled_ns = self._read_cgroups()
        self._last = CpuTime(*map(max, self._last, (
            vcpu_ns, emulator_ns - sum(separate.values()), iothread_ns,
            separate[emulator_threads.VHOST],
            separate[emulator_threads.MIGRATION], throttled_ns)))
        return self._run, self._last

    def read_total(self) -> tuple[str, int]:
        """Read the CPU time of all its threads together, from one file.

        :returns: as :meth:`read` names the run, and the time
        :raises OSError: when the cgroup is gone
        :raises ValueError: when it is not understood
        """
        return self._run, self._time_ns(self._total.read())

    def read_vcpus(self) -> usage.VcpuTime:
        """Read the counters of its vCPUs alone, for a third of the cost.

        :raises OSError: when the cgroup is gone
        :raises ValueError: when it is not understood
        """
        self._open_children()
        vcpu_ns, emulator_ns, iothread_ns, throttled_ns = self._read_cgroups()
        self._last = self._last._replace(
            vcpu_ns=max(self._last.vcpu_ns, vcpu_ns),
            throttled_ns=max(self._last.throttled_ns, throttled_ns))
        return usage.VcpuTime(
            self._run, time.monotonic(), self._last.vcpu_ns,
            self._last.throttled_ns, sum(map(bool, self._throttled)),
            total_ns=vcpu_ns + emulator_ns + iothread_ns,
            held_ns=self._held_ns)

    def _read_cgroups(self) -> tuple[int, int, int, int]:
        """Read CPU time of vCPUs, emulator and I/O threads, and throttling.

        The emulator's is of all threads in its cgroup.
        """
        # As in read(): parts first.
        emulator_ns = self._time_ns(self._emulator.read())
        iothread_ns = self._iothread_tally.update(
            self._read_all(self._iothreads, self._time_ns))
        total_ns = self._time_ns(self._total.read())
        throttled = self._read_all(self._throttled, self._throttled_ns)
        self._held_ns = throttled.get('', self._held_ns)
        throttled_ns = self._throttled_tally.update(throttled)
        # What a vCPU used that was unplugged is in the sum for ever.
        return (total_ns - emulator_ns - iothread_ns, emulator_ns,
                iothread_ns, throttled_ns)

    def _open_children(self) -> None:
        """Open the files of children that are new, close those of others."""
        children = self._domain.children(again=self._incomplete)
        if children is self._children and not self._incomplete:
            return
        self._children, self._incomplete = children, False
        self._open_all(
            self._iothreads, map('iothread{}'.format, children.iothreads),
            self._path, cgroup.TIME_FILES[self._domain.version])
        # '': the domain's own, which holds all of it back.
        self._open_all(
            self._throttled, ['', *map('vcpu{}'.format, children.vcpus)],
            self._domain.path, 'cpu.stat')

    def _open_all(self, files: dict[str, domain_files.File],
                  children: Iterable[str], path: str, name: str) -> None:
        wanted = set(children)
        for child in files.keys() - wanted:
            files.pop(child).close()
        for child in wanted - files.keys():
            try:
                files[child] = domain_files.File(
                    self._files, os.path.join(path, child, name))
            except OSError as error:
                self._check_gone(error)

    def _read_all(self, files: dict[str, domain_files.File],
                  parse: Callable[[bytes], int]) -> dict[str, int]:
        """Read what children have counted; without those just gone."""
        values = {}
        for child in list(files):
            try:
                values[child] = parse(files[child].read())
            except OSError as error:
                self._check_gone(error)
                # Perhaps another one of this name is there by now.
                files.pop(child).close()
        return values

    def _check_gone(self, error: OSError) -> None:
        """Open the children again the next time, since one comes or goes."""
        if error.errno not in procfs.GONE:
            raise error
        self._incomplete = True

    def _time_ns(self, content: bytes) -> int:
        return cgroup.time_ns(content, self._domain.version)

    def _throttled_ns(self, content: bytes) -> int:
        if self._domain.version == 1:
            return cgroup.field(content, b'throttled_time')
        # Only where the cpu controller is enabled.
        return cgroup.field(content, b'throttled_usec', 0) * cgroup.US_NS


class HostAccount:
    """CPU time of a whole host: all that ran, its domains, and the rest.

    It never falls. It is of what this process can see: within a container the
    visible root may be a part of the machine's.
    """

    def __init__(self, root: str = '/') -> None:
        """:param root: where /proc and /sys are looked for, for tests"""
        self._root = root
        self._domains = procfs.Tally()
        self._own = procfs.Tally()
        self._packets = packet_work.PacketWorkReader(root)

    def read(self, tops: Collection[str]) -> usage.HostUsage:
        """Read the counters.

        :param tops: topmost cgroups with domains below them
        :raises CgroupError: when this host does not count, or not readably
        """
        version = cgroup.host_version(self._root)
        mount, _path = cgroup.find_process(self._root, 'self', version,
                                           'cpuacct')
        try:
            times_ns = {
                entry.name: time_ns for entry in os.scandir(mount)
                if entry.is_dir(follow_symlinks=False)
                and (time_ns := _time_ns(entry.path, version)) is not None}
            # After the parts: what is left over is not negative.
            total_ns = _root_time_ns(mount, version)
        except (OSError, ValueError) as error:
            raise cgroup.unreadable(mount, error) from error
        with_domains = _DEFAULT_TOPS.union(tops)
        return usage.HostUsage(
            read_at_s=time.monotonic(), total_ns=total_ns,
            domains_ns=self._domains.update({
                name: time_ns for name, time_ns in times_ns.items()
                if name in with_domains}),
            own_ns=self._own.update({
                name: time_ns for name, time_ns in times_ns.items()
                if name not in with_domains}),
            packets=self._packets.read())


def _time_ns(path: str, version: int) -> int | None:
    """Read the CPU time of a cgroup; None where it just went."""
    try:
        return cgroup.time_ns(_read_time(path, version), version)
    except OSError as error:
        if error.errno not in procfs.GONE:
            raise
        return None


def _root_time_ns(mount: str, version: int) -> int:
    content = _read_time(mount, version)
    if version == 1:
        return int(content)
    # NOTE: not usage_usec, which at the root counts as used what another
    # guest of the machine below took (steal): root_cgroup_cputime() in
    # kernel/cgroup/rstat.c.
    return cgroup.US_NS * (cgroup.field(content, b'user_usec')
                           + cgroup.field(content, b'system_usec'))


def _read_time(path: str, version: int) -> bytes:
    with open(os.path.join(path, cgroup.TIME_FILES[version]), 'rb',
              buffering=0) as file:
        return file.read(4096)


def _run(proc: str, pid: int) -> str:
    """Name a run of an emulator, on this boot of the host."""
    boot = procfs.read_text(f'{proc}/sys/kernel/random/boot_id')
    # The name of the process, in parentheses, may contain anything.
    stat = procfs.read_text(f'{proc}/{pid}/stat').rpartition(')')[2].split()
    try:
        # What is left begins with the third field.
        started = stat[_START_TIME_FIELD - 3]
    except IndexError:
        raise ValueError(f'process {pid} has no start time') from None
    return f'{boot}/{pid}/{started}'
