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

"""What the loop knows of a server, as far as its slices need it."""

import dataclasses
from fractions import Fraction

from nova_vqos import units
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers

#: The quantum class of a server whose kind of work is to be recognised.
AUTO = 'auto'


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A server with a quantum class, as the loop knows it.

    :ivar run_id: see :meth:`nova_vqos.hypervisor.base.Hypervisor.running`
    :ivar quantum_class: that its flavor asks for
    :ivar vcpus: the numbers of those that are online
    :ivar share: part of a pCPU's time that each vCPU was promised
    :ivar cap: of each vCPU; None: no limit
    :ivar pcpus: all that its vCPUs may run on; None: its affinity is not for
        the agent to change
    :ivar pinned: whether this agent, or one before it, pinned any of them
    """

    uuid: str
    name: str
    run_id: int
    quantum_class: str
    vcpus: frozenset[int]
    share: Fraction
    cap: units.CpuCap | None
    pcpus: frozenset[int] | None
    pinned: bool = False


def is_ready(server: servers.Server, terms: decision.HostTerms) -> bool:
    """Whether enough is known of a server, and its guest runs here."""
    return (server.domain is not None and server.policy is not None
            and server.in_force is not None and bool(server.in_force.vcpus)
            and terms.profile is not None and not server.is_arriving)


def subject_of(server: servers.Server, terms: decision.HostTerms
               ) -> Subject | None:
    """A server as the keeper has to know it; None: not to be touched now."""
    domain, policy, in_force = server.domain, server.policy, server.in_force
    profile = terms.profile
    if (not is_ready(server, terms) or domain is None or policy is None
            or in_force is None or profile is None):
        return None
    if policy.units is None:
        return None
    pcpus = decision.eligible_pcpus(domain, profile)
    speed_cu = units.pcpu_cu(profile.slowest(pcpus or profile.pcpus))
    return Subject(
        uuid=server.uuid, name=server.name, run_id=server.run_id,
        quantum_class=policy.quantum_class,
        vcpus=frozenset(in_force.vcpus),
        share=min(Fraction(1), units.cu_per_vcpu(
            policy.units, len(in_force.vcpus)) / speed_cu),
        cap=None if server.want is None else server.want.cap,
        pcpus=pcpus, pinned=domain.pinned)
