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

"""What the pools of a host hold, from the agent to the scheduler."""

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


def test_as_it_is_told():
    assert SOME.to_state() == {
        'pools': {'io': [1, 4], 'cache': [2, 3]}, 'polluters': 5}
    assert SOME.to_stat() == 'cache:2:3 io:1:4 polluters:5'
    assert SOME._replace(polluters=0).to_stat() == (
        'cache:2:3 io:1:4 polluters:0')
    assert occupancy.UNKNOWN.to_stat() == ''
    assert occupancy.UNKNOWN.to_state() == {'pools': {}}


@given(OCCUPANCIES)
def test_nothing_is_lost_on_the_way(told):
    state = json.loads(json.dumps(told.to_state()))
    assert occupancy.from_state(state) == told
    stat = told.to_stat()
    assert len(stat) <= 255
    assert occupancy.from_stat(stat) == told


@given(JSON)
def test_nonsense_in_a_state_file_raises_nothing(state):
    found = occupancy.from_state(state)
    assert occupancy.from_stat(found.to_stat()) == found


@pytest.mark.parametrize('size', [
    [1], [1, 2, 3], [-1, 2], [1, 1_000_000], [True, 1], ['1', 2], [1.0, 2],
    {'pcpus': 1}, None, '12'])
def test_what_cannot_be_is_left_out(size):
    state = {'pools': {'cache': size, 'io': [1, 4], 'gold': [1, 1],
                       'auto': [1, 1]}, 'polluters': 5}
    assert occupancy.from_state(state) == SOME._replace(
        pools={'io': SOME.pools['io']})


@pytest.mark.parametrize('polluters', [-1, 1_000_000, True, '5', None, 2.0])
def test_a_number_of_polluters_that_cannot_be(polluters):
    state = SOME.to_state() | {'polluters': polluters}
    assert occupancy.from_state(state) == SOME._replace(polluters=None)


@pytest.mark.parametrize('text', [
    None, 5, '', ' ', 'cache', 'cache:2', 'cache:2:3:4', 'cache:a:b',
    'cache:-1:3', 'cache:1_0:3', 'cache:²:3', 'cache:٣:3', 'gold:1:2',
    'polluters', 'polluters:', 'polluters:1:2', 'cache:1:2 io:?',
    'cache:2:3 ' * 30, b'cache:2:3', f'polluters:{"9" * 200}',
    'cache:1000000:1'])
def test_nonsense_in_stats_is_nothing_known(text):
    assert occupancy.from_stat(text) == occupancy.UNKNOWN


def test_what_a_newer_version_adds_is_left_out():
    assert occupancy.from_stat(
        'cache:2:3 gold:1:1 io:1:4 polluters:5 moon:7') == SOME
