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
import itertools
import unittest

import hypothesis
from hypothesis import strategies as st

from nova_vqos.quantum import seating


@st.composite
def rounds(draw):
    """Servers of vCPUs, seats, and where each sat until now."""
    servers = [f'server{number}' for number, size in enumerate(
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=12)))
        for _ in range(size)]
    places = draw(st.integers(1, 4))
    seats = collections.Counter(draw(st.lists(
        st.integers(0, places - 1), min_size=len(servers),
        max_size=len(servers))))
    held = draw(st.lists(
        st.one_of(st.none(), st.integers(0, places - 1)),
        min_size=len(servers), max_size=len(servers)))
    return servers, [seats[place] for place in range(places)], held


def cut(servers, places):
    """How many places more than one each the servers are spread over."""
    return len(set(zip(servers, places, strict=True))) - len(set(servers))


class SeatTest(unittest.TestCase):

    def test_places_are_filled_in_order(self):
        self.assertEqual([0, 0, 1, 1, 1], seating.seat(
            list('abcde'), [2, 3], [None] * 5))

    def test_servers_stand_together_though_given_apart(self):
        self.assertEqual([0, 1, 0, 1], seating.seat(
            list('abab'), [2, 2], [None] * 4))

    def test_another_server_fills_up_rather_than_one_is_cut(self):
        self.assertEqual([0, 0, 0, 1, 1, 1, 0, 0, 1, 1], seating.seat(
            list('aaabbbccdd'), [5, 5], [None] * 10))

    def test_one_is_cut_where_no_others_fit(self):
        self.assertEqual([0, 0, 0, 0, 1, 1, 1, 1], seating.seat(
            list('aaaaabbb'), [4, 4], [None] * 8))

    def test_who_stands_apart_leaves_first(self):
        # Of a, one stands apart from the other two; a place goes.
        self.assertEqual([1, 1, 1, 0, 0], seating.seat(
            list('aaabb'), [2, 3], [1, 1, 0, 0, 0]))

    def test_who_stands_apart_goes_home_when_there_is_a_seat(self):
        self.assertEqual([0, 0, 0, 1], seating.seat(
            list('aaab'), [3, 1], [0, 0, 1, None]))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(rounds())
    def test_every_seat_is_taken(self, given):
        servers, seats, held = given
        places = seating.seat(servers, seats, held)
        taken = collections.Counter(places)
        self.assertEqual(seats, [taken[place]
                                 for place in range(len(seats))])

    @hypothesis.settings(deadline=None)
    @hypothesis.given(rounds())
    def test_nobody_moves_when_nothing_changes(self, given):
        servers, seats, held = given
        places = seating.seat(servers, seats, held)
        self.assertEqual(places, seating.seat(servers, seats, places))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(rounds())
    def test_at_most_one_server_is_cut_between_two_places(self, given):
        servers, seats, _ = given
        places = seating.seat(servers, seats, [None] * len(servers))
        self.assertLessEqual(cut(servers, places),
                             sum(map(bool, seats)) - 1)

    @hypothesis.settings(deadline=None)
    @hypothesis.given(rounds(), st.data())
    def test_moves_are_bounded_by_changed_seats(self, given, data):
        servers, seats, _ = given
        held = seating.seat(servers, seats, [None] * len(servers))
        changed = list(seats)
        for _ in range(data.draw(st.integers(0, 3))):
            givers = [place for place, count in enumerate(changed) if count]
            changed[data.draw(st.sampled_from(givers))] -= 1
            changed[data.draw(st.integers(0, len(seats) - 1))] += 1
        lost = sum(max(0, old - new)
                   for old, new in zip(seats, changed, strict=True))
        places = seating.seat(servers, changed, held)
        moves = sum(old != new for old, new in zip(held, places, strict=True))
        self.assertGreaterEqual(moves, lost)
        self.assertLessEqual(moves, 2 * lost)


    def test_nobody_follows_another_home(self):
        servers = ['a', 'a', 'a', 'b', 'b', 'b', 'b']
        # The last loses its seat, the third goes home: its seat is the last's.
        self.assertEqual(
            [0, 0, 0, 1, 1, 2, 1],
            seating.seat(servers, [3, 3, 1, 0], [0, 0, 1, 1, 1, 2, 3]))


class ChooseTest(unittest.TestCase):

    def test_first_ones_where_they_fit(self):
        self.assertEqual([1, 2, 3], seating.choose([[1], [2, 3], [4]], 3))

    def test_none_where_none_are_wanted(self):
        self.assertEqual([], seating.choose([[1], [2, 3]], 0))

    def test_far_groups_are_not_looked_at(self):
        far = [[number, number + 1] for number in range(0, 400, 2)]
        self.assertEqual([0, 1, 2], seating.choose([*far, [400]], 3))
        self.assertEqual([0, 1, 400], seating.choose(
            [*far[:20], [400]], 3))

    @hypothesis.settings(deadline=None)
    @hypothesis.given(st.lists(st.integers(1, 9), max_size=10),
                      st.integers(0, 50))
    def test_sizes_of_a_sum_are_found_where_there_are_any(self, sizes, total):
        sums = {sum(some) for count in range(len(sizes) + 1)
                for some in itertools.combinations(sizes, count)}
        positions = seating.exactly(sizes, total)
        if total not in sums:
            self.assertIsNone(positions)
            return
        self.assertEqual(total, sum(sizes[place] for place in positions))
        self.assertEqual(len(positions), len(set(positions)))

    @hypothesis.given(st.lists(st.integers(1, 9), max_size=8),
                      st.integers(0, 50), st.integers(0, 20))
    def test_the_least_sum_in_a_range(self, sizes, least, width):
        sums = {sum(some) for count in range(len(sizes) + 1)
                for some in itertools.combinations(sizes, count)}
        self.assertEqual(
            min((total for total in sums if least <= total <= least + width),
                default=None),
            seating.least_sum(sizes, least, least + width))
