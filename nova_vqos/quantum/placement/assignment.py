# SPDX-License-Identifier: Apache-2.0
"""Assign vCPUs to places of which only the sizes are given.

Both levels of clustering count first: how many vCPUs of a kind each socket, or
each pool of a socket, holds. This module chooses the vCPUs, with these aims in
order: no vCPU moves without need, the vCPUs of a server stay together, and
first vCPUs get first places. Pure.
"""

from collections.abc import Sequence
import itertools

# Servers before and after the one that does not fit among which others are
# sought that do: a bound, so that the work grows with the number of vCPUs.
_SEARCH_WIDTH = 32


def assign(servers: Sequence[str], slots: Sequence[int],
           previous: Sequence[int | None]) -> list[int]:
    """The place of each vCPU.

    Without previous places, fills the places in their order with the vCPUs in
    theirs, those of a server together (thesis 3.3.3, algorithm 1, lines 3 and
    15); but other servers take the last slots of a place where that avoids
    splitting a server.

    A vCPU stays at a place that has enough slots. k slots fewer at one place
    and k more at others move k vCPUs, and at most k more that were split from
    their server and now find a slot beside it.

    :param servers: the server of each vCPU
    :param slots: of each place; as many as there are vCPUs
    :param previous: the place of each vCPU so far; None: it is new
    :returns: an index into ``slots`` for each vCPU
    """
    places = list(previous)
    _release_excess(places, servers, slots)
    free = [count - places.count(place) for place, count in enumerate(slots)]
    if any(free):
        _reunite(places, servers, free)
    for place, count in enumerate(free):
        if count:
            waiting = _by_server(servers, [
                index for index, other in enumerate(places) if other is None])
            for index in choose(waiting, count):
                places[index] = place
    return [place for place in places if place is not None]


def choose(groups: Sequence[Sequence[int]], count: int) -> list[int]:
    """So many members of groups, splitting at most one group.

    :param groups: disjoint, none empty
    :param count: at most as many as they have together
    :returns: the members of the first groups, if these have that many; else
        of others near the last one, if these do; else of the first groups and
        a part of the next
    """
    ends = list(itertools.accumulate(map(len, groups), initial=0))
    whole = sum(1 for end in ends if end <= count) - 1
    if ends[whole] < count:
        begin = max(0, whole - _SEARCH_WIDTH)
        near = groups[begin:whole + _SEARCH_WIDTH]
        picked = subset_with_sum(list(map(len, near)), count - ends[begin])
        if picked is not None:
            groups = [*groups[:begin], *(near[place] for place in picked)]
    return list(itertools.islice(itertools.chain.from_iterable(groups),
                                 count))


def subset_with_sum(sizes: Sequence[int], total: int) -> list[int] | None:
    """Positions of sizes that add up to a total, early ones first.

    The subset-sum recurrence on the bits of integers: bit s of reachable[i]
    is set where some of the first i sizes add up to s.

    :returns: None: no sizes add up to it
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


def smallest_sum(sizes: Sequence[int], low: int, high: int) -> int | None:
    """The smallest number from low to high that some sizes add up to."""
    sums = 1
    for size in sizes:
        sums |= sums << size
    within = sums >> low & ((1 << high - low + 1) - 1)
    if not within:
        return None
    return low + (within & -within).bit_length() - 1


def _release_excess(places: list[int | None], servers: Sequence[str],
                    slots: Sequence[int]) -> None:
    """Release vCPUs from places that have too few slots.

    First vCPUs whose server has more of them elsewhere, then the last ones.
    """
    members: list[list[int]] = [[] for _ in slots]
    for index, place in enumerate(places):
        if place is not None:
            members[place].append(index)
    if all(len(here) <= count
           for here, count in zip(members, slots, strict=True)):
        return
    homes = _homes(places, servers)
    for place, (here, count) in enumerate(zip(members, slots, strict=True)):
        if len(here) > count:
            parts = _by_server(servers, here)[::-1]
            parts.sort(key=lambda part: homes[servers[part[0]]] == place)
            for index in choose(parts, len(here) - count):
                places[index] = None


def _reunite(places: list[int | None], servers: Sequence[str],
             free: list[int]) -> None:
    """Move parts of servers to the largest part, where all of a part fits."""
    homes = _homes(places, servers)
    apart: dict[tuple[str, int | None], list[int]] = {}
    for index, (server, place) in enumerate(zip(servers, places,
                                                strict=True)):
        if homes.get(server, place) != place:
            apart.setdefault((server, place), []).append(index)
    # Only vCPUs without a place get slots that become free here: else others
    # would follow one another into them.
    unclaimed = list(free)
    for (server, place), part in sorted(apart.items(),
                                        key=lambda item: item[0][1] is None):
        home = homes[server]
        usable = free if place is None else unclaimed
        if len(part) > usable[home]:
            continue
        for index in part:
            places[index] = home
        free[home] -= len(part)
        if place is not None:
            unclaimed[home] -= len(part)
            free[place] += len(part)


def _homes(places: Sequence[int | None],
           servers: Sequence[str]) -> dict[str, int]:
    """The place of most vCPUs of each server that has one."""
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


def _by_server(servers: Sequence[str],
               indexes: Sequence[int]) -> list[list[int]]:
    """Indexes by server, in the order in which these first appear."""
    parts: dict[str, list[int]] = {}
    for index in indexes:
        parts.setdefault(servers[index], []).append(index)
    return list(parts.values())
