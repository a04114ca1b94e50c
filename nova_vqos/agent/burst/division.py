# SPDX-License-Identifier: Apache-2.0
"""What a host's servers may burst with, and how they share it. Pure.

It is what no server uses. Servers that use all of their units come first, then
the others, each in proportion to what it may use beyond its units.
"""

from collections.abc import Iterable, Sequence
import typing as ty

# Of what servers use: what they may need before the next reading.
_AHEAD = 1.25
# Of its units: one that uses so much wants more.
_WANTS_USE = 0.9
# A server gets so many parts, or fewer, of what it may use beyond its units:
# each change is a write, which gives CPU time away.
_STEPS = 8


class Use(ty.NamedTuple):
    """What a server uses, in CU of the host.

    :ivar most_cu: that its vCPUs can use, bursts aside
    :ivar used_cu: by them, lately; None: not known
    :ivar io_cu: by its other threads
    """

    most_cu: float
    used_cu: float | None = None
    io_cu: float = 0.0

    @property
    def expected_cu(self) -> float:
        """What it may use until the next reading, without a burst."""
        vcpu_cu = self.most_cu if self.used_cu is None else min(
            self.most_cu, _AHEAD * self.used_cu)
        return vcpu_cu + _AHEAD * self.io_cu

    @property
    def wants(self) -> bool:
        """Whether its vCPUs use all that they can, as far as known."""
        return (self.used_cu is None
                or self.used_cu >= _WANTS_USE * self.most_cu)


class Member(ty.NamedTuple):
    """A server that has saved enough to burst.

    :ivar extra_cu: what it may use beyond its units, in CU of the host; above
        0
    :ivar wants: whether it uses all of its units
    """

    extra_cu: float
    wants: bool


def room_cu(capacity_cu: float, uses: Iterable[Use]) -> float:
    """What servers may use beyond their units, all together; 0 or more.

    :param capacity_cu: of the host, without reserved units and without the
        load outside of servers
    :param uses: of all servers, those that burst included
    """
    return max(0.0, capacity_cu - sum(one.expected_cu for one in uses))


def divide(room: float, members: Sequence[Member]) -> list[float]:
    """What each server gets beyond its units, in the same order.

    Never more than the room together, and none more than its extra_cu. More
    room is less for none.
    """
    wanted = _fill(room, [one.extra_cu if one.wants else 0.0
                          for one in members])
    rest = _fill(room - sum(wanted), [
        0.0 if one.wants else one.extra_cu for one in members])
    return [_whole_steps(given + more, one.extra_cu) for given, more, one
            in zip(wanted, rest, members, strict=True)]


def _fill(room: float, most_cu: Sequence[float]) -> list[float]:
    """All that each may have, or the same part of it."""
    wanted_cu = sum(most_cu)
    part = min(1.0, max(0.0, room) / wanted_cu) if wanted_cu else 0.0
    return [part * one for one in most_cu]


def _whole_steps(cu: float, most_cu: float) -> float:
    return most_cu * int(_STEPS * cu / most_cu) / _STEPS
