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

"""What the pools of a host hold, as its agent tells it to the scheduler.

The agent leaves it in its state file, the compute driver puts it into the
stats of the compute node, the scheduler's weigher reads it there. Pure:
standard library only.
"""

from collections.abc import Mapping
import re
import typing as ty

from nova_vqos.quantum import classes

#: The classes that a pool can be of.
NAMES: ty.Final = (classes.IO, classes.SPIN, classes.CACHE, classes.NEUTRAL,
                   classes.DEFAULT)
#: More pCPUs or vCPUs than this is nonsense.
MOST: ty.Final = 999_999

_POLLUTERS = 'polluters'
# What a stat may have; all classes, each number at its longest, have less.
_MAX_STAT = 255
_PART = '[a-z_]+(?::[0-9]{1,6}){1,2}'
_STAT_PATTERN = re.compile(f'{_PART}(?: {_PART})*')


class PoolSize(ty.NamedTuple):
    """How large a pool is.

    :ivar pcpus: that serve its quantum
    :ivar vcpus: that run there, be it only to fill it
    """

    pcpus: int
    vcpus: int


class Occupancy(ty.NamedTuple):
    """What the pools of a host hold.

    :ivar pools: by quantum class; several pools of a class are counted
        together; none where nothing is to be separated
    :ivar polluters: vCPUs that their last-level cache is too small for; None:
        the host cannot tell
    """

    pools: Mapping[str, PoolSize]
    polluters: int | None = None

    def to_state(self) -> dict[str, ty.Any]:
        """Primitives only, for the agent's state file."""
        state: dict[str, ty.Any] = {
            'pools': {name: list(size) for name, size in self.pools.items()}}
        if self.polluters is not None:
            state[_POLLUTERS] = self.polluters
        return state

    def to_stat(self) -> str:
        """For the stats of a compute node: ``cache:2:3 io:1:4 polluters:5``.

        At most 255 characters, whatever the host.
        """
        told = [f'{name}:{size.pcpus}:{size.vcpus}'
                for name, size in sorted(self.pools.items())]
        if self.polluters is not None:
            told.append(f'{_POLLUTERS}:{self.polluters}')
        return ' '.join(told)


#: Where nothing is known.
UNKNOWN: ty.Final = Occupancy({})


def from_state(state: object) -> Occupancy:
    """The inverse of :meth:`Occupancy.to_state`, of input that is not trusted.

    Classes that this version does not know are left out, and so is what
    cannot be: nothing of it is worth a refusal.
    """
    if not isinstance(state, Mapping):
        return UNKNOWN
    given = state.get('pools')
    pools = {}
    for name in NAMES if isinstance(given, Mapping) else ():
        size = given.get(name)  # type: ignore[union-attr]
        if isinstance(size, list) and len(size) == 2 and all(
                map(_is_count, size)):
            pools[name] = PoolSize(*size)
    polluters = state.get(_POLLUTERS)
    return Occupancy(pools, polluters if _is_count(polluters) else None)


def from_stat(text: object) -> Occupancy:
    """The inverse of :meth:`Occupancy.to_stat`; unknown where it is nonsense.

    Never raises: the text may come from a host of another version.
    """
    # NOTE: the scheduler reads one for each host of each request.
    if (not isinstance(text, str) or len(text) > _MAX_STAT
            or not _STAT_PATTERN.fullmatch(text)):
        return UNKNOWN
    pools = {}
    polluters = None
    for part in text.split(' '):
        name, *numbers = part.split(':')
        if name in NAMES and len(numbers) == 2:
            pools[name] = PoolSize(int(numbers[0]), int(numbers[1]))
        elif name == _POLLUTERS and len(numbers) == 1:
            polluters = int(numbers[0])
    return Occupancy(pools, polluters)


def _is_count(value: object) -> bool:
    return (isinstance(value, int) and not isinstance(value, bool)
            and 0 <= value <= MOST)
