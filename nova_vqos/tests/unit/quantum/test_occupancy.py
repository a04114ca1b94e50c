# SPDX-License-Identifier: Apache-2.0
"""The occupancy of pools, from the agent to the compute driver."""

import json

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.quantum import occupancy

COUNTS = st.integers(0, occupancy.MOST)
OCCUPANCIES = st.builds(
    occupancy.Occupancy,
    st.dictionaries(st.sampled_from(occupancy.NAMES),
                    st.builds(occupancy.PoolSize, COUNTS, COUNTS)),
    st.none() | COUNTS)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(['pools', 'polluters', 'cache', 'io']), inner))
SOME = occupancy.Occupancy({'io': occupancy.PoolSize(1, 4),
                            'cache': occupancy.PoolSize(2, 3)}, 5)


def test_as_it_is_written():
    assert SOME.to_state() == {
        'pools': {'io': [1, 4], 'cache': [2, 3]}, 'polluters': 5}
    assert occupancy.UNKNOWN.to_state() == {'pools': {}}


@given(OCCUPANCIES)
def test_roundtrip(occupied):
    state = json.loads(json.dumps(occupied.to_state()))
    assert occupancy.from_state(state) == occupied


@given(JSON)
def test_nonsense_in_a_state_file_raises_nothing(state):
    found = occupancy.from_state(state)
    assert occupancy.from_state(found.to_state()) == found


@pytest.mark.parametrize('size', [
    [1], [1, 2, 3], [-1, 2], [1, 1_000_000], [True, 1], ['1', 2], [1.0, 2],
    {'pcpus': 1}, None, '12'])
def test_an_invalid_size_is_left_out(size):
    state = {'pools': {'cache': size, 'io': [1, 4], 'gold': [1, 1],
                       'auto': [1, 1]}, 'polluters': 5}
    assert occupancy.from_state(state) == SOME._replace(
        pools={'io': SOME.pools['io']})


@pytest.mark.parametrize('polluters', [-1, 1_000_000, True, '5', None, 2.0])
def test_an_invalid_number_of_polluters_is_left_out(polluters):
    state = SOME.to_state() | {'polluters': polluters}
    assert occupancy.from_state(state) == SOME._replace(polluters=None)
