# SPDX-License-Identifier: Apache-2.0
"""How the disks of an overdrawn server are held back: pure control.

Charging lowers the limit on a server's threads, down to a floor (see
:mod:`nova_vqos.billing.charge`). The kernel's work for its disk requests is
beside that limit. Where this work needs more than the floor leaves of the
units, the debt grows without end. Then the disks get a limit of their own.

The limit is one on requests and one on bytes per second, of all disks
together. Both are what the server did lately, times what its room is of the
cost of that. The cost of a request grows with its size, but by less than in
proportion (:mod:`nova_vqos.billing.costs`), so requests of no other size cost
more within both. What changes with the share of reads is found by the next
window.

It ends when the debt is paid and a minute has passed in which the limit held
nothing back. So I/O that comes again within a minute leaves it in force, and
it comes and goes rarely.
"""

import collections
import dataclasses
import math
import typing as ty

from nova_vqos.billing import charge

#: In which the room is exceeded, or the cost within a limit is measured.
WINDOW_S = 30.0
#: In which a limit has to hold nothing back before it ends.
QUIET_S = 60.0
#: Of what the floor leaves: the rest pays the debt.
ROOM_SHARE = 0.9
#: Of the units: the least room, whatever the floor is.
LEAST_SHARE = 0.05
# Of the room: a cost that differs by less changes no limit.
_DEAD_BAND = 0.1
# Of a limit: what is used below this was not held back by it.
_HELD = 0.8
# By which a limit changes at most, each time.
_MOST_CHANGE = 4.0
# In seconds of the units: less debt than charging acts on.
_PAID_S = 0.5


class DiskLimit(ty.NamedTuple):
    """A limit on all disks of a server together; both are one or more."""

    requests_per_s: int
    bytes_per_s: int


@dataclasses.dataclass(frozen=True, slots=True)
class Interval:
    """What a server's I/O cost in a while, in CU seconds.

    :ivar disk_cu_s: of the kernel, for its disk requests
    :ivar sent_cu_s: of the kernel, for what it sent
    :ivar requests: of its disks
    :ivar size_bytes: of all these requests together
    :ivar owed_cu_s: by how much its debt grew, what was written off included
    """

    length_s: float
    disk_cu_s: float
    sent_cu_s: float
    requests: int
    size_bytes: int
    owed_cu_s: float


class Throttle:
    """The control of one server.

    :ivar limit: wanted; None: none
    """

    def __init__(self, limit: DiskLimit | None = None) -> None:
        """:param limit: that is in force"""
        self.limit = limit
        # Since the limit changed.
        self._seen: collections.deque[Interval] = collections.deque()
        self._seen_s = 0.0

    def step(self, terms: charge.Terms, interval: Interval, *,
             limit_share: float, debt_cu_s: float) -> None:
        """Take in what was used, and set the limit wanted.

        :param limit_share: what charging leaves the server
        :param debt_cu_s: at the end of the interval
        """
        if interval.length_s <= 0:
            return
        self._take(interval)
        room_share = max(LEAST_SHARE, 1 - terms.floor_share)
        sent_cu = self._mean('sent_cu_s')
        # Of its disks: what it sends is not held back.
        room_cu = max(LEAST_SHARE * terms.entitlement_cu,
                      ROOM_SHARE * room_share * terms.entitlement_cu - sent_cu)
        cost_cu = self._mean('disk_cu_s')
        if self.limit is None:
            if (limit_share <= terms.floor_share and interval.owed_cu_s > 0
                    and cost_cu > room_cu
                    and cost_cu + sent_cu
                    > room_share * terms.entitlement_cu):
                self._set(self._scaled(room_cu / cost_cu))
        elif self._is_quiet(self.limit, room_cu) and (
                debt_cu_s <= _PAID_S * terms.entitlement_cu):
            self._set(None)
        elif self._seen_s >= WINDOW_S and (
                cost_cu > (1 + _DEAD_BAND) * room_cu
                or cost_cu < (1 - _DEAD_BAND) * room_cu
                and self._is_held(self.limit)):
            limit = self._scaled(min(
                _MOST_CHANGE, room_cu / cost_cu if cost_cu else math.inf))
            if _differs(limit, self.limit):
                self._set(limit)

    def _take(self, interval: Interval) -> None:
        self._seen.append(interval)
        self._seen_s += interval.length_s
        while self._seen_s - self._seen[0].length_s >= QUIET_S:
            self._seen_s -= self._seen.popleft().length_s

    def _set(self, limit: DiskLimit | None) -> None:
        self.limit = limit
        self._seen.clear()
        self._seen_s = 0.0

    def _scaled(self, factor: float) -> DiskLimit:
        """The limit of so many times what it did lately."""
        return DiskLimit(*(
            max(1, math.ceil(self._mean(field) * factor))
            for field in ('requests', 'size_bytes')))

    def _is_held(self, limit: DiskLimit) -> bool:
        """Whether the limit held requests back lately."""
        return (self._mean('requests') >= _HELD * limit.requests_per_s
                or self._mean('size_bytes') >= _HELD * limit.bytes_per_s)

    def _is_quiet(self, limit: DiskLimit, room_cu: float) -> bool:
        """Whether requests fitted in each interval of the last minute."""
        return self._seen_s >= QUIET_S and all(
            one.requests < _HELD * limit.requests_per_s * one.length_s
            and one.size_bytes < _HELD * limit.bytes_per_s * one.length_s
            and one.disk_cu_s < _HELD * room_cu * one.length_s
            for one in self._seen)

    def _mean(self, field: str) -> float:
        """Of the last window, per second; what was not seen is nothing."""
        total, left_s = 0.0, WINDOW_S
        for one in reversed(self._seen):
            if left_s <= 0:
                break
            total += getattr(one, field) * min(1.0, left_s / one.length_s)
            left_s -= one.length_s
        return total / WINDOW_S


def _differs(one: DiskLimit, other: DiskLimit) -> bool:
    return any(abs(value - before) > _DEAD_BAND * before
               for value, before in zip(one, other, strict=True))
