# SPDX-License-Identifier: Apache-2.0
"""How a ceiling is divided among the servers that share it. Pure.

Each wants what it uses and a bit more, or all of its units if its part held it
back lately. What all want is given in proportion to their units, and what is
left after that likewise.
"""

from collections.abc import Iterable, Sequence
import typing as ty

#: Of its part by units alone, what a server keeps that uses nothing: it has to
#: be seen to want more.
LEAST_SHARE = 0.2
# Of what it uses: what it may need before the next reading.
_AHEAD = 1.25


class Member(ty.NamedTuple):
    """A server that shares a ceiling.

    :ivar units: its own
    :ivar most_cu: that it can use of them: the rest pays for its I/O
    :ivar used_cu: lately; None: not known, it may want all
    :ivar is_held: whether its part held it back lately
    :ivar is_free: whether no limit binds it now: what it uses comes first
    :ivar least_cu: that a limit can leave it
    """

    units: int
    most_cu: float
    used_cu: float | None = None
    is_held: bool = True
    is_free: bool = False
    least_cu: float = 0.0


def divide(ceiling_cu: float, members: Sequence[Member]) -> list[float]:
    """The CU of each server, in the same order.

    Their sum is the ceiling, unless all their units are less, or what limits
    can leave is more. No server gets more than its units.

    :param members: one or more
    """
    sold_cu = sum(one.units for one in members)
    if sold_cu <= ceiling_cu:
        return [float(one.units) for one in members]
    free = {index: max(_wanted_cu(one), _least_cu(ceiling_cu, sold_cu, one))
            for index, one in enumerate(members) if one.is_free}
    found = iter(_divide(max(0.0, ceiling_cu - sum(free.values())),
                         [one for one in members if not one.is_free]))
    return [free[index] if one.is_free else next(found)
            for index, one in enumerate(members)]


def _divide(ceiling_cu: float, members: Sequence[Member]) -> list[float]:
    sold_cu = sum(one.units for one in members)
    if sold_cu <= ceiling_cu:
        return [float(one.units) for one in members]
    least_cu = [_least_cu(ceiling_cu, sold_cu, one) for one in members]
    wanted_cu = [max(0.0, _wanted_cu(one) - least)
                 for one, least in zip(members, least_cu, strict=True)]
    given = _add(least_cu, _fill(ceiling_cu - sum(least_cu), members,
                                 wanted_cu))
    return _add(given, _fill(ceiling_cu - sum(given), members, [
        one.units - cu for one, cu in zip(members, given, strict=True)]))


def _least_cu(ceiling_cu: float, sold_cu: int, member: Member) -> float:
    return min(float(member.units), max(
        member.least_cu, LEAST_SHARE * ceiling_cu * member.units / sold_cu))


def _wanted_cu(member: Member) -> float:
    most_cu = float(member.units) if member.is_free else member.most_cu
    if member.is_held or member.used_cu is None:
        return most_cu
    return min(most_cu, _AHEAD * member.used_cu)


def _fill(left_cu: float, members: Sequence[Member],
          most_cu: Sequence[float]) -> list[float]:
    """Give what is left in proportion to units, and none above its most."""
    given = [0.0] * len(members)
    left_cu, left_units = max(0.0, left_cu), sum(
        one.units for one in members)
    # Those that are content with least of their part come first.
    for index in sorted(range(len(members)), key=lambda index: (
            most_cu[index] / members[index].units)):
        units = members[index].units
        given[index] = min(most_cu[index], left_cu * units / left_units)
        left_cu -= given[index]
        left_units -= units
    return given


def _add(these: Iterable[float], those: Iterable[float]) -> list[float]:
    return [one + other for one, other in zip(these, those, strict=True)]
