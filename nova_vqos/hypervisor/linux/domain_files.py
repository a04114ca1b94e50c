# SPDX-License-Identifier: Apache-2.0
"""The files of domains that are read again and again, and kept open.

One cache holds the runs of all domains of a host. Of each run the limits, the
CPU time and the threads are read by a reader of their own, which is made when
it is first needed, and again after it failed. All share the search for the
domain's cgroup, the list of its children, and one budget of open files.
"""

from collections.abc import Callable, Iterable, Mapping
import functools
import logging
import os
import re
import threading
import types
import typing as ty

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import inotify

LOG = logging.getLogger(__name__)

# Of all domains together: beyond it a file is opened for each reading. Both
# work; an open file costs half the time, and an entry in the process's table
# of files.
MOST_KEPT_OPEN = 16384

# The longest file that is read whole is a cgroup's cpu.stat.
_READ_BYTES = 4096
_CHILD = re.compile(r'(vcpu|iothread)([0-9]+)')

_Reader = ty.TypeVar('_Reader')
_T = ty.TypeVar('_T')


class Emulator(ty.NamedTuple):
    """The process of a domain's run.

    :ivar run_id: see :meth:`base.CapDriver.running`
    """

    run_id: int
    pid: int


class Children(ty.NamedTuple):
    """The child cgroups of a domain, by their numbers.

    libvirt makes one for each vCPU, one for each I/O thread, and one, the
    emulator's, for all other threads of QEMU.
    """

    vcpus: tuple[int, ...]
    iothreads: tuple[int, ...]


class Files:
    """The open files of a reader.

    Closing a file twice, or one that :meth:`close` closed, is harmless.
    """

    def __init__(self, budget: 'Budget', watcher: inotify.Watcher | None,
                 uuid: str) -> None:
        """
        :param watcher: watches files for writes; None: it cannot be done
        :param uuid: the key of its watches
        """
        self.budget = budget
        self.watcher = watcher
        self.uuid = uuid
        self.all: set[File] = set()

    def close(self) -> None:
        """Close all files."""
        for file in list(self.all):
            file.close()


class Budget:
    """How many files may still be kept open."""

    def __init__(self, files: int = MOST_KEPT_OPEN) -> None:
        self.files = files


class File:
    """A file that is read often, kept open as far as the budget allows.

    :ivar is_watched: whether the kernel reports its changes
    """

    def __init__(self, files: Files, path: str, mask: int = 0) -> None:
        """Open a file or a directory.

        :param files: gets it, to close it at the latest when all are closed
        :param mask: of the changes to watch for; 0: none
        :raises OSError: when it is not there
        """
        self._files = files
        self._path = path
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        if files.budget.files <= 0:
            os.close(self._handle)
            self._handle = None
        else:
            files.budget.files -= 1
        self._watch = -1
        if mask and files.watcher is not None:
            try:
                self._watch = files.watcher.add(path, mask, files.uuid)
            except OSError as error:
                LOG.debug('%s cannot be watched: %s', path, error)
        self.is_watched = self._watch >= 0
        files.all.add(self)

    def read(self, most_bytes: int = _READ_BYTES) -> bytes:
        """Read its content, of the same cgroup or thread as at first.

        :raises OSError: with an errno of procfs.GONE when that is gone
        """
        if self._handle is not None:
            return os.pread(self._handle, most_bytes, 0)
        with open(self._path, 'rb', buffering=0) as file:
            return file.read(most_bytes)

    def count_links(self) -> int:
        """Count the links of a directory.

        :raises OSError: when it is gone
        """
        if self._handle is not None:
            return os.fstat(self._handle).st_nlink
        return os.stat(self._path).st_nlink

    def close(self) -> None:
        """Close it, and end the watch."""
        self._files.all.discard(self)
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
            self._files.budget.files += 1
        if self._watch >= 0 and self._files.watcher is not None:
            self._files.watcher.remove(self._watch)
            self._watch = -1


