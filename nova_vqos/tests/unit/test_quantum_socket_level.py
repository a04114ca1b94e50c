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
import random
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import model
from nova_vqos.quantum import socket_level
from nova_vqos.tests.unit import quantum_vcpus

Kind = model.Kind
of_kind = quantum_vcpus.of_kind


def counted(vcpus, pcpus, held=None):
    return [quantum_vcpus.counted(socket)
            for socket in socket_level.assign(vcpus, pcpus, held)]


def held_by(sockets):
    return {vcpu.key: number for number, socket in enumerate(sockets)
            for vcpu in socket}


def mixed_sockets(sockets):
    """Sockets where polluters and cache-friendly vCPUs meet."""
    return [number for number, socket in enumerate(sockets)
            if any(vcpu.is_polluter for vcpu in socket)
            and any(vcpu.kind is Kind.CACHE for vcpu in socket)]


def can_be_parted(vcpus, counts):
    """Whether some of the sockets hold all polluters, and no CACHE vCPU.

    Tries every subset of the sockets: another way than the code's.
    """
    polluters = sum(vcpu.is_polluter for vcpu in vcpus)
    caches = sum(vcpu.kind is Kind.CACHE for vcpu in vcpus)
    return any(
        polluters <= seats <= len(vcpus) - caches
        for chosen in range(2 ** len(counts))
        for seats in [sum(count for number, count in enumerate(counts)
                          if chosen >> number & 1)])


class FigureTest(unittest.TestCase):
    """The example of the thesis, figure 3.3: one socket of four is dom0's."""

    def test_sixteen_vcpus_per_socket(self):
        vcpus = [
            *of_kind(Kind.IO, 12, pollutes=True),
            *of_kind(Kind.POLLUTER, 12), *of_kind(Kind.CACHE, 17),
            *of_kind(Kind.SPIN, 7)]
        self.assertEqual(
            [{'IO+': 12, 'POLLUTER': 4}, {'POLLUTER': 8, 'CACHE': 8},
             {'CACHE': 9, 'SPIN': 7}], counted(vcpus, [4, 4, 4]))

    def test_one_server_of_each_kind_is_cut_where_a_socket_is_full(self):
        vcpus = [
            *of_kind(Kind.IO, 12, pollutes=True, per_server=12),
            *of_kind(Kind.POLLUTER, 12, per_server=12),
            *of_kind(Kind.CACHE, 17, per_server=17),
            *of_kind(Kind.SPIN, 7, per_server=7)]
        self.assertEqual(
            [{'IO+': 12, 'POLLUTER': 4}, {'POLLUTER': 8, 'CACHE': 8},
             {'CACHE': 9, 'SPIN': 7}], counted(vcpus, [4, 4, 4]))


class AssignTest(unittest.TestCase):

    def test_neutral_rather_than_cache_beside_polluters(self):
        vcpus = [*of_kind(Kind.CACHE, 4), *of_kind(Kind.NEUTRAL, 2),
                 *of_kind(Kind.POLLUTER, 2)]
        self.assertEqual([{'NEUTRAL': 2, 'POLLUTER': 2}, {'CACHE': 4}],
                         counted(vcpus, [2, 2]))

    def test_others_where_they_part_polluters_from_cache(self):
        vcpus = [*of_kind(Kind.CACHE, 3), *of_kind(Kind.SPIN, 3),
                 *of_kind(Kind.POLLUTER, 2)]
        self.assertEqual(
            [{'SPIN': 2, 'POLLUTER': 2}, {'CACHE': 3, 'SPIN': 1}],
            counted(vcpus, [2, 2]))

    def test_the_order_given_where_nothing_parts_them(self):
        vcpus = [*of_kind(Kind.CACHE, 5), *of_kind(Kind.SPIN, 1),
                 *of_kind(Kind.POLLUTER, 2)]
        self.assertEqual(
            [{'CACHE': 2, 'POLLUTER': 2}, {'CACHE': 3, 'SPIN': 1}],
            counted(vcpus, [2, 2]))

    def test_another_socket_first_where_that_parts_them(self):
        vcpus = [*of_kind(Kind.POLLUTER, 4), *of_kind(Kind.CACHE, 8)]
        self.assertEqual([{'CACHE': 8}, {'POLLUTER': 4}],
                         counted(vcpus, [4, 2]))

    def test_polluters_stay_on_the_socket_that_they_have(self):
        vcpus = [*of_kind(Kind.POLLUTER, 4), *of_kind(Kind.CACHE, 4)]
        held = {vcpu.key: int(vcpu.is_polluter) for vcpu in vcpus}
        self.assertEqual([{'CACHE': 4}, {'POLLUTER': 4}],
                         counted(vcpus, [2, 2], held))

    def test_unknown_vcpus_are_no_polluters(self):
        vcpus = [*of_kind(Kind.DEFAULT, 4), *of_kind(Kind.POLLUTER, 4)]
        self.assertEqual([{'POLLUTER': 4}, {'DEFAULT': 4}],
                         counted(vcpus, [2, 2]))

    def test_fewer_vcpus_than_sockets(self):
        self.assertEqual([{'IO': 1}, {}, {}],
                         counted(of_kind(Kind.IO, 1), [2, 2, 2]))

    def test_no_vcpus(self):
        self.assertEqual([{}, {}], counted([], [2, 2]))


