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

"""Which pCPUs each pool of a socket gets, when only their number is given.

The thesis knows no SMT. Siblings share a core's caches and its units, so that
a vCPU that runs on one disturbs that on the other: they stay in one pool
where the numbers allow it. Pure.
"""

from collections.abc import Sequence, Set


def share_out(cores: Sequence[Sequence[int]], counts: Sequence[int],
              held: Sequence[Set[int]]) -> list[frozenset[int]]:
    """The pCPUs of each pool.

    A pool keeps the whole cores that it has, then takes free ones that it has
    use for as a whole, greater ones first; only then are cores divided. Of
    cores of equal size at most one per pool is.

    :param cores: the pCPU numbers of each core
    :param counts: how many pCPUs each pool gets; as many as there are
    :param held: the pCPUs that each pool had until now
    """
    pools: list[set[int]] = [set() for _ in counts]
    wanting = list(counts)
    free = sorted(cores, key=len, reverse=True)

    def give(pool: int, pcpus: Sequence[int]) -> None:
        pools[pool].update(pcpus)
        wanting[pool] -= len(pcpus)

    for is_kept in (True, False):
        left = []
        for core in free:
            pool = next(
                (pool for pool, want in enumerate(wanting)
                 if len(core) <= want
                 and (not is_kept or held[pool] >= set(core))), None)
            if pool is None:
                left.append(core)
            else:
                give(pool, core)
        free = left
    singles = [pcpu for core in free for pcpu in core]
    for is_kept in (True, False):
        left_singles = []
        for pcpu in singles:
            pool = next(
                (pool for pool, want in enumerate(wanting)
                 if want and (not is_kept or pcpu in held[pool])), None)
            if pool is None:
                left_singles.append(pcpu)
            else:
                give(pool, [pcpu])
        singles = left_singles
    return [frozenset(pool) for pool in pools]
