# SPDX-License-Identifier: Apache-2.0
"""The counters of domains: their CPU time, packets and disk requests."""

from collections.abc import Collection, Container, Mapping, Set
import dataclasses
import logging
import threading
import time
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.hypervisor.linux import domain_files

LOG = logging.getLogger(__name__)


class StatisticsReader:
    """Reads the counters of domains, and of the host as a whole."""

    def __init__(self, session: libvirt_session.Session, root: str,
                 domains: domain_files.Cache,
                 qemus: bulk.QemuReader) -> None:
        """
        :param root: where /proc and /sys are looked for
        """
        self._session = session
        self._domains = domains
        self._lock = threading.Lock()
        self._host_account = accounting.HostAccount(root)
        self._unreadable: set[str] = set()
        self._interface_io = bulk.BulkReader()
        self._qemus = qemus
        self._schedule = bulk.Schedule()
        # The domains that there are, and those of the last reading.
        self._present: Container[str] = frozenset()
        self._seen_present: Container[str] = self._present
        # A connection, and libvirt's domains on it by UUID.
        self._seen: tuple[ty.Any, dict[str, ty.Any]] = None, {}

    def retain(self, uuids: Container[str]) -> None:
        """Forget all other domains, before the next reading.

        NOTE: called by the loop, which must not wait for a reading.
        """
        self._present = uuids

    def read(self, uuids: Collection[str], idle: Mapping[str, base.Idle]
             ) -> Mapping[str, usage.Usage]:
        """As :meth:`base.UsageDriver.usages`."""
        with self._lock:
            self._forget_others()
            due = {uuid for uuid in uuids
                   if self._is_due(uuid, idle.get(uuid))}
        if not due:
            return {}
        # Also of paused domains: their counters are still there.
        running = self._interface_io.read(
            lambda: self._session.call(self._fetch_interfaces, due))
        with self._lock:
            found = bulk.each(running, self._read_usage)
            known = {uuid: reading for uuid, reading in found.items()
                     if reading is not None}
            asked = [uuid for uuid, reading in known.items()
                     if self._schedule.is_due(uuid, *_moment(reading))]
        for uuid, disks in self._read_disks(asked).items():
            known[uuid] = dataclasses.replace(known[uuid], disks=disks)
            if disks is not None:
                self._schedule.record(uuid, *_moment(known[uuid]))
        return known

    def _forget_others(self) -> None:
        present = self._present
        if present is self._seen_present:
            return
        self._seen_present = present
        self._unreadable = {uuid for uuid in self._unreadable
                            if uuid in present}
        self._schedule.retain(present)

    def _is_due(self, uuid: str, idle: base.Idle | None) -> bool:
        """Whether a domain is to be read: one counter shows what it used."""
        if idle is None:
            return True
        try:
            run, total_ns = self._domains.use(
                uuid, accounting.Account, accounting.Account.read_total)
        except base.HypervisorError:
            # The reading finds out why.
            return True
        return self._schedule.is_due(uuid, run, time.monotonic(), total_ns,
                                     idle)

    def _fetch_interfaces(self, uuids: Set[str]) -> list[bulk.Record]:
        """Ask for the interfaces of those domains that run.

        Of all domains where one of them was not seen on this connection.
        """
        connection = self._session.connected()
        seen_on, domains = self._seen
        if seen_on is connection and domains.keys() >= uuids:
            records = connection.domainListGetStats(
                [domains[uuid] for uuid in uuids],
                libvirt.VIR_DOMAIN_STATS_INTERFACE, bulk.NOWAIT)
        else:
            records = connection.getAllDomainStats(
                libvirt.VIR_DOMAIN_STATS_INTERFACE,
                libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_ACTIVE
                | bulk.NOWAIT)
            self._seen = connection, {domain.UUIDString(): domain
                                      for domain, _statistics in records}
        # A domain that was seen may be shut off by now.
        return [(domain, statistics) for domain, statistics in records
                if domain.UUIDString() in uuids and domain.ID() >= 0]

    def read_vcpus(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        """As :meth:`base.UsageDriver.vcpu_times`."""
        return self._domains.use_each(
            run_ids, accounting.Account, accounting.Account.read_vcpus,
            run_ids)

    def read_host(self) -> usage.HostUsage:
        """As :meth:`base.UsageDriver.host_usage`."""
        with self._lock:
            return self._host_account.read(self._domains.tops())

    def _read_disks(self, uuids: Collection[str]) -> Mapping[
            str, Mapping[str, usage.DiskCounters] | None]:
        """Read what disks did, by UUID; without domains not known now."""
        try:
            records = self._qemus.read(uuids, libvirt.VIR_DOMAIN_STATS_BLOCK)
        except base.HypervisorError as error:
            LOG.warning('Counters of disks cannot be read this time: %s; '
                        'perhaps a QEMU hangs', error)
            return {}
        return bulk.each(records, lambda _domain, found: bulk.disks(found))

    def _read_usage(self, domain: ty.Any, statistics: Mapping[str, ty.Any]
                    ) -> usage.Usage | None:
        """Read all but the disks of a domain; None: not known now."""
        uuid = domain.UUIDString()
        try:
            run, cpu_time = self._domains.use(
                uuid, accounting.Account, accounting.Account.read,
                domain.ID())
        except base.HypervisorError as error:
            # Once: each reading may fail.
            LOG.log(logging.DEBUG if uuid in self._unreadable
                    else logging.WARNING,
                    'CPU time of domain %s cannot be read: %s', uuid, error)
            self._unreadable.add(uuid)
            return None
        self._unreadable.discard(uuid)
        return usage.Usage(
            run=run, read_at_s=time.monotonic(), disks=None,
            interfaces=bulk.interfaces(statistics), **cpu_time._asdict())


def _moment(reading: usage.Usage) -> tuple[str, float, int]:
    """Run, time and CPU time of a reading, of all threads."""
    return reading.run, reading.read_at_s, (
        reading.vcpu_ns + reading.emulator_ns + reading.iothread_ns
        + reading.vhost_ns + reading.migration_ns)
