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
"""The threads of a domain, as libvirt laid them into cgroups.

Each vCPU has a thread in a cgroup of its own, ``vcpuN``, as has each I/O
thread, ``iothreadN``. All other threads of its QEMU are in ``emulator``: its
main one, helpers that come and go, and vhost's workers.
"""

from collections.abc import Callable, Collection, Mapping
import contextlib
import logging
import os
import re
import threading
import typing as ty

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import sched_attr
from nova_vqos.hypervisor import schedstat
from nova_vqos.hypervisor import thread_list

LOG = logging.getLogger(__name__)

_OWN_THREAD = re.compile(r'(vcpu|iothread)([0-9]+)')
_T = ty.TypeVar('_T')


class DomainThreads:
    """The threads of one run of a domain's emulator."""

    def __init__(self, root: str, pid: int, version: int,
                 budget: counters.Budget) -> None:
        """Find its cgroup.

        :param root: where /proc and /sys are looked for
        :param pid: of the emulator
        :param version: of cgroups, 1 or 2
        :raises CgroupError: when there is no such process, or no cgroup of it
        """
        self._path = cgroup.find(root, pid, version).directory
        self._list_name = thread_list.FILES[version]
        self._proc_path = os.path.join(root, 'proc')
        self._budget = budget
        self._links = -1
        self._vcpus: dict[int, int] = {}
        self._iothreads: tuple[int, ...] = ()
        self._files: dict[int, counters.CounterFile] = {}
        self._stack = contextlib.ExitStack()
        with self._reading():
            self._directory = os.open(
                self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._stack.callback(os.close, self._directory)

    def read(self) -> base.Threads:
        """All threads, as they are now.

        :raises CgroupError: when the cgroup is gone
        """
        with self._reading():
            self._look()
            return base.Threads(dict(self._vcpus), (
                *self._list('emulator'), *self._iothreads))

    def runs(self) -> dict[int, schedstat.ThreadRun]:
        """What each vCPU ran, by its number; without those that just went.

        :raises CgroupError: when the cgroup is gone
        """
        with self._reading():
            self._look()
            found = {}
            for number in self._vcpus:
                try:
                    found[number] = schedstat.parse(self._file(number).read())
                except OSError as error:
                    self._miss(error)
            return found

    def set_slices(self, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        """As :meth:`base.Hypervisor.set_slices`.

        :returns: how many of them had another one
        :raises CgroupError: when the cgroup is gone
        :raises base.HypervisorError: when no slice can be set
        """
        found = self.read()
        wanted: dict[int, int | None] = dict.fromkeys(found.others, others)
        wanted.update((tid, vcpus[number])
                      for number, tid in found.vcpus.items()
                      if number in vcpus)
        changed = 0
        for tid, slice_us in wanted.items():
            try:
                changed += sched_attr.set_slice(tid, slice_us)
            except ProcessLookupError as error:
                self._miss(error)
        return changed

    def close(self) -> None:
        """Close the files."""
        self._forget()
        self._stack.close()

    def _look(self) -> None:
        # NOTE: the link count of a cgroup's directory is that of its
        # children: another one means that one came or went.
        links = os.fstat(self._directory).st_nlink
        if links == self._links:
            return
        self._forget()
        self._links = links
        for name in os.listdir(self._path):
            match = _OWN_THREAD.fullmatch(name)
            if match is None:
                continue
            tids = self._list(name)
            if not tids:
                # It is only being made, or taken away.
                self._links = -1
            elif match.group(1) == 'vcpu':
                self._vcpus[int(match.group(2))] = tids[0]
            else:
                self._iothreads += tids

    def _forget(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
        self._vcpus = {}
        self._iothreads = ()
        self._links = -1

    def _file(self, number: int) -> counters.CounterFile:
        """The counters of a vCPU's thread, kept open."""
        file = self._files.get(number)
        if file is None:
            file = self._files[number] = counters.CounterFile(
                schedstat.path(self._proc_path, self._vcpus[number]),
                self._budget)
        return file

    def _list(self, child: str) -> tuple[int, ...]:
        try:
            return thread_list.read(
                os.path.join(self._path, child, self._list_name))
        except OSError as error:
            self._miss(error)
            return ()

    def _miss(self, error: OSError) -> None:
        """Look again next time, since a thread or its cgroup is gone."""
        if error.errno not in counters.GONE:
            raise error
        self._links = -1

    def _reading(self) -> contextlib.AbstractContextManager[None]:
        return cgroup.reading(self._path, self.close)


class ThreadReader:
    """Finds the threads of domains, and sets their slices."""

    def __init__(self, root: str, find_pid: Callable[[str], int],
                 budget: counters.Budget) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /proc and /sys are looked for
        :param find_pid: finds the emulator of a domain by its UUID
        """
        self._root = root
        self._find_pid = find_pid
        self._budget = budget
        self._lock = threading.Lock()
        self._domains: dict[str, DomainThreads] = {}

    def read(self, uuid: str) -> base.Threads:
        """As :meth:`base.Hypervisor.threads`."""
        return self._use(uuid, DomainThreads.read)

    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        """As :meth:`base.Hypervisor.set_slices`."""
        return self._use(uuid, lambda domain: domain.set_slices(
            vcpus, others))

    def runs(self, uuids: Collection[str]
             ) -> Mapping[str, Mapping[int, schedstat.ThreadRun]]:
        """As :meth:`base.Hypervisor.vcpu_runs`."""
        found = {}
        for uuid in uuids:
            try:
                found[uuid] = self._use(uuid, DomainThreads.runs)
            except base.Unavailable:
                raise
            except base.HypervisorError as error:
                LOG.debug('What the vCPUs of domain %s ran is not known now: '
                          '%s', uuid, error)
        return found

    def forget(self, uuid: str) -> None:
        """Close the files of a domain."""
        with self._lock:
            self._forget(uuid)

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            for uuid in list(self._domains):
                self._forget(uuid)

    def _use(self, uuid: str, work: Callable[[DomainThreads], _T]) -> _T:
        with self._lock:
            if uuid in self._domains:
                try:
                    return work(self._domains[uuid])
                except cgroup.CgroupError as error:
                    # Perhaps it was started anew.
                    LOG.debug('Threads of domain %s are looked for again: %s',
                              uuid, error)
                    self._forget(uuid)
            domain = DomainThreads(
                self._root, self._find_pid(uuid),
                cgroup.host_version(self._root), self._budget)
            self._domains[uuid] = domain
            try:
                return work(domain)
            except cgroup.CgroupError:
                self._forget(uuid)
                raise

    def _forget(self, uuid: str) -> None:
        domain = self._domains.pop(uuid, None)
        if domain is not None:
            domain.close()