class DomainRun:
    """One run of a domain: its cgroup, and the readers of it.

    :ivar written: whether its limits may have been written since they were
        read; any thread may set it
    :ivar path: of its cgroup's directory, below the cpu controller
    :ivar directory: that directory, watched for children
    :ivar top: the topmost cgroup that it is below
    """

    def __init__(self, root: str, uuid: str, emulator: Emulator, version: int,
                 budget: Budget, watcher: inotify.Watcher | None) -> None:
        """Find its cgroup.

        :param root: where /proc and /sys are looked for
        :param version: of cgroups, 1 or 2
        :raises CgroupError: when there is no such process, or no cgroup of it
        """
        self.root = root
        self.uuid = uuid
        self.emulator = emulator
        self.version = version
        self.written = True
        self._new_files = functools.partial(Files, budget, watcher, uuid)
        self._own_files = self._new_files()
        self._links = -1
        self._children = Children((), ())
        self._readers: dict[ty.Any, ty.Any] = {}
        self._files: dict[ty.Any, Files] = {}
        # Whether an unexpected error was logged.
        self._is_odd = False
        self.find()

    def find(self) -> None:
        """Find its cgroup, which may have been made anew.

        :raises CgroupError: when there is no such process, or no cgroup of it
        """
        self.path, self.top = cgroup.find(
            self.root, self.emulator.pid, self.version)
        self._own_files.close()
        try:
            self.directory = File(self._own_files, self.path,
                                  inotify.IN_CREATE | inotify.IN_DELETE)
        except OSError as error:
            raise cgroup.unreadable(self.path, error) from error
        self._links = -1

    def children(self, *, again: bool = False) -> Children:
        """List its child cgroups.

        :param again: also where none seems to have come or gone
        :returns: the very same object as long as they are the same
        :raises OSError: when the cgroup is gone
        """
        # NOTE: the link count of a cgroup's directory is that of its
        # children: another one means that a child came or went.
        links = self.directory.count_links()
        if again or links != self._links:
            found: dict[str, list[int]] = {'vcpu': [], 'iothread': []}
            for name in os.listdir(self.path):
                match = _CHILD.fullmatch(name)
                if match is not None:
                    found[match[1]].append(int(match[2]))
            children = Children(*(
                tuple(sorted(numbers)) for numbers in found.values()))
            if children != self._children:
                self._children = children
            self._links = links
        return self._children

    def use(self, make: Callable[['DomainRun', Files], _Reader],
            work: Callable[[_Reader], _T]) -> _T:
        """Do work with a reader, which is dropped where that fails.

        :param make: the reader's class
        :raises CgroupError: when the cgroup is gone or not understood
        """
        try:
            reader = self._readers.get(make)
            if reader is None:
                files = self._files[make] = self._new_files()
                reader = self._readers[make] = make(self, files)
            return work(reader)
        except Exception as error:
            # Whatever it is, it is the fault of this domain alone.
            self._readers.pop(make, None)
            self._files.pop(make).close()
            if isinstance(error, cgroup.CgroupError):
                raise
            if not (self._is_odd or isinstance(error, (OSError, ValueError))):
                self._is_odd = True
                LOG.exception('Domain %s cannot be read', self.uuid)
            raise cgroup.unreadable(self.path, error) from error

    def close(self) -> None:
        """Close all files; the counters of its readers are lost."""
        self._readers.clear()
        for files in (self._own_files, *self._files.values()):
            files.close()
        self._files.clear()


