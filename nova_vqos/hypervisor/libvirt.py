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
import dataclasses
import functools
import logging
import threading
import time
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import domain_xml
from nova_vqos.billing import usage
from nova_vqos.hypervisor import accounting
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import devices
from nova_vqos.hypervisor import host_account
from nova_vqos.hypervisor import iostats

LOG = logging.getLogger(__name__)

# A daemon that does not answer for this long is taken for dead.
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3

# What a write says when another job holds the domain.
_BUSY = (libvirt.VIR_ERR_OPERATION_TIMEOUT, libvirt.VIR_ERR_OPERATION_ABORTED)

_FIELDS = {
    base.Parameter.DOMAIN_QUOTA_US:
        libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_QUOTA,
    base.Parameter.DOMAIN_PERIOD_US:
        libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_PERIOD,
    base.Parameter.QUOTA_US: libvirt.VIR_DOMAIN_SCHEDULER_VCPU_QUOTA,
    base.Parameter.PERIOD_US: libvirt.VIR_DOMAIN_SCHEDULER_VCPU_PERIOD,
    base.Parameter.SHARES: libvirt.VIR_DOMAIN_SCHEDULER_CPU_SHARES,
}
# NOTE: a tunable event names the same things otherwise.
_TUNABLES = {
    libvirt.VIR_DOMAIN_TUNABLE_CPU_GLOBAL_QUOTA:
        base.Parameter.DOMAIN_QUOTA_US,
    libvirt.VIR_DOMAIN_TUNABLE_CPU_GLOBAL_PERIOD:
        base.Parameter.DOMAIN_PERIOD_US,
    libvirt.VIR_DOMAIN_TUNABLE_CPU_VCPU_QUOTA: base.Parameter.QUOTA_US,
    libvirt.VIR_DOMAIN_TUNABLE_CPU_VCPU_PERIOD: base.Parameter.PERIOD_US,
    libvirt.VIR_DOMAIN_TUNABLE_CPU_CPU_SHARES: base.Parameter.SHARES,
}
_QUOTAS = (base.Parameter.DOMAIN_QUOTA_US, base.Parameter.QUOTA_US)

_STARTED_DETAILS = {
    libvirt.VIR_DOMAIN_EVENT_STARTED_BOOTED: 'booted',
    libvirt.VIR_DOMAIN_EVENT_STARTED_MIGRATED: 'migrated',
    libvirt.VIR_DOMAIN_EVENT_STARTED_RESTORED: 'restored',
    libvirt.VIR_DOMAIN_EVENT_STARTED_FROM_SNAPSHOT: 'from snapshot',
}
_RESUMED_DETAILS = {
    libvirt.VIR_DOMAIN_EVENT_RESUMED_UNPAUSED: 'unpaused',
    libvirt.VIR_DOMAIN_EVENT_RESUMED_MIGRATED: 'migrated',
    libvirt.VIR_DOMAIN_EVENT_RESUMED_FROM_SNAPSHOT: 'from snapshot',
    libvirt.VIR_DOMAIN_EVENT_RESUMED_POSTCOPY: 'migrated',
}

