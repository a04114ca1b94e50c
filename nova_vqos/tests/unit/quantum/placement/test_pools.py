# SPDX-License-Identifier: Apache-2.0
import collections

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import pools
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
SLICES_US = quantum_vcpus.SLICES_US
of_kind = quantum_vcpus.of_kind
servers = quantum_vcpus.servers


def shown(clusters):
    return [(cluster.slice_us, cluster.pcpus,
             quantum_vcpus.counted(cluster.vcpus)) for cluster in clusters]


class TestClusters:
    @pytest.mark.parametrize('name', quantum_vcpus.SCENARIOS)
    def test_scenario(self, name):
        groups, expected = quantum_vcpus.SCENARIOS[name]
        assert shown(pools.clusters(servers(groups), 4, SLICES_US)) == expected

    @pytest.mark.parametrize('groups, pcpus, slices_us, expected', [
        # The rest of several clusters shares the default quantum: figure 3.3,
        # the third socket.
        ({Kind.CACHE: 9, Kind.SPIN: 7}, 4, SLICES_US,
         [(1_000, 1, {'SPIN': 4}), (90_000, 2, {'CACHE': 8}),
          (None, 1, {'CACHE': 1, 'SPIN': 3})]),
        # The default cluster gets the rest of the others.
        ({Kind.CACHE: 5, Kind.DEFAULT: 3}, 2, SLICES_US,
         [(90_000, 1, {'CACHE': 4}), (None, 1, {'CACHE': 1, 'DEFAULT': 3})]),
        # A class without a slice has the default one.
        ({Kind.IO: 4, Kind.CACHE: 4}, 2, {'cache': 90_000},
         [(90_000, 1, {'CACHE': 4}), (None, 1, {'IO': 4})]),
        # Polluters balance other clusters than CACHE ones first.
        ({Kind.IO: 1, Kind.CACHE: 1, Kind.NEUTRAL: 3, Kind.POLLUTER: 3}, 2,
         SLICES_US, [(1_000, 1, {'IO': 1, 'POLLUTER': 3}),
                     (90_000, 1, {'CACHE': 1, 'NEUTRAL': 3})]),
        # More quanta than pCPUs.
        ({Kind.IO: 1, Kind.SPIN: 1, Kind.CACHE: 1}, 1,
         {'io': 1_000, 'spin': 2_000, 'cache': 90_000},
         [(None, 1, {'IO': 1, 'SPIN': 1, 'CACHE': 1})]),
        # k = 2.5, but 4 = 2 * 2 and 6 = 2 * 3 are within one of each other.
        ({Kind.IO: 4, Kind.CACHE: 6}, 4, SLICES_US,
         [(1_000, 2, {'IO': 4}), (90_000, 2, {'CACHE': 6})]),
        # Fewer vCPUs than pCPUs.
        ({Kind.IO: 1, Kind.CACHE: 1}, 4, SLICES_US,
         [(1_000, 2, {'IO': 1}), (90_000, 2, {'CACHE': 1})]),
        ({}, 3, SLICES_US, [(None, 3, {})])])
    def test_pcpus_and_vcpus(self, groups, pcpus, slices_us, expected):
        assert shown(pools.clusters(servers(groups), pcpus,
                                    slices_us)) == expected

    @pytest.mark.parametrize('others, expected', [
        ({Kind.CACHE: 12, Kind.NEUTRAL: 16},
         [(90_000, 4, {'CACHE': 12, 'NEUTRAL': 4}),
          (None, 4, {'SPIN': 4, 'NEUTRAL': 12})]),
        # Other clusters yield.
        ({Kind.CACHE: 28}, [(90_000, 4, {'CACHE': 16}),
                            (None, 4, {'SPIN': 4, 'CACHE': 12})])])
    def test_a_wide_server_in_the_default_cluster(self, others, expected):
        vcpus = [*of_kind(Kind.SPIN, 4, per_server=4, name='wide'),
                 *servers(others)]
        assert shown(pools.clusters(
            vcpus, 8, SLICES_US, at_default={'wide0'},
            least_default=4)) == expected

    @hypothesis.given(quantum_vcpus.vcpus(), st.integers(1, 12),
                      quantum_vcpus.slices())
    def test_every_vcpu_is_in_one_cluster_that_suits_it(self, vcpus, pcpus,
                                                        slices_us):
        clusters = pools.clusters(vcpus, pcpus, slices_us)
        assert collections.Counter(vcpu.key for vcpu in vcpus) == (
            collections.Counter(vcpu.key for cluster in clusters
                                for vcpu in cluster.vcpus))
        assert all(
            cluster.slice_us in (None, pools.slice_us(vcpu.kind, slices_us))
            for cluster in clusters for vcpu in cluster.vcpus
            if vcpu.kind not in model.AGNOSTIC)

    @hypothesis.given(quantum_vcpus.vcpus(), st.integers(1, 12), st.randoms(),
                      quantum_vcpus.slices())
    def test_its_own_result_is_a_fixed_point(self, vcpus, pcpus, chance,
                                             slices_us):
        previous = {vcpu.key: chance.choice((None, 1_000, 90_000, 7_000))
                    for vcpu in vcpus if chance.random() < 0.7}
        clusters = pools.clusters(vcpus, pcpus, slices_us, previous)
        assert clusters == pools.clusters(vcpus, pcpus, slices_us, {
            vcpu.key: cluster.slice_us for cluster in clusters
            for vcpu in cluster.vcpus})