class CountsTest(unittest.TestCase):

    def test_equal_sockets_get_equal_numbers(self):
        self.assertEqual([16, 16, 16],
                         socket_level.vcpus_per_socket(48, [4, 4, 4]))
        self.assertEqual([17, 17, 16],
                         socket_level.vcpus_per_socket(50, [4, 4, 4]))

    def test_unequal_sockets_get_as_many_per_pcpu(self):
        self.assertEqual([12, 6],
                         socket_level.vcpus_per_socket(18, [4, 2]))

    def test_a_socket_without_pcpus_gets_none(self):
        self.assertEqual([0, 5], socket_level.vcpus_per_socket(5, [0, 2]))

    @hypothesis.given(st.integers(0, 200),
                      st.lists(st.integers(1, 20), min_size=1, max_size=8))
    def test_fair_per_pcpu_and_one_more_makes_one_more(self, vcpus, pcpus):
        counts = socket_level.vcpus_per_socket(vcpus, pcpus)
        self.assertEqual(vcpus, sum(counts))
        least = vcpus // sum(pcpus)
        for count, width in zip(counts, pcpus, strict=True):
            self.assertTrue(least * width <= count <= (least + 1) * width)
        more = socket_level.vcpus_per_socket(vcpus + 1, pcpus)
        self.assertEqual([0] * (len(pcpus) - 1) + [1], sorted(
            new - old for old, new in zip(counts, more, strict=True)))


PCPUS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


class PropertiesTest(unittest.TestCase):

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS)
    def test_every_vcpu_is_placed_once_and_fairly(self, vcpus, pcpus):
        sockets = socket_level.assign(vcpus, pcpus)
        placed = collections.Counter(
            vcpu.key for socket in sockets for vcpu in socket)
        self.assertEqual(collections.Counter(vcpu.key for vcpu in vcpus),
                         placed)
        least = len(vcpus) // sum(pcpus)
        for socket, width in zip(sockets, pcpus, strict=True):
            self.assertTrue(
                least * width <= len(socket) <= (least + 1) * width)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS, st.randoms())
    def test_polluters_beside_cache_only_where_unavoidable(
            self, vcpus, pcpus, chance):
        held = {vcpu.key: chance.randrange(len(pcpus)) for vcpu in vcpus
                if chance.random() < 0.7}
        sockets = socket_level.assign(vcpus, pcpus, held)
        mixed = mixed_sockets(sockets)
        counts = [len(socket) for socket in sockets]
        self.assertLessEqual(len(mixed), 1)
        self.assertEqual(not mixed, can_be_parted(vcpus, counts))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(mixed=False), PCPUS)
    def test_a_server_is_on_one_socket_but_for_one_at_each_border(
            self, vcpus, pcpus):
        # Those of a server are alike here: polluters and others are parted
        # by design. One is cut at most where a socket ends, and one where
        # some of a kind had to stand beside the polluters.
        sockets = socket_level.assign(vcpus, pcpus)
        spread = collections.Counter(
            server for socket in sockets
            for server in {vcpu.server for vcpu in socket})
        self.assertLessEqual(sum(count - 1 for count in spread.values()),
                             len(pcpus) - 1 + 1)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4),
                      st.sampled_from(quantum_vcpus.KINDS))
    def test_servers_that_fill_sockets_are_on_one_each(
            self, size, servers, sockets, kind):
        vcpus = of_kind(kind, size * servers * sockets, per_server=size)
        random.Random(size).shuffle(vcpus)
        placed = socket_level.assign(vcpus, [servers] * sockets)
        seen = collections.Counter(
            server for socket in placed
            for server in {vcpu.server for vcpu in socket})
        self.assertEqual({1}, set(seen.values()))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS, st.randoms())
    def test_its_own_result_is_a_fixed_point(self, vcpus, pcpus, chance):
        held = {vcpu.key: chance.randrange(len(pcpus)) for vcpu in vcpus
                if chance.random() < 0.7}
        sockets = socket_level.assign(vcpus, pcpus, held)
        again = socket_level.assign(vcpus, pcpus, held_by(sockets))
        self.assertEqual(sockets, again)
