# SPDX-License-Identifier: Apache-2.0
"""Sockets for servers that spin on locks and are wider than a socket.

Such a server is confined to no fewer pCPUs than it has vCPUs (see
guarantees). The thesis has none wider than a socket. Without more, one of them
would keep the whole host from having pools; so a few sockets become one for
it, and all others have theirs. Pure.
"""

import collections
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
    cache alike, and whole servers where that is possible. A server stays that
    finds no such socket.

    :param sockets: the vCPUs of each
    :param pcpus: how many each socket has
    :returns: the vCPUs of each socket
    """
    result = [list(members) for members in sockets]
    everything = [vcpu for members in sockets for vcpu in members]
    spinning = guarantees.spinning_servers(everything).keys()
    by_width = sorted(range(len(pcpus)), key=pcpus.__getitem__, reverse=True)
    for socket, members in enumerate(sockets):
        for server, count in guarantees.spinning_servers(members).items():
            # The first that is possible.
            any(_swap(result[socket], pcpus[socket], result[other],
                      pcpus[other], server, spinning)
                for other in by_width
                if count > pcpus[socket] and pcpus[other] > pcpus[socket])
    return result


def _swap(here: list[model.Vcpu], width: int, there: list[model.Vcpu],
          width_there: int, server: str, spinning: Set[str]) -> bool:
    """Exchange the vCPUs of a server for others of another socket.

    :param here: the vCPUs of its socket, which is ``width`` pCPUs wide
    :param there: of the other one
    :param spinning: all servers that spin
    :returns: whether that was possible
    """
    coming = [vcpu for vcpu in here if vcpu.server == server]
    alike = {vcpu.is_polluter for vcpu in coming}
    counts = collections.Counter(vcpu.server for vcpu in (*here, *there))
    if counts[server] > width_there:
        return False
    groups: dict[str, list[int]] = {}
    for index, vcpu in enumerate(there):
        # Those that would be too many here themselves stay there.
        if vcpu.server != server and (
                vcpu.server not in spinning or counts[vcpu.server] <= width):
            groups.setdefault(vcpu.server, []).append(index)
    if sum(map(len, groups.values())) < len(coming):
        return False
    leaving = set(assignment.choose(
        sorted(groups.values(), key=lambda group: sum(
            there[index].is_polluter not in alike for index in group)),
        len(coming)))
    here[:] = [vcpu for vcpu in here if vcpu.server != server] + [
        there[index] for index in sorted(leaving)]
    there[:] = [vcpu for index, vcpu in enumerate(there)
                if index not in leaving] + coming
    return True
