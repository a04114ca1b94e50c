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

from collections.abc import Set
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos import domain_xml
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


def _pin(session: libvirt_session.Session, domain: ty.Any, pcpus: Set[int],
         affected: int) -> None:
    # First, so that no pin ever goes to another host without it.
    session.call(domain.setMetadata, libvirt.VIR_DOMAIN_METADATA_ELEMENT,
                 f'<{domain_xml.MARK}/>', 'nova_vqos', domain_xml.MARK_NS,
                 affected)
    # Those that are to be plugged in later, too.
    vcpus = session.call(domain.vcpusFlags,
                         affected | libvirt.VIR_DOMAIN_VCPU_MAXIMUM)
    cpumap = tuple(pcpu in pcpus for pcpu in range(max(pcpus) + 1))
    for vcpu in range(vcpus):
        session.call(domain.pinVcpuFlags, vcpu, cpumap, affected)
