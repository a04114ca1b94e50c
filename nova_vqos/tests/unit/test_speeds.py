# SPDX-License-Identifier: Apache-2.0
"""What was measured of a server on several hosts, and what follows."""

import json
import math

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import learning
from nova_vqos import primitives
from nova_vqos import speeds as records

NAMES = ('integer', 'hash', 'float')
WEIGHTS = dict.fromkeys(NAMES, 1.0)
FACTORS = st.floats(0.3, 3.0)
KINDS = st.fixed_dictionaries(dict.fromkeys(NAMES, FACTORS))
FIRST = dict.fromkeys(NAMES, 1.0)
OTHER = {'integer': 4.0, 'hash': 1.0, 'float': 2.0}


def measured(*hosts, reference='gold', at_s=1000.0):
    """:param hosts: coefficients of each, and the server's own there"""
    found = None
    for kinds, coefficient in hosts:
        found = records.measured(
            found, reference, kinds,
            records.Speed(math.log(1e9 * coefficient), 1e-5), at_s)
    return found


@given(KINDS, KINDS)
def test_on_one_host_nothing_follows(first, other):
    speeds = measured((first, 1.7))
    for kinds in first, other:
        assert speeds.predict(kinds, WEIGHTS).factor == pytest.approx(1.0)


@pytest.mark.parametrize('own', [1.0, 1.5, 2.0, 3.0, 4.0])
def test_on_another_host_it_does_what_it_did_on_the_first(own):
    speeds = measured((FIRST, 1.0), (OTHER, own))
    found = speeds.predict(OTHER, WEIGHTS)
    # The mean of the other host is twice that of the first.
    assert found.factor == pytest.approx(own / 2.0, rel=0.03)
    assert found.low < found.factor < found.high
    assert speeds.predict(FIRST, WEIGHTS).factor == pytest.approx(1.0)


@given(KINDS, KINDS, KINDS, st.lists(FACTORS, min_size=3, max_size=3))
def test_no_host_moves_the_promise_of_the_first(first, second, third, own):
    speeds = measured(*zip((first, second, third), own, strict=True))
    assert speeds.predict(first, WEIGHTS).factor == pytest.approx(1.0)


@given(st.floats(0.01, 100.0))
def test_it_stays_within_the_kinds_of_the_host(own):
    speeds = measured((FIRST, 1.0), (OTHER, own))
    factor = speeds.predict(OTHER, WEIGHTS).factor
    assert 1 / 2 - 1e-9 <= factor <= 4 / 2 + 1e-9


def test_a_new_measurement_replaces_that_of_the_same_host():
    speeds = measured((FIRST, 1.0), (OTHER, 1.0), (OTHER, 3.0))
    assert speeds.hosts == 2
    assert math.exp(speeds.speed_on(OTHER).log) == pytest.approx(3e9)
    assert speeds.speed_on({'integer': 9.0}) is None


def test_another_reference_begins_anew():
    before = measured((FIRST, 1.0), (OTHER, 1.0))
    after = records.measured(before, 'silver', OTHER,
                             records.Speed(20.0, 1e-5), 2000.0)
    assert (after.reference, after.first, after.hosts) == ('silver', OTHER, 1)
    assert records.merged(after, before) == after
    assert records.merged(before, after) == after


def test_the_last_measurement_of_a_host_counts():
    third = {'integer': 2.0, 'hash': 2.0, 'float': 2.0}
    early = measured((OTHER, 1.0), (third, 1.0))
    late = measured((FIRST, 1.0), (OTHER, 3.0), at_s=1001.0)
    found = records.merged(late, early)
    assert found == records.merged(early, late)
    assert (found.first, found.hosts, found.at_s) == (FIRST, 3, 1001.0)
    assert found.speed_on(OTHER) == late.speed_on(OTHER)
    assert found.speed_on(third) == early.speed_on(third)
    assert records.merged(late, None) == late


def test_hosts_stay_bounded_and_the_first_is_remembered():
    speeds = measured((FIRST, 1.0), *(
        (dict.fromkeys(NAMES, 1.0 + number / 10), 1.0 + number / 10)
        for number in range(1, 40)))
    assert speeds.hosts == learning.MOST_HOSTS
    assert speeds.first == FIRST


@given(st.lists(st.tuples(KINDS, FACTORS), min_size=1, max_size=5))
def test_a_message_carries_it(hosts):
    speeds = measured(*hosts)
    assert records.parse(json.loads(json.dumps(
        primitives.to_primitives(speeds)))) == speeds


@given(st.recursive(st.none() | st.floats() | st.text() | st.integers(),
                    lambda inner: st.lists(inner) | st.dictionaries(
                        st.sampled_from(('reference', 'history', 'kinds',
                                         'observations')), inner)))
def test_garbage_is_refused(data):
    with pytest.raises(primitives.MessageInvalid):
        records.parse(data)
