# SPDX-License-Identifier: Apache-2.0
"""Counters of the instructions that a guest retires, of two kinds.

The emulator's
    QEMU counts in a file by a plugin, where it emulates the guest's CPU. The
    file belongs to QEMU, which a guest may have taken over: nothing of it is
    believed but the number, and that only as far as it is possible.
The CPU's
    The kernel's performance events of each vCPU's thread, counted only while
    it runs the guest. That is under KVM, on a CPU with counters.
"""

import abc
from collections.abc import Mapping
import os
import stat
import struct

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import procfs

# PERF_COUNT_HW_INSTRUCTIONS.
GUEST_INSTRUCTIONS = perf.Event(perf.TYPE_HARDWARE, 1, perf.EXCLUDE_HOST)

#: The file's layout, in little-endian: magic, version, and how many vCPUs the
#: guest may have; then, for each of them, how many instructions it retired.
#: Each part fills a line of the CPU's cache.
MAGIC = b'VQOSINSN'
VERSION = 1
HEADER = struct.Struct('<8sII48x')
VCPU = struct.Struct('<Q56x')
MOST_VCPUS = 4096

# Opening must neither follow a link nor wait for a writer of a pipe.
_SAFELY = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_UIDS = 'Uid:'


class CountError(base.HypervisorError):
    """The instructions of a guest cannot be counted."""


class Counter(abc.ABC):
    """Counts the instructions of one guest."""

    #: How many files it keeps open.
    files: int

    @abc.abstractmethod
    def read(self) -> float:
        """How many instructions all vCPUs retired since some moment.

        :raises CountError: when that is unknown
        """

    @abc.abstractmethod
    def covers(self, vcpus: Mapping[int, int]) -> bool:
        """Whether it counts all of these vCPUs.

        :param vcpus: their threads by their numbers
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Close it; harmless when repeated."""


class EmulatorCounter(Counter):
    """A file in which a plugin of QEMU counts."""

    files = 1

    def __init__(self, directory: str, pid: int, proc_path: str) -> None:
        """Open the file.

        :param directory: of the files of all QEMUs
        :param pid: of the QEMU
        :param proc_path: where processes are looked for
        :raises CountError: when it cannot be used
        """
        self._path = os.path.join(directory, str(pid))
        owner = _owner(proc_path, pid)
        try:
            self._handle = os.open(self._path, _SAFELY)
        except FileNotFoundError as error:
            raise self._error('does not exist') from error
        except OSError as error:
            raise self._unreadable(error) from error
        try:
            self._check_owner(owner)
            self._bytes = HEADER.size + VCPU.size * self._count_vcpus()
            self.read()
        except CountError:
            self.close()
            raise

    def read(self) -> float:
        content = self._pread(self._bytes + 1)
        if len(content) != self._bytes:
            raise self._error(f'must have {self._bytes} bytes')
        total: int = sum(count for (count,) in VCPU.iter_unpack(
            content[HEADER.size:]))
        return total

    def covers(self, vcpus: Mapping[int, int]) -> bool:
        return True

    def close(self) -> None:
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def _check_owner(self, owner: int) -> None:
        status = os.fstat(self._handle)
        if not stat.S_ISREG(status.st_mode):
            raise self._error('is not a regular file')
        if status.st_uid not in (0, owner):
            raise self._error(f'belongs to user {status.st_uid}, it must '
                              f'belong to that of its QEMU, {owner}')
        if status.st_mode & 0o022:
            raise self._error('may be written by others than its owner')

    def _count_vcpus(self) -> int:
        header = self._pread(HEADER.size)
        if len(header) != HEADER.size:
            raise self._error('is too short')
        magic, version, vcpus = HEADER.unpack(header)
        if (magic, version) != (MAGIC, VERSION):
            raise self._error(
                f'is not of version {VERSION} of this kind of file')
        if not 0 < vcpus <= MOST_VCPUS:
            raise self._error(f'is for {vcpus} vCPUs, it must be for 1 to '
                              f'{MOST_VCPUS}')
        return int(vcpus)

    def _pread(self, most_bytes: int) -> bytes:
        try:
            return os.pread(self._handle, most_bytes, 0)
        except OSError as error:
            raise self._unreadable(error) from error

    def _unreadable(self, error: OSError) -> CountError:
        return self._error(f'cannot be read: {error.strerror}')

    def _error(self, problem: str) -> CountError:
        return CountError(f"the emulator's counter {self._path} {problem}")


class CpuCounter(Counter):
    """Performance events of each vCPU's thread."""

    def __init__(self, vcpus: Mapping[int, int], event: perf.Event) -> None:
        """Open them; counting begins.

        :param vcpus: as in :meth:`covers`
        :raises CountError: when they cannot be counted
        """
        self._vcpus = dict(vcpus)
        self.files = len(vcpus)
        self._groups: dict[int, perf.Group] = {}
        self._last: dict[int, perf.Counts] = {}
        self._total = 0.0
        try:
            for tid in vcpus.values():
                group = self._groups[tid] = perf.Group((event,), tid)
                self._last[tid] = group.read()
        except OSError as error:
            self.close()
            raise _event_error(perf.reason(error)) from error

    def read(self) -> float:
        for tid, group in self._groups.items():
            try:
                found = group.read()
            except OSError as error:
                raise _event_error(perf.reason(error)) from error
            counted = perf.scaled(self._last[tid], found)
            if counted is None:
                raise _event_error('other events took all counters of the CPU')
            self._last[tid] = found
            self._total += counted[0]
        return self._total

    def covers(self, vcpus: Mapping[int, int]) -> bool:
        return self._vcpus == vcpus

    def close(self) -> None:
        for group in self._groups.values():
            group.close()
        self._groups.clear()


def _event_error(problem: str) -> CountError:
    return CountError(f'performance events of vCPUs: {problem}')


def _owner(proc_path: str, pid: int) -> int:
    """The user that a process acts as.

    NOTE: not the owner of its directory, which is root where the process must
    not be looked into.
    """
    status = procfs.read_text(f'{proc_path}/{pid}/status', default='')
    for line in status.splitlines():
        if line.startswith(_UIDS):
            # Real, effective, saved, and for files.
            return int(line.split()[2])
    raise CountError(f'process {pid} has no user')
