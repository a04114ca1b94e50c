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

"""Who takes which seat, when only their number at each place is given.

Both levels of clustering count first: how many vCPUs of a kind each socket,
or each pool of a socket, is to hold. Who they are is settled here, by three
wishes in this order: nobody who may stay moves, a server stands together, and
those who come first are placed first. Pure.
"""

from collections.abc import Sequence
import itertools

# How many servers before and after the one that does not fit are looked at
# for others that do. Bounded, so that the work grows with the number of vCPUs.
_LOOK_AROUND = 32


def seat(servers: Sequence[str], seats: Sequence[int],
         held: Sequence[int | None]) -> list[int]:
    """The place of each vCPU.

    With nothing held the places are filled in their order with the vCPUs in
    theirs, those of a server together (thesis 3.3.3, algorithm 1, lines 3 and
    15), save that other servers take the last seats of a place where that
    spares one from being cut.

    Moves nobody who held a seat at a place that has enough of them: k seats
    fewer at one place and k more at others move k vCPUs, and at most k more,
    that stood apart from their server and find a free seat beside it.

    :param servers: the server of each vCPU
    :param seats: at each place; as many as there are vCPUs
    :param held: the place of each vCPU until now; None: it had none
    :returns: an index into ``seats`` for each vCPU
    """
    places = list(held)
    _give_up_seats(places, servers, seats)
    free = [count - places.count(place) for place, count in enumerate(seats)]
    if any(free):
        _go_home(places, servers, free)
    for place, count in enumerate(free):
        if count:
            waiting = _parts(servers, [index for index, taken
                                       in enumerate(places) if taken is None])
            for index in choose(waiting, count):
                places[index] = place
    return [place for place in places if place is not None]


def choose(groups: Sequence[Sequence[int]], count: int) -> list[int]:
    """So many members of groups, of which at most one is cut.

    :param groups: disjoint, none empty
    :param count: at most as many as they have together
    :returns: the members of the first groups, if these have that many; else
        of others near the last one, if these do; else of the first groups and
        a part of the next
    """
    ends = list(itertools.accumulate(map(len, groups), initial=0))
    whole = sum(1 for end in ends if end <= count) - 1
    if ends[whole] < count:
        begin = max(0, whole - _LOOK_AROUND)
        near = groups[begin:whole + _LOOK_AROUND]
        picked = exactly(list(map(len, near)), count - ends[begin])
        if picked is not None:
            groups = [*groups[:begin], *(near[place] for place in picked)]
    return list(itertools.islice(itertools.chain.from_iterable(groups),
                                 count))


def exactly(sizes: Sequence[int], total: int) -> list[int] | None:
    """Which of some sizes have exactly this sum: early ones first.

    The subset-sum recurrence on the bits of integers: bit s of reachable[i]
    says that some of the first i sizes add up to s.

    :returns: their positions; None: no sizes have it
    """
    within = (1 << total + 1) - 1
    reachable = [1]
    for size in sizes:
        if reachable[-1] >> total:
            break
        reachable.append(
            (reachable[-1] | reachable[-1] << size) & within)
    if not reachable[-1] >> total:
        return None
    positions = []
    for position in reversed(range(len(reachable) - 1)):
        if not reachable[position] >> total & 1:
            positions.append(position)
            total -= sizes[position]
    return positions[::-1]


def least_sum(sizes: Sequence[int], least: int, most: int) -> int | None:
    """The least number in a range that some of the sizes add up to, if any.

    :param least: of the range
    :param most: of the range, at least ``least``
    """
    sums = 1
    for size in sizes:
        sums |= sums << size
    within = sums >> least & ((1 << most - least + 1) - 1)
    if not within:
        return None
    return least + (within & -within).bit_length() - 1


def _give_up_seats(places: list[int | None], servers: Sequence[str],
                   seats: Sequence[int]) -> None:
    """Let those leave for whom a place has no seat any more.

    Parts of servers that have more vCPUs elsewhere leave first, then who came
    last.
    """
    members: list[list[int]] = [[] for _ in seats]
    for index, place in enumerate(places):
        if place is not None:
            members[place].append(index)
    if all(len(here) <= count
           for here, count in zip(members, seats, strict=True)):
        return
    homes = _homes(places, servers)
    for place, (here, count) in enumerate(zip(members, seats, strict=True)):
        if len(here) > count:
            parts = _parts(servers, here)[::-1]
            parts.sort(key=lambda part: homes[servers[part[0]]] == place)
            for index in choose(parts, len(here) - count):
                places[index] = None


def _go_home(places: list[int | None], servers: Sequence[str],
             free: list[int]) -> None:
    """Let parts of servers join the greatest one, where all of a part can."""
    homes = _homes(places, servers)
    apart: dict[tuple[str, int | None], list[int]] = {}
    for index, (server, place) in enumerate(zip(servers, places,
                                                strict=True)):
        if homes.get(server, place) != place:
            apart.setdefault((server, place), []).append(index)
    # Seats that are left on the way are for those who have none: others would
    # follow one another into them.
    unclaimed = list(free)
    for (server, place), part in sorted(apart.items(), key=_has_no_place):
        home = homes[server]
        seats = free if place is None else unclaimed
        if len(part) > seats[home]:
            continue
        for index in part:
            places[index] = home
        free[home] -= len(part)
        if place is not None:
            unclaimed[home] -= len(part)
            free[place] += len(part)


def _has_no_place(apart: tuple[tuple[str, int | None], list[int]]) -> bool:
    (_server, place), _part = apart
    return place is None


def _homes(places: Sequence[int | None],
           servers: Sequence[str]) -> dict[str, int]:
    """Where most vCPUs of each server are; none for those that are nowhere."""
    counts: dict[tuple[str, int], int] = {}
    homes: dict[str, int] = {}
    for server, place in zip(servers, places, strict=True):
        if place is None:
            continue
        counts[server, place] = counts.get((server, place), 0) + 1
        home = homes.setdefault(server, place)
        if counts[server, place] > counts[server, home]:
            homes[server] = place
    return homes


def _parts(servers: Sequence[str], indexes: Sequence[int]) -> list[list[int]]:
    """Indexes by server, in the order in which these first appear."""
    parts: dict[str, list[int]] = {}
    for index in indexes:
        parts.setdefault(servers[index], []).append(index)
    return list(parts.values())
