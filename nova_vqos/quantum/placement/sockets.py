# SPDX-License-Identifier: Apache-2.0
"""The first level of clustering: which vCPUs run on which socket.

Algorithm 1 of the thesis (3.3.3): vCPUs that pollute the last-level cache and
vCPUs that suffer from that run on different sockets as far as possible, each
socket gets its fair number of vCPUs, and a server stays together. The erratum:
line 5 as printed has LLCF for the polluter; the text and figure 3.3 say LLCO,
and so do we.

We add, where the thesis leaves it open:

* Sockets may differ (pCPUs may be offline, isolated or dedicated): "n vCPUs
  each" becomes "as many per pCPU, within one".
* Algorithm 1 allows several orders of servers and sockets. Another order than
  the given one is used where only that keeps as few cache-friendly vCPUs as
  possible beside polluters. Figure 3.3 has eight of them there; one is enough.
* vCPUs stay on their socket as far as that allows (see assignment).

Pure. For a given number of sockets the work grows as vCPUs + pCPUs, but for
one sorting of the pCPUs' numbers.
"""

import bisect
import collections
from collections.abc import Iterator, Mapping, Sequence
import itertools
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import assignment

# Of dividing vCPUs among sockets: with equal sockets there are very many.
_MOST_WAYS = 64


def vcpus_per_socket(vcpus: int, pcpus: Sequence[int],
                     first: Sequence[int] = ()) -> list[int]:
    """How many vCPUs each socket holds.

    Equal sockets get vcpus / sockets each (algorithm 1, line 12). In general
    every pCPU gets floor(vcpus / pCPUs), and the sockets get the rest in turn
    by the divisor method of D'Hondt: with one vCPU more one socket holds one
    more, and all others as many as before.

    :param vcpus: in all
    :param pcpus: of each socket; at least one in all
    :param first: the order of sockets whose turn it is at the same time, as
        indexes; the given order if empty
    """
    each, more = divmod(vcpus, sum(pcpus))
    counts = [each * count for count in pcpus]
    ranks = {socket: rank for rank, socket in enumerate(first)}
    turns = sorted((turn, ranks.get(socket, socket), socket)
                   for turn, socket in _turns(pcpus))
    for _, _, socket in turns[:more]:
        counts[socket] += 1
    return counts


def _turns(pcpus: Sequence[int]) -> Iterator[tuple[float, int]]:
    """When each socket gets one vCPU more, by D'Hondt, and its index."""
    return ((turn / count, socket) for socket, count in enumerate(pcpus)
            for turn in range(1, count + 1))


def assign(vcpus: Sequence[model.Vcpu], pcpus: Sequence[int],
           previous: Mapping[model.Key, int] | None = None,
           ) -> list[list[model.Vcpu]]:
    """The vCPUs of each socket (algorithm 1).

    Polluters fill the first sockets. NEUTRAL vCPUs follow, so that they rather
    than CACHE ones are beside the last polluters, and what suits both; then
    all others in the given order.

    :param vcpus: servers count in the order in which they first appear
    :param pcpus: of each socket; at least one in all
    :param previous: by a vCPU's key its socket so far, as an index into
        ``pcpus``
    :returns: for each socket its vCPUs, in the given order
    """
    previous = previous or {}
    groups = _Groups(vcpus)
    room, order = _room_and_order(groups, pcpus, previous)
    places: dict[model.Key, int] = {}

    def place(members: Sequence[model.Vcpu]) -> None:
        slots = _claim(len(members), room, order)
        places.update(_assign(members, slots, previous))

    place(groups.polluters)
    polluted = set(places.values())
    # The last socket, in this order, that has polluters.
    border = next((socket for socket in reversed(order)
                   if socket in polluted), None)
    place(groups.neutral)
    rest = groups.rest
    if border is not None and groups.cache:
        beside = _beside_polluters(
            groups.indifferent, border,
            min(room[border], len(groups.indifferent)), previous)
        place(beside)
        placed = {vcpu.key for vcpu in beside}
        rest = [vcpu for vcpu in rest if vcpu.key not in placed]
    place(rest)
    sockets: list[list[model.Vcpu]] = [[] for _ in pcpus]
    for vcpu in vcpus:
        sockets[places[vcpu.key]].append(vcpu)
    return sockets


class _Groups:
    """vCPUs by their effect on the last-level cache.

    :ivar polluters: pollute it
    :ivar neutral: do not use it
    :ivar rest: all others
    :ivar cache: those of the rest that suffer most from polluters
    :ivar indifferent: the others of the rest
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


class _Previous(ty.NamedTuple):
    """How many of each group's vCPUs each socket had."""

    polluters: Sequence[int]
    neutral: Sequence[int]
    cache: Sequence[int]
    indifferent: Sequence[int]


def _count_previous(groups: _Groups, sockets: int,
                    previous: Mapping[model.Key, int]) -> _Previous:
    def counts(members: Sequence[model.Vcpu]) -> list[int]:
        found = collections.Counter(
            previous[vcpu.key] for vcpu in members if vcpu.key in previous)
        return [found[socket] for socket in range(sockets)]

    return _Previous(counts(groups.polluters), counts(groups.neutral),
                     counts(groups.cache), counts(groups.indifferent))


