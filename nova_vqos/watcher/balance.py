# SPDX-License-Identifier: Apache-2.0
"""Which servers to move, so that units are level and can be sold. Pure.

Two figures say how well servers are placed, both as parts of 1:

spread
    The standard deviation of the part of its units that each host has sold.
stranded
    The part of all units that is left and that memory, or units, in the wrong
    place keep from being sold: what could be sold if all that is left were on
    one host, less what can be sold as it is. Servers are taken to need memory
    and units as those that there are need them together.

A move lowers what is above its threshold and raises nothing above one. It
takes only room that is there before the first move: one that fails leaves no
other without a place.
"""

import collections
from collections.abc import Callable, Iterable, Iterator
import math
import typing as ty

# Smaller improvements are not worth a migration.
_LEAST_GAIN = 1e-6
# Of a figure, by sums of floats: a smaller change is none.
_ROUNDING = 1e-9


class Host(ty.NamedTuple):
    """A host that sells units.

    :ivar capacity_cu: that Placement sells, above 0
    :ivar used_cu: that servers hold
    :ivar capacity_mb: memory that Placement sells
    :ivar used_mb: that servers hold
    """

    name: str
    capacity_cu: int
    used_cu: int
    capacity_mb: int
    used_mb: int


class Server(ty.NamedTuple):
    """A server with units.

    :ivar host: where it is
    :ivar cu: that it holds, above 0
    :ivar memory_mb: that it holds
    :ivar may_move: whether it may be moved at all
    """

    uuid: str
    host: str
    cu: int
    memory_mb: int
    may_move: bool = True


class Goals(ty.NamedTuple):
    """When to stop.

    :ivar spread: at most
    :ivar stranded: at most
    :ivar max_moves: of one plan
    """

    spread: float
    stranded: float
    max_moves: int


class Figures(ty.NamedTuple):
    """How well servers are placed, see above."""

    spread: float
    stranded: float

    def excess(self, goals: Goals) -> tuple[float, float]:
        """What of each is above its threshold."""
        return (max(0.0, self.spread - goals.spread),
                max(0.0, self.stranded - goals.stranded))


class Move(ty.NamedTuple):
    """A live migration to propose."""

    server: Server
    destination: str


class Plan(ty.NamedTuple):
    """Moves in their order, and the figures before and after all of them."""

    moves: tuple[Move, ...]
    before: Figures
    after: Figures


def plan(hosts: Iterable[Host], servers: Iterable[Server], goals: Goals,
         accept: Callable[[Server, str], bool]) -> Plan:
    """Find moves, the one that gains most first.

    :param hosts: among which servers may move
    :param servers: of these hosts, each with units
    :param accept: whether a server can be moved to a host, after all moves
        that it accepted before; a move that it accepts is proposed
    """
    placed = _Placed(hosts, servers)
    before = placed.figures
    moves: list[Move] = []
    refused: set[tuple[str, str]] = set()
    while len(moves) < goals.max_moves:
        move = next((one for one in placed.candidates(goals, refused)
                     if _accepted(one, accept, refused)), None)
        if move is None:
            break
        placed.move(move)
        moves.append(move)
    return Plan(tuple(moves), before, placed.figures)


def _accepted(move: Move, accept: Callable[[Server, str], bool],
              refused: set[tuple[str, str]]) -> bool:
    if accept(move.server, move.destination):
        return True
    # No move makes room for another: it remains refused.
    refused.add((move.server.uuid, move.destination))
    return False


class _Terms(ty.NamedTuple):
    """What one host adds to the sums that figures are of.

    :ivar part: of its units that is sold, less the mean of all hosts at first
    :ivar square: of that
    :ivar free_cu: units left
    :ivar served_cu: units that the memory left is for
    :ivar sellable_cu: the lesser of both
    """

    part: float
    square: float
    free_cu: float
    served_cu: float
    sellable_cu: float


