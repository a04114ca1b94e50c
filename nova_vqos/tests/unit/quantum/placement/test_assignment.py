# SPDX-License-Identifier: Apache-2.0
import collections
import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum.placement import assignment


@st.composite
def inputs(draw):
    """Servers of vCPUs, slots, and previous places."""
    servers = [f'server{number}' for number, size in enumerate(
        draw(st.lists(st.integers(1, 6), min_size=1, max_size=12)))
        for _ in range(size)]
    places = draw(st.integers(1, 4))
    slots = collections.Counter(draw(st.lists(
        st.integers(0, places - 1), min_size=len(servers),
        max_size=len(servers))))
    previous = draw(st.lists(
        st.one_of(st.none(), st.integers(0, places - 1)),
        min_size=len(servers), max_size=len(servers)))
    return servers, [slots[place] for place in range(places)], previous


def sums(sizes):
    return {sum(some) for count in range(len(sizes) + 1)
            for some in itertools.combinations(sizes, count)}


@pytest.mark.parametrize('servers, slots, previous, expected', [
    # Places fill in their order.
    ('abcde', [2, 3], None, [0, 0, 1, 1, 1]),
    # Servers stay together though their vCPUs alternate.
    ('abab', [2, 2], None, [0, 1, 0, 1]),
    # Another server fills up a place, rather than one is split.
    ('aaabbbccdd', [5, 5], None, [0, 0, 0, 1, 1, 1, 0, 0, 1, 1]),
    # One is split where no others fit.
    ('aaaaabbb', [4, 4], None, [0, 0, 0, 0, 1, 1, 1, 1]),
    # A vCPU apart from its server leaves first.
    ('aaabb', [2, 3], [1, 1, 0, 0, 0], [1, 1, 1, 0, 0]),
    # It rejoins its server where that has a slot.
    ('aaab', [3, 1], [0, 0, 1, None], [0, 0, 0, 1]),
    # The last one loses its slot, and gets that of the third one, which
    # rejoins its server.
    ('aaabbbb', [3, 3, 1, 0], [0, 0, 1, 1, 1, 2, 3], [0, 0, 0, 1, 1, 2, 1])])
def test_assign(servers, slots, previous, expected):
    previous = previous or [None] * len(servers)
    assert assignment.assign(list(servers), slots, previous) == expected


@hypothesis.given(inputs())
def test_slots_are_filled_and_stay_so(given):
    servers, slots, previous = given
    places = assignment.assign(servers, slots, previous)
    filled = collections.Counter(places)
    assert [filled[place] for place in range(len(slots))] == slots
    assert assignment.assign(servers, slots, places) == places


@hypothesis.given(inputs())
def test_at_most_one_server_is_split_between_two_places(given):
    servers, slots, _ = given
    places = assignment.assign(servers, slots, [None] * len(servers))
    splits = len(set(zip(servers, places, strict=True))) - len(set(servers))
    assert splits <= sum(map(bool, slots)) - 1


@hypothesis.given(inputs(), st.data())
def test_changed_slots_bound_the_moves(given, data):
    servers, slots, _ = given
    previous = assignment.assign(servers, slots, [None] * len(servers))
    changed = list(slots)
    for _ in range(data.draw(st.integers(0, 3))):
        givers = [place for place, count in enumerate(changed) if count]
        changed[data.draw(st.sampled_from(givers))] -= 1
        changed[data.draw(st.integers(0, len(slots) - 1))] += 1
    lost = sum(max(0, old - new)
               for old, new in zip(slots, changed, strict=True))
    places = assignment.assign(servers, changed, previous)
    moves = sum(old != new for old, new in zip(previous, places, strict=True))
    assert lost <= moves <= 2 * lost


FAR = [[number, number + 1] for number in range(0, 400, 2)]


@pytest.mark.parametrize('groups, count, expected', [
    ([[1], [2, 3], [4]], 3, [1, 2, 3]), ([[1], [2, 3]], 0, []),
    # Far groups are not searched.
    ([*FAR, [400]], 3, [0, 1, 2]), ([*FAR[:20], [400]], 3, [0, 1, 400])])
def test_choose(groups, count, expected):
    assert assignment.choose(groups, count) == expected


@hypothesis.given(st.lists(st.integers(1, 9), max_size=10),
                  st.integers(0, 50))
def test_subset_with_sum(sizes, total):
    positions = assignment.subset_with_sum(sizes, total)
    if total not in sums(sizes):
        assert positions is None
        return
    assert sum(sizes[place] for place in positions) == total
    assert len(positions) == len(set(positions))


@hypothesis.given(st.lists(st.integers(1, 9), max_size=8),
                  st.integers(0, 50), st.integers(0, 20))
def test_smallest_sum(sizes, low, width):
    assert assignment.smallest_sum(sizes, low, low + width) == min(
        (total for total in sums(sizes) if low <= total <= low + width),
        default=None)