def _room_and_order(groups: _Groups, pcpus: Sequence[int],
                    previous: Mapping[model.Key, int],
                    ) -> tuple[list[int], list[int]]:
    """The number of vCPUs of each socket, and the order of filling sockets.

    The order that moves fewest vCPUs; but where it leaves polluters beside
    cache-friendly vCPUs, sockets come first that can be filled without the
    latter, or with as few of them as possible.
    """
    had = _count_previous(groups, len(pcpus), previous)
    least = len(groups.polluters)
    most = least + len(groups.neutral) + len(groups.indifferent)
    choices = []
    for room in _rooms(most + len(groups.cache), pcpus, had):
        order, slots = _order(room, had, least)
        if slots <= most or not least:
            return room, order
        sizes = [room[socket] for socket in order]
        fewest = assignment.smallest_sum(sizes, least, sum(sizes))
        reorders = fewest is not None and fewest < slots
        if fewest is not None and reorders:
            first = [order[position] for position
                     in assignment.subset_with_sum(sizes, fewest) or ()]
            order = first + [socket for socket in order if socket not in first]
            slots = fewest
        choices.append((max(most, slots), reorders, room, order))
    _, _, room, order = min(choices, key=lambda choice: choice[:2])
    return room, order


def _rooms(vcpus: int, pcpus: Sequence[int],
           had: _Previous) -> Iterator[list[int]]:
    """The number of vCPUs of each socket, in several equally fair ways.

    Sockets that had one more than others get one more in the first way, those
    that had most polluters in the second, those that had fewest in the third.
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
    # Whatever they had: what is found next time is to be found this time.
    for first in _first_of_equals(vcpus, pcpus):
        yield vcpus_per_socket(vcpus, pcpus, first)


def _first_of_equals(vcpus: int, pcpus: Sequence[int]
                     ) -> Iterator[Sequence[int]]:
    """Orders of sockets, one for each way to divide the last vCPUs.

    Which of several equal sockets have one makes no difference here.
    """
    more = vcpus % sum(pcpus)
    if not more:
        return
    turns = sorted(_turns(pcpus))
    last, _ = turns[more - 1]
    # Each has one turn at a time.
    equal = [socket for turn, socket in turns if turn == last]
    wanted = sum(turn == last for turn, _ in turns[:more])
    seen = set()
    for chosen in itertools.islice(
            itertools.combinations(equal, wanted), _MOST_WAYS):
        widths = tuple(sorted(pcpus[socket] for socket in chosen))
        if widths not in seen:
            seen.add(widths)
            yield [*chosen, *(socket for socket in range(len(pcpus))
                              if socket not in chosen)]


def _order(room: Sequence[int], had: _Previous,
           polluters: int) -> tuple[list[int], int]:
    """The order of sockets that moves fewest vCPUs.

    Sockets with the greatest part of polluters first. Once all polluters have
    slots, those with the greatest part of NEUTRAL vCPUs, then those with the
    fewest CACHE ones.

    :returns: also the slots of the sockets that polluters then need
    """
    others = [(-neutral / max(1, count), cache) for neutral, cache, count
              in zip(had.neutral, had.cache, room, strict=True)]
    order = sorted(range(len(room)), key=lambda socket: (
        -had.polluters[socket] / max(1, room[socket]), others[socket]))
    ends = list(itertools.accumulate(room[socket] for socket in order))
    last = bisect.bisect_left(ends, polluters)
    order[last + 1:] = sorted(order[last + 1:], key=others.__getitem__)
    return order, ends[last]


def _claim(count: int, room: list[int], order: Sequence[int]) -> list[int]:
    """Claim so many slots, of the first sockets that have room."""
    slots = [0] * len(room)
    for socket in order:
        slots[socket] = min(count, room[socket])
        room[socket] -= slots[socket]
        count -= slots[socket]
    return slots


def _assign(members: Sequence[model.Vcpu], slots: Sequence[int],
            previous: Mapping[model.Key, int]) -> dict[model.Key, int]:
    places = assignment.assign([vcpu.server for vcpu in members], slots,
                               [previous.get(vcpu.key) for vcpu in members])
    return {vcpu.key: place
            for vcpu, place in zip(members, places, strict=True)}


def _beside_polluters(indifferent: Sequence[model.Vcpu], border: int,
                      count: int, previous: Mapping[model.Key, int],
                      ) -> list[model.Vcpu]:
    """The vCPUs that get the last slots beside polluters.

    Those that had one already come first.
    """
    elsewhere = {vcpu.key: int(previous[vcpu.key] != border)
                 for vcpu in indifferent if vcpu.key in previous}
    places = _assign(indifferent, [count, len(indifferent) - count],
                     elsewhere)
    return [vcpu for vcpu in indifferent if places[vcpu.key] == 0]
