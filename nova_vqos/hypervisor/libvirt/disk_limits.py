# SPDX-License-Identifier: Apache-2.0
"""Limits on the requests of disks, of libvirt's domains."""

from collections.abc import Mapping

import libvirt  # type: ignore[import-untyped]

from nova_vqos import domain_xml
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import session as libvirt_session

# Whose requests pass QEMU's block layer, which limits them.
_KINDS = ('file', 'block', 'dir', 'network', 'volume')


def of_domain(found: domain_xml.Domain
              ) -> dict[str, throttle.DiskLimit | None]:
    """As :attr:`base.Domain.disk_limits`."""
    return {
        name: (None if disk.own_limit is None
               else throttle.DiskLimit(*disk.own_limit))
        for name, disk in found.disks.items()
        if disk.kind in _KINDS and not disk.is_empty
        and (disk.own_limit is not None or not disk.is_limited)}


def apply(session: libvirt_session.Session, uuid: str,
          limit: throttle.DiskLimit | None) -> bool:
    """As :meth:`base.CapDriver.limit_disks`."""
    domain = session.lookup(uuid)
    # As it is now: another writer may have limited a disk.
    found = of_domain(domain_xml.read(session.call(domain.XMLDesc, 0)))
    names = [name for name, before in found.items() if before != limit]
    if not names:
        return False
    session.check_writable(domain)
    refusal: base.HypervisorError | None = None
    for name in names:
        try:
            session.call(domain.setBlockIoTune, name, _parameters(limit),
                         libvirt.VIR_DOMAIN_AFFECT_LIVE)
        except (base.DomainBusy, base.DomainGone, base.Unavailable):
            raise
        except base.HypervisorError as error:
            # One that QEMU cannot limit: the others are worth it.
            refusal = error
    if refusal is not None:
        raise refusal
    return True


def _parameters(limit: throttle.DiskLimit | None) -> Mapping[str, int | str]:
    """In libvirt's names.

    NOTE: with all limits 0 libvirt takes no group, and removes the disk from
    the one that it is in.
    """
    if limit is None:
        return {libvirt.VIR_DOMAIN_BLOCK_IOTUNE_TOTAL_IOPS_SEC: 0,
                libvirt.VIR_DOMAIN_BLOCK_IOTUNE_TOTAL_BYTES_SEC: 0}
    return {
        libvirt.VIR_DOMAIN_BLOCK_IOTUNE_TOTAL_IOPS_SEC: limit.requests_per_s,
        libvirt.VIR_DOMAIN_BLOCK_IOTUNE_TOTAL_BYTES_SEC: limit.bytes_per_s,
        libvirt.VIR_DOMAIN_BLOCK_IOTUNE_GROUP_NAME: domain_xml.DISK_GROUP}
