# SPDX-License-Identifier: Apache-2.0
import collections
import random

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import model
from nova_vqos.quantum.placement import sockets
from nova_vqos.tests.fixtures import quantum_vcpus

Kind = model.Kind
of_kind = quantum_vcpus.of_kind
servers = quantum_vcpus.servers


def counted(vcpus, pcpus, previous=None):
    return [quantum_vcpus.counted(socket)
            for socket in sockets.assign(vcpus, pcpus, previous)]


def fewest_beside(vcpus, counts):
    """How many CACHE vCPUs have to be on sockets with polluters.

    Tries every subset of the sockets: another way than the code's.
    """
    polluters = sum(vcpu.is_polluter for vcpu in vcpus)
    caches = sum(vcpu.kind is Kind.CACHE for vcpu in vcpus)
    return min(
        max(0, slots - (len(vcpus) - caches))
        for chosen in range(2 ** len(counts))
        for slots in [sum(count for number, count in enumerate(counts)
                          if chosen >> number & 1)] if slots >= polluters)


class TestAssign:
    @pytest.mark.parametrize('sizes', [
        (1, 1, 1, 1),
        # One server of each kind, split where a socket is full.
        (12, 12, 17, 7)])
    def test_figure_3_3(self, sizes):
        """16 vCPUs on each socket; one socket of four is dom0's.

        The figure has eight CACHE vCPUs beside polluters, where one is enough.
        """
        io, polluter, cache, spin = sizes
        vcpus = [
            *of_kind(Kind.IO, 12, pollutes=True, per_server=io),
            *of_kind(Kind.POLLUTER, 12, per_server=polluter),
            *of_kind(Kind.CACHE, 17, per_server=cache),
            *of_kind(Kind.SPIN, 7, per_server=spin)]
        assert counted(vcpus, [4, 4, 4]) == [
            {'IO+': 12, 'POLLUTER': 4},
            {'POLLUTER': 8, 'CACHE': 1, 'SPIN': 7}, {'CACHE': 16}]

    @pytest.mark.parametrize('groups, pcpus, expected', [
        # Neutral rather than cache-friendly vCPUs beside polluters.
        ({Kind.CACHE: 4, Kind.NEUTRAL: 2, Kind.POLLUTER: 2}, [2, 2],
         [{'NEUTRAL': 2, 'POLLUTER': 2}, {'CACHE': 4}]),
        # Others where that parts polluters from cache-friendly vCPUs.
        ({Kind.CACHE: 3, Kind.SPIN: 3, Kind.POLLUTER: 2}, [2, 2],
         [{'SPIN': 2, 'POLLUTER': 2}, {'CACHE': 3, 'SPIN': 1}]),
        # Also where nothing does.
        ({Kind.CACHE: 5, Kind.SPIN: 1, Kind.POLLUTER: 2}, [2, 2],
         [{'CACHE': 1, 'SPIN': 1, 'POLLUTER': 2}, {'CACHE': 4}]),
        # A narrower socket at the border.
        ({Kind.CACHE: 10, Kind.POLLUTER: 2}, [4, 2],
         [{'CACHE': 8}, {'CACHE': 2, 'POLLUTER': 2}]),
        # Another socket first where that parts them.
        ({Kind.POLLUTER: 4, Kind.CACHE: 8}, [4, 2],
         [{'CACHE': 8}, {'POLLUTER': 4}]),
        # vCPUs that are not recognised do not pollute.
        ({Kind.DEFAULT: 4, Kind.POLLUTER: 4}, [2, 2],
         [{'POLLUTER': 4}, {'DEFAULT': 4}]),
        ({Kind.IO: 1}, [2, 2, 2], [{'IO': 1}, {}, {}]),
        ({}, [2, 2], [{}, {}])])
    def test_kinds_of_each_socket(self, groups, pcpus, expected):
        assert counted(servers(groups), pcpus) == expected

    def test_polluters_stay_on_their_socket(self):
        vcpus = servers({Kind.POLLUTER: 4, Kind.CACHE: 4})
        previous = {vcpu.key: int(vcpu.is_polluter) for vcpu in vcpus}
        assert counted(vcpus, [2, 2], previous) == [
            {'CACHE': 4}, {'POLLUTER': 4}]


