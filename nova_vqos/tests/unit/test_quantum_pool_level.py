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

import collections
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import model
from nova_vqos.quantum import pool_level
from nova_vqos.tests.unit import quantum_vcpus

Kind = model.Kind
SLICES_US = quantum_vcpus.SLICES_US
of_kind = quantum_vcpus.of_kind


def shown(clusters):
    return [(cluster.slice_us, cluster.pcpus,
             quantum_vcpus.counted(cluster.vcpus)) for cluster in clusters]


class ScenariosTest(unittest.TestCase):
    """16 vCPUs on 4 pCPUs: tables 3.4 and 3.5 of the thesis."""

    def _check(self, expected, *groups):
        vcpus = [vcpu for kind, count in groups
                 for vcpu in of_kind(kind, count)]
        self.assertEqual(expected, shown(
            pool_level.clusters(vcpus, 4, SLICES_US)))

    def test_s1(self):
        self._check([(1_000, 2, {'SPIN': 5, 'NEUTRAL': 3}),
                     (90_000, 2, {'CACHE': 5, 'NEUTRAL': 3})],
                    (Kind.SPIN, 5), (Kind.CACHE, 5), (Kind.NEUTRAL, 6))

    def test_s2(self):
        self._check([(1_000, 2, {'IO': 5, 'POLLUTER': 3}),
                     (90_000, 2, {'CACHE': 5, 'POLLUTER': 3})],
                    (Kind.IO, 5), (Kind.CACHE, 5), (Kind.POLLUTER, 6))

    def test_s3(self):
        self._check([(90_000, 4, {'CACHE': 5, 'POLLUTER': 5, 'NEUTRAL': 6})],
                    (Kind.CACHE, 5), (Kind.POLLUTER, 5), (Kind.NEUTRAL, 6))

    def test_s4(self):
        self._check([(1_000, 2, {'IO': 4, 'SPIN': 4}),
                     (90_000, 2, {'CACHE': 4, 'POLLUTER': 4})],
                    (Kind.IO, 4), (Kind.SPIN, 4), (Kind.CACHE, 4),
                    (Kind.POLLUTER, 4))

    def test_s5(self):
        self._check([(1_000, 2, {'IO': 4, 'SPIN': 4}),
                     (90_000, 2, {'CACHE': 4, 'POLLUTER': 2, 'NEUTRAL': 2})],
                    (Kind.IO, 4), (Kind.SPIN, 4), (Kind.CACHE, 4),
                    (Kind.POLLUTER, 2), (Kind.NEUTRAL, 2))


