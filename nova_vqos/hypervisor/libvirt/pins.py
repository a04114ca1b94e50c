# SPDX-License-Identifier: Apache-2.0
"""The affinity of the vCPUs of libvirt's domains."""

from collections.abc import Collection, Mapping, Set
import logging
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import cpuset
from nova_vqos import domain_xml
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import session as libvirt_session

LOG = logging.getLogger(__name__)


def pin(session: libvirt_session.Session, uuid: str,
        pcpus: Set[int]) -> None:
    """As :meth:`base.CapDriver.pin`."""
    domain = session.lookup(uuid)
    session.check_writable(domain)
    _pin(session, domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    # A transient domain has no other definition.
    if session.call(domain.isPersistent):
        _pin(session, domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_CONFIG)


def place(session: libvirt_session.Session, uuid: str,
          pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
    """As :meth:`base.ThreadDriver.place`."""
    for vcpu, pcpus in pcpus_by_vcpu.items():
        if not pcpus:
            raise ValueError(f'no pCPU for vCPU {vcpu}')
    domain = session.lookup(uuid)
    changes = _changes(session, domain, pcpus_by_vcpu)
    if not changes:
        return False
    session.check_writable(domain)
    if not is_marked(session, domain, libvirt.VIR_DOMAIN_AFFECT_LIVE):
        _mark(session, domain, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    for vcpu, pcpus in changes.items():
        session.call(domain.pinVcpuFlags, vcpu, _cpumap(pcpus),
                     libvirt.VIR_DOMAIN_AFFECT_LIVE)
    return True


def restore(session: libvirt_session.Session, uuid: str,
            vcpus: Collection[int], pcpus: Set[int]) -> None:
    """Pin vCPUs again as libvirt has it on record, where that is not so.

    NOTE: libvirt (seen with 9.0) writes the cpuset of a vCPU before it sets
    the affinity of the thread, which the kernel refuses for one with a
    reservation. It reports the error, records no pin, and leaves the cpuset.

    :param vcpus: numbers of those that may not run on all of these pCPUs;
        one that libvirt has pinned so is left alone
    :raises base.DomainBusy: when the domain takes no writes now
    """
    domain = session.lookup(uuid)
    known = recorded(session, domain)
    left = [vcpu for vcpu in sorted(vcpus)
            if pcpus <= known.get(vcpu, set())]
    if not left:
        return
    session.check_writable(domain)
    if not domain_xml.read(session.call(domain.XMLDesc, 0)).pinned:
        _mark(session, domain, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    for vcpu in left:
        session.call(domain.pinVcpuFlags, vcpu, _cpumap(known[vcpu]),
                     libvirt.VIR_DOMAIN_AFFECT_LIVE)
        LOG.warning(
            'vCPU %d of server %s may run on pCPUs %s again: the kernel '
            'refused a pin, and libvirt had applied half of it', vcpu, uuid,
            cpuset.format_pcpus(known[vcpu]))


def _changes(session: libvirt_session.Session, domain: ty.Any,
             wanted: Mapping[int, Set[int]]) -> dict[int, Set[int]]:
    """The wanted pins that are not in force."""
    now = recorded(session, domain)
    return {vcpu: pcpus for vcpu, pcpus in sorted(wanted.items())
            if now.get(vcpu) != pcpus}


def recorded(session: libvirt_session.Session, domain: ty.Any,
             affected: int = libvirt.VIR_DOMAIN_AFFECT_LIVE
             ) -> dict[int, Set[int]]:
    """The pCPUs that each vCPU may run on, as libvirt has it on record.

    :param affected: libvirt's flag, of what is in force or of the definition
    """
    # NOTE: needs no job of the domain, so that a migration does not block it.
    # An offline vCPU is not in it.
    found = session.call(domain.vcpuPinInfo, affected)
    return {vcpu: {pcpu for pcpu, allowed in enumerate(cpumap) if allowed}
            for vcpu, cpumap in enumerate(found)}


def is_marked(session: libvirt_session.Session, domain: ty.Any,
              affected: int) -> bool:
    """Whether an agent made the pins of a domain.

    :param affected: libvirt's flag, of what is in force or of the definition
    """
    try:
        session.call(domain.metadata, libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                     domain_xml.MARK_NS, affected)
    except base.HypervisorError as error:
        cause = error.__cause__
        if (isinstance(cause, libvirt.libvirtError) and cause.get_error_code()
                == libvirt.VIR_ERR_NO_DOMAIN_METADATA):
            return False
        raise
    return True


def _mark(session: libvirt_session.Session, domain: ty.Any,
          affected: int) -> None:
    session.call(domain.setMetadata, libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                 f'<{domain_xml.MARK}/>', 'nova_vqos', domain_xml.MARK_NS,
                 affected)


def _pin(session: libvirt_session.Session, domain: ty.Any, pcpus: Set[int],
         affected: int) -> None:
    # First, so that no pin ever goes to another host unmarked.
    _mark(session, domain, affected)
    # Also vCPUs that are plugged in later.
    vcpus = session.call(domain.vcpusFlags,
                         affected | libvirt.VIR_DOMAIN_VCPU_MAXIMUM)
    for vcpu in range(vcpus):
        session.call(domain.pinVcpuFlags, vcpu, _cpumap(pcpus), affected)


def _cpumap(pcpus: Set[int]) -> tuple[bool, ...]:
    """The pCPUs as libvirt's map, which ends at the highest one."""
    return tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))