class TestVcpusPerSocket:
    @pytest.mark.parametrize('vcpus, pcpus, expected', [
        (48, [4, 4, 4], [16, 16, 16]), (50, [4, 4, 4], [17, 17, 16]),
        (18, [4, 2], [12, 6]), (5, [0, 2], [0, 5])])
    def test_as_many_per_pcpu(self, vcpus, pcpus, expected):
        assert sockets.vcpus_per_socket(vcpus, pcpus) == expected

    @hypothesis.given(st.integers(0, 200),
                      st.lists(st.integers(1, 20), min_size=1, max_size=8))
    def test_fair_per_pcpu_and_one_more_makes_one_more(self, vcpus, pcpus):
        counts = sockets.vcpus_per_socket(vcpus, pcpus)
        assert sum(counts) == vcpus
        least = vcpus // sum(pcpus)
        for count, width in zip(counts, pcpus, strict=True):
            assert least * width <= count <= (least + 1) * width
        more = sockets.vcpus_per_socket(vcpus + 1, pcpus)
        assert sorted(new - old for old, new in zip(
            counts, more, strict=True)) == [0] * (len(pcpus) - 1) + [1]


PCPUS = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def choose_sockets(vcpus, pcpus, chance):
    return {vcpu.key: chance.randrange(len(pcpus)) for vcpu in vcpus
            if chance.random() < 0.7}


def sockets_per_server(assigned):
    return collections.Counter(
        server for socket in assigned
        for server in {vcpu.server for vcpu in socket})


class TestProperties:
    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS)
    def test_every_vcpu_is_placed_once_and_fairly(self, vcpus, pcpus):
        assigned = sockets.assign(vcpus, pcpus)
        assert collections.Counter(vcpu.key for vcpu in vcpus) == (
            collections.Counter(
                vcpu.key for socket in assigned for vcpu in socket))
        least = len(vcpus) // sum(pcpus)
        for socket, width in zip(assigned, pcpus, strict=True):
            assert least * width <= len(socket) <= (least + 1) * width

    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS, st.randoms())
    def test_polluters_are_beside_as_few_as_possible(self, vcpus, pcpus,
                                                     chance):
        assigned = sockets.assign(vcpus, pcpus,
                                  choose_sockets(vcpus, pcpus, chance))
        mixed = [socket for socket in assigned
                 if any(vcpu.is_polluter for vcpu in socket)
                 and any(vcpu.kind is Kind.CACHE for vcpu in socket)]
        assert len(mixed) <= 1
        assert sum(
            vcpu.kind is Kind.CACHE for socket in mixed for vcpu in socket
        ) == fewest_beside(vcpus, list(map(len, assigned)))

    @hypothesis.given(quantum_vcpus.vcpus(mixed=False), PCPUS)
    def test_all_but_one_at_a_border_are_on_one_socket(self, vcpus, pcpus):
        # vCPUs of a server are alike here: polluters and others are parted
        # by design. One server is split at most where a socket ends, and one
        # where some of a kind had to stand beside the polluters.
        counts = sockets_per_server(sockets.assign(vcpus, pcpus))
        assert sum(count - 1 for count in counts.values()) <= len(pcpus)

    @hypothesis.given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4),
                      st.sampled_from(quantum_vcpus.KINDS))
    def test_servers_fill_one_socket_each(self, size, per_socket, count, kind):
        vcpus = of_kind(kind, size * per_socket * count, per_server=size)
        random.Random(size).shuffle(vcpus)
        assert set(sockets_per_server(sockets.assign(
            vcpus, [per_socket] * count)).values()) == {1}

    def test_a_narrow_socket_is_found_at_once(self):
        """Not only by those that had been on others: they would move again."""
        vcpus = [*of_kind(Kind.IO, 6, pollutes=True, per_server=6),
                 *of_kind(Kind.CACHE, 1)]
        previous = dict(zip((vcpu.key for vcpu in vcpus),
                            (0, 0, 0, 1, 2, 0, 1), strict=True))
        assert counted(vcpus, [3, 5, 1], previous) == [
            {'IO+': 2}, {'IO+': 4}, {'CACHE': 1}]

    def test_so_is_one_that_is_neither_narrow_nor_wide(self):
        vcpus = [*of_kind(Kind.POLLUTER, 10), *of_kind(Kind.CACHE, 6)]
        assert counted(vcpus, [2, 4, 6]) == [
            {'POLLUTER': 2}, {'CACHE': 6}, {'POLLUTER': 8}]

    @hypothesis.given(quantum_vcpus.vcpus(), PCPUS, st.randoms())
    def test_its_own_result_is_a_fixed_point(self, vcpus, pcpus, chance):
        assigned = sockets.assign(vcpus, pcpus,
                                  choose_sockets(vcpus, pcpus, chance))
        assert assigned == sockets.assign(vcpus, pcpus, {
            vcpu.key: number for number, socket in enumerate(assigned)
            for vcpu in socket})
