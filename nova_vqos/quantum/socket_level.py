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

"""The first level of clustering: which vCPUs run on which socket.

Algorithm 1 of the thesis (3.3.3): vCPUs that thrash the last-level cache and
those that suffer from it are kept on different sockets as far as possible,
each socket gets its fair number of vCPUs, and a server stands together. The
erratum: line 5 as printed takes LLCF for the polluter; the text and figure
3.3 say LLCO, and so do we.

What we add, where the thesis leaves it open:

* Sockets need not be equal (pCPUs may be offline, isolated or dedicated):
  "n vCPUs each" becomes "as many per pCPU, within one".
* Among the orders of servers and sockets that algorithm 1 allows, another one
  than that given is taken where only that parts all polluters from all
  cache-friendly vCPUs.
* vCPUs stay where they are as far as that allows (see seating).

Pure. For a given number of sockets the work grows as vCPUs + pCPUs, but for
one sorting of the pCPUs' numbers.
"""

import bisect
import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
import itertools
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum import seating


def vcpus_per_socket(vcpus: int, pcpus: Sequence[int],
                     first: Sequence[int] = ()) -> list[int]:
    """How many vCPUs each socket is to hold.

    Of equal sockets each gets vcpus / sockets (algorithm 1, line 12). In
    general every pCPU gets floor(vcpus / pCPUs), and what remains goes to the
    sockets in turn by the divisor method of D'Hondt: so one vCPU more
    makes one socket hold one more, and all others as many as before.

    :param vcpus: in all
    :param pcpus: of each socket; at least one in all
    :param first: the order of sockets whose turn it is at the same time, as
        indexes; as they are given if empty
    """
    each, more = divmod(vcpus, sum(pcpus))
    counts = [each * count for count in pcpus]
    ranks = {socket: rank for rank, socket in enumerate(first)}
    turns = sorted((turn / count, ranks.get(socket, socket), socket)
                   for socket, count in enumerate(pcpus)
                   for turn in range(1, count + 1))
    for _, _, socket in turns[:more]:
        counts[socket] += 1
    return counts


def assign(vcpus: Sequence[model.Vcpu], pcpus: Sequence[int],
           held: Mapping[model.Key, int] | None = None,
           ) -> list[list[model.Vcpu]]:
    """The vCPUs of each socket (algorithm 1).

    Polluters fill the first sockets; then come NEUTRAL vCPUs, so that they,
    rather than CACHE ones, are beside the last polluters; then all others in
    the order given.

    :param vcpus: those of a server are taken together, servers in the order
        in which they first appear
    :param pcpus: of each socket; at least one in all
    :param held: by a vCPU's key the socket, as an index into ``pcpus``, that
        it had until now
    :returns: for each socket its vCPUs, in the order given
    """
    held = held or {}
    groups = _Groups(vcpus)
    room, order = _room_and_order(groups, pcpus, held)
    places: dict[model.Key, int] = {}

    def place(members: Sequence[model.Vcpu]) -> None:
        seats = _take(len(members), room, order)
        places.update(_seat(members, seats, held))

    place(groups.polluters)
    border = _border(places.values(), order)
    place(groups.neutral)
    rest = groups.rest
    if border is not None and groups.cache and (
            0 < room[border] <= len(groups.indifferent)):
        beside = _beside_polluters(groups.indifferent, border, room[border],
                                   held)
        place(beside)
        taken = {vcpu.key for vcpu in beside}
        rest = [vcpu for vcpu in rest if vcpu.key not in taken]
    place(rest)
    sockets: list[list[model.Vcpu]] = [[] for _ in pcpus]
    for vcpu in vcpus:
        sockets[places[vcpu.key]].append(vcpu)
    return sockets


class _Groups:
    """vCPUs by what they do to the last-level cache, or suffer there.

    :ivar polluters: thrash it
    :ivar neutral: do without it
    :ivar rest: all others
    :ivar cache: those of them that suffer most
    :ivar indifferent: the other ones of the rest
    """

    def __init__(self, vcpus: Sequence[model.Vcpu]) -> None:
        self.polluters: list[model.Vcpu] = []
        self.neutral: list[model.Vcpu] = []
        self.rest: list[model.Vcpu] = []
        for vcpu in vcpus:
            if vcpu.is_polluter:
                self.polluters.append(vcpu)
            elif vcpu.kind is model.Kind.NEUTRAL:
                self.neutral.append(vcpu)
            else:
                self.rest.append(vcpu)
        self.cache = [vcpu for vcpu in self.rest
                      if vcpu.kind is model.Kind.CACHE]
        self.indifferent = [vcpu for vcpu in self.rest
                            if vcpu.kind is not model.Kind.CACHE]