class Cache:
    """The open files of all domains of a host. Any thread may call it."""

    def __init__(self, root: str, find: Callable[[str], Emulator],
                 budget: Budget | None = None,
                 on_written: Callable[[str], None] | None = None) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /proc and /sys are looked for
        :param find: finds the emulator of a domain by its UUID
        :param on_written: called from another thread with the UUID of a
            domain after a write to its limits; None: nothing is watched
        """
        self.version = cgroup.host_version(root)
        self._root = root
        self._find = find
        self._budget = budget or Budget()
        self._on_written = on_written
        self._watcher: inotify.Watcher | None = None
        self._lock = threading.Lock()
        self._domains: dict[str, DomainRun] = {}

    def use(self, uuid: str, make: Callable[[DomainRun, Files], _Reader],
            work: Callable[[_Reader], _T], run_id: int | None = None) -> _T:
        """Do work with a reader of a domain.

        The domain is looked up where it is not known, and once more where the
        work fails, since it may have been started anew.

        :param make: the reader's class
        :param run_id: of the run that is wanted; None: any
        :raises CgroupError: when the cgroup is gone or not understood
        :raises HypervisorError: when the domain cannot be found
        """
        with self._lock:
            domain = self._domains.get(uuid)
            if domain is not None and run_id in (None,
                                                 domain.emulator.run_id):
                try:
                    return domain.use(make, work)
                except cgroup.CgroupError as error:
                    LOG.debug('Looking up domain %s again: %s', uuid, error)
        # Not under the lock: the hypervisor may hang.
        emulator = self._find(uuid)
        with self._lock:
            return self._open(uuid, emulator).use(make, work)

    def use_each(self, uuids: Iterable[str],
                 make: Callable[[DomainRun, Files], _Reader],
                 work: Callable[[_Reader], _T],
                 run_ids: Mapping[str, int] = types.MappingProxyType({})
                 ) -> dict[str, _T]:
        """As :meth:`use`, for several domains.

        :param run_ids: of the runs that are wanted
        :returns: by UUID; without domains that cannot be read now
        """
        found = {}
        for uuid in uuids:
            try:
                found[uuid] = self.use(uuid, make, work, run_ids.get(uuid))
            except base.HypervisorError as error:
                LOG.debug('Domain %s cannot be read now: %s', uuid, error)
        return found

    def touch(self, uuid: str) -> None:
        """Have the limits of a domain read from its files the next time.

        :param uuid: '': of all domains
        """
        for touched in [uuid] if uuid else list(self._domains):
            domain = self._domains.get(touched)
            if domain is not None:
                domain.written = True

    def tops(self) -> frozenset[str]:
        """The topmost cgroups that domains were found below."""
        with self._lock:
            return frozenset(domain.top for domain in self._domains.values())

    def retain(self, run_ids: Mapping[str, int]) -> None:
        """Close the files of all other runs.

        :param run_ids: of domains that run, by UUID
        """
        with self._lock:
            for uuid, domain in list(self._domains.items()):
                if run_ids.get(uuid) != domain.emulator.run_id:
                    self._forget(uuid)

    def close(self) -> None:
        """Close all files."""
        self.retain({})

    def _open(self, uuid: str, emulator: Emulator) -> DomainRun:
        domain = self._domains.get(uuid)
        if domain is not None and domain.emulator == emulator:
            try:
                domain.find()
            except cgroup.CgroupError:
                self._forget(uuid)
                raise
            return domain
        self._forget(uuid)
        domain = self._domains[uuid] = DomainRun(
            self._root, uuid, emulator, self.version, self._budget,
            self._watching())
        return domain

    def _forget(self, uuid: str) -> None:
        domain = self._domains.pop(uuid, None)
        if domain is not None:
            domain.close()

    def _watching(self) -> inotify.Watcher | None:
        if self._watcher is None and self._on_written is not None:
            try:
                self._watcher = inotify.Watcher(self._on_write)
            except OSError as error:
                LOG.warning('Writes to cgroups cannot be watched, reading '
                            'all limits at each tick: %s', error)
                self._on_written = None
        return self._watcher

    def _on_write(self, uuid: str) -> None:
        self.touch(uuid)
        if self._on_written is not None:
            for written in [uuid] if uuid else list(self._domains):
                self._on_written(written)