class ClustersTest(unittest.TestCase):

    def test_what_is_left_over_of_several_shares_the_default_quantum(self):
        # Figure 3.3, the third socket.
        vcpus = [*of_kind(Kind.CACHE, 9), *of_kind(Kind.SPIN, 7)]
        self.assertEqual(
            [(1_000, 1, {'SPIN': 4}), (90_000, 2, {'CACHE': 8}),
             (None, 1, {'CACHE': 1, 'SPIN': 3})],
            shown(pool_level.clusters(vcpus, 4, SLICES_US)))

    def test_default_vcpus_take_in_what_is_left_over(self):
        vcpus = [*of_kind(Kind.CACHE, 5), *of_kind(Kind.DEFAULT, 3)]
        self.assertEqual(
            [(90_000, 1, {'CACHE': 4}), (None, 1, {'CACHE': 1, 'DEFAULT': 3})],
            shown(pool_level.clusters(vcpus, 2, SLICES_US)))

    def test_classes_without_a_slice_are_default_ones(self):
        vcpus = [*of_kind(Kind.IO, 4), *of_kind(Kind.CACHE, 4)]
        self.assertEqual(
            [(90_000, 1, {'CACHE': 4}), (None, 1, {'IO': 4})],
            shown(pool_level.clusters(vcpus, 2, {'cache': 90_000})))

    def test_polluters_balance_others_than_cache_ones_first(self):
        vcpus = [*of_kind(Kind.IO, 1), *of_kind(Kind.CACHE, 1),
                 *of_kind(Kind.NEUTRAL, 3), *of_kind(Kind.POLLUTER, 3)]
        self.assertEqual(
            [(1_000, 1, {'IO': 1, 'POLLUTER': 3}),
             (90_000, 1, {'CACHE': 1, 'NEUTRAL': 3})],
            shown(pool_level.clusters(vcpus, 2, SLICES_US)))

    def test_more_quanta_than_pcpus(self):
        vcpus = [*of_kind(Kind.IO, 1), *of_kind(Kind.SPIN, 1),
                 *of_kind(Kind.CACHE, 1)]
        self.assertEqual(
            [(None, 1, {'IO': 1, 'SPIN': 1, 'CACHE': 1})],
            shown(pool_level.clusters(vcpus, 1, {
                'io': 1_000, 'spin': 2_000, 'cache': 90_000})))

    def test_all_are_separated_where_a_pcpu_more_or_less_allows_it(self):
        # k = 2.5, but 4 = 2 * 2 and 6 = 2 * 3 are within one of each other.
        vcpus = [*of_kind(Kind.IO, 4), *of_kind(Kind.CACHE, 6)]
        self.assertEqual([(1_000, 2, {'IO': 4}), (90_000, 2, {'CACHE': 6})],
                         shown(pool_level.clusters(vcpus, 4, SLICES_US)))

    def test_fewer_vcpus_than_pcpus(self):
        vcpus = [*of_kind(Kind.IO, 1), *of_kind(Kind.CACHE, 1)]
        self.assertEqual([(1_000, 2, {'IO': 1}), (90_000, 2, {'CACHE': 1})],
                         shown(pool_level.clusters(vcpus, 4, SLICES_US)))

    def test_no_vcpus(self):
        self.assertEqual([(None, 3, {})],
                         shown(pool_level.clusters([], 3, SLICES_US)))

    def test_servers_sent_to_the_default_cluster(self):
        vcpus = [*of_kind(Kind.SPIN, 4, per_server=4, name='wide'),
                 *of_kind(Kind.CACHE, 12), *of_kind(Kind.NEUTRAL, 16)]
        clusters = pool_level.clusters(vcpus, 8, SLICES_US,
                                       at_default={'wide0'}, least_default=4)
        self.assertEqual(
            [(90_000, 4, {'CACHE': 12, 'NEUTRAL': 4}),
             (None, 4, {'SPIN': 4, 'NEUTRAL': 12})], shown(clusters))

    def test_other_clusters_yield_to_a_wide_default_one(self):
        vcpus = [*of_kind(Kind.SPIN, 4, per_server=4, name='wide'),
                 *of_kind(Kind.CACHE, 28)]
        clusters = pool_level.clusters(vcpus, 8, SLICES_US,
                                       at_default={'wide0'}, least_default=4)
        self.assertEqual(
            [(90_000, 4, {'CACHE': 16}),
             (None, 4, {'SPIN': 4, 'CACHE': 12})], shown(clusters))


WANTED = st.dictionaries(
    st.sampled_from((None, 1_000, 5_000, 30_000, 90_000)),
    st.integers(0, 40), max_size=5)


