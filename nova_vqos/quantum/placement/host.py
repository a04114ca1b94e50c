# SPDX-License-Identifier: Apache-2.0
"""Plan the pools of a host, and place each of its servers.

Pure. Servers that may run on the very same pCPUs are planned together
(:func:`nova_vqos.quantum.placement.plan.make_plan`). Where the sets of two
servers overlap and differ, none of their pCPUs is reserved for any class: one
server may still run where the other may not.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
import dataclasses
from fractions import Fraction

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import occupancy
from nova_vqos.quantum.placement import cpus
from nova_vqos.quantum.placement import plan

OVERLAP = ('other servers may run on some of its pCPUs, and on others that '
           'it may not run on')
NARROW = ('its pool has fewer pCPUs than it has vCPUs, and these may wait for '
          'each other')
NO_PCPU = 'none of the pCPUs that it may run on is online'


@dataclasses.dataclass(frozen=True, slots=True)
class Server:
    """A server to be placed.

    :ivar kinds: of its vCPUs, by number
    :ivar polluters: numbers of vCPUs that pollute caches beside their kind
    :ivar share: the guaranteed part of a pCPU's time of each vCPU, 0 to 1
    :ivar pcpus: all that its vCPUs may run on
    :ivar tenths: of a pCPU that vCPUs were seen to want at most, by number;
        without those of which nothing is known
    :ivar cap: the part of a pCPU's time that each vCPU is limited to
    :ivar floats: whether it may run anywhere, with the kernel's own slice,
        and only counts in pools
    :ivar may_spin: whether vCPUs may wait for each other, unseen. Then it
        floats rather than being confined to fewer pCPUs than it has vCPUs
    """

    uuid: str
    kinds: Mapping[int, model.Kind]
    share: Fraction
    pcpus: frozenset[int]
    polluters: Set[int] = frozenset()
    tenths: Mapping[int, int] = dataclasses.field(default_factory=dict)
    cap: Fraction | int = 1
    floats: bool = False
    may_spin: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The slices and pCPUs of one server.

    :ivar slices_us: of each vCPU by number; None: the kernel's default
    :ivar pcpus: that vCPUs are confined to, by number; None: all of them may
        run anywhere
    """

    slices_us: Mapping[int, int | None]
    pcpus: Mapping[int, frozenset[int]] | None


@dataclasses.dataclass(frozen=True, slots=True)
class HostPlan:
    """The plans of all servers of a host.

    :ivar plans: by the pCPUs that they are made of
    :ivar placements: by UUID
    :ivar unplanned: by UUID, why a server is in no pool
    :ivar suspended: by UUID, the placements of servers that float instead
    """

    plans: Mapping[frozenset[int], model.Plan]
    placements: Mapping[str, Placement]
    unplanned: Mapping[str, str]
    suspended: Mapping[str, Placement]


NOTHING = HostPlan({}, {}, {}, {})


def plan_host(servers: Sequence[Server], sockets: Sequence[model.Socket],
              slices_us: Mapping[str, int],
              previous: HostPlan = NOTHING) -> HostPlan:
    """Place all servers of a host.

    :param sockets: of all pCPUs that are online
    :param slices_us: see :func:`nova_vqos.quantum.placement.plan.make_plan`
    :param previous: the plan in force, which changes little
    """
    plans: dict[frozenset[int], model.Plan] = {}
    placements: dict[str, Placement] = {}
    unplanned: dict[str, str] = {}
    suspended: dict[str, Placement] = {}
    for pcpus, group in _groups(servers).items():
        usable = _narrowed(sockets, pcpus)
        reason = OVERLAP if group.overlaps else '' if usable else NO_PCPU
        if reason:
            unplanned.update((server.uuid, reason)
                             for server in group.servers)
            continue
        plans[pcpus] = plan.make_plan(
            [vcpu for server in group.servers for vcpu in _vcpus(server)],
            usable, slices_us, previous.plans.get(pcpus))
        placements.update(_placements(plans[pcpus]))
        for server in group.servers:
            if server.floats:
                suspended[server.uuid] = placements[server.uuid]
            is_narrow = server.may_spin and _is_narrow(
                placements[server.uuid])
            if is_narrow:
                unplanned[server.uuid] = NARROW
            if server.floats or is_narrow:
                placements[server.uuid] = Placement(
                    dict.fromkeys(server.kinds), None)
    return HostPlan(plans, placements, unplanned, suspended)


def pool_sizes(made: HostPlan, slices_us: Mapping[str, int]
               ) -> dict[str, occupancy.PoolSize]:
    """The size of the pools of each class.

    Where nothing is separated all is one pool, of the class that suits all;
    none where that is the kernel's own slice.

    :param slices_us: by quantum class, of those that the kernel enforces
    """
    sizes: dict[str, occupancy.PoolSize] = {}
    for each in made.plans.values():
        for pool in each.pools:
            if not each.separates and pool.slice_us is None:
                continue
            name = _class_of(pool, slices_us)
            pcpus, vcpus = sizes.get(name, (0, 0))
            sizes[name] = occupancy.PoolSize(pcpus + len(pool.pcpus),
                                             vcpus + len(pool.vcpus))
    return sizes


def _class_of(pool: model.Pool, slices_us: Mapping[str, int]) -> str:
    """The class of a pool, by the vCPUs that need its slice."""
    found = {model.QUANTUM_CLASS[vcpu.kind] for vcpu in pool.vcpus}
    return next((name for name, slice_us in slices_us.items()
                 if name in found and slice_us == pool.slice_us),
                classes.DEFAULT)


@dataclasses.dataclass(slots=True)
class _Group:
    servers: list[Server]
    overlaps: bool = False


def _groups(servers: Iterable[Server]) -> dict[frozenset[int], _Group]:
    groups: dict[frozenset[int], _Group] = {}
    for server in servers:
        groups.setdefault(server.pcpus, _Group([])).servers.append(server)
    # Each pCPU is in one group, or all groups that have it overlap.
    owners: dict[int, _Group] = {}
    for pcpus, group in groups.items():
        for pcpu in pcpus:
            owner = owners.setdefault(pcpu, group)
            if owner is not group:
                owner.overlaps = group.overlaps = True
    return groups


def _narrowed(sockets: Iterable[model.Socket],
              pcpus: Set[int]) -> list[model.Socket]:
    """Sockets without any other pCPUs; those without these are left out."""
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
                       share=server.share, cap=server.cap,
                       tenths=server.tenths.get(number, model.TENTHS))
            for number, kind in sorted(server.kinds.items()))


def _is_narrow(placement: Placement) -> bool:
    """Whether a server is confined to fewer pCPUs than it has vCPUs."""
    return placement.pcpus is not None and len(frozenset().union(
        *placement.pcpus.values())) < len(placement.slices_us)


def _placements(made: model.Plan) -> dict[str, Placement]:
    own_pcpus = cpus.assign_to_spinning(made.pools)
    slices_us: dict[str, dict[int, int | None]] = {}
    pcpus: dict[str, dict[int, frozenset[int]]] = {}
    for pool in made.pools:
        for vcpu in pool.vcpus:
            slices_us.setdefault(vcpu.server, {})[vcpu.number] = pool.slice_us
            if made.separates or vcpu.key in own_pcpus:
                pcpus.setdefault(vcpu.server, {})[vcpu.number] = own_pcpus.get(
                    vcpu.key, pool.pcpus)
    return {uuid: Placement(slices, pcpus.get(uuid))
            for uuid, slices in slices_us.items()}
