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
"""Which servers of a host can be kept apart, and what a plan means for each.

Pure. Servers that may run on the very same pCPUs are planned together
(:func:`nova_vqos.quantum.planner.plan`). Where the sets of two servers overlap
and are not the same, none of the pCPUs in them is kept for any class: what
the one is kept off, the other may still run on.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
import dataclasses
from fractions import Fraction

from nova_vqos.quantum import model
from nova_vqos.quantum import planner
from nova_vqos.quantum import spread

OVERLAP = ('other servers may run on some of its pCPUs, and on others that '
           'it may not run on')
NO_PCPU = 'none of the pCPUs that it may run on is online'


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server that is to be kept among its like.

    :ivar kinds: what each of its vCPUs is, by number
    :ivar polluters: numbers of vCPUs that spoil caches beside what they are
    :ivar share: part of a pCPU's time that each vCPU was promised, 0 to 1
    :ivar pcpus: all that its vCPUs may run on
    """

    uuid: str
    kinds: Mapping[int, model.Kind]
    share: Fraction
    pcpus: frozenset[int]
    polluters: Set[int] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """What a plan means for one server.

    :ivar slices_us: of each vCPU by number; None: the kernel's default
    :ivar pcpus: where vCPUs are to be kept, by number; None: all anywhere
        that they may
    """

    slices_us: Mapping[int, int | None]
    pcpus: Mapping[int, frozenset[int]] | None


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlan:
    """What is planned for all servers of a host.

    :ivar plans: by the pCPUs that they are made of
    :ivar placements: by UUID
    :ivar left_alone: by UUID, why a server is in no plan
    """

    plans: Mapping[frozenset[int], model.Plan]
    placements: Mapping[str, Placement]
    left_alone: Mapping[str, str]


NOTHING = HostPlan({}, {}, {})


def plan_host(servers: Sequence[Server], sockets: Sequence[model.Socket],
              slices_us: Mapping[str, int],
              before: HostPlan = NOTHING) -> HostPlan:
    """Plan for all servers of a host.

    :param sockets: of all pCPUs that are online
    :param slices_us: see :func:`nova_vqos.quantum.planner.plan`
    :param before: what was planned last, from which little is changed
    """
    plans: dict[frozenset[int], model.Plan] = {}
    placements: dict[str, Placement] = {}
    left_alone: dict[str, str] = {}
    for pcpus, group in _groups(servers).items():
        own_sockets = _narrowed(sockets, pcpus)
        reason = (OVERLAP if group.overlaps else
                  '' if own_sockets else NO_PCPU)
        if reason:
            left_alone.update((server.uuid, reason)
                              for server in group.servers)
            continue
        plan = planner.plan(
            [vcpu for server in group.servers for vcpu in _vcpus(server)],
            own_sockets, slices_us, before.plans.get(pcpus))
        plans[pcpus] = plan
        placements.update(_placements(plan))
    return HostPlan(plans, placements, left_alone)


@dataclasses.dataclass(slots=True)
class _Group:
    servers: list[Server]
    overlaps: bool = False


def _groups(servers: Iterable[Server]) -> dict[frozenset[int], _Group]:
    groups: dict[frozenset[int], _Group] = {}
    for server in servers:
        groups.setdefault(server.pcpus, _Group([])).servers.append(server)
    # Each pCPU is in one group, or all that have it overlap.
    owners: dict[int, _Group] = {}
    for pcpus, group in groups.items():
        for pcpu in pcpus:
            owner = owners.setdefault(pcpu, group)
            if owner is not group:
                owner.overlaps = group.overlaps = True
    return groups


def _narrowed(sockets: Iterable[model.Socket],
              pcpus: Set[int]) -> list[model.Socket]:
    """The sockets of some pCPUs; those without any are left out."""
    found = []
    for socket in sockets:
        cores = tuple(core for siblings in socket.cores if (core := tuple(
            pcpu for pcpu in siblings if pcpu in pcpus)))
        if cores:
            found.append(model.Socket(socket.number, cores))
    return found


def _vcpus(server: Server) -> Iterable[model.Vcpu]:
    return (model.Vcpu(server.uuid, number, kind,
                       pollutes=number in server.polluters,
                       share=server.share)
            for number, kind in sorted(server.kinds.items()))


def _placements(plan: model.Plan) -> dict[str, Placement]:
    parts = spread.parts(plan.pools)
    slices_us: dict[str, dict[int, int | None]] = {}
    pcpus: dict[str, dict[int, frozenset[int]]] = {}
    for pool in plan.pools:
        for vcpu in pool.vcpus:
            slices_us.setdefault(vcpu.server, {})[vcpu.number] = pool.slice_us
            if plan.separates or vcpu.key in parts:
                pcpus.setdefault(vcpu.server, {})[vcpu.number] = parts.get(
                    vcpu.key, pool.pcpus)
    return {uuid: Placement(slices, pcpus.get(uuid))
            for uuid, slices in slices_us.items()}
