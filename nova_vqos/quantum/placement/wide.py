# SPDX-License-Identifier: Apache-2.0
"""Sockets for servers that spin on locks and are wider than a socket.

Such a server is confined to no fewer pCPUs than it has vCPUs (see
guarantees). The thesis has none wider than a socket. Without more, one of them
would keep the whole host from having pools; so a few sockets become one for
it, and all others have theirs. Pure.
"""

from collections.abc import Sequence, Set

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import assignment
from nova_vqos.quantum.placement import guarantees


def join(host: Sequence[model.Socket],
         vcpus: Sequence[model.Vcpu]) -> list[model.Socket]:
    """Make one socket of the fewest that hold the widest server that spins.

    It has the number of the first of them. What shares a cache is not
    separated within it.

    :returns: the same sockets where one of them holds it, or not even all do
    """
    widest = max(guarantees.spinning_servers(vcpus).values(), default=0)
    by_width = sorted(host, key=lambda socket: -len(socket.pcpus))
    if (not host or widest <= len(by_width[0].pcpus)
            or widest > sum(len(socket.pcpus) for socket in host)):
        return list(host)
    joined: list[model.Socket] = []
    while sum(len(socket.pcpus) for socket in joined) < widest:
        joined.append(by_width[len(joined)])
    first = min(joined, key=lambda socket: socket.number)
    return [
        model.Socket(first.number, tuple(
            core for one in host if one in joined for core in one.cores))
        if socket is first else socket
        for socket in host if socket is first or socket not in joined]


def exchange(sockets: Sequence[Sequence[model.Vcpu]],
             pcpus: Sequence[int]) -> list[list[model.Vcpu]]:
    """Move servers that spin to sockets that are wide enough.

    As many vCPUs of others take their places, rather of those that use the
    cache alike, and whole servers where that is possible.

    :param sockets: the vCPUs of each
    :param pcpus: how many each socket has
    :returns: the vCPUs of each socket
    """
    places = {vcpu.key: socket for socket, members in enumerate(sockets)
              for vcpu in members}
    everything = [vcpu for members in sockets for vcpu in members]
    spinning = guarantees.spinning_servers(everything)
    widest = max(range(len(pcpus)), key=pcpus.__getitem__)
    for socket, members in enumerate(sockets):
        for server, count in guarantees.spinning_servers(members).items():
            if count <= pcpus[socket]:
                continue
            there = [vcpu for vcpu in sockets[widest]
                     if places[vcpu.key] == widest]
            coming = [vcpu for vcpu in members if vcpu.server == server]
            leaving = _leaving(there, coming, spinning.keys())
            # With a part of it that is there.
            wanted = count + sum(vcpu.server == server for vcpu in there)
            if wanted <= pcpus[widest] and len(leaving) == count:
                places.update((vcpu.key, widest) for vcpu in coming)
                places.update((vcpu.key, socket) for vcpu in leaving)
    result: list[list[model.Vcpu]] = [[] for _ in sockets]
    for vcpu in everything:
        result[places[vcpu.key]].append(vcpu)
    return result


def _leaving(members: Sequence[model.Vcpu], coming: Sequence[model.Vcpu],
             staying: Set[str]) -> list[model.Vcpu]:
    """As many vCPUs of a socket as come to it; fewer: it has no more.

    :param staying: servers of which none leaves
    """
    groups: dict[str, list[int]] = {}
    for index, vcpu in enumerate(members):
        if vcpu.server not in staying:
            groups.setdefault(vcpu.server, []).append(index)
    alike = {vcpu.is_polluter for vcpu in coming}
    ordered = sorted(groups.values(), key=lambda group: sum(
        members[index].is_polluter not in alike for index in group))
    return [members[index] for index in assignment.choose(
        ordered, min(len(coming), sum(map(len, ordered))))]