class DivideTest(unittest.TestCase):

    @hypothesis.settings(deadline=None, max_examples=500)
    @hypothesis.given(WANTED, st.integers(0, 40), st.integers(1, 20),
                      st.data())
    def test_fair_and_complete(self, wanted, agnostic, pcpus, data):
        held_pcpus = data.draw(WANTED)
        least_default = data.draw(st.integers(0, pcpus))
        shares = pool_level.divide(
            wanted, agnostic, pcpus, held_pcpus, least_default)
        total = sum(wanted.values()) + agnostic
        least, fuller = divmod(total, pcpus)
        self.assertEqual(pcpus, sum(share.pcpus for share in shares.values()))
        self.assertEqual(agnostic, sum(share.balancing
                                       for share in shares.values()))
        self.assertEqual(sum(wanted.values()),
                         sum(share.own for share in shares.values()))
        for quantum, share in shares.items():
            self.assertGreaterEqual(share.pcpus, 1)
            self.assertGreaterEqual(share.balancing, 0)
            count = share.own + share.balancing
            self.assertGreaterEqual(count, least * share.pcpus)
            self.assertLessEqual(
                count, (least + bool(fuller)) * share.pcpus)
            if quantum is not None:
                self.assertLessEqual(share.own, wanted[quantum])
        if None in shares:
            self.assertGreaterEqual(shares[None].pcpus, least_default)
            self.assertGreaterEqual(shares[None].own, wanted.get(None, 0))

    @hypothesis.settings(deadline=None, max_examples=300)
    @hypothesis.given(st.lists(st.integers(1, 20), min_size=2, max_size=3),
                      st.integers(0, 20), st.integers(1, 10), WANTED)
    def test_separated_wherever_any_division_does(self, counts, agnostic,
                                                  pcpus, held_pcpus):
        wanted = dict(zip((1_000, 30_000, 90_000), counts, strict=False))
        shares = pool_level.divide(wanted, agnostic, pcpus, held_pcpus)
        self.assertEqual(
            self._can_be_separated(counts, agnostic, pcpus),
            None not in shares)

    @staticmethod
    def _can_be_separated(counts, agnostic, pcpus):
        """Tries all divisions of the pCPUs: another way than the code's."""
        least, fuller = divmod(sum(counts) + agnostic, pcpus)
        most = least + bool(fuller)

        def fits(left, pcpus_left, excess):
            if not left:
                return pcpus_left == 0 and excess <= fuller
            return any(
                fits(left[1:], pcpus_left - width,
                     excess + max(0, left[0] - least * width))
                for width in range(-(-left[0] // most), pcpus_left + 1))
        return fits(counts, pcpus, 0)

    @hypothesis.settings(deadline=None, max_examples=300)
    @hypothesis.given(st.lists(st.integers(1, 20), min_size=2, max_size=4),
                      st.integers(1, 10), st.integers(1, 8))
    def test_full_groups_have_pcpus_of_their_own(self, counts, pcpus, each):
        # k is whole here, as in the thesis: nothing balances.
        counts = [*counts, -sum(counts) % each or each]
        pcpus = sum(counts) // each
        wanted = dict(zip((1_000, 5_000, 30_000, 60_000, 90_000), counts,
                          strict=False))
        shares = pool_level.divide(wanted, 0, pcpus)
        self.assertEqual(
            {quantum: (count // each, count // each * each)
             for quantum, count in wanted.items() if count >= each},
            {quantum: (share.pcpus, share.own)
             for quantum, share in shares.items() if quantum is not None})


class PropertiesTest(unittest.TestCase):

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), st.integers(1, 12))
    def test_every_vcpu_is_in_one_cluster_that_suits_it(self, vcpus, pcpus):
        clusters = pool_level.clusters(vcpus, pcpus, SLICES_US)
        self.assertEqual(
            collections.Counter(vcpu.key for vcpu in vcpus),
            collections.Counter(vcpu.key for cluster in clusters
                                for vcpu in cluster.vcpus))
        for cluster in clusters:
            for vcpu in cluster.vcpus:
                if (cluster.slice_us is not None
                        and vcpu.kind not in model.AGNOSTIC):
                    self.assertEqual(
                        cluster.slice_us,
                        pool_level.slice_us(vcpu.kind, SLICES_US))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), st.integers(1, 12), st.randoms())
    def test_its_own_result_is_a_fixed_point(self, vcpus, pcpus, chance):
        held = {vcpu.key: chance.choice((None, 1_000, 90_000, 7_000))
                for vcpu in vcpus if chance.random() < 0.7}
        clusters = pool_level.clusters(vcpus, pcpus, SLICES_US, held)
        again = pool_level.clusters(vcpus, pcpus, SLICES_US, {
            vcpu.key: cluster.slice_us for cluster in clusters
            for vcpu in cluster.vcpus})
        self.assertEqual(clusters, again)