class _Had(ty.NamedTuple):
    """How many vCPUs each socket has had, by what they are now."""

    polluters: Sequence[int]
    neutral: Sequence[int]
    cache: Sequence[int]
    indifferent: Sequence[int]

    @classmethod
    def of(cls, groups: _Groups, sockets: int,
           held: Mapping[model.Key, int]) -> '_Had':
        def counts(members: Sequence[model.Vcpu]) -> list[int]:
            found = collections.Counter(
                held[vcpu.key] for vcpu in members if vcpu.key in held)
            return [found[socket] for socket in range(sockets)]

        return cls(counts(groups.polluters), counts(groups.neutral),
                   counts(groups.cache), counts(groups.indifferent))


def _room_and_order(groups: _Groups, pcpus: Sequence[int],
                    held: Mapping[model.Key, int],
                    ) -> tuple[list[int], list[int]]:
    """The vCPUs of each socket, and the order in which sockets are filled.

    Where those that keep most vCPUs in place leave polluters beside cache-
    friendly ones, others come first that can be filled without the latter, if
    there are any.
    """
    had = _Had.of(groups, len(pcpus), held)
    least = len(groups.polluters)
    most = least + len(groups.neutral) + len(groups.indifferent)
    choices = []
    for room in _rooms(most + len(groups.cache), pcpus, had):
        order, seats = _order(room, had, least)
        if seats <= most or not least:
            return room, order
        choices.append((room, order))
    for room, order in choices:
        sizes = [room[socket] for socket in order]
        seats_apart = seating.least_sum(sizes, least, most)
        if seats_apart is not None:
            first = [order[position] for position
                     in seating.exactly(sizes, seats_apart) or ()]
            return room, first + [socket for socket in order
                                  if socket not in first]
    return choices[0]


def _rooms(vcpus: int, pcpus: Sequence[int],
           had: _Had) -> Iterator[list[int]]:
    """The vCPUs of each socket, in several ways that are equally fair.

    First with sockets that hold one more than others where there has been
    one; then with those that had most polluters, then those with fewest.
    """
    least = vcpus // sum(pcpus)
    above = [(sum(counts) - least * width) / max(1, width)
             for counts, width in zip(zip(*had, strict=True), pcpus,
                                      strict=True)]
    by_polluters = sorted(range(len(pcpus)), key=had.polluters.__getitem__)
    yield vcpus_per_socket(vcpus, pcpus, sorted(
        by_polluters, key=above.__getitem__, reverse=True))
    yield vcpus_per_socket(vcpus, pcpus, by_polluters[::-1])
    yield vcpus_per_socket(vcpus, pcpus, by_polluters)


def _order(room: Sequence[int], had: _Had,
           polluters: int) -> tuple[list[int], int]:
    """The order of sockets that keeps most vCPUs where they are.

    Those first of which polluters have had the greatest part; then, when so
    many have seats, those of which NEUTRAL vCPUs have, or CACHE ones have had
    fewest.

    :returns: also the seats of the sockets that polluters then need
    """
    others = [(-neutral / max(1, count), cache) for neutral, cache, count
              in zip(had.neutral, had.cache, room, strict=True)]
    order = sorted(range(len(room)), key=lambda socket: (
        -had.polluters[socket] / max(1, room[socket]), others[socket]))
    ends = list(itertools.accumulate(room[socket] for socket in order))
    last = bisect.bisect_left(ends, polluters)
    order[last + 1:] = sorted(order[last + 1:], key=others.__getitem__)
    return order, ends[last]


def _border(sockets: Iterable[int], order: Sequence[int]) -> int | None:
    """The last socket, in this order, that has polluters."""
    polluted = set(sockets)
    return next((socket for socket in reversed(order)
                 if socket in polluted), None)


def _take(count: int, room: list[int], order: Sequence[int]) -> list[int]:
    """Seats for so many vCPUs, from the first sockets that have room."""
    seats = [0] * len(room)
    for socket in order:
        seats[socket] = min(count, room[socket])
        room[socket] -= seats[socket]
        count -= seats[socket]
    return seats


def _seat(members: Sequence[model.Vcpu], seats: Sequence[int],
          held: Mapping[model.Key, int]) -> dict[model.Key, int]:
    places = seating.seat([vcpu.server for vcpu in members], seats,
                          [held.get(vcpu.key) for vcpu in members])
    return {vcpu.key: place
            for vcpu, place in zip(members, places, strict=True)}


def _beside_polluters(indifferent: Sequence[model.Vcpu], border: int,
                      count: int, held: Mapping[model.Key, int],
                      ) -> list[model.Vcpu]:
    """Who takes the last seats beside polluters; those who do already first.
    """
    elsewhere = {vcpu.key: int(held[vcpu.key] != border)
                 for vcpu in indifferent if vcpu.key in held}
    places = _seat(indifferent, [count, len(indifferent) - count], elsewhere)
    return [vcpu for vcpu in indifferent if places[vcpu.key] == 0]
