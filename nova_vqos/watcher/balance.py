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

from collections.abc import Callable, Iterable, Iterator, Sequence
import enum
import typing as ty

import numpy as np

# Smaller improvements are not worth a migration.
_LEAST_GAIN = 1e-6
# Of a figure, by sums of floats: a smaller change is none.
_ROUNDING = 1e-9
# Of gains, which are equal if these are.
_DIGITS = 7
# Pairs of servers and hosts that are computed at once: a CPU's cache has room.
_PAIRS_AT_ONCE = 1 << 14
# Moves that are tried before the gains of all are computed again.
_MOST_CANDIDATES = 4096

_Array: ty.TypeAlias = np.ndarray[ty.Any, np.dtype[np.float64]]
# Memory in MB and CU of equal servers, and the number of their host.
_Kind: ty.TypeAlias = tuple[int, int, int]


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


class Move(ty.NamedTuple):
    """A live migration to propose."""

    server: Server
    destination: str


class Reply(enum.Enum):
    """Whether a server can be moved to a host."""

    YES = 'yes'
    NO = 'not to this host'
    NO_SERVER = 'to no host'
    NO_HOST = 'no server can be moved to this host'
    END = 'nothing more is to be asked'


_Accept: ty.TypeAlias = Callable[[Server, str], Reply]


class Plan(ty.NamedTuple):
    """Moves in their order, and the figures before and after all of them."""

    moves: tuple[Move, ...]
    before: Figures
    after: Figures


def plan(hosts: Iterable[Host], servers: Iterable[Server], goals: Goals,
         accept: _Accept) -> Plan:
    """Find moves, the one that gains most first.

    Each takes O(K H) time, K being the number of unlike servers with units,
    at most of servers, and H that of hosts; altogether O(K + H) memory.

    :param hosts: among which servers may move
    :param servers: of these hosts, each with units
    :param accept: whether a server can be moved to a host, after all moves
        that it accepted before; a move that it accepts is proposed
    """
    placed = _Placed(hosts, servers)
    before = placed.figures
    moves: list[Move] = []
    while len(moves) < goals.max_moves:
        move = _accepted(placed, goals, accept)
        if move is None:
            break
        placed.move(move)
        moves.append(move)
    return Plan(tuple(moves), before, placed.figures)


def _accepted(placed: '_Placed', goals: Goals, accept: _Accept
              ) -> Move | None:
    for move in placed.candidates(goals):
        reply = accept(*move)
        if reply is Reply.YES:
            return move
        if reply is Reply.END:
            break
        placed.refuse(move, reply)
    return None


