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

"""Reads the CPU limits of running domains straight from cgroupfs.

libvirt offers no bulk call for quotas, and one call per domain and tick would
cost its daemon a quarter of a core for 200 domains. So the files are kept
open, and read again when somebody wrote to them, or after a while in any
case; where the kernel does not tell of writes, each time.

Only reads: what is written goes through libvirt, which remembers it for the
domain's XML and its hotplugged vCPUs.
"""

from collections.abc import Callable, Iterator
import contextlib
import itertools
import logging
import os
import re
import typing as ty

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import inotify

LOG = logging.getLogger(__name__)

# NOTE: libvirt's way to say 'no limit' where -1 is refused
# (VIR_CGROUP_CPU_QUOTA_MAX in src/util/vircgroup.h).
UNLIMITED_QUOTA_US = 17_592_186_044_415

_VCPU_DIRECTORY = re.compile(r'vcpu([0-9]+)')
_READ_BYTES = 64

# How often what nobody wrote to is answered from memory before it is read
# again: a net below the kernel's word, for a tenth of the cost.
_READS_SPARED = 9


class CgroupError(base.HypervisorError):
    """A domain's cgroup cannot be found or read."""


class Place(ty.NamedTuple):
    """Where the cgroup of a domain is.

    :ivar mount: directory of the hierarchy
    :ivar path: below it
    """

    mount: str
    path: str

    @property
    def directory(self) -> str:
        return os.path.join(self.mount, self.path)


class _Files:
    """Files that are kept open and watched, closed together.

    :ivar watched: whether the kernel tells of writes to all of them
    """

    def __init__(self, watcher: inotify.Watcher | None, key: str) -> None:
        self.watched = watcher is not None
        self._watcher = watcher
        self._key = key
        self._stack = contextlib.ExitStack()

    def open(self, path: str, flags: int = os.O_RDONLY,
             mask: int = inotify.IN_MODIFY) -> int:
        handle = os.open(path, flags | os.O_CLOEXEC)
        self._stack.callback(os.close, handle)
        if self._watcher is not None:
            try:
                watch = self._watcher.add(path, mask, self._key)
            except OSError as error:
                LOG.debug('%s cannot be watched: %s', path, error)
                self.watched = False
            else:
                self._stack.callback(self._watcher.remove, watch)
        return handle

    def close(self) -> None:
        self._stack.close()


