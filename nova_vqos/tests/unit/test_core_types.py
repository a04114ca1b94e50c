# SPDX-License-Identifier: Apache-2.0
"""Which core type of its host a server gets."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import core_types
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.tests.functional import host_files

TICK_US = 4000
FAST = frozenset({0, 1})
SLOW = frozenset({2, 3, 4, 5})
ALL = FAST | SLOW


def make_profile(coefficients=None):
    return host_files.make_profile(
        'host', coefficients or {'0-1': 2.0, '2-5': 0.8})


def make_policy(cu, vcpus=1):
    return policies.ServerPolicy(vcpus=vcpus, units=cu)


def make_types(*servers, pcpus=ALL, **kwargs):
    return core_types.with_servers(
        core_types.of_host(make_profile(), pcpus),
        [core_types.Server(*server, vcpus=1) for server in servers],
        **kwargs)


def left(types):
    return [one.room_cu for one in types]


def choose(cu, vcpus=1, types=None):
    return core_types.choose(make_policy(cu, vcpus), types or make_types(),
                             tick_us=TICK_US).pcpus


class TestCoreTypesOfAHost:
    def test_only_shared_pcpus_count(self):
        assert [(one.pcpus, one.coefficient, one.room_cu)
                for one in core_types.of_host(make_profile(),
                                              {1, 2, 3, 99})] == [
           ({1}, 2.0, 200), ({2, 3}, 0.8, 160)]

    def test_one_without_shared_pcpus_is_left_out(self):
        one, = core_types.of_host(make_profile(), SLOW)
        assert one.pcpus == SLOW


class TestRoom:
    def test_of_an_empty_host(self):
        assert left(make_types()) == [400, 320]

    def test_a_server_on_all_is_carried_by_capacity(self):
        for pcpus in (None, ALL, frozenset({64, 65})):
            assert left(make_types((72, pcpus))) == [360, 288]

    def test_a_server_on_part_of_the_pcpus(self):
        assert left(make_types((60, frozenset({3})))) == [400, 260]
        # One pCPU of 200 CU, one of 80.
        assert left(make_types((28, frozenset({1, 2})))) == [380, 312]

    def test_reserved_units_are_shared_by_capacity(self):
        assert left(make_types(reserved_cu=72)) == [360, 288]
        assert left(make_types(reserved_cu=9000)) == [0, 0]

    def test_allocation_ratio(self):
        assert left(make_types((60, FAST), allocation_ratio=1.1)) == [380, 352]

    def test_for_servers_it_is_whole_and_never_negative(self):
        fast, slow = make_types((1000, FAST), (1, None))
        assert fast.whole_room_cu == 0
        assert slow.room_cu == 320 - Fraction(320, 720)
        assert slow.whole_room_cu == 319

    def test_of_no_types(self):
        assert core_types.with_servers(
            (), [core_types.Server(5, None, 1)]) == ()


class TestPacking:
    """2 pCPUs of 200 CU, 4 of 80 CU, on which vCPUs have to pack."""

    def make_types(self, *servers, **kwargs):
        return core_types.with_servers(
            core_types.of_host(make_profile(), ALL),
            [core_types.Server(*server) for server in servers], exact=True,
            **kwargs)

    def largest(self, *servers, **kwargs):
        return [one.largest_vcpu_cu
                for one in self.make_types(*servers, **kwargs)]

    def test_sums_alone_need_no_packing(self):
        assert [one.largest_vcpu_cu for one in make_types()] == [None, None]

    def test_the_largest_vcpu_of_each(self):
        assert self.largest() == [200, 80]
        assert self.largest((240, FAST, 2), (200, SLOW, 4)) == [80, 30]
        assert self.largest(*[(50, SLOW, 1)] * 4) == [200, 30]

    def test_the_room_bounds_it(self):
        assert self.largest((395, FAST, 79)) == [5, 80]
        assert self.largest((500, FAST, 5)) == [0, 80]

    def stranded(self, *servers, **kwargs):
        return [one.stranded_cu
                for one in self.make_types(*servers, **kwargs)]

    def test_what_is_too_small_for_the_largest_vcpu(self):
        assert [one.stranded_cu for one in make_types()] == [None, None]
        assert self.stranded() == [0, 0]
        # 80 CU of each fast pCPU, less than 120; 30 of each slow one.
        assert self.stranded((240, FAST, 2), (200, SLOW, 4)) == [160, 120]
        assert self.stranded((120, FAST, 1), (50, SLOW, 1)) == [80, 30]
        assert self.stranded((80, FAST, 2), (50, SLOW, 1)) == [0, 30]
        # Pieces as large as it.
        assert self.stranded((100, FAST, 1), (40, SLOW, 1)) == [0, 0]

    def test_what_is_reserved_is_not_stranded(self):
        # 40 and 32 CU of it.
        assert self.stranded((240, FAST, 2), (200, SLOW, 4),
                             reserved_cu=72) == [120, 88]

    def test_where_servers_do_not_pack_all_is_stranded(self):
        assert self.stranded(*[(110, FAST, 1)] * 3) == [70, 0]

    def test_what_is_reserved_needs_no_piece(self):
        # 40 CU of each pCPU of 200 would leave none for a vCPU of 200.
        assert self.largest(reserved_cu=144) == [200, 80]
        assert self.largest((200, FAST, 1), reserved_cu=144) == [120, 80]

    def test_over_commitment_enlarges_each_pcpu(self):
        servers = (360, FAST, 3), (180, SLOW, 3)
        assert self.largest(*servers, allocation_ratio=1.5) == [180, 80]
        # Less is sold, but a vCPU still has a whole pCPU.
        assert self.largest(allocation_ratio=0.9) == [200, 80]

    def test_a_server_on_all_is_carried_by_capacity(self):
        fast, slow = self.make_types((72, None, 4))
        assert fast.packed.vcpus == {10: 4}
        assert slow.packed.vcpus == {8: 4}

    def test_the_faster_where_the_slower_has_no_piece(self):
        servers = (200, SLOW, 4),
        assert choose(50, types=make_types((200, SLOW))) == SLOW
        assert choose(50, types=self.make_types(*servers)) == FAST
        assert choose(30, types=self.make_types(*servers)) == SLOW
        assert choose(90, vcpus=3, types=self.make_types(*servers)) == SLOW
        assert choose(93, vcpus=3, types=self.make_types(*servers)) == FAST
        # One of five has no piece.
        assert choose(80, vcpus=4, types=self.make_types(*servers)) == SLOW
        assert choose(100, vcpus=5, types=self.make_types(*servers)) == FAST

    def test_no_piece_anywhere(self):
        types = self.make_types((200, SLOW, 4), (320, FAST, 2))
        with pytest.raises(core_types.NoCoreTypeFits) as caught:
            choose(50, types=types)
        for part in ('50 CU each', 'at most 30 CU', 'at most 40 CU'):
            assert part in str(caught.value)


class TestRestricted:
    def test_no_more_than_the_pcpus_have(self):
        types = make_types((60, FAST), (300, SLOW))
        narrow = core_types.restricted(types, frozenset({0, 2, 3, 64}))
        assert [(one.pcpus, one.room_cu) for one in narrow] == [
            ({0}, 200), ({2, 3}, 20)]
        assert core_types.restricted(types, ALL) == types

    def test_one_with_none_of_them_is_left_out(self):
        one, = core_types.restricted(make_types(), frozenset({1, 64}))
        assert one.pcpus == {1}


class TestChoose:
    def test_the_slowest_that_is_fast_enough(self):
        assert choose(80) == SLOW
        assert choose(81) == FAST
        assert choose(161, vcpus=2) == FAST

    def test_the_faster_when_the_slower_is_full(self):
        assert choose(60, types=make_types((270, SLOW))) == FAST

    def test_room_is_for_all_units_in_one_type(self):
        # 720 CU in all, and 600 of them free.
        types = make_types((60, FAST), (60, SLOW))
        assert choose(340, vcpus=5, types=types) == FAST
        with pytest.raises(core_types.NoCoreTypeFits):
            choose(350, vcpus=5, types=types)

    def test_too_small_a_share_for_the_fast_type(self):
        # Two ticks in the longest period: 0.64 CU of 80, 1.6 of 200.
        types = make_types((320, SLOW))
        assert choose(1) == SLOW
        with pytest.raises(core_types.NoCoreTypeFits):
            choose(1, types=types)

    def test_among_equally_fast_ones_most_room_then_the_lowest(self):
        profile = make_profile({'4-5': 1.0, '0-1': 1.0, '2-3': 1.0})
        types = core_types.of_host(profile, range(6))
        assert choose(60, types=types) == {0, 1}
        types = core_types.with_servers(types, [
            core_types.Server(10, frozenset({0}), 1),
            core_types.Server(5, frozenset({2}), 1)])
        assert choose(60, types=types) == {4, 5}

    def test_the_refusal_names_what_each_has(self):
        with pytest.raises(units.UnitsError) as caught:
            choose(120, types=make_types((300, FAST)))
        assert str(caught.value) == (
            'no core type can take 120 CU on 1 vCPUs, 120 CU each: pCPUs 0-1 '
            'of 200 CU each have 100 CU left, pCPUs 2-5 of 80 CU each have '
            '320 CU left')

    def test_speeds_are_compared_exactly(self):
        types = core_types.of_host(
            make_profile({'0': 0.334, '1': 2.0}), {0, 1})
        assert core_types.choose(
            make_policy(167, 5), [types[0]._replace(room_cu=Fraction(999))],
            tick_us=TICK_US).pcpus == {0}


class TestChooseAgain:
    def choose(self, cu, last, *servers):
        one = core_types.choose_again(
            make_policy(cu), make_types(*servers), last, tick_us=TICK_US)
        return None if one is None else one.pcpus

    def test_the_previous_one(self):
        assert self.choose(60, FAST) == FAST
        assert self.choose(60, frozenset({0})) == FAST

    def test_another_where_that_one_is_full_or_too_slow(self):
        assert self.choose(60, FAST, (400, FAST)) == SLOW
        assert self.choose(120, SLOW) == FAST

    def test_one_is_chosen_where_it_had_none(self):
        for last in (None, ALL, frozenset({64}), frozenset()):
            assert self.choose(60, last) == SLOW

    def test_no_returning_server_is_refused(self):
        full = (400, FAST), (320, SLOW)
        assert self.choose(60, FAST, *full) == FAST
        assert self.choose(60, None, *full) is None
        assert self.choose(120, SLOW, *full) is None
        assert self.choose(500, FAST) is None


COEFFICIENTS = st.lists(
    st.floats(0.05, 20.0, allow_subnormal=False), min_size=1, max_size=5)
SERVERS = st.lists(st.builds(
    core_types.Server, st.integers(1, 500),
    st.none() | st.frozensets(st.integers(0, 12), max_size=5),
    st.integers(1, 4), st.none()), max_size=8)


def host_of(coefficients):
    """Two pCPUs of each core type."""
    profile = make_profile({f'{2 * number}-{2 * number + 1}': coefficient
                            for number, coefficient in
                            enumerate(coefficients)})
    return core_types.of_host(profile, profile.pcpus)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, SERVERS, st.integers(0, 5000),
                  st.sampled_from([0.5, 1.0, 1.1, 16.0]))
def test_types_sum_to_the_total(coefficients, servers, reserved_cu, ratio):
    """As much in all types as in the inventory, to the last fraction."""
    types = host_of(coefficients)
    capacity_cu = sum(map(units.pcpu_cu, coefficients * 2), Fraction(0))
    types = core_types.with_servers(types, servers,
                                    reserved_cu=reserved_cu,
                                    allocation_ratio=ratio)
    assert sum(left(types)) == max(
        Fraction(0), capacity_cu - reserved_cu) * Fraction(repr(ratio)) - sum(
            server.units for server in servers)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, SERVERS, st.integers(1, 4000),
                  st.integers(1, 8))
def test_the_slowest_that_fits_is_chosen(coefficients, servers, cu, vcpus):
    types = core_types.with_servers(host_of(coefficients), servers)
    policy = make_policy(cu, vcpus)
    fitting = [one for one in types if one.room_cu >= cu
               and one.fast_enough(policy, tick_us=TICK_US)]
    try:
        chosen = core_types.choose(policy, types, tick_us=TICK_US)
    except core_types.NoCoreTypeFits as error:
        assert not fitting
        assert '\n' not in str(error)
        return
    assert chosen in fitting
    assert all(chosen.coefficient <= one.coefficient for one in fitting)
    # What is put there fits, and the cap that it gets is none that is clipped.
    assert chosen.room_cu - cu >= 0
    units.cap(cu, vcpus, chosen.coefficient, tick_us=TICK_US)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, st.lists(st.integers(1, 300), max_size=30))
def test_a_host_that_is_filled_is_never_oversold(coefficients, sizes):
    empty = host_of(coefficients)
    servers = []
    for cu in sizes:
        types = core_types.with_servers(empty, servers)
        try:
            chosen = core_types.choose(make_policy(cu), types, tick_us=TICK_US)
        except core_types.NoCoreTypeFits:
            continue
        servers.append(core_types.Server(cu, chosen.pcpus, 1))
    assert all(room_cu >= 0 for room_cu in left(
        core_types.with_servers(empty, servers)))


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, SERVERS, st.integers(0, 500),
                  st.sampled_from([0.5, 1.0, 1.1]))
def test_stranded_is_a_part_of_what_is_left(coefficients, servers,
                                            reserved_cu, ratio):
    for one in core_types.with_servers(
            host_of(coefficients), servers, exact=True,
            reserved_cu=reserved_cu, allocation_ratio=ratio):
        assert 0 <= one.stranded_cu <= max(0, one.room_cu)
        pieces_cu = one.packed.pieces()
        largest_cu = max(one.packed.vcpus, default=0)
        if min(pieces_cu) >= largest_cu:
            assert one.stranded_cu == 0
        if max(pieces_cu) < largest_cu:
            assert one.stranded_cu == max(0, one.room_cu)


def test_equal_pcpus_are_one_core_type():
    assert len(core_types.of_host(make_profile({'0-3': 1.0}), ALL)) == 1
