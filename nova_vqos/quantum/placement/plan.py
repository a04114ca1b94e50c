# SPDX-License-Identifier: Apache-2.0
"""Plan where each vCPU of a host runs, and with which slice.

Both levels of clustering (thesis 3.3.3), and what a stock cloud needs beyond
them:

* Nothing is separated without need: not where one quantum suits all, nor
  where vCPUs want less time than all pCPUs have, unless polluters have to be
  parted from cache-friendly vCPUs.
* Nobody gets clearly less CPU time than without pools: see fairness. A socket
  where no division achieves that is not divided; nor is the host, where that
  of its sockets does not.
* Guarantees: see guarantees. Where a socket cannot hold the shares of its
  vCPUs, nothing is separated: the kernel then has all pCPUs for them.
* A server that spins on locks is never confined to fewer pCPUs than it has
  vCPUs there; it stays with the default pool, which becomes wide enough, if
  need be as wide as the socket. For one that is wider, a few sockets become
  one: see wide. Where the host is too narrow, nothing is separated.
* SMT siblings stay in one pool where the numbers allow it: see cpus.
* Stability: one vCPU more, less, or of another kind moves at most thrice
  ceil(vCPUs / pCPUs) others per socket to another pool (mostly none to three),
  as long as the same pools are needed, polluters are on the same sockets,
  vCPUs want as much as before, and no wide server that spins begins, or
  ceases, to fit into its pool, or to need sockets that are joined. Up to twice
  as many move where pools change their sizes, since a socket may then be
  divided in the other of two ways. That is what tests found, not a proof; in
  the other cases more have to move.

Pure: the result depends on nothing but the vCPUs, the pCPUs and the previous
plan.
"""

import collections
from collections.abc import Mapping, Sequence

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum.placement import cpus
from nova_vqos.quantum.placement import fairness
from nova_vqos.quantum.placement import guarantees
from nova_vqos.quantum.placement import pools
from nova_vqos.quantum.placement import sockets
from nova_vqos.quantum.placement import wide


def make_plan(vcpus: Sequence[model.Vcpu], host: Sequence[model.Socket],
              slices_us: Mapping[str, int],
              previous: model.Plan | None = None) -> model.Plan:
    """Place all vCPUs of a host.

    :param vcpus: those that may float: not of servers with pinned or dedicated
        pCPUs. Servers are placed in the order in which they first appear
    :param host: the pCPUs that they may run on
    :param slices_us: by quantum class, of those that the kernel enforces;
        vCPUs of other classes keep the kernel's slice
    :param previous: the plan in force. vCPUs stay in their pool as far as
        possible; where the input is the same, this is the answer
    :returns: each vCPU, and each pCPU, is in one of its pools; none without
        vCPUs
    :raises model.PlanError: when no plan can be made from the input
    :raises classes.SliceInvalid: when the kernel does not accept a slice
    """
    model.check(vcpus, host)
    for name, length_us in slices_us.items():
        if not classes.MIN_SLICE_US <= length_us <= classes.MAX_SLICE_US:
            raise classes.SliceInvalid(
                name, length_us, f'from {classes.MIN_SLICE_US} to '
                f'{classes.MAX_SLICE_US} microseconds')
    slices = tuple(sorted(slices_us.items()))
    host = wide.join([socket for socket in host if socket.pcpus], vcpus)
    if previous is not None and _is_current(previous, vcpus, host, slices):
        return previous
    if not vcpus:
        return model.Plan((), separates=False, slices_us=slices)
    widths = [len(socket.pcpus) for socket in host]
    before = _Previous(previous, host)
    members = guarantees.exchange(wide.exchange(
        sockets.assign(vcpus, widths, before.sockets), widths), widths)
    separated = _separate(vcpus, host, members, slices_us, before)
    if separated is not None:
        return model.Plan(separated, separates=True, slices_us=slices)
    # All get one slice, since vCPUs float.
    slice_us = _common_slice_us(vcpus, slices_us)
    return model.Plan(tuple(
        model.Pool(socket.number, socket.pcpus, slice_us, tuple(group))
        for socket, group in zip(host, members, strict=True)),
        separates=False, slices_us=slices)


class _Previous:
    """The plan in force, by vCPU and by socket.

    :ivar sockets: by a vCPU's key the index of its socket
    :ivar quanta: by socket, and by a vCPU's key there, the quantum
    :ivar pcpus: by socket, and by quantum, the pCPUs of that pool
    :ivar separates: whether vCPUs are confined to pools
    """

    def __init__(self, plan: model.Plan | None,
                 host: Sequence[model.Socket]) -> None:
        self.separates = plan is not None and plan.separates
        indexes = {socket.number: index for index, socket in enumerate(host)}
        self.sockets: dict[model.Key, int] = {}
        self.quanta: dict[int, dict[model.Key, model.Quantum]] = {
            number: {} for number in indexes}
        self.pcpus: dict[int, dict[model.Quantum, frozenset[int]]] = {
            number: {} for number in indexes}
        for pool in plan.pools if plan is not None else ():
            if pool.socket not in indexes:
                continue
            self.pcpus[pool.socket][pool.slice_us] = pool.pcpus
            for vcpu in pool.vcpus:
                self.sockets[vcpu.key] = indexes[pool.socket]
                self.quanta[pool.socket][vcpu.key] = pool.slice_us


