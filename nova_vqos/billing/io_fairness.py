# SPDX-License-Identifier: Apache-2.0
"""Whether servers that are offered alike are served alike. Pure.

Jain's index of amounts x of n servers is (sum x)^2 / (n sum x^2): 1 where all
got the same, k/n where k of them share all and the others got nothing (Jain,
Chiu and Hawe, DEC-TR-301, 1984).

It says something of the host only where servers want the same of it and may
have the same. So servers are compared that have the same CPU units, and whose
offers differ by a factor of 1.5 at most. A host that gives each of them the
same, or all that it was offered where that is less, has an index of 0.96 at
least: amounts between 1 and f have one of 4 f / (1 + f)^2 at least
(Schweitzer's inequality).

What a server was offered is known of packets to it: those that it received,
and those that the host dropped since it did not take them. Of what a server
sends, reads and writes, only what was done is counted, not what it wanted.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
import dataclasses
import itertools
import typing as ty

#: Direction of packets to servers.
RECEIVED: ty.Final = 'received'

# Offers that differ by no more are alike.
_LIKE = 1.5
# Packets a second. Below it there is no more than what a network sends to all.
_LEAST_OFFERED = 100.0
# A server whose bills cover less of the time, or so much more than that, says
# little of it: it has just come, or could not be read before.
_LEAST_COVERED = 0.5


@dataclasses.dataclass(frozen=True, slots=True)
class Fairness:
    """How alike servers with like offers were served, for people.

    Of several groups of such servers, the one with the lowest index.

    :ivar jain: Jain's index of what they got, from 1/servers to 1
    :ivar servers: how many were compared
    :ivar least_server: UUID of the one that got least
    """

    jain: float
    servers: int
    least_server: str


@dataclasses.dataclass(slots=True)
class _Received:
    """The packets to one server, and for how long they were counted."""

    units: int | None
    length_s: float = 0.0
    delivered: int = 0
    dropped: int = 0


class _Offer(ty.NamedTuple):
    """The packets to one server, a second."""

    units: int
    offered: float
    delivered: float
    uuid: str


class IoFairness:
    """Compares the servers of a host."""

    def __init__(self) -> None:
        self._received: dict[str, _Received] = {}

    def add(self, uuid: str, units: int | None, length_s: float,
            delivered: int, dropped: int) -> None:
        """Add the packets of a bill.

        :param units: of the server; None: it has none
        """
        found = self._received.setdefault(uuid, _Received(units))
        found.units = units
        found.length_s += length_s
        found.delivered += delivered
        found.dropped += dropped

    def end(self, length_s: float) -> Mapping[str, Fairness]:
        """Compare what was added, and begin anew.

        :param length_s: for how long it was added
        :returns: by direction; without those of which no two servers can be
            compared
        """
        received, self._received = self._received, {}
        found = [
            Fairness(jain([one.delivered for one in group]), len(group),
                     min(group, key=lambda one: one.delivered).uuid)
            for group in _groups(_offers(received, length_s))
            if len(group) > 1]
        return {} if not found else {
            RECEIVED: min(found, key=lambda one: (one.jain, -one.servers))}


def jain(amounts: Collection[float]) -> float:
    """Jain's index of amounts that are not negative.

    :raises ValueError: when none is above 0
    """
    most = max(amounts, default=0)
    if most <= 0:
        raise ValueError('nothing was shared')
    parts = [amount / most for amount in amounts]
    return min(1.0, sum(parts) ** 2
               / (len(parts) * sum(part * part for part in parts)))


def _offers(received: Mapping[str, _Received],
            length_s: float) -> Iterator[_Offer]:
    """Those of servers that can be compared."""
    for uuid, one in received.items():
        if not (_LEAST_COVERED * length_s <= one.length_s
                <= length_s / _LEAST_COVERED) or not one.length_s:
            continue
        offer = _Offer(one.units or 0,
                       (one.delivered + one.dropped) / one.length_s,
                       one.delivered / one.length_s, uuid)
        # One that takes nothing at all does not listen.
        if offer.delivered and offer.offered >= _LEAST_OFFERED:
            yield offer


def _groups(offers: Iterable[_Offer]) -> Iterator[list[_Offer]]:
    """All groups of like offers that are not part of another one."""
    for _units, found in itertools.groupby(
            sorted(offers), key=lambda one: one.units):
        alike = list(found)
        begin = 0
        for end, last in enumerate(alike, 1):
            while last.offered > _LIKE * alike[begin].offered:
                begin += 1
            if end == len(alike) or (
                    alike[end].offered > _LIKE * alike[begin].offered):
                yield alike[begin:end]
