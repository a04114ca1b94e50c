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

"""Which vCPU runs where, and with which slice: the plan of a whole host.

Both levels of clustering (thesis 3.3.3), and what a stock cloud needs beyond
them:

* Nothing is separated without need: not where one quantum suits all, nor
  where each vCPU can have a pCPU to itself, unless polluters are to be parted
  from cache-friendly vCPUs.
* Promises: see promises. Where a socket cannot hold what was promised to its
  vCPUs, nothing is separated: the kernel then has all pCPUs to keep it with.
* A server that spins on locks is never confined to fewer pCPUs than it has
  vCPUs there; it stays with the default pool, which is made wide enough, if
  need be as wide as the socket. Where a socket is too narrow, nothing is
  separated.
* SMT siblings stay in one pool where the numbers allow it: see core_level.
* Stability: one vCPU more, less, or of another kind moves at most thrice
  ceil(vCPUs / pCPUs) others per socket to another pool (mostly none to three),
  as long as the same pools are needed, polluters are on the same sockets, and
  no wide server that spins begins, or ceases, to fit into its pool. That is
  what tests found, not a proof; in the other cases more have to move.

Pure: who is placed, where, and what was planned before is all that matters.
"""

from collections.abc import Mapping, Sequence

from nova_vqos.quantum import classes
from nova_vqos.quantum import core_level
from nova_vqos.quantum import model
from nova_vqos.quantum import pool_level
from nova_vqos.quantum import promises
from nova_vqos.quantum import socket_level


def plan(vcpus: Sequence[model.Vcpu], sockets: Sequence[model.Socket],
         slices_us: Mapping[str, int],
         before: model.Plan | None = None) -> model.Plan:
    """Place all vCPUs of a host.

    :param vcpus: those that may float: not of servers with pinned or
        dedicated pCPUs. Servers are placed in the order in which they first
        appear
    :param sockets: the pCPUs that they may run on
    :param slices_us: by quantum class, of those that the kernel was seen to
        enforce; vCPUs of other classes keep the kernel's slice
    :param before: the plan in force. What has not changed since then stays
        where it is; where nothing has, this is the answer
    :returns: each vCPU, and each pCPU, is in one of its pools; none without
        vCPUs
    :raises model.PlanError: when the input is such that no plan can be made
    :raises classes.SliceInvalid: when the kernel takes no such slice
    """
    model.check(vcpus, sockets)
    _check_slices(slices_us)
    slices = tuple(sorted(slices_us.items()))
    if before is not None and _is_current(before, vcpus, sockets, slices):
        return before
    if not vcpus:
        return model.Plan((), separates=False, slices_us=slices)
    sockets = [socket for socket in sockets if socket.pcpus]
    widths = [len(socket.pcpus) for socket in sockets]
    held = _Held(before, sockets)
    members = promises.exchanged(
        socket_level.assign(vcpus, widths, held.sockets), widths)
    pools = _separated(vcpus, sockets, members, slices_us, held)
    if pools is None:
        pools = _together(vcpus, sockets, members, slices_us)
        return model.Plan(pools, separates=False, slices_us=slices)
    return model.Plan(pools, separates=True, slices_us=slices)


class _Held:
    """What the plan in force gave to whom.

    :ivar sockets: by a vCPU's key the index of its socket
    :ivar quanta: by socket, and by a vCPU's key there, the quantum
    :ivar pcpus: by socket, and by quantum, the pCPUs of that pool
    """

    def __init__(self, before: model.Plan | None,
                 sockets: Sequence[model.Socket]) -> None:
        indexes = {socket.number: index
                   for index, socket in enumerate(sockets)}
        self.sockets: dict[model.Key, int] = {}
        self.quanta: dict[int, dict[model.Key, model.Quantum]] = {
            number: {} for number in indexes}
        self.pcpus: dict[int, dict[model.Quantum, frozenset[int]]] = {
            number: {} for number in indexes}
        for pool in before.pools if before is not None else ():
            if pool.socket not in indexes:
                continue
            self.pcpus[pool.socket][pool.slice_us] = pool.pcpus
            for vcpu in pool.vcpus:
                self.sockets[vcpu.key] = indexes[pool.socket]
                self.quanta[pool.socket][vcpu.key] = pool.slice_us


def _check_slices(slices_us: Mapping[str, int]) -> None:
    for name, slice_us in slices_us.items():
        if not classes.MIN_SLICE_US <= slice_us <= classes.MAX_SLICE_US:
            raise classes.SliceInvalid(
                name, slice_us, f'from {classes.MIN_SLICE_US} to '
                f'{classes.MAX_SLICE_US} microseconds')