WANTED = st.dictionaries(
    st.sampled_from((None, 1_000, 5_000, 30_000, 90_000)),
    st.integers(0, 40), max_size=5)


class TestDivide:
    @hypothesis.settings(max_examples=500)
    @hypothesis.given(WANTED, st.integers(0, 40), st.integers(1, 20),
                      st.data())
    def test_fair_and_complete(self, wanted, agnostic, pcpus, data):
        previous_pcpus = data.draw(WANTED)
        least_default = data.draw(st.integers(0, pcpus))
        sizes = pools.divide(
            wanted, agnostic, pcpus, previous_pcpus, least_default)
        least, fuller = divmod(sum(wanted.values()) + agnostic, pcpus)
        assert tuple(map(sum, zip(*sizes.values(), strict=True))) == (
            pcpus, sum(wanted.values()), agnostic)
        for quantum, size in sizes.items():
            assert size.pcpus >= 1
            assert size.balancing >= 0
            assert (least * size.pcpus <= size.own + size.balancing
                    <= (least + bool(fuller)) * size.pcpus)
            if quantum is not None:
                assert size.own <= wanted[quantum]
        if None in sizes:
            assert sizes[None].pcpus >= least_default
            assert sizes[None].own >= wanted.get(None, 0)

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(st.lists(st.integers(1, 20), min_size=2, max_size=3),
                      st.integers(0, 20), st.integers(1, 10), WANTED)
    def test_parted_if_possible(self, counts, agnostic, pcpus, previous_pcpus):
        wanted = dict(zip((1_000, 30_000, 90_000), counts, strict=False))
        sizes = pools.divide(wanted, agnostic, pcpus, previous_pcpus)
        assert (None not in sizes) == self._can_be_separated(
            counts, agnostic, pcpus)

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

    @hypothesis.given(WANTED, st.integers(0, 200), st.integers(1, 64))
    def test_none_gets_clearly_less(self, wanted, agnostic, pcpus):
        vcpus = sum(wanted.values()) + agnostic
        sizes = pools.divide_fairly(wanted, agnostic, pcpus)
        assert sum(size.pcpus for size in sizes.values()) == pcpus
        assert sum(size.own + size.balancing
                   for size in sizes.values()) == vcpus
        for quantum, size in sizes.items():
            members = size.own + size.balancing
            # What each gets, of a pCPU at most.
            here = min(1, size.pcpus / max(1, members))
            assert here >= 0.97 * min(1, pcpus / max(1, vcpus)) - 1e-9
            if quantum is not None:
                assert size.own <= wanted[quantum]

    @pytest.mark.parametrize('wanted, pcpus, expected', [
        # k = 2.5: with six on two pCPUs each would have a sixth less.
        ({1_000: 4, 90_000: 6}, 4, {90_000: (2, 5), None: (2, 5)}),
        # Seven cannot be divided between two.
        ({None: 4, 90_000: 3}, 2, {None: (2, 7)}),
        # Many can.
        ({None: 22, 90_000: 5}, 8, {90_000: (1, 3), None: (7, 24)}),
        ({None: 99, 90_000: 101}, 64, {90_000: (32, 101), None: (32, 99)})])
    def test_fairly(self, wanted, pcpus, expected):
        assert {quantum: (size.pcpus, size.own) for quantum, size
                in pools.divide_fairly(wanted, 0, pcpus).items()} == expected

    @hypothesis.settings(max_examples=300)
    @hypothesis.given(st.lists(st.integers(1, 20), min_size=2, max_size=4),
                      st.integers(1, 8))
    def test_full_groups_have_pcpus_of_their_own(self, counts, each):
        # k is whole here, as in the thesis: nothing balances.
        counts = [*counts, -sum(counts) % each or each]
        wanted = dict(zip((1_000, 5_000, 30_000, 60_000, 90_000), counts,
                          strict=False))
        sizes = pools.divide(wanted, 0, sum(counts) // each)
        assert {quantum: (size.pcpus, size.own)
                for quantum, size in sizes.items()
                if quantum is not None} == {
                    quantum: (count // each, count // each * each)
                    for quantum, count in wanted.items() if count >= each}
