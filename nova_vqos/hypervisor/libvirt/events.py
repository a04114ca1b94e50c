# SPDX-License-Identifier: Apache-2.0
"""The events of libvirt's domains, in terms of the contract.

libvirt's event loop calls all of it, one call at a time.
"""

from collections.abc import Callable, Mapping
import time
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup

# NOTE: a tunable event has other names for the same values.
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


class Events:
    """Passes events on."""

    def __init__(self, on_event: Callable[[base.Event], None] = (
            lambda _event: None)) -> None:
        """
        :param on_event: called with each event, must not block
        """
        self._on_event = on_event

    @property
    def callbacks(self) -> Mapping[int, Callable[..., None]]:
        """The functions for libvirt to call, by its number of the event."""
        changed = base.EventKind.CHANGED
        return {
            libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE: self._on_lifecycle,
            libvirt.VIR_DOMAIN_EVENT_ID_METADATA_CHANGE:
                lambda _connection, domain, *_: self._emit(
                    changed, domain, 'metadata'),
            **dict.fromkeys(
                (libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
                 libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED),
                lambda _connection, domain, device, *_: self._emit(
                    changed, domain, f'device {device}')),
            libvirt.VIR_DOMAIN_EVENT_ID_JOB_COMPLETED:
                lambda _connection, domain, *_: self._emit(
                    changed, domain, base.JOB_COMPLETED),
            libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE: self._on_tunable,
        }

    def on_written(self, uuid: str) -> None:
        """Pass on that the cgroup of a domain was written to."""
        self._on_event(base.Event(
            kind=base.EventKind.TOUCHED, uuid=uuid, run_id=-1,
            detail='cgroup', seen_at_s=time.monotonic()))

    def on_closed(self, reason: int, purpose: str = '') -> None:
        """Pass on that a connection is lost.

        :param purpose: of the connection; '': it is the main one
        """
        self._emit(base.EventKind.CONNECTION_LOST, None,
                   f'reason {reason}{purpose and f", {purpose}"}')

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
            self._emit(base.EventKind.CHANGED, domain, base.DEFINED)

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
        elif libvirt.VIR_DOMAIN_TUNABLE_BLKDEV_DISK in params:
            self._emit(base.EventKind.CHANGED, domain, 'limit of a disk')