class _Placed:
    """Servers on hosts, as the moves so far leave them.

    Arrays have hosts in their last dimension, by name. Those of amounts have
    CU and MB before it, those of terms what each host adds to five sums: the
    part of its units that is sold, less the mean of all hosts at first; the
    square of that; the units left; those that the memory left is for; and the
    lesser of these two.
    """

    def __init__(self, hosts: Iterable[Host],
                 servers: Iterable[Server]) -> None:
        ordered = sorted(hosts)
        self._names = [one.name for one in ordered]
        self._numbers = {
            name: number for number, name in enumerate(self._names)}
        self._capacity, self._used = np.array(
            [one[1:] for one in ordered], float).reshape(
                -1, 2, 2).transpose(2, 1, 0)
        # What the moves leave for others: nothing that one of them frees.
        self._room = self._capacity - self._used
        mine = [one for one in servers if one.host in self._numbers]
        # Equal servers of a host are one case.
        self._alike: dict[_Kind, list[Server]] = {}
        for one in sorted(mine):
            if one.may_move:
                self._alike.setdefault(self._kind(one), []).append(one)
        self._refused: set[tuple[str, str]] = set()
        # Where all of a kind are, or none can go.
        self._closed = {kind: [kind[2]] for kind in self._alike}
        # NOTE: 0 where no server has memory: units alone count then.
        self._mb_per_cu = (sum(one.memory_mb for one in mine)
                           / max(1, sum(one.cu for one in mine)))
        self._mean = 0.0
        self._mean = (self._terms(self._capacity, self._used)[0].sum()
                      / max(1, len(self._names)))

    @property
    def figures(self) -> Figures:
        return Figures(*map(float, self._figures_of(self._terms(
            self._capacity, self._used).sum(axis=1))))

    def move(self, move: Move) -> None:
        server, destination = move
        kind, there = self._kind(server), self._numbers[destination]
        self._alike[kind].remove(server)
        taken = np.array((server.cu, server.memory_mb))
        self._used[:, kind[2]] -= taken
        self._used[:, there] += taken
        self._room[:, there] -= taken

    def refuse(self, move: Move, reply: Reply) -> None:
        """No move makes room for another: what is refused remains so."""
        if reply is Reply.NO_SERVER:
            self._alike[self._kind(move.server)].remove(move.server)
        elif reply is Reply.NO_HOST:
            self._room[:, self._numbers[move.destination]] = -1
        else:
            self._refused.add((move.server.uuid, move.destination))

    def candidates(self, goals: Goals) -> Iterator[Move]:
        """Moves that gain, those that gain most first.

        Of equal ones the smaller server is moved: its memory is copied.
        """
        while best := self._best(goals):
            for _gain, *kind, there in best:
                key, name = ty.cast(_Kind, tuple(kind)), self._names[there]
                for server in list(self._alike[key]):
                    # Less than 0: it has refused all since.
                    if self._room[0, there] >= 0 and (
                            server.uuid, name) not in self._refused:
                        yield Move(server, name)
                self._closed[key].append(there)

    def _best(self, goals: Goals) -> list[tuple[float, int, int, int, int]]:
        """:returns: the negative gain, kind, and where to, in this order"""
        best: list[tuple[float, int, int, int, int]] = []
        least = _LEAST_GAIN
        kinds = sorted(kind for kind, alike in self._alike.items() if alike)
        rows_at_once = max(1, _PAIRS_AT_ONCE // max(1, len(self._names)))
        for first in range(0, len(kinds), rows_at_once):
            block = kinds[first:first + rows_at_once]
            gains = self._gains(block, goals)
            rows, columns = np.nonzero(gains > least)
            found = gains[rows, columns]
            order = np.argsort(-found, kind='stable')[:_MOST_CANDIDATES]
            if len(order):
                best = sorted(best + [
                    (-float(found[one]), *block[rows[one]], int(columns[one]))
                    for one in order])[:_MOST_CANDIDATES]
            if len(best) == _MOST_CANDIDATES:
                least = -best[-1][0]
        return best

    def _gains(self, kinds: Sequence[_Kind], goals: Goals) -> _Array:
        """What a move gains, by kind and by host; 0: it cannot be made."""
        terms = self._terms(self._capacity, self._used)
        sums = terms.sum(axis=1)
        memory_mb, cu, sources = np.array(kinds).T
        taken = np.array((cu, memory_mb))
        left = self._terms(self._capacity[:, sources],
                           self._used[:, sources] - taken)
        taken = taken[:, :, None]
        there = self._terms(self._capacity[:, None],
                            self._used[:, None] + taken)
        now = self._excess(sums, goals)
        after = self._excess(
            (sums[:, None] - terms[:, sources] + left)[:, :, None]
            + (there - terms[:, None]), goals)
        gains = np.round(now.sum() - after.sum(axis=0), _DIGITS)
        gains[(after > now[:, None, None] + _ROUNDING).any(axis=0)
              | (taken > self._room[:, None]).any(axis=0)] = 0
        for row, kind in enumerate(kinds):
            gains[row, self._closed[kind]] = 0
        return gains

    def _kind(self, server: Server) -> _Kind:
        return server.memory_mb, server.cu, self._numbers[server.host]

    def _terms(self, capacity: _Array, used: _Array) -> _Array:
        # NOTE: less the mean, so that squares of nearly equal parts are small.
        part = used[0] / capacity[0] - self._mean
        free_cu, free_mb = np.maximum(0, capacity - used)
        served_cu = free_mb / self._mb_per_cu if self._mb_per_cu else free_cu
        return np.array((part, part * part, free_cu, served_cu,
                         np.minimum(free_cu, served_cu)))

    def _figures_of(self, sums: _Array) -> tuple[_Array, _Array]:
        """See :class:`Figures`."""
        part, square, free_cu, served_cu, sellable_cu = sums
        number = max(1, len(self._names))
        return (np.sqrt(np.maximum(
                    0, square / number - (part / number) ** 2)),
                np.maximum(0, np.minimum(free_cu, served_cu) - sellable_cu)
                / max(1, self._capacity[0].sum()))

    def _excess(self, sums: _Array, goals: Goals) -> _Array:
        """What of both figures is above its threshold."""
        spread, stranded = self._figures_of(sums)
        return np.maximum(0, (spread - goals.spread,
                              stranded - goals.stranded))
