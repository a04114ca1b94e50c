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
from fractions import Fraction
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import model
from nova_vqos.quantum import pool_level
from nova_vqos.quantum import promises
from nova_vqos.tests.unit import quantum_vcpus

Kind = model.Kind
Cluster = pool_level.Cluster


def server(name, count, share, kind=Kind.IO):
    return tuple(model.Vcpu(name, number, kind, share=Fraction(share))
                 for number in range(count))


class NeededTest(unittest.TestCase):

    def test_shares_add_up_exactly(self):
        vcpus = [*server('a', 3, '1/3'), *server('b', 7, '1/7')]
        self.assertEqual(2, promises.promised(vcpus))
        self.assertEqual(2, promises.needed_pcpus(vcpus))
        self.assertEqual(3, promises.needed_pcpus(
            [*vcpus, *server('c', 1, '1/1000000')]))

    def test_who_spins_needs_a_pcpu_for_each_vcpu(self):
        vcpus = [*server('a', 3, 0, Kind.SPIN), *server('b', 5, 0)]
        self.assertEqual({'a': 3}, promises.spinning_servers(vcpus))
        self.assertEqual(3, promises.needed_pcpus(vcpus))

    def test_all_vcpus_of_a_server_that_spins_count(self):
        vcpus = [model.Vcpu('a', 0, Kind.SPIN), model.Vcpu('a', 1, Kind.CACHE)]
        self.assertEqual(2, promises.needed_pcpus(vcpus))

    def test_nobody_needs_none(self):
        self.assertEqual(0, promises.needed_pcpus([]))
        self.assertEqual(1, promises.needed_pcpus(server('a', 9, 0)))


class ExchangedTest(unittest.TestCase):

    def test_a_heavy_server_changes_places_with_a_light_one(self):
        sockets = [[*server('a', 2, 1), *server('b', 2, '1/2')],
                   [*server('c', 2, '1/4'), *server('d', 2, '1/2')]]
        self.assertEqual(
            [['c', 'c', 'b', 'b'], ['a', 'a', 'd', 'd']],
            [[vcpu.server for vcpu in socket]
             for socket in promises.exchanged(sockets, [2, 3])])

    def test_only_with_one_that_is_alike(self):
        sockets = [[*server('a', 2, 1), *server('b', 1, 1)],
                   [*server('c', 2, 0, Kind.CACHE), *server('d', 3, 0)]]
        self.assertEqual(sockets, promises.exchanged(sockets, [2, 2]))

    def test_nobody_moves_where_all_is_held(self):
        sockets = [[*server('b', 2, 1)], [*server('a', 2, 0)]]
        self.assertEqual(sockets, promises.exchanged(sockets, [2, 2]))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(shares=True), st.integers(1, 4),
                      st.randoms())
    def test_kinds_stay_and_no_socket_becomes_worse(self, vcpus, count,
                                                    chance):
        sockets = [[] for _ in range(count)]
        for vcpu in vcpus:
            chance.choice(sockets).append(vcpu)
        pcpus = [chance.randrange(1, 9) for _ in sockets]
        after = promises.exchanged(sockets, pcpus)
        for old, new, width in zip(sockets, after, pcpus, strict=True):
            self.assertEqual(
                collections.Counter((vcpu.kind, vcpu.is_polluter)
                                    for vcpu in old),
                collections.Counter((vcpu.kind, vcpu.is_polluter)
                                    for vcpu in new))
            self.assertLessEqual(promises.promised(new),
                                 max(width, promises.promised(old)))
        self.assertEqual(
            sorted(vcpu.key for vcpu in vcpus),
            sorted(vcpu.key for socket in after for vcpu in socket))


class GrownTest(unittest.TestCase):

    def test_pools_with_time_to_spare_give_pcpus(self):
        clusters = [Cluster(1_000, 2, server('a', 4, '3/4')),
                    Cluster(90_000, 2, server('b', 4, '1/4'))]
        self.assertEqual([3, 1], [cluster.pcpus for cluster
                                  in promises.grown(clusters)])

    def test_who_has_most_to_spare_gives(self):
        clusters = [Cluster(1_000, 1, server('a', 2, 1)),
                    Cluster(5_000, 2, server('b', 2, '1/2')),
                    Cluster(90_000, 5, server('c', 2, '1/2'))]
        self.assertEqual([2, 2, 4], [cluster.pcpus for cluster
                                     in promises.grown(clusters)])

    def test_pools_that_have_nothing_to_give_become_one(self):
        a, b = server('a', 3, '1/2'), server('b', 5, '1/2')
        self.assertEqual(
            [Cluster(None, 4, b + a)],
            promises.grown([Cluster(1_000, 2, a), Cluster(90_000, 2, b)]))

    def test_the_neediest_joins_the_default_pool(self):
        a, b, c = (server('a', 5, '1/2'), server('b', 2, 1),
                   server('c', 1, '1/2'))
        self.assertEqual(
            [Cluster(90_000, 2, b), Cluster(None, 3, a + c)],
            promises.grown([Cluster(1_000, 2, a), Cluster(90_000, 2, b),
                            Cluster(None, 1, c)]))

    def test_nothing_changes_without_promises(self):
        clusters = [Cluster(1_000, 1, server('a', 9, 0)),
                    Cluster(90_000, 3, server('b', 1, 0))]
        self.assertEqual(clusters, promises.grown(clusters))
