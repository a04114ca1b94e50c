# SPDX-License-Identifier: Apache-2.0
"""The definition that libvirt keeps of a domain, for its next start.

After a live migration it is what Nova sent, not what libvirt's hook made of
it: it has the cap, the limits and the pins of the source, and the limit on
its disks. Nova's soft reboot starts the guest from it.
"""

from collections.abc import Mapping
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import domain_xml
from nova_vqos import units
from nova_vqos.hypervisor.libvirt import pins
from nova_vqos.hypervisor.libvirt import session as libvirt_session

_CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG
_INACTIVE = libvirt.VIR_DOMAIN_XML_INACTIVE

# Those of domain_xml.LIMITS.
_LIMITS = (
    libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_QUOTA,
    libvirt.VIR_DOMAIN_SCHEDULER_GLOBAL_PERIOD,
    libvirt.VIR_DOMAIN_SCHEDULER_EMULATOR_QUOTA,
    libvirt.VIR_DOMAIN_SCHEDULER_EMULATOR_PERIOD,
    libvirt.VIR_DOMAIN_SCHEDULER_IOTHREAD_QUOTA,
    libvirt.VIR_DOMAIN_SCHEDULER_IOTHREAD_PERIOD,
)
# In a definition: there is no such element. (-1 would be one with that value.)
_NOTHING = 0


def mend(session: libvirt_session.Session, uuid: str,
         cap: units.CpuCap | None, shares: int) -> bool:
    """As :meth:`base.CapDriver.persist`."""
    domain = session.lookup(uuid)
    # A transient domain has no definition.
    if not session.call(domain.isPersistent):
        return False
    changes = _changes(
        session.call(domain.schedulerParametersFlags, _CONFIG), cap, shares)
    xml = session.call(domain.XMLDesc,
                       _INACTIVE | libvirt.VIR_DOMAIN_XML_SECURE).encode()
    # No agent limits disks in a definition: it is that of another host's.
    mended = domain_xml.without_own_disk_limits(
        domain_xml.without_own_pins(xml) if _has_foreign_pins(session, domain)
        else xml)
    if not changes and mended == xml:
        return False
    session.check_writable(domain)
    if mended != xml:
        # NOTE: libvirt (9.0) has no call that removes pins: a pin to all pCPUs
        # is a pin all the same, and a domain does not start where one of them
        # is missing. With its secrets, which a definition without them would
        # lose.
        session.call(session.connected().defineXML, mended.decode())
    if changes:
        # NOTE: by itself, and not in a new XML: Nova may attach a device to
        # the definition meanwhile. No cgroup is written to.
        session.call(domain.setSchedulerParametersFlags, changes, _CONFIG)
    return True


def _changes(found: Mapping[str, int], cap: units.CpuCap | None,
             shares: int) -> dict[str, int]:
    """What has to be written to the definition.

    :param found: what is in it; NOTE: 0 where there is no such element
    """
    wanted = dict.fromkeys(_LIMITS, _NOTHING)
    wanted[libvirt.VIR_DOMAIN_SCHEDULER_CPU_SHARES] = shares
    wanted[libvirt.VIR_DOMAIN_SCHEDULER_VCPU_QUOTA] = (
        _NOTHING if cap is None else cap.quota_us)
    if cap is not None:
        wanted[libvirt.VIR_DOMAIN_SCHEDULER_VCPU_PERIOD] = cap.period_us
    return {field: value for field, value in wanted.items()
            if found.get(field, value) != value}


def _has_foreign_pins(session: libvirt_session.Session,
                      domain: ty.Any) -> bool:
    """Whether the agent of another host made the pins of the definition.

    Those of this host's agent are in force as well, or narrower ones are.
    """
    live = libvirt.VIR_DOMAIN_AFFECT_LIVE
    if not pins.is_marked(session, domain, _CONFIG):
        return False
    if not pins.is_marked(session, domain, live):
        return True
    kept = pins.recorded(session, domain, _CONFIG)
    return not all(
        pcpus <= kept.get(vcpu, pcpus)
        for vcpu, pcpus in pins.recorded(session, domain, live).items())