def _is_current(before: model.Plan, vcpus: Sequence[model.Vcpu],
                sockets: Sequence[model.Socket],
                slices: tuple[tuple[str, int], ...]) -> bool:
    """Whether a plan was made of just this input."""
    placed = {vcpu.key: vcpu for pool in before.pools for vcpu in pool.vcpus}
    pcpus: dict[int, frozenset[int]] = {}
    for pool in before.pools:
        pcpus[pool.socket] = pcpus.get(pool.socket, frozenset()) | pool.pcpus
    return (before.slices_us == slices and len(placed) == len(vcpus)
            and all(placed.get(vcpu.key) == vcpu for vcpu in vcpus)
            and pcpus == {socket.number: socket.pcpus
                          for socket in sockets if socket.pcpus})


def _separated(vcpus: Sequence[model.Vcpu], sockets: Sequence[model.Socket],
               members: Sequence[Sequence[model.Vcpu]],
               slices_us: Mapping[str, int],
               held: _Held) -> tuple[model.Pool, ...] | None:
    """The pools of all sockets; None: nothing is to be separated, or can be.

    :param members: the vCPUs of each socket
    """
    parts_polluters = (
        len(sockets) > 1 and any(vcpu.is_polluter for vcpu in vcpus)
        and any(vcpu.kind is model.Kind.CACHE for vcpu in vcpus))
    contended = len(vcpus) > sum(len(socket.pcpus) for socket in sockets)
    parts_quanta = contended and len(_quanta(vcpus, slices_us)) > 1
    if not (parts_polluters or parts_quanta) or any(
            promises.needed_pcpus(group) > len(socket.pcpus)
            for socket, group in zip(sockets, members, strict=True)):
        return None
    pools: list[model.Pool] = []
    for socket, group in zip(sockets, members, strict=True):
        clusters = [_whole(socket, group, slices_us)]
        if contended:
            clusters = promises.grown(_clusters(socket, group, slices_us,
                                                held))
        pools.extend(_pools(socket, clusters, held))
    slices = {pool.slice_us for pool in pools}
    if not parts_polluters and len(pools) == len(sockets) and (
            len(slices) == 1):
        return None
    return tuple(pools)


def _together(vcpus: Sequence[model.Vcpu], sockets: Sequence[model.Socket],
              members: Sequence[Sequence[model.Vcpu]],
              slices_us: Mapping[str, int]) -> tuple[model.Pool, ...]:
    """One pool per socket, all with one slice, since vCPUs float."""
    slice_us = _common_slice_us(vcpus, slices_us)
    return tuple(
        model.Pool(socket.number, socket.pcpus, slice_us, tuple(group))
        for socket, group in zip(sockets, members, strict=True))


def _clusters(socket: model.Socket, vcpus: Sequence[model.Vcpu],
              slices_us: Mapping[str, int],
              held: _Held) -> list[pool_level.Cluster]:
    """The clusters of a socket, none too narrow for a server that spins.

    Such a server goes to the default cluster, which is then made as wide as
    it needs. Where that makes others too narrow all that spin go there.
    """
    spinning = promises.spinning_servers(vcpus)
    at_default: set[str] = set()
    while True:
        clusters = pool_level.clusters(
            vcpus, len(socket.pcpus), slices_us, held.quanta[socket.number],
            {slice_us: len(pcpus)
             for slice_us, pcpus in held.pcpus[socket.number].items()},
            at_default, max(map(spinning.__getitem__, at_default), default=0))
        cramped = {
            server for cluster in clusters for server, count
            in promises.spinning_servers(cluster.vcpus).items()
            if count > cluster.pcpus}
        if not cramped:
            return clusters
        at_default = set(spinning) if at_default else cramped


def _whole(socket: model.Socket, vcpus: Sequence[model.Vcpu],
           slices_us: Mapping[str, int]) -> pool_level.Cluster:
    """All of a socket as one cluster."""
    return pool_level.Cluster(_common_slice_us(vcpus, slices_us),
                              len(socket.pcpus), tuple(vcpus))


def _pools(socket: model.Socket, clusters: Sequence[pool_level.Cluster],
           held: _Held) -> list[model.Pool]:
    """Clusters with pCPUs of their own."""
    pcpus = core_level.share_out(
        socket.cores, [cluster.pcpus for cluster in clusters],
        [held.pcpus[socket.number].get(cluster.slice_us, frozenset())
         for cluster in clusters])
    return [model.Pool(socket.number, numbers, cluster.slice_us,
                       cluster.vcpus)
            for numbers, cluster in zip(pcpus, clusters, strict=True)]


def _quanta(vcpus: Sequence[model.Vcpu],
            slices_us: Mapping[str, int]) -> set[model.Quantum]:
    """The quanta that these vCPUs do best with."""
    kinds = {vcpu.kind for vcpu in vcpus} - model.AGNOSTIC
    return {pool_level.slice_us(kind, slices_us) for kind in kinds}


def _common_slice_us(vcpus: Sequence[model.Vcpu],
                     slices_us: Mapping[str, int]) -> model.Quantum:
    """The slice that suits all of them; None: the kernel's, if none does."""
    quanta = _quanta(vcpus, slices_us)
    return quanta.pop() if len(quanta) == 1 else None
