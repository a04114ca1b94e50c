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
    use for as a whole, greater ones first; only then are cores divided: where
    all are of one size at most one per pool.

    :param cores: the pCPU numbers of each core
    :param counts: how many pCPUs each pool gets; as many as there are
    :param held: the pCPUs that each pool had until now
    """
    pools: list[set[int]] = [set() for _ in counts]
    wanting = list(counts)
    free: list[Sequence[int]] = sorted(cores, key=len, reverse=True)
    for as_whole in (True, False):
        if not as_whole:
            free = [(pcpu,) for core in free for pcpu in core]
        for to_holder in (True, False):
            left = []
            for part in free:
                pool = next((
                    pool for pool, want in enumerate(wanting)
                    if len(part) <= want
                    and (not to_holder or held[pool] >= set(part))), None)
                if pool is None:
                    left.append(part)
                else:
                    pools[pool].update(part)
                    wanting[pool] -= len(part)
            free = left
    return [frozenset(pool) for pool in pools]
