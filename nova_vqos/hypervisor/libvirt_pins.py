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

"""Which pCPUs the vCPUs of libvirt's domains may run on."""

from collections.abc import Mapping, Set
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import domain_xml
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import libvirt_session


def pin(session: libvirt_session.Session, uuid: str,
        pcpus: Set[int]) -> None:
    """As :meth:`base.Hypervisor.pin`."""
    domain = session.lookup(uuid)
    session.check_writable(domain)
    _pin(session, domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    # One that was made to last as long as it runs has nothing else.
    if session.call(domain.isPersistent):
        _pin(session, domain, pcpus, libvirt.VIR_DOMAIN_AFFECT_CONFIG)


def place(session: libvirt_session.Session, uuid: str,
          pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
    """As :meth:`base.Hypervisor.place`."""
    for vcpu, pcpus in pcpus_by_vcpu.items():
        if not pcpus:
            raise ValueError(f'vCPU {vcpu} is to have no pCPU')
    domain = session.lookup(uuid)
    changes = _changes(session, domain, pcpus_by_vcpu)
    if not changes:
        return False
    session.check_writable(domain)
    if not _is_marked(session, domain):
        _mark(session, domain, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    for vcpu, pcpus in changes.items():
        session.call(domain.pinVcpuFlags, vcpu, _cpumap(pcpus),
                     libvirt.VIR_DOMAIN_AFFECT_LIVE)
    return True


def _changes(session: libvirt_session.Session, domain: ty.Any,
             wanted: Mapping[int, Set[int]]) -> dict[int, Set[int]]:
    """What of it is not so already."""
    # NOTE: takes no job of the domain's, so that a migration does not block
    # it. A vCPU that is offline is not in it.
    found = session.call(domain.vcpuPinInfo, libvirt.VIR_DOMAIN_AFFECT_LIVE)
    now = {vcpu: {pcpu for pcpu, allowed in enumerate(cpumap) if allowed}
           for vcpu, cpumap in enumerate(found)}
    return {vcpu: pcpus for vcpu, pcpus in sorted(wanted.items())
            if now.get(vcpu) != pcpus}


def _is_marked(session: libvirt_session.Session, domain: ty.Any) -> bool:
    try:
        session.call(domain.metadata, libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                     domain_xml.MARK_NS, libvirt.VIR_DOMAIN_AFFECT_LIVE)
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
    # First, so that no pin ever goes to another host without it.
    _mark(session, domain, affected)
    # Those that are to be plugged in later, too.
    vcpus = session.call(domain.vcpusFlags,
                         affected | libvirt.VIR_DOMAIN_VCPU_MAXIMUM)
    for vcpu in range(vcpus):
        session.call(domain.pinVcpuFlags, vcpu, _cpumap(pcpus), affected)


def _cpumap(pcpus: Set[int]) -> tuple[bool, ...]:
    """pCPUs as libvirt takes them; those that it leaves out are none."""
    return tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))
