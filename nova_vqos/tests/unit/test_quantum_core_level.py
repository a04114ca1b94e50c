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

import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import core_level
from nova_vqos.tests.unit import quantum_vcpus

CORES = [(0, 4), (1, 5), (2, 6), (3, 7)]
NOTHING = frozenset()


def divided(cores, pools):
    """Cores of which pools share the siblings."""
    return [core for core in cores
            if sum(not pool.isdisjoint(core) for pool in pools) > 1]


class ShareOutTest(unittest.TestCase):

    def test_siblings_stay_together(self):
        self.assertEqual(
            [{0, 4}, {1, 5, 2, 6, 3, 7}],
            core_level.share_out(CORES, [2, 6], [NOTHING, NOTHING]))

    def test_one_core_is_divided_where_numbers_are_odd(self):
        pools = core_level.share_out(CORES, [3, 5], [NOTHING, NOTHING])
        self.assertEqual(1, len(divided(CORES, pools)))

    def test_a_pool_keeps_its_cores(self):
        self.assertEqual(
            [{0, 4, 1, 5}, {2, 6, 3, 7}],
            core_level.share_out(CORES, [4, 4], [frozenset({1, 5}),
                                                 frozenset({2, 6, 3, 7})]))

    def test_a_pool_that_shrinks_gives_up_others_cores_alone(self):
        self.assertEqual(
            [{3, 7}, {0, 1, 2, 4, 5, 6}],
            core_level.share_out(CORES, [2, 6], [
                frozenset({3, 7, 0}), frozenset({1, 2, 4, 5, 6})]))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.hosts(), st.data())
    def test_every_pcpu_is_in_one_pool(self, host, data):
        cores = host[0].cores
        every = sorted(host[0].pcpus)
        chosen = data.draw(st.lists(st.integers(0, 3), min_size=len(every),
                                    max_size=len(every)))
        counts = [chosen.count(pool) for pool in range(4)]
        held = data.draw(st.lists(st.frozensets(st.sampled_from(every)),
                                  min_size=4, max_size=4))
        pools = core_level.share_out(cores, counts, held)
        self.assertEqual(counts, [len(pool) for pool in pools])
        self.assertEqual(every, sorted(
            pcpu for pool in pools for pcpu in pool))
        self.assertEqual(pools, core_level.share_out(cores, counts, pools))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def test_fewest_cores_are_divided(self, counts):
        counts = [*counts, sum(counts) % 2]
        cores = [(2 * number, 2 * number + 1)
                 for number in range(sum(counts) // 2)]
        pools = core_level.share_out(cores, counts, [NOTHING] * len(counts))
        self.assertEqual(sum(count % 2 for count in counts) // 2,
                         len(divided(cores, pools)))