class DomainCgroup:
    """The CPU cgroups of one domain, kept open.

    :ivar written: whether somebody may have written to it since it was read
    """

    def __init__(self, uuid: str, path: str, version: int,
                 watcher: inotify.Watcher | None = None) -> None:
        """Open the files.

        :param path: the domain's directory, which holds emulator and vcpuN
        :param version: of cgroups, 1 or 2
        :param watcher: tells of writes, with the UUID; None: read each time
        :raises CgroupError: when it is not there, or not the domain's
        """
        self.written = True
        self._path = path
        self._version = version
        self._uuid = uuid
        self._watcher = watcher
        self._files = self._make_files()
        self._vcpu_files = self._make_files()
        self._vcpus: dict[int, tuple[int, ...]] = {}
        self._links = 0
        self._all: list[int] = []
        self._content: list[bytes] = []
        self._in_force: base.InForce | None = None
        self._spared = 0
        # Not all domains are read again at the same tick.
        self._head_start = hash(uuid) % _READS_SPARED
        with self._reading():
            self._directory = self._files.open(
                path, os.O_DIRECTORY, inotify.IN_CREATE | inotify.IN_DELETE)
            self._domain = self._open_limit(self._files, path)
            self._shares = self._files.open(os.path.join(
                self._shares_path(path),
                'cpu.shares' if version == 1 else 'cpu.weight'))

    def read(self) -> base.InForce:
        """What is in force now.

        :returns: the very same object as long as nothing changes
        :raises CgroupError: when the cgroup is gone
        """
        if (not self.written and self._spared < _READS_SPARED
                and self._in_force is not None
                and self._files.watched and self._vcpu_files.watched):
            self._spared += 1
            return self._in_force
        # Before it is read: what is written meanwhile is read next time.
        self.written = False
        self._spared, self._head_start = self._head_start, 0
        with self._reading():
            # NOTE: the link count of a cgroup's directory is that of its
            # children: another one means that a vCPU came or went.
            links = os.fstat(self._directory).st_nlink
            if links != self._links:
                self._open_vcpus()
                self._links = links
                self._in_force = None
            content = [os.pread(handle, _READ_BYTES, 0)
                       for handle in self._all]
            if self._in_force is None or content != self._content:
                self._in_force = self._parse(iter(content))
                self._content = content
            return self._in_force

    def close(self) -> None:
        """Close the files."""
        self._vcpu_files.close()
        self._files.close()

    def _make_files(self) -> _Files:
        return _Files(self._watcher, self._uuid)

    def _open_vcpus(self) -> None:
        self._vcpu_files.close()
        self._vcpu_files = self._make_files()
        self._vcpus = {}
        for name in os.listdir(self._path):
            match = _VCPU_DIRECTORY.fullmatch(name)
            if match is not None:
                self._vcpus[int(match.group(1))] = self._open_limit(
                    self._vcpu_files, os.path.join(self._path, name))
        self._all = [self._shares, *self._domain,
                     *itertools.chain.from_iterable(self._vcpus.values())]

    def _parse(self, content: Iterator[bytes]) -> base.InForce:
        """The content of the files, in the order of self._all."""
        return base.InForce(
            shares=int(next(content)),
            domain=self._limit(content),
            vcpus={number: self._limit(content) for number in self._vcpus})

    def _open_limit(self, files: _Files, path: str) -> tuple[int, ...]:
        if self._version == 2:
            return (files.open(os.path.join(path, 'cpu.max')),)
        return (files.open(os.path.join(path, 'cpu.cfs_quota_us')),
                files.open(os.path.join(path, 'cpu.cfs_period_us')))

    def _limit(self, content: Iterator[bytes]) -> base.Limit:
        if self._version == 2:
            quota, period = next(content).split()
        else:
            quota, period = next(content), next(content)
        quota_us = -1 if quota == b'max' else int(quota)
        limited = 0 <= quota_us < UNLIMITED_QUOTA_US
        return base.Limit(quota_us if limited else None, int(period))

    @staticmethod
    def _shares_path(path: str) -> str:
        # NOTE: where systemd made the domain's scope, libvirt works in a
        # child of it named libvirt, but leaves the weight to systemd, on the
        # scope itself.
        parent, name = os.path.split(path)
        return parent if name == 'libvirt' else path

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return reading(self._path, self.close)


