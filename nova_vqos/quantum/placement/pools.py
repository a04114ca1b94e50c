# SPDX-License-Identifier: Apache-2.0
"""The second level of clustering: the pools of one socket.

Algorithm 2 of the thesis (3.3.3): vCPUs that run best with the same quantum
form a cluster. vCPUs that any quantum suits (NEUTRAL, POLLUTER) balance the
clusters. Each cluster gets as many pCPUs as it fills at k = vCPUs / pCPUs
each. The rest of several clusters shares pCPUs at the default quantum.

Where the thesis leaves it open:

* k may be no whole number: a pCPU holds floor(k) or ceil(k) vCPUs, so that the
  vCPUs per pCPU are within one of each other everywhere. All clusters get
  pCPUs of their own wherever that is possible.
* Balancing serves that: vCPUs fill a cluster up to whole pCPUs first; pCPUs
  that are left then go to the smallest cluster.
* Full pCPUs of each cluster come before any that are shared. With two quanta
  that equals the walk over the pCPUs in algorithm 2; with more it never shares
  more pCPUs.
* vCPUs of kind DEFAULT are a cluster at the default quantum, which also gets
  the rest of the others.
* POLLUTER vCPUs balance clusters without CACHE vCPUs first: caches of a core
  are polluted, too.
* pCPUs that are left rather stay with the cluster that had them.
* No vCPU is to get clearly less time than where nothing is divided. Where the
  above does not achieve that, since numbers do not divide, there is another
  division, with smaller clusters.

Pure. For a given number of quanta the work grows as vCPUs + pCPUs.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import assignment

#: The part of its time that no vCPU is to lose by pools.
TOLERANCE = 0.03


class Size(ty.NamedTuple):
    """The size of a cluster.

    :ivar pcpus: pCPUs of its own
    :ivar own: vCPUs that run best with its quantum; those of the default
        cluster include the rest of the others
    :ivar balancing: vCPUs that any quantum suits
    """

    pcpus: int
    own: int
    balancing: int


class Cluster(ty.NamedTuple):
    """vCPUs that share pCPUs and a quantum.

    :ivar slice_us: the quantum; None: the default
    :ivar pcpus: how many pCPUs they have
    :ivar vcpus: its members
    """

    slice_us: model.Quantum
    pcpus: int
    vcpus: tuple[model.Vcpu, ...]


class _Load(ty.NamedTuple):
    """How many vCPUs the pCPUs of a socket hold.

    :ivar least: vCPUs on each of its pCPUs: floor(k)
    :ivar fuller: how many pCPUs hold one more
    """

    vcpus: int
    pcpus: int
    least: int
    fuller: int

    @property
    def most(self) -> int:
        """ceil(k)"""
        return self.least + bool(self.fuller)

    def full_pcpus(self, vcpus: int) -> int:
        """How many pCPUs so many vCPUs fill."""
        return vcpus * self.pcpus // self.vcpus

    def fair_vcpus(self, pcpus: int) -> int:
        """How many vCPUs so many pCPUs hold, and none gets clearly less."""
        # None uses more than one.
        return max(pcpus, int(
            self.vcpus * pcpus / (self.pcpus * (1 - TOLERANCE)) + 1e-9))

    def excess(self, sizes: Sequence[int], pcpus: Sequence[int]) -> list[int]:
        """How many vCPUs of each cluster are above ``least`` per pCPU."""
        return [max(0, size - self.least * count)
                for size, count in zip(sizes, pcpus, strict=True)]


def slice_us(kind: model.Kind, slices_us: Mapping[str, int]) -> model.Quantum:
    """The best quantum of a kind; None: the default one.

    :param slices_us: by quantum class
    """
    return slices_us.get(model.QUANTUM_CLASS[kind])


def clusters(vcpus: Sequence[model.Vcpu], pcpus: int,
             slices_us: Mapping[str, int],
             previous: Mapping[model.Key, model.Quantum] | None = None,
             previous_pcpus: Mapping[model.Quantum, int] | None = None,
             at_default: Set[str] = frozenset(), least_default: int = 0, *,
             fairly: bool = False) -> list[Cluster]:
    """The clusters of one socket (algorithm 2).

    :param vcpus: of the socket
    :param pcpus: of the socket, at least 1
    :param slices_us: by quantum class
    :param previous: by a vCPU's key the quantum of its pool of this socket so
        far
    :param previous_pcpus: by quantum how many pCPUs that pool had
    :param at_default: servers whose vCPUs all get the default quantum
    :param least_default: pCPUs that others leave to the default cluster at
        least; at most ``pcpus``
    :param fairly: whether :func:`divide_fairly` divides
    :returns: shortest quantum first, the default one last
    """
    wanted: dict[model.Quantum, list[model.Vcpu]] = {}
    agnostic = []
    for vcpu in vcpus:
        if vcpu.server in at_default:
            wanted.setdefault(None, []).append(vcpu)
        elif vcpu.kind in model.AGNOSTIC:
            agnostic.append(vcpu)
        else:
            wanted.setdefault(slice_us(vcpu.kind, slices_us), []).append(vcpu)
    counts = {quantum: len(group) for quantum, group in wanted.items()}
    sizes = (divide_fairly(counts, len(agnostic), pcpus, least_default)
             if fairly else divide(counts, len(agnostic), pcpus,
                                   previous_pcpus, least_default))
    quanta = _quanta(wanted, agnostic, sizes, previous or {})
    members: dict[model.Quantum, list[model.Vcpu]] = {
        quantum: [] for quantum in sizes}
    for vcpu in vcpus:
        members[quanta[vcpu.key]].append(vcpu)
    return [Cluster(quantum, size.pcpus, tuple(members[quantum]))
            for quantum, size in sizes.items()]


def divide(wanted: Mapping[model.Quantum, int], agnostic: int, pcpus: int,
           previous_pcpus: Mapping[model.Quantum, int] | None = None,
           least_default: int = 0) -> dict[model.Quantum, Size]:
    """Divide a socket among clusters (lines 10 to 30).

    The vCPUs per pCPU of any two clusters, spread evenly over the pCPUs of
    each, are within one of each other.

    :param wanted: by quantum the number of vCPUs that run best with it; None
        is the default one
    :param agnostic: number of vCPUs that any quantum suits
    :param pcpus: of the socket, at least 1
    :param previous_pcpus: by quantum how many each cluster had so far: spare
        ones rather go there
    :param least_default: pCPUs that others leave to the default cluster at
        least; at most ``pcpus``
    :returns: by quantum, shortest first, the default one last
    """
    present = [quantum for quantum, count in wanted.items() if count]
    if len(present) < 2:
        only = present[0] if present else None
        return {only: Size(pcpus, wanted.get(only, 0), agnostic)}
    total = sum(wanted.values())
    load = _Load(total + agnostic, pcpus, *divmod(total + agnostic, pcpus))
    slices = sorted(quantum for quantum in present if quantum is not None)
    counts = _leave_room([wanted[quantum] for quantum in slices], load,
                         pcpus - least_default)
    previous = [(previous_pcpus or {}).get(quantum, 0)
                for quantum in [*slices, None]]
    # NOTE: there is a next one: the last has full pCPUs alone.
    sizes, given = next(
        (sizes, given)
        for sizes in ([*own, total - sum(own)]
                      for own in _cut_down(counts, load))
        for wish in (previous, [0] * len(previous))
        if (given := _pcpus(sizes, load, wish, least_default)) is not None)
    balancing = _balancing(sizes, given, agnostic, load)
    return {quantum: Size(count, size, more)
            for quantum, count, size, more in zip(
                [*slices, None], given, sizes, balancing, strict=True)
            if count}


def divide_fairly(wanted: Mapping[model.Quantum, int], agnostic: int,
                  pcpus: int, least_default: int = 0
                  ) -> dict[model.Quantum, Size]:
    """Divide a socket so that no vCPU gets clearly less than without that.

    Clusters are smaller than those of :func:`divide`, or there are none. The
    longest quantum is first: its work gains most.

    :param wanted: see :func:`divide`, as the others
    """
    found: dict[model.Quantum, Size] = {}
    vcpus = sum(wanted.values()) + agnostic
    load = _Load(vcpus, pcpus, *divmod(vcpus, pcpus))
    for quantum in sorted((quantum for quantum, count in wanted.items()
                           if count and quantum is not None), reverse=True):
        most = wanted[quantum] + agnostic
        fair = [
            (count, inside) for count in range(1, pcpus + 1)
            for inside in [min(most, load.fair_vcpus(count))]
            if load.least * count <= inside
            and load.least * (pcpus - count) <= vcpus - inside
            <= load.fair_vcpus(pcpus - count)
            and (pcpus - count >= least_default or vcpus == inside)]
        if fair:
            count, inside = max(fair, key=lambda each: (
                each[1], -abs(each[1] * load.pcpus - each[0] * load.vcpus)))
            own = min(inside, wanted[quantum])
            found[quantum] = Size(count, own, inside - own)
            pcpus, vcpus, agnostic = (
                pcpus - count, vcpus - inside, agnostic - (inside - own))
    if pcpus:
        found[None] = Size(pcpus, vcpus - agnostic, agnostic)
    return dict(sorted(found.items(), key=lambda each: (
        each[0] is None, each[0] or 0)))


def _leave_room(counts: Sequence[int], load: _Load, most: int) -> list[int]:
    """Clusters that fill at most so many pCPUs: the largest yield."""
    left = list(counts)
    while sum(map(load.full_pcpus, left)) > most:
        largest = left.index(max(left))
        full = load.full_pcpus(left[largest])
        left[largest] = (full * load.vcpus - 1) // load.pcpus
    return left


def _cut_down(counts: Sequence[int], load: _Load) -> Iterator[list[int]]:
    """Clusters as they are, then one after the other cut to its full pCPUs.

    Those with the smallest rest first: the balancing vCPUs rather fill up the
    others.
    """
    own = list(counts)
    yield list(own)
    fuller = load.fuller
    for place in sorted(range(len(own)), key=lambda place: (
            counts[place] * load.pcpus % load.vcpus)):
        full = load.full_pcpus(counts[place])
        more = min(counts[place] - full * load.least, full, fuller)
        fuller -= more
        own[place] = full * load.least + more
        yield list(own)


def _pcpus(sizes: Sequence[int], load: _Load, previous: Sequence[int],
           least_default: int) -> list[int] | None:
    """The pCPUs of each cluster, each all its own; None: there are too few.

    A cluster of c vCPUs fits on g pCPUs if c <= ceil(k) * g. Together they
    fit if those above floor(k) per pCPU are no more than the pCPUs that hold
    one more; balancing vCPUs then fill exactly the rest.

    :param sizes: vCPUs of each cluster, of the default one last
    :param previous: how many pCPUs each had so far
    """
    given = [-(-size // load.most) for size in sizes]
    if given[-1]:
        given[-1] = max(given[-1], least_default)
    present = [place for place, count in enumerate(given) if count]
    spare = load.pcpus - sum(given)
    for _ in range(spare):
        excess = load.excess(sizes, given)
        had_more = [place for place in present
                    if given[place] < previous[place]]
        if had_more:
            place = min(had_more, key=given.__getitem__)
        elif sum(excess) > load.fuller:
            place = excess.index(max(excess))
        else:
            place = min(present, key=given.__getitem__)
        given[place] += 1
    if spare < 0 or sum(load.excess(sizes, given)) > load.fuller:
        return None
    return given


def _balancing(sizes: Sequence[int], given: Sequence[int], agnostic: int,
               load: _Load) -> list[int]:
    """How many balancing vCPUs each cluster gets."""
    balancing = [max(0, load.least * count - size)
                 for size, count in zip(sizes, given, strict=True)]
    left = agnostic - sum(balancing)
    for place, (size, count) in enumerate(zip(sizes, given, strict=True)):
        more = min(left, load.most * count - size - balancing[place])
        balancing[place] += more
        left -= more
    return balancing


def _quanta(wanted: Mapping[model.Quantum, Sequence[model.Vcpu]],
            agnostic: Sequence[model.Vcpu],
            sizes: Mapping[model.Quantum, Size],
            previous: Mapping[model.Key, model.Quantum],
            ) -> dict[model.Key, model.Quantum]:
    """The quantum of each vCPU, by its key."""
    quanta: dict[model.Key, model.Quantum] = {}
    with_cache: set[model.Quantum] = set()
    order = list(sizes)
    places = {quantum: place for place, quantum in enumerate(order)}

    def assign(vcpus: Sequence[model.Vcpu],
               slots: Mapping[model.Quantum, int]) -> None:
        assigned = assignment.assign(
            [vcpu.server for vcpu in vcpus],
            [slots.get(quantum, 0) for quantum in order],
            [places.get(previous[vcpu.key]) if vcpu.key in previous else None
             for vcpu in vcpus])
        for vcpu, place in zip(vcpus, assigned, strict=True):
            quanta[vcpu.key] = order[place]
            if vcpu.kind is model.Kind.CACHE:
                with_cache.add(order[place])

    for quantum, group in wanted.items():
        own = (sizes[quantum].own
               if quantum is not None and quantum in sizes else 0)
        slots: dict[model.Quantum, int] = {None: len(group) - own}
        if own:
            slots[quantum] = own
        assign(group, slots)
    polluters = [vcpu for vcpu in agnostic if vcpu.is_polluter]
    left = len(polluters)
    slots = dict.fromkeys(sizes, 0)
    for quantum in sorted(sizes, key=with_cache.__contains__):
        slots[quantum] = min(left, sizes[quantum].balancing)
        left -= slots[quantum]
    assign(polluters, slots)
    assign([vcpu for vcpu in agnostic if not vcpu.is_polluter],
           {quantum: size.balancing - slots[quantum]
            for quantum, size in sizes.items()})
    return quanta
