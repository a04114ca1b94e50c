# SPDX-License-Identifier: Apache-2.0
"""The threads of a domain, as libvirt laid them into cgroups.

Each vCPU has a thread in a cgroup of its own, ``vcpuN``, as has each I/O
thread, ``iothreadN``. All other threads of its QEMU are in ``emulator``: its
main one, helpers that come and go, and vhost's workers.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Set
import contextlib
import dataclasses
from fractions import Fraction
import os
import typing as ty

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.hypervisor.linux import sched_attr

# The state of a thread has a bit for each pCPU that there could be.
_MOST_BYTES = 16384

_Found = ty.TypeVar('_Found')


class VcpuThreads(ty.NamedTuple):
    """The threads of a domain's vCPUs.

    :ivar emulator: that they are of
    :ivar tids: by the number of the vCPU
    """

    emulator: domain_files.Emulator
    tids: Mapping[int, int]


class ThreadReader:
    """Finds the threads of one domain, and what its vCPUs ran."""

    def __init__(self, domain: domain_files.DomainRun,
                 files: domain_files.Files) -> None:
        """Prepare; nothing is read yet."""
        self._domain = domain
        self._files = files
        self._proc_path = os.path.join(domain.root, 'proc')
        self._children: domain_files.Children | None = None
        self._incomplete = False
        self._vcpus: dict[int, int] = {}
        self._iothreads: tuple[int, ...] = ()
        # By the id of the thread.
        self._runs: dict[int, domain_files.File] = {}
        self._statuses: dict[int, domain_files.File] = {}

    def read(self) -> base.Threads:
        """Find all threads, as they are now.

        :raises OSError: when the cgroup is gone
        """
        self._find()
        emulator = self._list('emulator')
        main = self._domain.emulator.pid
        return base.Threads(
            dict(self._vcpus), (*emulator, *self._iothreads),
            (*((main,) if main in emulator else ()), *self._iothreads))

    def read_vcpus(self) -> VcpuThreads:
        """Find the threads of its vCPUs alone, for a part of the cost.

        :raises OSError: when the cgroup is gone
        """
        self._find()
        return VcpuThreads(self._domain.emulator, dict(self._vcpus))

    def read_runs(self) -> dict[int, base.ThreadRun]:
        """Read what each vCPU ran, by its number; without those just gone.

        :raises OSError: when the cgroup is gone
        :raises ValueError: when counters are not understood
        """
        self._find()
        return self._read(self._vcpus, self._runs, procfs.run_path,
                          procfs.parse_run)

    def read_sleeps(self) -> dict[int, int]:
        """Read how often each vCPU slept, as :meth:`read_runs`."""
        self._find()
        return self._read(self._vcpus, self._statuses, procfs.status_path,
                          procfs.parse_sleeps)

    def read_io_runs(self) -> dict[int, base.ThreadRun]:
        """As :meth:`read_runs`, of threads of I/O by their id."""
        self._find()
        return self._read(
            {tid: tid for tid in (self._domain.emulator.pid,
                                  *self._iothreads)},
            self._runs, procfs.run_path, procfs.parse_run)

    def _read(self, tids: Mapping[int, int],
              files: dict[int, domain_files.File],
              path: Callable[[str, int], str],
              parse: Callable[[bytes], _Found]) -> dict[int, _Found]:
        """
        :param files: those that are open, by id of the thread
        """
        found = {}
        for key, tid in tids.items():
            try:
                file = files.get(tid)
                if file is None:
                    file = files[tid] = domain_files.File(
                        self._files, path(self._proc_path, tid))
                found[key] = parse(file.read(_MOST_BYTES))
            except OSError as error:
                self._check_gone(error)
        return found

    def expire(self) -> None:
        """Find all threads again the next time, since one has ended."""
        self._incomplete = True

    def _find(self) -> None:
        children = self._domain.children(again=self._incomplete)
        if children is self._children and not self._incomplete:
            return
        self._files.close()
        self._runs.clear()
        self._statuses.clear()
        self._vcpus.clear()
        self._iothreads = ()
        self._children, self._incomplete = children, False
        for number in children.vcpus:
            tids = self._list(f'vcpu{number}')
            if tids:
                self._vcpus[number] = tids[0]
        for number in children.iothreads:
            self._iothreads += self._list(f'iothread{number}')

    def _list(self, child: str) -> tuple[int, ...]:
        tids: tuple[int, ...] = ()
        try:
            tids = procfs.read_threads(os.path.join(
                self._domain.path, child,
                procfs.THREAD_LISTS[self._domain.version]))
        except OSError as error:
            self._check_gone(error)
        if not tids:
            # The child is only being made, or taken away.
            self._incomplete = True
        return tids

    def _check_gone(self, error: OSError) -> None:
        if error.errno not in procfs.GONE:
            raise error
        self.expire()


def read(cache: domain_files.Cache, uuid: str) -> base.Threads:
    """Find all threads of a domain."""
    return cache.use(uuid, ThreadReader, ThreadReader.read)


def read_vcpus(cache: domain_files.Cache, uuid: str) -> Mapping[int, int]:
    """As :meth:`base.ThreadDriver.vcpu_threads`."""
    return cache.use(uuid, ThreadReader, ThreadReader.read_vcpus).tids


def read_runs(cache: domain_files.Cache, uuids: Collection[str]
              ) -> Mapping[str, Mapping[int, base.ThreadRun]]:
    """As :meth:`base.ThreadDriver.vcpu_runs`."""
    return cache.use_each(uuids, ThreadReader, ThreadReader.read_runs)


def read_sleeps(cache: domain_files.Cache, uuids: Collection[str]
                ) -> Mapping[str, Mapping[int, int]]:
    """As :meth:`base.ThreadDriver.vcpu_sleeps`."""
    return cache.use_each(uuids, ThreadReader, ThreadReader.read_sleeps)


def read_io_runs(cache: domain_files.Cache, uuids: Collection[str]
                 ) -> Mapping[str, Mapping[int, base.ThreadRun]]:
    """As :meth:`base.ThreadDriver.io_runs`."""
    return cache.use_each(uuids, ThreadReader, ThreadReader.read_io_runs)


def set_slices(cache: domain_files.Cache, uuid: str,
               vcpus: Mapping[int, int | None], others: int | None) -> int:
    """As :meth:`base.ThreadDriver.set_slices`."""
    found = read(cache, uuid)
    wanted: dict[int, int | None] = dict.fromkeys(found.others, others)
    wanted.update((tid, vcpus[number])
                  for number, tid in found.vcpus.items() if number in vcpus)
    changed = 0
    for tid, slice_us in wanted.items():
        try:
            changed += sched_attr.set_slice(tid, slice_us)
        except ProcessLookupError:
            cache.use(uuid, ThreadReader, ThreadReader.expire)
    return changed


def reserved(cache: domain_files.Cache, uuid: str) -> base.Reserved:
    """As :meth:`base.ThreadDriver.reserved`."""
    found = read(cache, uuid)
    has = _reservations(cache, uuid, (*found.io, *found.vcpus.values()))
    return base.Reserved(
        {number: has[tid] for number, tid in found.vcpus.items()
         if tid in has},
        sum((one.share for one in has.values()), start=Fraction(0)))


def confined(cache: domain_files.Cache, uuid: str,
             pcpus: Set[int]) -> Set[int]:
    """Find vCPUs with a reservation that may not run on all of some pCPUs.

    :returns: their numbers
    """
    found = set()
    for number, tid in read(cache, uuid).vcpus.items():
        # The next look finds the thread that comes after it.
        with contextlib.suppress(ProcessLookupError):
            if (deadline.reservation(tid) is not None
                    and not pcpus <= os.sched_getaffinity(tid)):
                found.add(number)
    return found


def reserve(cache: domain_files.Cache, uuid: str, vcpu: units.CpuCap,
            io: units.CpuCap, *, reclaims: bool = False,
            anew: bool = True) -> base.Reserved:
    """As :meth:`base.ThreadDriver.reserve`.

    Threads that lose time come first, since others may get it; then those of
    I/O: beside vCPUs with reservations they would starve without one.
    """
    found, refusal = read(cache, uuid), ''
    wanted = {**dict.fromkeys(found.io, io),
              **dict.fromkeys(found.vcpus.values(), vcpu)}
    has = _reservations(cache, uuid, wanted)
    for tid in sorted(wanted if anew else has, key=lambda tid: (
            tid not in has or has[tid].share <= wanted[tid].share)):
        try:
            deadline.reserve(tid, wanted[tid],
                             reclaims=reclaims or tid in found.io)
        except ProcessLookupError:
            cache.use(uuid, ThreadReader, ThreadReader.expire)
        except base.ReservationRefused as error:
            refusal = str(error)
            break
    return dataclasses.replace(reserved(cache, uuid), refusal=refusal)


def _reservations(cache: domain_files.Cache, uuid: str,
                  tids: Iterable[int]) -> dict[int, units.CpuCap]:
    """What is reserved for those threads of a domain that have any."""
    found = {}
    for tid in tids:
        try:
            has = deadline.reservation(tid)
        except ProcessLookupError:
            cache.use(uuid, ThreadReader, ThreadReader.expire)
            continue
        if has is not None:
            found[tid] = has
    return found