class CgroupReader:
    """Finds and reads the cgroups of domains."""

    def __init__(self, root: str = '/',
                 on_written: Callable[[str], None] | None = None) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /proc and /sys are looked for, for tests
        :param on_written: called from another thread with the UUID of a
            domain when somebody wrote to its cgroup; None: nothing is watched
        """
        self._root = root
        self._on_written = on_written
        self._watcher: inotify.Watcher | None = None
        self._domains: dict[str, DomainCgroup] = {}

    def version(self) -> int:
        """2 where cgroups are unified on this host, else 1."""
        return host_version(self._root)

    def read(self, uuid: str, pid: int | None) -> base.InForce:
        """What is in force for a domain.

        :param pid: of its emulator; None: only where it was found before
        :raises CgroupError: when its cgroup cannot be found or read
        """
        cgroup = self._domains.get(uuid)
        if cgroup is None:
            if pid is None:
                raise CgroupError(f'the emulator of domain {uuid} is unknown')
            version = self.version()
            place = find(self._root, pid, version)
            cgroup = DomainCgroup(uuid, place.directory, version,
                                  self._watching())
            self._domains[uuid] = cgroup
        try:
            return cgroup.read()
        except CgroupError:
            del self._domains[uuid]
            raise

    def touch(self, uuid: str) -> None:
        """Have a domain read again next time, and not from memory."""
        cgroup = self._domains.get(uuid)
        if cgroup is not None:
            cgroup.written = True

    def knows(self, uuid: str) -> bool:
        """Whether a domain's files are open."""
        return uuid in self._domains

    def forget(self, uuid: str) -> None:
        """Close the files of a domain."""
        cgroup = self._domains.pop(uuid, None)
        if cgroup is not None:
            cgroup.close()

    def close(self) -> None:
        """Close all files."""
        for uuid in list(self._domains):
            self.forget(uuid)

    def _watching(self) -> inotify.Watcher | None:
        if self._watcher is None and self._on_written is not None:
            try:
                self._watcher = inotify.Watcher(self._take_written)
            except OSError as error:
                LOG.warning('Writes to cgroups cannot be watched, so that all '
                            'are read at each tick: %s', error)
                self._on_written = None
        return self._watcher

    def _take_written(self, uuid: str) -> None:
        for written in [uuid] if uuid else list(self._domains):
            self.touch(written)
            if self._on_written is not None:
                self._on_written(written)


@contextlib.contextmanager
def reading(path: str, close: Callable[[], None] = lambda: None
            ) -> Iterator[None]:
    """In it, what is not there or not understood becomes a CgroupError.

    :param path: of the cgroup that is read
    :param close: called when it cannot be
    """
    try:
        yield
    except (OSError, ValueError) as error:
        close()
        gone = isinstance(error, OSError) and error.errno in counters.GONE
        raise CgroupError(
            f'cgroup {path} {"is gone" if gone else "cannot be read"}: '
            f'{error}') from error


def host_version(root: str) -> int:
    """2 where cgroups are unified on this host, else 1.

    :param root: where /sys is looked for
    """
    return 2 if os.path.exists(os.path.join(
        root, 'sys/fs/cgroup/cgroup.controllers')) else 1


def find(root: str, pid: int | str, version: int,
         controller: str = 'cpu') -> Place:
    """The cgroup of the domain whose emulator has a process id.

    :param root: where /proc and /sys are looked for
    :param controller: of version 1, where each may have a hierarchy of its own
    :raises CgroupError: when it is in none
    """
    mount, path = find_process(root, pid, version, controller)
    directory, name = os.path.split(path)
    # The emulator's threads are below the domain, beside its vCPUs.
    domain = directory if name == 'emulator' else path
    if domain == '/':
        raise CgroupError('the emulator is in the root cgroup')
    return Place(mount, domain.lstrip('/'))


def find_process(root: str, pid: int | str, version: int,
                 controller: str) -> tuple[str, str]:
    """The hierarchy that a process is in, and where below it.

    :param pid: of the process, or ``self``
    :raises CgroupError: when it is in none
    """
    try:
        with open(os.path.join(root, f'proc/{pid}/cgroup')) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise CgroupError(
            f'the cgroup of process {pid} is unknown: {error}') from error
    for line in lines:
        hierarchy, _, rest = line.partition(':')
        controllers, _, path = rest.partition(':')
        if version == 1 and controller in controllers.split(','):
            return _mount(root, controller, controllers), path
        if version == 2 and hierarchy == '0':
            return os.path.join(root, 'sys/fs/cgroup'), path
    raise CgroupError(f'process {pid} is in no {controller} cgroup')


def _mount(root: str, controller: str, controllers: str) -> str:
    # NOTE: where two controllers share a hierarchy, systemd links each one's
    # name to it; elsewhere only the joint name may be there.
    for name in (controller, controllers):
        mount = os.path.join(root, 'sys/fs/cgroup', name)
        if os.path.isdir(mount):
            break
    return mount
