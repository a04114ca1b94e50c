# SPDX-License-Identifier: Apache-2.0
import collections
from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import guarantees
from nova_vqos.quantum.placement import pools
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
Cluster = pools.Cluster


def server(name, count, share, kind=Kind.IO):
    return tuple(model.Vcpu(name, number, kind, share=Fraction(share))
                 for number in range(count))


@pytest.mark.parametrize('vcpus, expected', [
    ((), 0), (server('a', 9, 0), 1),
    # Shares add up exactly.
    ((*server('a', 3, '1/3'), *server('b', 7, '1/7')), 2),
    ((*server('a', 3, '1/3'), *server('b', 7, '1/7'),
      *server('c', 1, '1/1000000')), 3),
    # A server that spins needs a pCPU for each vCPU,
    ((*server('a', 3, 0, Kind.SPIN), *server('b', 5, 0)), 3),
    # also for those that do not spin.
    ((model.Vcpu('a', 0, Kind.SPIN), model.Vcpu('a', 1, Kind.CACHE)), 2)])
def test_needed_pcpus(vcpus, expected):
    assert guarantees.needed_pcpus(vcpus) == expected


class TestExchange:
    def test_a_heavy_server_changes_places_with_a_light_one(self):
        sockets = [[*server('a', 2, 1), *server('b', 2, '1/2')],
                   [*server('c', 2, '1/4'), *server('d', 2, '1/2')]]
        assert [[vcpu.server for vcpu in socket]
                for socket in guarantees.exchange(sockets, [2, 3])] == [
                    ['c', 'c', 'b', 'b'], ['a', 'a', 'd', 'd']]

    @pytest.mark.parametrize('sockets', [
        # No other server has the same kinds.
        [[*server('a', 2, 1), *server('b', 1, 1)],
         [*server('c', 2, 0, Kind.CACHE), *server('d', 3, 0)]],
        # All guarantees hold.
        [[*server('b', 2, 1)], [*server('a', 2, 0)]]])
    def test_no_server_moves(self, sockets):
        assert guarantees.exchange(sockets, [2, 2]) == sockets

    @hypothesis.given(quantum_vcpus.vcpus(shares=True), st.integers(1, 4),
                      st.randoms())
    def test_kinds_stay_and_no_socket_gets_worse(self, vcpus, count, chance):
        def kinds(socket):
            return collections.Counter((vcpu.kind, vcpu.is_polluter)
                                       for vcpu in socket)
        sockets = [[] for _ in range(count)]
        for vcpu in vcpus:
            chance.choice(sockets).append(vcpu)
        pcpus = [chance.randrange(1, 9) for _ in sockets]
        after = guarantees.exchange(sockets, pcpus)
        for old, new, width in zip(sockets, after, pcpus, strict=True):
            assert kinds(old) == kinds(new)
            assert guarantees.guaranteed_pcpus(new) <= max(
                width, guarantees.guaranteed_pcpus(old))
        assert sorted(vcpu.key for socket in after for vcpu in socket) == (
            sorted(vcpu.key for vcpu in vcpus))


class TestWiden:
    @pytest.mark.parametrize('clusters, expected', [
        ([(2, server('a', 4, '3/4')), (2, server('b', 4, '1/4'))], [3, 1]),
        # The cluster with most to spare gives.
        ([(1, server('a', 2, 1)), (2, server('b', 2, '1/2')),
          (5, server('c', 2, '1/2'))], [2, 2, 4]),
        # Without shares nothing changes.
        ([(1, server('a', 9, 0)), (3, server('b', 1, 0))], [1, 3])])
    def test_pcpus_of_each_cluster(self, clusters, expected):
        given = [Cluster(1_000 + place, *cluster)
                 for place, cluster in enumerate(clusters)]
        assert guarantees.widen(given) == [
            cluster._replace(pcpus=count)
            for cluster, count in zip(given, expected, strict=True)]

    def test_clusters_with_nothing_to_spare_become_one(self):
        a, b = server('a', 3, '1/2'), server('b', 5, '1/2')
        assert guarantees.widen(
            [Cluster(1_000, 2, a), Cluster(90_000, 2, b)]) == [
                Cluster(None, 4, b + a)]

    def test_the_neediest_joins_the_default_cluster(self):
        a, b, c = (server('a', 5, '1/2'), server('b', 2, 1),
                   server('c', 1, '1/2'))
        assert guarantees.widen(
            [Cluster(1_000, 2, a), Cluster(90_000, 2, b),
             Cluster(None, 1, c)]) == [
                 Cluster(90_000, 2, b), Cluster(None, 3, a + c)]
