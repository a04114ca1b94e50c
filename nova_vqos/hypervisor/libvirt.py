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

"""The agent's hands on a host of QEMU domains under libvirt."""

from collections.abc import Callable, Collection, Mapping, Sequence, Set
import logging
import threading
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import domain_threads
from nova_vqos.hypervisor import libvirt_activity
from nova_vqos.hypervisor import libvirt_domain
from nova_vqos.hypervisor import libvirt_events
from nova_vqos.hypervisor import libvirt_pins
from nova_vqos.hypervisor import libvirt_session
from nova_vqos.hypervisor import libvirt_usages
from nova_vqos.hypervisor import schedstat
from nova_vqos.hypervisor import topology
from nova_vqos.quantum import activity
from nova_vqos.quantum import model

LOG = logging.getLogger(__name__)

_FIELDS = {
    base.Parameter.DOMAIN_QUOTA_US:
        libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_QUOTA,
    base.Parameter.DOMAIN_PERIOD_US:
        libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_PERIOD,
    base.Parameter.QUOTA_US: libvirt.VIR_DOMAIN_SCHEDULER_VCPU_QUOTA,
    base.Parameter.PERIOD_US: libvirt.VIR_DOMAIN_SCHEDULER_VCPU_PERIOD,
    base.Parameter.SHARES: libvirt.VIR_DOMAIN_SCHEDULER_CPU_SHARES,
}


class LibvirtHypervisor(base.Hypervisor):
    """Domains of a local libvirt daemon."""

    def __init__(self, uri: str = 'qemu:///system', *, root: str = '/',
                 run_path: str = '/run/libvirt/qemu') -> None:
        """Prepare; nothing is connected yet.

        :param uri: libvirt's name of the daemon
        :param root: where /proc and /sys are looked for, for tests
        :param run_path: where libvirt leaves the process id of each domain
        """
        self._root = root
        self._session = libvirt_session.Session(uri, run_path)
        self._events = libvirt_events.Events()
        self._cgroups = cgroup.CgroupReader(
            root, lambda uuid: self._events.written(uuid))
        self._cgroups_lock = threading.Lock()
        self._cgroup_version = self._cgroups.version()
        budget = counters.Budget()
        self._usages = libvirt_usages.UsageReader(self._session, root, budget)
        self._threads = domain_threads.ThreadReader(
            root, self._find_pid, budget)
        self._topology = topology.Topology(root)
        self._activity = libvirt_activity.ActivityReader(
            self._session, self._threads.runs)
        self._uuids: dict[int, str] = {}

    @property
    def cgroup_version(self) -> int:
        return self._cgroup_version

    def connect(self, on_event: Callable[[base.Event], None]) -> None:
        # What was counted goes on: the domains do.
        self._disconnect()
        self._events = libvirt_events.Events(on_event)
        self._session.open(self._events.callbacks, self._events.closed)

    def close(self) -> None:
        self._disconnect()
        self._usages.close()

    def _disconnect(self) -> None:
        self._session.close()
        self._uuids = {}
        with self._cgroups_lock:
            self._cgroups.close()
        self._threads.close()

    def running(self) -> Mapping[str, int]:
        # NOTE: the cheapest of libvirt's bulk calls, for its daemon too: a
        # third of getAllDomainStats with the least it can be asked for.
        numbers = self._session.call(self._session.connected().listDomainsID)
        uuids = {}
        for number in numbers:
            uuid = self._uuids.get(number)
            if uuid is None:
                try:
                    uuid = self._session.call(
                        self._session.connected().lookupByID,
                        number).UUIDString()
                except base.DomainGone:
                    continue
            uuids[number] = uuid
        outdated = set(self._uuids.values()).difference(uuids.values()).union(
            uuids[number] for number in uuids if number not in self._uuids)
        for uuid in outdated:
            with self._cgroups_lock:
                self._cgroups.forget(uuid)
            self._threads.forget(uuid)
        self._uuids = uuids
        return {uuid: number for number, uuid in uuids.items()}

    def describe(self, uuid: str) -> base.Domain:
        return libvirt_domain.describe(self._session, self._root, uuid)

    def read(self, uuid: str) -> base.InForce:
        with self._cgroups_lock:
            if self._cgroups.knows(uuid):
                try:
                    return self._cgroups.read(uuid, None)
                except cgroup.CgroupError as error:
                    LOG.debug('Domain %s is looked for again: %s', uuid, error)
        pid = self._find_pid(uuid)
        with self._cgroups_lock:
            return self._cgroups.read(uuid, pid)

    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        domain = self._session.lookup(uuid)
        self._session.check_writable(domain)
        values = {_FIELDS[change.parameter]:
                  -1 if change.value is None else change.value
                  for change in changes}
        try:
            self._set(domain, values)
        except (base.DomainBusy, base.DomainGone, base.Unavailable):
            raise
        except base.HypervisorError as error:
            if not self._session.call(domain.isActive):
                raise base.DomainGone(str(error)) from error
            if self._cgroup_version != 2 or -1 not in values.values():
                raise
            # NOTE: -1 fails on some stacks of cgroup v2.
            self._set(domain, {
                field: cgroup.UNLIMITED_QUOTA_US if value == -1 else value
                for field, value in values.items()})

    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        libvirt_pins.pin(self._session, uuid, pcpus)

    def usages(self, uuids: Collection[str]) -> Mapping[str, usage.Usage]:
        return self._usages.read(uuids)

    def vcpu_times(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        return self._usages.read_vcpus(run_ids)

    def activity(self, uuids: Collection[str]
                 ) -> Mapping[str, activity.Activity]:
        return self._activity.read(uuids)

    def host_usage(self) -> usage.HostUsage:
        return self._usages.read_host()

    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        return self._threads.set_slices(uuid, vcpus, others)

    def threads(self, uuid: str) -> base.Threads:
        return self._threads.read(uuid)

    def vcpu_runs(self, uuids: Collection[str]
                  ) -> Mapping[str, Mapping[int, schedstat.ThreadRun]]:
        return self._threads.runs(uuids)

    def topology(self) -> tuple[model.Socket, ...]:
        return self._topology.read()

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        return libvirt_pins.place(self._session, uuid, pcpus_by_vcpu)

    def _find_pid(self, uuid: str) -> int:
        """The process id of a domain's emulator."""
        return self._session.pid(
            self._session.call(self._session.lookup(uuid).name))

    def _set(self, domain: ty.Any, values: dict[str, int]) -> None:
        try:
            self._session.call(
                domain.setSchedulerParametersFlags, values,
                libvirt.VIR_DOMAIN_AFFECT_LIVE)
        finally:
            # Part of it may have been written, and the kernel's word of it
            # may come later than the next read.
            self._cgroups.touch(domain.UUIDString())
