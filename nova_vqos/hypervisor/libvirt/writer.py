# SPDX-License-Identifier: Apache-2.0
"""All that the agent has libvirt change, and the only way to do it.

libvirt has one permission for a cap, for attaching any file of the host as a
disk, and for commands to QEMU's monitor: ``domain:write``. So the process that
has it is as powerful as root, and these few methods can be in another process
than the agent: see :mod:`nova_vqos.hypervisor.libvirt.helper`.
"""

import abc
from collections.abc import Collection, Mapping, Sequence, Set
import logging
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import units
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import definition
from nova_vqos.hypervisor.libvirt import disk_limits
from nova_vqos.hypervisor.libvirt import pins
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.linux import burst
from nova_vqos.hypervisor.linux import cgroup

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


class Writer(abc.ABC):
    """Changes the CPU tuning of domains; any thread may call it.

    Each method may block for tens of seconds, and raises
    :class:`base.DomainBusy` when the domain takes no writes now.
    """

    @abc.abstractmethod
    def check(self) -> None:
        """See whether anything can be written.

        :raises base.Unavailable: when nothing can
        """

    @abc.abstractmethod
    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        """As :meth:`base.CapDriver.write`."""

    @abc.abstractmethod
    def persist(self, uuid: str, cap: units.CpuCap | None,
                shares: int) -> bool:
        """As :meth:`base.CapDriver.persist`."""

    @abc.abstractmethod
    def limit_disks(self, uuid: str,
                    limit: throttle.DiskLimit | None) -> bool:
        """As :meth:`base.CapDriver.limit_disks`."""

    @abc.abstractmethod
    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        """As :meth:`base.CapDriver.pin`."""

    @abc.abstractmethod
    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        """As :meth:`base.ThreadDriver.place`."""

    @abc.abstractmethod
    def restore_pins(self, uuid: str, vcpus: Collection[int],
                     pcpus: Set[int]) -> None:
        """As :func:`pins.restore`."""


class SessionWriter(Writer):
    """Writes by a connection that may."""

    def __init__(self, session: libvirt_session.Session,
                 cgroup_version: int, root: str = '/') -> None:
        """
        :param session: a connection that is not read-only
        :param root: where /proc and /sys are looked for
        """
        self._session = session
        self._cgroup_version = cgroup_version
        self._root = root
        # UUIDs of domains of whose bursts it has warned.
        self._warned: set[str] = set()

    def check(self) -> None:
        # Only a call finds out that a daemon has gone.
        self._session.call(self._session.connected().getLibVersion)

    def write(self, uuid: str, changes: Sequence[base.Change]) -> None:
        domain = self._session.lookup(uuid)
        self._session.check_writable(domain)
        values = {_FIELDS[change.parameter]:
                  -1 if change.value is None else change.value
                  for change in changes}
        self._clear_bursts(uuid, domain)
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

    def persist(self, uuid: str, cap: units.CpuCap | None,
                shares: int) -> bool:
        return definition.mend(self._session, uuid, cap, shares)

    def limit_disks(self, uuid: str,
                    limit: throttle.DiskLimit | None) -> bool:
        return disk_limits.apply(self._session, uuid, limit)

    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        pins.pin(self._session, uuid, pcpus)

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        return pins.place(self._session, uuid, pcpus_by_vcpu)

    def restore_pins(self, uuid: str, vcpus: Collection[int],
                     pcpus: Set[int]) -> None:
        pins.restore(self._session, uuid, vcpus, pcpus)

    def _clear_bursts(self, uuid: str, domain: ty.Any) -> None:
        """Clear what makes the kernel refuse a lower quota."""
        try:
            cleared = burst.clear(
                self._root,
                self._session.read_pid(self._session.call(domain.name)),
                self._cgroup_version)
        except base.Unavailable:
            raise
        except base.HypervisorError as error:
            # Where there is none, the write succeeds all the same.
            LOG.log(self._level(uuid), 'Domain %s: CPU bursts that another '
                    'program has set are not cleared: %s', uuid, error)
            return
        if cleared:
            LOG.log(self._level(uuid), 'Domain %s: cleared CPU bursts that '
                    'another program has set; with them the kernel refuses a '
                    'lower quota: %s', uuid, ', '.join(
                        f'{path}: {burst_us} us'
                        for path, burst_us in cleared.items()))

    def _level(self, uuid: str) -> int:
        """Of a line about bursts: a warning once for each domain."""
        if uuid in self._warned:
            return logging.DEBUG
        self._warned.add(uuid)
        return logging.WARNING

    def _set(self, domain: ty.Any, values: dict[str, int]) -> None:
        self._session.call(domain.setSchedulerParametersFlags, values,
                           libvirt.VIR_DOMAIN_AFFECT_LIVE)
