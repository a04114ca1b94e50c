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

"""What libvirt's domains used: their CPU time, packets and disk requests."""

from collections.abc import Collection, Mapping
import dataclasses
import functools
import logging
import threading
import time
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.billing import usage
from nova_vqos.hypervisor import account_reader
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import host_account
from nova_vqos.hypervisor import iostats
from nova_vqos.hypervisor import libvirt_session

LOG = logging.getLogger(__name__)

# Without it a domain with a job, such as a migration, holds up all others.
_NOWAIT = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT


class UsageReader:
    """Reads what domains used, and the host as a whole."""

    def __init__(self, session: libvirt_session.Session, root: str,
                 budget: counters.Budget) -> None:
        """
        :param root: where /proc and /sys are looked for
        """
        self._session = session
        self._accounts = account_reader.AccountReader(root, budget)
        self._accounts_lock = threading.Lock()
        self._host_account = host_account.HostAccount(root)
        self._unreadable: set[str] = set()
        self._interface_io = iostats.BulkReader()
        self._disk_io = iostats.BulkReader()
        self._disk_schedule = iostats.DiskSchedule()

    def read(self, uuids: Collection[str]) -> Mapping[str, usage.Usage]:
        """As :meth:`base.Hypervisor.usages`."""
        if not uuids:
            return {}
        try:
            # NOTE: of all that run, since those that do not are forgotten.
            # Paused ones too: what they did is still there.
            records = self._interface_io.read(lambda: self._session.call(
                self._session.connected().getAllDomainStats,
                libvirt.VIR_DOMAIN_STATS_INTERFACE,
                libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE | _NOWAIT))
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            raise base.Unavailable(
                f'libvirt gives no statistics: {error}') from error
        running = {domain.UUIDString(): (domain, found)
                   for domain, found in records}
        with self._accounts_lock:
            self._accounts.keep(running)
            self._unreadable.intersection_update(running)
            self._disk_schedule.keep(running)
            found = {uuid: self._read_usage(*running[uuid])
                     for uuid in running.keys() & uuids}
            known = {uuid: reading for uuid, reading in found.items()
                     if reading is not None}
            due = [running[uuid][0] for uuid, reading in known.items()
                   if self._disk_schedule.is_due(uuid, *_moment(reading))]
        for uuid, disks in self._read_disks(due).items():
            known[uuid] = dataclasses.replace(known[uuid], disks=disks)
            if disks is not None:
                self._disk_schedule.note(uuid, *_moment(known[uuid]))
        return known

    def read_vcpus(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        """As :meth:`base.Hypervisor.vcpu_times`."""
        with self._accounts_lock:
            self._accounts.keep(run_ids)
            new = [uuid for uuid, run_id in run_ids.items()
                   if not self._accounts.knows(uuid, run_id)]
        # Before others have to wait for it: a daemon may hang.
        pids = {uuid: self._find_pid(uuid) for uuid in new}
        found = {}
        with self._accounts_lock:
            for uuid, run_id in run_ids.items():
                try:
                    run, vcpu_time = self._accounts.read_vcpus(
                        uuid, run_id, functools.partial(_known, pids, uuid))
                except base.HypervisorError as error:
                    LOG.debug('What the vCPUs of domain %s used cannot be '
                              'read: %s', uuid, error)
                    continue
                found[uuid] = usage.VcpuTime(run, time.monotonic(),
                                             *vcpu_time)
        return found

    def read_host(self) -> usage.HostUsage:
        """As :meth:`base.Hypervisor.host_usage`."""
        with self._accounts_lock:
            return self._host_account.read(self._accounts.tops())

    def close(self) -> None:
        """Close all files."""
        with self._accounts_lock:
            self._accounts.close()

    def _find_pid(self, uuid: str) -> int | base.HypervisorError:
        """The process id of a domain's emulator, or why it is unknown."""
        try:
            return self._session.pid(
                self._session.call(self._session.lookup(uuid).name))
        except base.HypervisorError as error:
            return error

    def _read_disks(self, domains: list[ty.Any]) -> Mapping[
            str, Mapping[str, usage.DiskCounters] | None]:
        """What disks of domains did, by UUID; without those not known now."""
        try:
            records = self._disk_io.read(lambda: self._session.call(
                self._session.connected().domainListGetStats, domains,
                libvirt.VIR_DOMAIN_STATS_BLOCK, _NOWAIT)) if domains else []
        except base.HypervisorError as error:
            LOG.warning('What disks did is not known this time: %s; perhaps '
                        'a QEMU hangs', error)
            return {}
        return {domain.UUIDString(): iostats.disks(found)
                for domain, found in records}

    def _read_usage(self, domain: ty.Any, statistics: Mapping[str, ty.Any]
                    ) -> usage.Usage | None:
        """What a domain used, but for its disks; None: not known now."""
        uuid = domain.UUIDString()
        try:
            run, cpu_time = self._accounts.read(
                uuid, domain.ID(),
                functools.partial(self._session.pid, domain.name()))
        except base.HypervisorError as error:
            # Once: it may be so at each reading.
            LOG.log(logging.DEBUG if uuid in self._unreadable
                    else logging.WARNING,
                    'What domain %s used cannot be read: %s', uuid, error)
            self._unreadable.add(uuid)
            return None
        self._unreadable.discard(uuid)
        return usage.Usage(
            run=run, read_at_s=time.monotonic(), disks=None,
            interfaces=iostats.interfaces(statistics), **cpu_time._asdict())


def _known(pids: Mapping[str, int | base.HypervisorError], uuid: str) -> int:
    """A process id that was looked for before.

    :raises base.HypervisorError: when it was not found
    """
    pid = pids.get(uuid)
    if not isinstance(pid, int):
        raise pid or base.HypervisorError('its files were closed meanwhile')
    return pid


def _moment(reading: usage.Usage) -> tuple[str, float, int]:
    """Run, time and CPU time of a reading."""
    return reading.run, reading.read_at_s, (
        reading.vcpu_ns + reading.emulator_ns + reading.iothread_ns
        + reading.vhost_ns)
