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

"""What libvirt knows of a domain that its policy follows from."""

import functools
import logging

from nova_vqos import domain_xml
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import devices
from nova_vqos.hypervisor import libvirt_session

LOG = logging.getLogger(__name__)


def describe(session: libvirt_session.Session, root: str,
             uuid: str) -> base.Domain:
    """As :meth:`base.Hypervisor.describe`.

    :param root: where /sys is looked for
    """
    domain = session.lookup(uuid)
    state = tuple(session.call(domain.state))
    if state == libvirt_session.STARTING:
        # Its cgroups are being made.
        raise base.DomainBusy('it is being started')
    xml = session.call(domain.XMLDesc, 0)
    try:
        found = domain_xml.read(xml)
    except domain_xml.DomainXmlError as error:
        raise base.HypervisorError(
            f'the XML of domain {uuid} cannot be understood: {error}'
        ) from error
    return base.Domain(
        uuid=uuid, name=found.name, extra_specs=found.extra_specs,
        vcpus=found.vcpus or 0, pcpus=found.pcpus,
        pinned_by_others=found.pinned_by_others, cpuset=found.cpuset,
        pinned=found.pinned,
        project_id=found.project_id, flavor_name=found.flavor_name,
        flavor_id=found.flavor_id,
        interfaces=devices.interface_kinds(
            found, root, functools.partial(_forward_mode, session)),
        disks=devices.disk_kinds(found),
        incoming=state == libvirt_session.INCOMING)


def _forward_mode(session: libvirt_session.Session, name: str) -> str:
    """How a network of libvirt's reaches the world, '' if it doesn't.

    What libvirt cannot tell is ``unknown``.
    """
    try:
        network = session.call(session.connected().networkLookupByName, name)
        return devices.forward_mode(session.call(network.XMLDesc, 0))
    except base.Unavailable:
        raise
    except base.HypervisorError as error:
        LOG.warning('How packets leave network %s is unknown: %s', name,
                    error)
        return 'unknown'