class _Placed:
    """Servers on hosts, as the moves so far leave them."""

    def __init__(self, hosts: Iterable[Host],
                 servers: Iterable[Server]) -> None:
        self._hosts = {one.name: one for one in hosts}
        # What the moves leave for others: nothing that one of them frees.
        self._room = dict(self._hosts)
        mine = [one for one in servers if one.host in self._hosts]
        # Equal servers of a host are one case.
        self._alike: dict[tuple[str, int, int], list[Server]] = (
            collections.defaultdict(list))
        for one in sorted(mine):
            if one.may_move:
                self._alike[one.host, one.cu, one.memory_mb].append(one)
        # NOTE: 0 where no server has memory: units alone count then.
        self._mb_per_cu = (sum(one.memory_mb for one in mine)
                           / max(1, sum(one.cu for one in mine)))
        self._capacity_cu = sum(
            one.capacity_cu for one in self._hosts.values())
        self._mean = math.fsum(
            one.used_cu / one.capacity_cu for one in self._hosts.values()
            ) / max(1, len(self._hosts))

    @property
    def figures(self) -> Figures:
        return self._figures_of(self._sums())

    def move(self, move: Move) -> None:
        server, destination = move
        self._alike[server.host, server.cu, server.memory_mb].remove(server)
        for name, sign in ((server.host, -1), (destination, 1)):
            self._hosts[name] = _with(self._hosts[name], server, sign)
        self._room[destination] = _with(self._room[destination], server, 1)

    def candidates(self, goals: Goals,
                   refused: set[tuple[str, str]]) -> Iterator[Move]:
        """Moves that gain, those that gain most first.

        Of equal ones the smaller server is moved: its memory is copied.
        """
        sums = self._sums()
        now = self._figures_of(sums).excess(goals)
        if not sum(now):
            return
        terms = {name: self._terms(one) for name, one in self._hosts.items()}
        found = []
        for (source, cu, memory_mb), servers in self._alike.items():
            if not servers:
                continue
            left = self._terms(_with(self._hosts[source], servers[0], -1))
            rest = [total - old + new for total, old, new in zip(
                sums, terms[source], left, strict=True)]
            for name, host in self._hosts.items():
                if name == source or not self._has_room(name, servers[0]):
                    continue
                there = self._terms(_with(host, servers[0], 1))
                after = self._figures_of([
                    total - old + new for total, old, new in zip(
                        rest, terms[name], there, strict=True)]).excess(goals)
                gain = sum(now) - sum(after)
                if gain > _LEAST_GAIN and all(
                        new <= old + _ROUNDING for old, new in zip(
                            now, after, strict=True)):
                    found.append((-gain, memory_mb, cu, source, name))
        for _gain, memory_mb, cu, source, name in sorted(found):
            for server in list(self._alike[source, cu, memory_mb]):
                if (server.uuid, name) not in refused:
                    yield Move(server, name)

    def _has_room(self, name: str, server: Server) -> bool:
        room = self._room[name]
        return (server.cu <= room.capacity_cu - room.used_cu
                and server.memory_mb <= room.capacity_mb - room.used_mb)

    def _sums(self) -> list[float]:
        return [math.fsum(column) for column in zip(
            *(self._terms(one) for one in self._hosts.values()),
            strict=True)] or [0.0] * len(_Terms._fields)

    def _terms(self, host: Host) -> _Terms:
        # NOTE: less the mean, so that squares of nearly equal parts are small.
        part = host.used_cu / host.capacity_cu - self._mean
        free_cu = max(0, host.capacity_cu - host.used_cu)
        free_mb = max(0, host.capacity_mb - host.used_mb)
        served_cu = (free_mb / self._mb_per_cu if self._mb_per_cu
                     else float(free_cu))
        return _Terms(part, part * part, free_cu, served_cu,
                      min(free_cu, served_cu))

    def _figures_of(self, sums: Iterable[float]) -> Figures:
        part, square, free_cu, served_cu, sellable_cu = sums
        number = max(1, len(self._hosts))
        return Figures(
            math.sqrt(max(0.0, square / number - (part / number) ** 2)),
            max(0.0, min(free_cu, served_cu) - sellable_cu)
            / max(1, self._capacity_cu))


def _with(host: Host, server: Server, sign: int) -> Host:
    """A host with a server more, or with one less."""
    return host._replace(used_cu=host.used_cu + sign * server.cu,
                         used_mb=host.used_mb + sign * server.memory_mb)