# States in which libvirt's destination side (src/qemu/qemu_migration.c,
# qemuMigrationJobStart with no job allowed beside it) answers nothing that
# needs a job: even to ask for the job would block.
_STARTING = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)
# Also that of the source, in the moment in which its guest leaves.
_INCOMING = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
_MIGRATING_STATES = (
    _STARTING,
    _INCOMING,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
    (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
)
# Without it a domain with a job, such as a migration, holds up all others.
_NOWAIT = libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT

# Jobs beside which libvirt takes writes.
_HARMLESS_JOBS = (libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP,)

_event_loop_lock = threading.Lock()
_event_loop: threading.Thread | None = None


def _run_event_loop() -> None:
    while True:
        # NOTE: fails only when it is not registered, or out of memory.
        if libvirt.virEventRunDefaultImpl() < 0:
            time.sleep(1)


def _keep_event_loop_running() -> None:
    """Start libvirt's event loop, which is one for the whole process.

    It must be registered before the first connection is made, and ends with
    the process: libvirt has no way to take it back.
    """
    global _event_loop
    with _event_loop_lock:
        if _event_loop is not None:
            return
        # libvirt would also print each error to stderr.
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        libvirt.virEventRegisterDefaultImpl()
        _event_loop = threading.Thread(
            target=_run_event_loop, name='libvirt-events', daemon=True)
        _event_loop.start()


def _moment(reading: usage.Usage) -> tuple[str, float, int]:
    """Run, time and CPU time of a reading."""
    return reading.run, reading.read_at_s, (
        reading.vcpu_ns + reading.emulator_ns + reading.iothread_ns
        + reading.vhost_ns)


class LibvirtHypervisor(base.Hypervisor):
    """Domains of a local libvirt daemon."""

    def __init__(self, uri: str = 'qemu:///system', *, root: str = '/',
                 run_path: str = '/run/libvirt/qemu') -> None:
        """Prepare; nothing is connected yet.

        :param uri: libvirt's name of the daemon
        :param root: where /proc and /sys are looked for, for tests
        :param run_path: where libvirt leaves the process id of each domain
        """
        self._uri = uri
        self._root = root
        self._run_path = run_path
        self._cgroups = cgroup.CgroupReader(root, self._on_written)
        self._cgroups_lock = threading.Lock()
        self._cgroup_version = self._cgroups.version()
        self._accounts = accounting.AccountReader(root)
        self._accounts_lock = threading.Lock()
        self._host_account = host_account.HostAccount(root)
        self._unreadable: set[str] = set()
        self._interface_io = iostats.BulkReader()
        self._disk_io = iostats.BulkReader()
        self._disk_schedule = iostats.DiskSchedule()
        self._connection: ty.Any = None
        self._callbacks: list[int] = []
        self._uuids: dict[int, str] = {}
        self._on_event: Callable[[base.Event], None] = lambda _event: None

    @property
    def cgroup_version(self) -> int:
        return self._cgroup_version

    def connect(self, on_event: Callable[[base.Event], None]) -> None:
        _keep_event_loop_running()
        # What was counted goes on: the domains do.
        self._disconnect()
        self._on_event = on_event
        try:
            self._connection = libvirt.open(self._uri)
            self._expect_answers()
            for event, callback in (
                    (libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
                     self._on_lifecycle),
                    (libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE,
                     self._on_metadata),
                    (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
                     self._on_device),
                    (libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED,
                     self._on_job),
                    (libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE,
                     self._on_tunable)):
                self._callbacks.append(
                    self._connection.domainEventRegisterAny(
                        None, event, callback, None))
        except libvirt.libvirtError as error:
            self._disconnect()
            raise base.Unavailable(
                f'libvirt at {self._uri} cannot be reached: {error}'
            ) from error

    def close(self) -> None:
        self._disconnect()
        with self._accounts_lock:
            self._accounts.close()

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        callbacks, self._callbacks = self._callbacks, []
        self._uuids = {}
        with self._cgroups_lock:
            self._cgroups.close()
        if connection is None:
            return
        # NOTE: what is registered keeps the connection open.
        for release, *args in (
                *((connection.domainEventDeregisterAny, callback)
                  for callback in callbacks),
                (connection.unregisterCloseCallback,),
                (connection.close,)):
            try:
                release(*args)
            except libvirt.libvirtError as error:
                LOG.debug('Closing the connection to %s: %s', self._uri, error)

    def _expect_answers(self) -> None:
        """Have the connection closed, and be told, when the daemon hangs."""
        try:
            self._connection.setKeepAlive(KEEPALIVE_INTERVAL_S,
                                          KEEPALIVE_COUNT)
            self._connection.registerCloseCallback(self._on_close, None)
        except libvirt.libvirtError as error:
            # Of a driver that needs no daemon, which cannot be lost.
            if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
                raise

    def running(self) -> Mapping[str, int]:
        # NOTE: the cheapest of libvirt's bulk calls, for its daemon too: a
        # third of getAllDomainStats with the least it can be asked for.
        numbers = self._call(self._connected().listDomainsID)
        uuids = {}
        for number in numbers:
            uuid = self._uuids.get(number)
            if uuid is None:
                try:
                    uuid = self._call(
                        self._connected().lookupByID, number).UUIDString()
                except base.DomainGone:
                    continue
            uuids[number] = uuid
        gone = set(self._uuids.values()).difference(uuids.values())
        with self._cgroups_lock:
            for uuid in gone.union(
                    uuids[number] for number in uuids
                    if number not in self._uuids):
                self._cgroups.forget(uuid)
        self._uuids = uuids
        return {uuid: number for number, uuid in uuids.items()}

    def describe(self, uuid: str) -> base.Domain:
        domain = self._lookup(uuid)
        state = tuple(self._call(domain.state))
        if state == _STARTING:
            # Its cgroups are being made.
            raise base.DomainBusy('it is being started')
        xml = self._call(domain.XMLDesc, 0)
        try:
            found = domain_xml.read(xml)
        except domain_xml.DomainXmlError as error:
            raise base.HypervisorError(
                f'the XML of domain {uuid} cannot be understood: {error}'
            ) from error
        return base.Domain(
            uuid=uuid, name=found.name, extra_specs=found.extra_specs,
            vcpus=found.vcpus or 0, pcpus=found.pcpus,
            pinned_by_others=found.pinned_by_others,
            project_id=found.project_id,
            interfaces=devices.interface_kinds(found, self._root,
                                               self._forward_mode),
            disks=devices.disk_kinds(found), incoming=state == _INCOMING)

    def _forward_mode(self, name: str) -> str:
        """How a network of libvirt's reaches the world, '' if it doesn't.

        What libvirt cannot tell is ``unknown``.
        """
        try:
            network = self._call(self._connected().networkLookupByName, name)
            return devices.forward_mode(self._call(network.XMLDesc, 0))
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            LOG.warning('How packets leave network %s is unknown: %s', name,
                        error)
            return 'unknown'

    def read(self, uuid: str) -> base.InForce:
        with self._cgroups_lock:
            if self._cgroups.knows(uuid):
                try:
                    return self._cgroups.read(uuid, None)
                except cgroup.CgroupError as error:
                    LOG.debug('Domain %s is looked for again: %s', uuid, error)
        name = self._call(self._lookup(uuid).name)
        with self._cgroups_lock:
            return self._cgroups.read(uuid, self._pid(name))

    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        domain = self._lookup(uuid)
        self._check_writable(domain)
        values = {_FIELDS[change.parameter]:
                  -1 if change.value is None else change.value
                  for change in changes}
        try:
            self._set(domain, values)
        except (base.DomainBusy, base.DomainGone, base.Unavailable):
            raise
        except base.HypervisorError as error:
            if not self._call(domain.isActive):
                raise base.DomainGone(str(error)) from error
            if self._cgroup_version != 2 or -1 not in values.values():
                raise
            # NOTE: -1 fails on some stacks of cgroup v2.
            self._set(domain, {
                field: cgroup.UNLIMITED_QUOTA_US if value == -1 else value
                for field, value in values.items()})

    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        domain = self._lookup(uuid)
        self._check_writable(domain)
        self._pin(domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_LIVE)
        # One that was made to last as long as it runs has nothing else.
        if self._call(domain.isPersistent):
            self._pin(domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_CONFIG)

    def usages(self, uuids: Collection[str]) -> Mapping[str, usage.Usage]:
        if not uuids:
            return {}
        try:
            # NOTE: of all that run, since those that do not are forgotten.
            # Paused ones too: what they did is still there.
            records = self._interface_io.read(lambda: self._call(
                self._connected().getAllDomainStats,
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

    def _read_disks(self, domains: list[ty.Any]) -> Mapping[
            str, Mapping[str, usage.DiskCounters] | None]:
        """What disks of domains did, by UUID; without those not known now."""
        try:
            records = self._disk_io.read(lambda: self._call(
                self._connected().domainListGetStats, domains,
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
                functools.partial(self._pid, domain.name()))
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

    def host_usage(self) -> usage.HostUsage:
        with self._accounts_lock:
            return self._host_account.read(self._accounts.tops())

    def _pin(self, domain: ty.Any, pcpus: Set[int], affected: int) -> None:
        # First, so that no pin ever goes to another host without it.
        self._call(domain.setMetadata, libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                   f'<{domain_xml.MARK}/>', 'nova_vqos', domain_xml.MARK_NS,
                   affected)
        # Those that are to be plugged in later, too.
        vcpus = self._call(domain.vcpusFlags,
                           affected | libvirt.VIR_DOMAIN_VCPU_MAXIMUM)
        cpumap = tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))
        for vcpu in range(vcpus):
            self._call(domain.pinVcpuFlags, vcpu, cpumap, affected)

    def _set(self, domain: ty.Any, values: dict[str, int]) -> None:
        try:
            self._call(domain.setSchedulerParametersFlags, values,
                       libvirt.VIR_DOMAIN_AFFECT_LIVE)
        finally:
            # Part of it may have been written, and the kernel's word of it
            # may come later than the next read.
            self._cgroups.touch(domain.UUIDString())

    def _check_writable(self, domain: ty.Any) -> None:
        """Refuse where libvirt would let a write wait for 30 s, and fail.

        :raises base.DomainBusy: when a migration or another job goes on
        """
        state = tuple(self._call(domain.state))
        if state in _MIGRATING_STATES:
            raise base.DomainBusy('it is being migrated or started')
        job = self._call(domain.jobStats)
        operation = job.get('operation')
        # NOTE: also one that is 'completed': its last part holds the domain.
        if (job['type'] != libvirt.VIR_DOMAIN_JOB_NONE
                and operation not in _HARMLESS_JOBS):
            raise base.DomainBusy(f'a job runs on it, operation {operation}')

    def _pid(self, name: str) -> int:
        path = f'{self._run_path}/{name}.pid'
        try:
            with open(path) as file:
                return int(file.read())
        except (OSError, ValueError) as error:
            raise base.HypervisorError(
                f'the process of domain {name} is unknown: {error}'
            ) from error

    def _connected(self) -> ty.Any:
        connection = self._connection
        if connection is None:
            raise base.Unavailable(f'not connected to {self._uri}')
        return connection

    def _lookup(self, uuid: str) -> ty.Any:
        return self._call(self._connected().lookupByUUIDString, uuid)

    def _call(self, method: Callable[..., ty.Any], *args: ty.Any) -> ty.Any:
        """Call libvirt; its errors become those of the contract."""
        try:
            return method(*args)
        except libvirt.libvirtError as error:
            code = error.get_error_code()
            if code == libvirt.VIR_ERR_NO_DOMAIN:
                raise base.DomainGone(str(error)) from error
            if code in _BUSY:
                raise base.DomainBusy(str(error)) from error
            if not self._alive():
                raise base.Unavailable(str(error)) from error
            raise base.HypervisorError(str(error)) from error

    def _alive(self) -> bool:
        connection = self._connection
        try:
            return connection is not None and bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    # Events. They come from libvirt's event loop, one at a time.

    def _emit(self, kind: base.EventKind, domain: ty.Any, detail: str,
              values: Mapping[base.Parameter, int | None] | None = None
              ) -> None:
        self._on_event(base.Event(
            kind=kind,
            uuid='' if domain is None else domain.UUIDString(),
            run_id=-1 if domain is None else domain.ID(),
            detail=detail,
            seen_at_s=time.monotonic(),
            values=values or {}))

    def _on_written(self, uuid: str) -> None:
        self._on_event(base.Event(
            kind=base.EventKind.TOUCHED, uuid=uuid, run_id=-1,
            detail='cgroup', seen_at_s=time.monotonic()))

    def _on_close(self, connection: ty.Any, reason: int,
                  _opaque: object) -> None:
        if connection is self._connection:
            self._emit(base.EventKind.CONNECTION_LOST, None,
                       f'reason {reason}')

    def _on_lifecycle(self, _connection: ty.Any, domain: ty.Any, event: int,
                      detail: int, _opaque: object) -> None:
        if event == libvirt.VIR_DOMAIN_EVENT_STARTED:
            self._emit(base.EventKind.STARTED, domain,
                       _STARTED_DETAILS.get(detail, str(detail)))
        elif event == libvirt.VIR_DOMAIN_EVENT_RESUMED:
            self._emit(base.EventKind.RESUMED, domain,
                       _RESUMED_DETAILS.get(detail, str(detail)))
        elif event in (libvirt.VIR_DOMAIN_EVENT_STOPPED,
                       libvirt.VIR_DOMAIN_EVENT_CRASHED):
            self._emit(base.EventKind.STOPPED, domain, str(detail))
        elif event == libvirt.VIR_DOMAIN_EVENT_DEFINED:
            self._emit(base.EventKind.CHANGED, domain, 'defined')

    def _on_metadata(self, _connection: ty.Any, domain: ty.Any, _type: int,
                     _uri: str, _opaque: object) -> None:
        self._emit(base.EventKind.CHANGED, domain, 'metadata')

    def _on_device(self, _connection: ty.Any, domain: ty.Any, device: str,
                   _opaque: object) -> None:
        self._emit(base.EventKind.CHANGED, domain, f'device {device}')

    def _on_job(self, _connection: ty.Any, domain: ty.Any,
                _params: object, _opaque: object) -> None:
        self._emit(base.EventKind.CHANGED, domain, base.JOB_COMPLETED)

    def _on_tunable(self, _connection: ty.Any, domain: ty.Any,
                    params: Mapping[str, ty.Any], _opaque: object) -> None:
        values = {}
        for name, value in params.items():
            parameter = _TUNABLES.get(name)
            if parameter is not None:
                unlimited = parameter in _QUOTAS and not (
                    0 <= value < cgroup.UNLIMITED_QUOTA_US)
                values[parameter] = None if unlimited else int(value)
        if values:
            self._emit(base.EventKind.TUNED, domain, 'libvirt', values)
