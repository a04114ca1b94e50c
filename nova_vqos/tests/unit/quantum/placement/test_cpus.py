# SPDX-License-Identifier: Apache-2.0
from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import cpus
from nova_vqos.quantum.placement import host
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
CORES = [(0, 4), (1, 5), (2, 6), (3, 7)]
NOTHING = frozenset()


def divided(cores, pools):
    """Cores of which pools share the siblings."""
    return [core for core in cores
            if sum(not pool.isdisjoint(core) for pool in pools) > 1]


class TestPools:
    @pytest.mark.parametrize('counts, previous, expected', [
        # Siblings stay together.
        ([2, 6], [set(), set()], [{0, 4}, {1, 5, 2, 6, 3, 7}]),
        # A pool keeps its cores.
        ([4, 4], [{1, 5}, {2, 6, 3, 7}], [{0, 4, 1, 5}, {2, 6, 3, 7}]),
        # A pool that shrinks gives up divided cores first.
        ([2, 6], [{3, 7, 0}, {1, 2, 4, 5, 6}],
         [{3, 7}, {0, 1, 2, 4, 5, 6}])])
    def test_whole_cores(self, counts, previous, expected):
        assert cpus.assign_to_pools(CORES, counts, previous) == expected

    def test_odd_numbers_divide_one_core(self):
        pools = cpus.assign_to_pools(CORES, [3, 5], [NOTHING, NOTHING])
        assert len(divided(CORES, pools)) == 1

    @hypothesis.given(quantum_vcpus.hosts(), st.data())
    def test_every_pcpu_is_in_one_pool(self, host, data):
        cores = host[0].cores
        every = sorted(host[0].pcpus)
        chosen = data.draw(st.lists(st.integers(0, 3), min_size=len(every),
                                    max_size=len(every)))
        counts = [chosen.count(pool) for pool in range(4)]
        previous = data.draw(st.lists(st.frozensets(st.sampled_from(every)),
                                      min_size=4, max_size=4))
        pools = cpus.assign_to_pools(cores, counts, previous)
        assert [len(pool) for pool in pools] == counts
        assert sorted(pcpu for pool in pools for pcpu in pool) == every
        assert cpus.assign_to_pools(cores, counts, pools) == pools

    @hypothesis.given(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    def test_fewest_cores_are_divided(self, counts):
        counts = [*counts, sum(counts) % 2]
        cores = [(2 * number, 2 * number + 1)
                 for number in range(sum(counts) // 2)]
        pools = cpus.assign_to_pools(cores, counts, [NOTHING] * len(counts))
        assert len(divided(cores, pools)) == sum(
            count % 2 for count in counts) // 2


def server(name, kind, vcpus, share=Fraction(0)):
    return tuple(model.Vcpu(name, number, kind, share=share)
                 for number in range(vcpus))


def pool(pcpus, *servers):
    return model.Pool(0, frozenset(pcpus), None, tuple(
        vcpu for vcpus in servers for vcpu in vcpus))


class TestSpinning:
    OTHERS = server('b', Kind.CACHE, 4)

    @pytest.mark.parametrize('pcpus, vcpus, expected', [
        (range(4), server('a', Kind.SPIN, 2), [[0, 1], [2, 3]]),
        # So do its vCPUs that do not spin.
        ({5, 7}, (model.Vcpu('a', 0, Kind.SPIN), model.Vcpu('a', 1, Kind.IO)),
         [[5], [7]])])
    def test_each_vcpu_has_pcpus_of_its_own(self, pcpus, vcpus, expected):
        pools = [pool(pcpus, vcpus, self.OTHERS)]
        found = cpus.assign_to_spinning(pools)
        assert set(found) == {('a', 0), ('a', 1)}
        assert sorted(map(sorted, found.values())) == expected
        assert cpus.assign_to_spinning(pools) == found

    @pytest.mark.parametrize('pcpus, servers', [
        # One vCPU waits for no other.
        (4, [server('a', Kind.SPIN, 1), OTHERS]),
        # Parts would be unequal.
        (4, [server('a', Kind.SPIN, 3), OTHERS]),
        (4, [server('a', Kind.CACHE, 4), OTHERS]),
        # Each vCPU can have a pCPU.
        (4, [server('a', Kind.SPIN, 4)]),
        # The guarantees exceed the pool.
        (2, [server('a', Kind.SPIN, 2, Fraction(9, 10)),
             server('b', Kind.CACHE, 1, Fraction(9, 10))])])
    def test_nothing_is_divided(self, pcpus, servers):
        assert cpus.assign_to_spinning([pool(range(pcpus), *servers)]) == {}

    @hypothesis.given(
        st.integers(1, 12), st.lists(st.integers(1, 12), max_size=8))
    def test_units_hold_on_each_pcpu(self, pcpus, sizes):
        """Each vCPU finds its guaranteed share on its part."""
        servers = [server(str(number), Kind.SPIN, size,
                          Fraction(pcpus, max(1, sum(sizes))))
                   for number, size in enumerate(sizes)]
        hypothesis.assume(pcpus <= sum(sizes))
        found = cpus.assign_to_spinning([pool(range(pcpus), *servers)])
        # Spread evenly over the parts, no pCPU has more than all of its time.
        load = dict.fromkeys(range(pcpus), Fraction(0))
        for vcpus in servers:
            own = [found[vcpu.key] for vcpu in vcpus if vcpu.key in found]
            assert len(own) in (0, len(vcpus))
            assert sum(map(len, own)) == len(frozenset().union(*own))
            for vcpu, part in zip(vcpus, own, strict=False):
                for pcpu in part:
                    load[pcpu] += vcpu.share / len(part)
        assert all(found <= 1 for found in load.values())

    def test_a_host_that_separates_nothing_else(self):
        servers = [
            host.Server(name, dict.fromkeys(range(2), kind), Fraction(0),
                        frozenset({0, 1}))
            for name, kind in (('a', Kind.SPIN), ('b', Kind.CACHE))]
        found = host.plan_host(
            servers, [model.Socket(0, ((0,), (1,)))],
            {'spin': 1_000, 'cache': 90_000}).placements
        assert found['b'].pcpus is None
        assert sorted(map(sorted, found['a'].pcpus.values())) == [[0], [1]]
