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

"""Who is to be billed, as the loop tells the one who bills."""

import dataclasses

from nova_vqos.agent import decision
from nova_vqos.agent import server as servers
from nova_vqos.billing import meter


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A server that is to be billed, as the loop knows it.

    :ivar origin: see :class:`nova_vqos.agent.server.Server`
    :ivar began_s: when its guest began to run here; None: unknown
    :ivar billed_since_s: what it did before is not to be billed; None: all is
    :ivar coefficient: of the slowest pCPU that it may run on
    :ivar entitlement_cu: None: it has none
    :ivar limit_share: in force; None: it pays for nothing
    """

    uuid: str
    name: str
    project_id: str
    billing: str
    origin: str
    began_s: float | None
    coefficient: float
    entitlement_cu: int | None
    limit_share: float | None
    devices: meter.Devices
    billed_since_s: float | None = None


def subject_of(server: servers.Server,
               terms: decision.HostTerms) -> Subject | None:
    """A server as the biller has to know it; None: not to be billed now."""
    domain, profile = server.domain, terms.profile
    if server.dd_billing == 'off' or domain is None or profile is None:
        return None
    if server.is_arriving:
        # Its QEMU still takes in what is not the server's work.
        return None
    charged = server.is_charged(terms)
    if charged and server.limit_share is None and server.honoured:
        # The loop has yet to look at it.
        return None
    return Subject(
        uuid=server.uuid, name=server.name, project_id=domain.project_id,
        billing=server.dd_billing, origin=server.origin,
        began_s=server.runs_since_s,
        coefficient=decision.coefficient(domain, profile),
        entitlement_cu=(None if server.policy is None
                        else server.policy.units),
        limit_share=server.limit_share if charged else None,
        devices=meter.Devices(domain.interfaces, domain.disks),
        billed_since_s=server.billed_since_s)
