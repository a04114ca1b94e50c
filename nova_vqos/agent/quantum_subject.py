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

from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.agent import decision
from nova_vqos.agent import server as servers

#: The quantum class of a server whose kind of work is to be recognised.
AUTO = 'auto'

_NO_CLASS = policies.CHOICES[policies.QUANTUM_CLASS_KEY][0]


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A server with a quantum class, as the loop knows it.

    :ivar run_id: see :meth:`nova_vqos.hypervisor.base.Hypervisor.running`
    :ivar quantum_class: that its flavor asks for
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
    share: Fraction
    cap: units.CpuCap | None
    pcpus: frozenset[int] | None
    pinned: bool = False


def is_ready(server: servers.Server) -> bool:
    """Whether enough is known of a server, and its guest runs here.

    One without units that never had a class is nobody's business here.
    """
    return (server.domain is not None and not server.is_arriving
            and (server.policy is not None
                 or server.quantum_class != _NO_CLASS or server.had_class))


def subject_of(server: servers.Server, terms: decision.HostTerms
               ) -> Subject | None:
    """A server as the keeper has to know it; None: not to be touched now."""
    domain, profile = server.domain, terms.profile
    if domain is None or not is_ready(server):
        return None
    pcpus = None if profile is None else decision.eligible_pcpus(
        domain, profile)
    return Subject(
        uuid=server.uuid, name=server.name, run_id=server.run_id,
        quantum_class=server.quantum_class,
        share=_share(server, profile, pcpus),
        cap=None if server.want is None else server.want.cap,
        pcpus=pcpus, pinned=domain.pinned)


def _share(server: servers.Server, profile: profiles.Profile | None,
           pcpus: frozenset[int] | None) -> Fraction:
    policy = server.policy
    if policy is None or policy.units is None or profile is None:
        return Fraction(0)
    vcpus = policy.vcpus
    if server.in_force is not None:
        vcpus = max(vcpus, len(server.in_force.vcpus))
    return min(Fraction(1), units.cu_per_vcpu(policy.units, vcpus)
               / units.pcpu_cu(profile.slowest(pcpus or profile.pcpus)))
