# SPDX-License-Identifier: Apache-2.0
"""The occupancy of a host's pools, from its agent to the scheduler.

The agent writes it into its state file, the compute driver puts it into the
stats of the compute node (:mod:`nova_vqos.host_stats`), and the scheduler's
weigher reads it there. Pure.
"""

from collections.abc import Mapping
import typing as ty

from nova_vqos.quantum import classes

#: The classes of pools.
NAMES: ty.Final = (classes.IO, classes.SPIN, classes.CACHE, classes.NEUTRAL,
                   classes.DEFAULT)
#: The most pCPUs or vCPUs that are plausible.
MOST: ty.Final = 999_999

_POLLUTERS = 'polluters'


class PoolSize(ty.NamedTuple):
    """The size of a pool.

    :ivar pcpus: that serve its quantum
    :ivar vcpus: that run there, also those that any quantum suits
    """

    pcpus: int
    vcpus: int


class Occupancy(ty.NamedTuple):
    """The occupancy of a host's pools.

    :ivar pools: by quantum class, all pools of a class together; none where
        nothing has to be separated
    :ivar polluters: how many vCPUs overflow their last-level cache; None:
        unknown
    """

    pools: Mapping[str, PoolSize]
    polluters: int | None = None

    def to_state(self) -> dict[str, ty.Any]:
        """In primitives, for the agent's state file."""
        state: dict[str, ty.Any] = {
            'pools': {name: list(size) for name, size in self.pools.items()}}
        if self.polluters is not None:
            state[_POLLUTERS] = self.polluters
        return state


#: Of a host that reports none.
UNKNOWN: ty.Final = Occupancy({})


def from_state(state: object) -> Occupancy:
    """The inverse of :meth:`Occupancy.to_state`, for untrusted input.

    Leaves out unknown classes and invalid values; never raises.
    """
    if not isinstance(state, Mapping):
        return UNKNOWN
    given = state.get('pools')
    pools = {}
    for name in NAMES:
        size = given.get(name) if isinstance(given, Mapping) else None
        if isinstance(size, list) and len(size) == 2 and all(
                map(_is_count, size)):
            pools[name] = PoolSize(*size)
    polluters = state.get(_POLLUTERS)
    return Occupancy(pools, polluters if _is_count(polluters) else None)


def _is_count(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)
            and 0 <= value <= MOST)