def _is_current(plan: model.Plan, vcpus: Sequence[model.Vcpu],
                host: Sequence[model.Socket],
                slices: tuple[tuple[str, int], ...]) -> bool:
    """Whether a plan was made from the same input."""
    placed = {vcpu.key: vcpu for pool in plan.pools for vcpu in pool.vcpus}
    pcpus: dict[int, frozenset[int]] = {}
    for pool in plan.pools:
        pcpus[pool.socket] = pcpus.get(pool.socket, frozenset()) | pool.pcpus
    return (plan.slices_us == slices and len(placed) == len(vcpus)
            and all(placed.get(vcpu.key) == vcpu for vcpu in vcpus)
            and pcpus == {socket.number: socket.pcpus for socket in host})


def _separate(vcpus: Sequence[model.Vcpu], host: Sequence[model.Socket],
              members: Sequence[Sequence[model.Vcpu]],
              slices_us: Mapping[str, int],
              previous: _Previous) -> tuple[model.Pool, ...] | None:
    """The pools of all sockets; None: no need to separate, or no way.

    :param members: the vCPUs of each socket
    """
    parts_polluters = (
        len(host) > 1 and any(vcpu.is_polluter for vcpu in vcpus)
        and any(vcpu.kind is model.Kind.CACHE for vcpu in vcpus))
    contended = _is_contended(
        vcpus, sum(len(socket.pcpus) for socket in host), previous.separates)
    parts_quanta = contended and len(_quanta(vcpus, slices_us)) > 1
    if not (parts_polluters or parts_quanta) or any(
            guarantees.needed_pcpus(group) > len(socket.pcpus)
            for socket, group in zip(host, members, strict=True)):
        return None
    made: list[model.Pool] = []
    for socket, group in zip(host, members, strict=True):
        clusters = (_fair_clusters(socket, group, slices_us, previous)
                    if contended else None) or [
            pools.Cluster(_common_slice_us(group, slices_us),
                          len(socket.pcpus), tuple(group))]
        had = previous.pcpus[socket.number]
        pcpus = cpus.assign_to_pools(
            socket.cores, [cluster.pcpus for cluster in clusters],
            [had.get(cluster.slice_us, frozenset()) for cluster in clusters])
        made += [model.Pool(socket.number, numbers, cluster.slice_us,
                            cluster.vcpus)
                 for numbers, cluster in zip(pcpus, clusters, strict=True)]
    slices = {pool.slice_us for pool in made}
    if not parts_polluters and len(made) == len(host) and len(slices) == 1:
        return None
    if not fairness.is_fair((pool.vcpus, len(pool.pcpus)) for pool in made):
        return None
    return tuple(made)


def _is_contended(vcpus: Sequence[model.Vcpu], pcpus: int,
                  separates: bool) -> bool:
    """Whether vCPUs want more pCPUs than there are, by one at least.

    :param separates: whether they are separated now: then they stay so until
        they want a tenth less than there are
    """
    tenths = sum(vcpu.tenths for vcpu in vcpus)
    return len(vcpus) > pcpus and (
        tenths > 9 * pcpus if separates else tenths >= 10 * (pcpus + 1))


def _fair_clusters(socket: model.Socket, vcpus: Sequence[model.Vcpu],
                   slices_us: Mapping[str, int],
                   previous: _Previous) -> list[pools.Cluster] | None:
    """The clusters of a socket in which no vCPU gets clearly less time.

    Those of the research, if they are such; else others.

    :returns: None: there are none
    """
    for fairly in (False, True):
        clusters = guarantees.widen(_clusters(
            socket, vcpus, slices_us, previous, fairly=fairly))
        if fairness.is_fair((cluster.vcpus, cluster.pcpus)
                            for cluster in clusters):
            return clusters
    return None


def _clusters(socket: model.Socket, vcpus: Sequence[model.Vcpu],
              slices_us: Mapping[str, int], previous: _Previous, *,
              fairly: bool) -> list[pools.Cluster]:
    """The clusters of a socket, none too narrow for a server that spins.

    Such a server goes to the default cluster, which becomes as wide as it
    needs. Where that makes others too narrow all that spin go there.
    """
    spinning = guarantees.spinning_servers(vcpus)
    standing, others = (fairness.represent(vcpus, len(socket.pcpus), spinning)
                        if fairly else (vcpus, {}))
    at_default: set[str] = set()
    while True:
        clusters = [cluster._replace(vcpus=tuple(
            one for vcpu in cluster.vcpus
            for one in (vcpu, *others.get(vcpu.key, ()))))
            for cluster in pools.clusters(
                standing, len(socket.pcpus), slices_us,
                previous.quanta[socket.number],
                {slice_us: len(pcpus) for slice_us, pcpus
                 in previous.pcpus[socket.number].items()}, at_default,
                max(map(spinning.__getitem__, at_default), default=0),
                fairly=fairly)]
        # Also where those that spin are in another cluster.
        cramped = {
            server for cluster in clusters for server, count
            in collections.Counter(
                vcpu.server for vcpu in cluster.vcpus).items()
            if server in spinning and count > cluster.pcpus}
        if not cramped:
            return clusters
        at_default = set(spinning) if at_default else cramped


def _quanta(vcpus: Sequence[model.Vcpu],
            slices_us: Mapping[str, int]) -> set[model.Quantum]:
    """The best quanta of these vCPUs."""
    kinds = {vcpu.kind for vcpu in vcpus} - model.AGNOSTIC
    return {pools.slice_us(kind, slices_us) for kind in kinds}


def _common_slice_us(vcpus: Sequence[model.Vcpu],
                     slices_us: Mapping[str, int]) -> model.Quantum:
    """The slice that suits all of them; None: the kernel's, if none does."""
    quanta = _quanta(vcpus, slices_us)
    return quanta.pop() if len(quanta) == 1 else None
