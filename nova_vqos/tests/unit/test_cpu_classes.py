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

"""Which class of unlike pCPUs a server is kept in."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import cpu_classes
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


def make_rooms(*servers, pcpus=ALL, **kwargs):
    return cpu_classes.with_servers(
        cpu_classes.of_host(make_profile(), pcpus),
        [cpu_classes.Server(*server) for server in servers], **kwargs)


def left(rooms):
    return [room.room_cu for room in rooms]


def choose(cu, vcpus=1, rooms=None):
    return cpu_classes.choose(make_policy(cu, vcpus), rooms or make_rooms(),
                              tick_us=TICK_US).pcpus


class TestClassesOfAHost:
    def test_only_shared_pcpus_count(self):
        assert [(room.pcpus, room.coefficient, room.room_cu)
                for room in cpu_classes.of_host(make_profile(),
                                                {1, 2, 3, 99})] == [
            ({1}, 2.0, 200), ({2, 3}, 0.8, 160)]

    def test_a_class_of_which_nothing_is_shared_is_none(self):
        room, = cpu_classes.of_host(make_profile(), SLOW)
        assert room.pcpus == SLOW

    def test_who_holds_pcpus(self):
        rooms = make_rooms()
        assert cpu_classes.holding(rooms, frozenset({3, 4})).pcpus == SLOW
        assert cpu_classes.holding(rooms, frozenset({1, 2})) is None
        assert cpu_classes.holding(rooms, frozenset({99})) is None
        assert cpu_classes.holding(rooms, frozenset()) is None


class TestRoom:
    def test_of_an_empty_host(self):
        assert left(make_rooms()) == [400, 320]

    def test_a_server_in_one_class(self):
        assert left(make_rooms((60, frozenset({3})))) == [400, 260]

    def test_a_server_on_all_is_carried_by_capacity(self):
        for pcpus in (None, ALL, frozenset({64, 65})):
            assert left(make_rooms((72, pcpus))) == [360, 288]

    def test_a_server_on_parts_of_two_classes(self):
        # One pCPU of 200 CU, one of 80.
        assert left(make_rooms((28, frozenset({1, 2})))) == [380, 312]

    def test_what_is_reserved_is_taken_by_capacity(self):
        assert left(make_rooms(reserved_cu=72)) == [360, 288]
        assert left(make_rooms(reserved_cu=9000)) == [0, 0]

    def test_allocation_ratio(self):
        assert left(make_rooms((60, FAST), allocation_ratio=1.1)) == [
            380, 352]

    def test_for_servers_it_is_whole_and_never_negative(self):
        fast, slow = make_rooms((1000, FAST), (1, None))
        assert fast.whole_room_cu == 0
        assert slow.room_cu == 320 - Fraction(320, 720)
        assert slow.whole_room_cu == 319

    def test_of_no_classes(self):
        assert cpu_classes.with_servers(
            (), [cpu_classes.Server(5, None)]) == ()


class TestNarrowed:
    def test_no_more_than_the_pcpus_have(self):
        rooms = make_rooms((60, FAST), (300, SLOW))
        narrow = cpu_classes.narrowed(rooms, frozenset({0, 2, 3, 64}))
        assert [(room.pcpus, room.room_cu) for room in narrow] == [
            ({0}, 200), ({2, 3}, 20)]
        assert cpu_classes.narrowed(rooms, ALL) == rooms

    def test_a_class_with_none_of_them_is_left_out(self):
        room, = cpu_classes.narrowed(make_rooms(), frozenset({1, 64}))
        assert room.pcpus == {1}


class TestChoose:
    def test_the_slowest_that_is_fast_enough(self):
        assert choose(80) == SLOW
        assert choose(81) == FAST
        assert choose(161, vcpus=2) == FAST

    def test_the_faster_when_the_slower_is_full(self):
        assert choose(60, rooms=make_rooms((270, SLOW))) == FAST

    def test_room_is_for_all_units_in_one_class(self):
        # 720 CU in all, and 600 of them free.
        rooms = make_rooms((60, FAST), (60, SLOW))
        assert choose(340, vcpus=5, rooms=rooms) == FAST
        with pytest.raises(cpu_classes.NoClassFits):
            choose(350, vcpus=5, rooms=rooms)

    def test_too_small_a_share_for_the_fast_class(self):
        # Two ticks in the longest period: 0.64 CU of 80, 1.6 of 200.
        rooms = make_rooms((320, SLOW))
        assert choose(1) == SLOW
        with pytest.raises(cpu_classes.NoClassFits):
            choose(1, rooms=rooms)

    def test_among_equally_fast_ones_most_room_then_the_lowest(self):
        profile = make_profile({'4-5': 1.0, '0-1': 1.0, '2-3': 1.0})
        classes = cpu_classes.of_host(profile, range(6))
        assert choose(60, rooms=classes) == {0, 1}
        rooms = cpu_classes.with_servers(classes, [
            cpu_classes.Server(10, frozenset({0})),
            cpu_classes.Server(5, frozenset({2}))])
        assert choose(60, rooms=rooms) == {4, 5}

    def test_the_refusal_names_what_each_class_has(self):
        with pytest.raises(units.UnitsError) as caught:
            choose(120, rooms=make_rooms((300, FAST)))
        assert str(caught.value) == (
            'no class of equal pCPUs can take 120 CU on 1 vCPUs: pCPUs 0-1 '
            'of 200 CU each have 100 CU left, pCPUs 2-5 of 80 CU each have '
            '320 CU left')

    def test_speeds_are_compared_exactly(self):
        rooms = cpu_classes.of_host(
            make_profile({'0': 0.334, '1': 2.0}), {0, 1})
        assert cpu_classes.choose(
            make_policy(167, 5), [rooms[0]._replace(room_cu=Fraction(999))],
            tick_us=TICK_US).pcpus == {0}


class TestKeep:
    def keep(self, cu, last, *servers):
        room = cpu_classes.keep(make_policy(cu), make_rooms(*servers), last,
                                tick_us=TICK_US)
        return None if room is None else room.pcpus

    def test_the_class_that_it_had(self):
        assert self.keep(60, FAST) == FAST
        assert self.keep(60, frozenset({0})) == FAST

    def test_another_where_that_one_is_full_or_too_slow(self):
        assert self.keep(60, FAST, (400, FAST)) == SLOW
        assert self.keep(120, SLOW) == FAST

    def test_one_is_chosen_where_it_had_none(self):
        for last in (None, ALL, frozenset({64})):
            assert self.keep(60, last) == SLOW

    def test_nobody_is_turned_away(self):
        full = (400, FAST), (320, SLOW)
        assert self.keep(60, FAST, *full) == FAST
        assert self.keep(60, None, *full) is None
        assert self.keep(120, SLOW, *full) is None
        assert self.keep(500, FAST) is None


COEFFICIENTS = st.lists(
    st.floats(0.05, 20.0, allow_subnormal=False), min_size=1, max_size=5)
SERVERS = st.lists(st.builds(
    cpu_classes.Server, st.integers(1, 500),
    st.none() | st.frozensets(st.integers(0, 12), max_size=5)), max_size=8)


def host_of(coefficients):
    """Two pCPUs of each class."""
    profile = make_profile({f'{2 * number}-{2 * number + 1}': coefficient
                            for number, coefficient in
                            enumerate(coefficients)})
    return cpu_classes.of_host(profile, profile.pcpus)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, SERVERS, st.integers(0, 5000),
                  st.sampled_from([0.5, 1.0, 1.1, 16.0]))
def test_the_rooms_are_what_placement_has(coefficients, servers, reserved_cu,
                                          ratio):
    """As much in all classes as in the inventory, to the last fraction."""
    classes = host_of(coefficients)
    capacity_cu = sum(map(units.pcpu_cu, coefficients * 2), Fraction(0))
    rooms = cpu_classes.with_servers(classes, servers,
                                     reserved_cu=reserved_cu,
                                     allocation_ratio=ratio)
    assert sum(left(rooms)) == max(
        Fraction(0), capacity_cu - reserved_cu) * Fraction(repr(ratio)) - sum(
            server.units for server in servers)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, SERVERS, st.integers(1, 4000),
                  st.integers(1, 8))
def test_no_better_class_is_passed_over(coefficients, servers, cu, vcpus):
    rooms = cpu_classes.with_servers(host_of(coefficients), servers)
    policy = make_policy(cu, vcpus)
    fitting = [room for room in rooms if room.room_cu >= cu
               and room.fast_enough(policy, tick_us=TICK_US)]
    try:
        chosen = cpu_classes.choose(policy, rooms, tick_us=TICK_US)
    except cpu_classes.NoClassFits as error:
        assert not fitting
        assert '\n' not in str(error)
        return
    assert chosen in fitting
    assert all(chosen.coefficient <= room.coefficient for room in fitting)
    # What is put there fits, and the cap that it gets is none that is clipped.
    assert chosen.room_cu - cu >= 0
    units.cap(cu, vcpus, chosen.coefficient, tick_us=TICK_US)


@hypothesis.settings(deadline=None)
@hypothesis.given(COEFFICIENTS, st.lists(st.integers(1, 300), max_size=30))
def test_a_host_that_is_filled_is_never_oversold(coefficients, sizes):
    classes = host_of(coefficients)
    servers = []
    for cu in sizes:
        rooms = cpu_classes.with_servers(classes, servers)
        try:
            chosen = cpu_classes.choose(make_policy(cu), rooms,
                                        tick_us=TICK_US)
        except cpu_classes.NoClassFits:
            continue
        servers.append(cpu_classes.Server(cu, chosen.pcpus))
    assert all(room_cu >= 0 for room_cu in left(
        cpu_classes.with_servers(classes, servers)))


def test_one_class_of_equal_pcpus():
    assert len(cpu_classes.of_host(make_profile({'0-3': 1.0}), ALL)) == 1
