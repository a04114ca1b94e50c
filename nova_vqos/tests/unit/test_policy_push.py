# SPDX-License-Identifier: Apache-2.0
"""Which pushes hold: in any order, and from any agent."""

import json

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos.tests.unit import test_policy_override

ONE = test_policy_override.ONE
FLAVOR_IDS = ['f1', 'f2', 'f3']


@st.composite
def pushes(draw):
    generation = draw(st.integers(1, 6))
    full = draw(st.booleans())
    overrides = draw(st.dictionaries(
        st.sampled_from(FLAVOR_IDS), test_policy_override.overrides,
        min_size=int(full), max_size=3))
    return policy_push.Push(generation, full, {
        flavor_id: override._replace(generation=generation)
        for flavor_id, override in overrides.items()}, draw(
            st.sampled_from(['', 'x' * 86 + '=='])))


def merged(*groups):
    held = ()
    for group in groups:
        held = policy_push.merged(held, group)
    return held


def expected(made):
    """By the definition: the newest of each flavor since the full push."""
    since = max((push.order for push in made if push.full), default=(0,))
    found = {}
    for push in sorted(made, key=lambda push: push.order):
        if push.order >= since:
            found |= push.overrides
    return found


@hypothesis.given(st.lists(pushes(), max_size=7), st.randoms())
def test_in_whatever_order_pushes_come(made, random):
    whole = merged(made)
    heard = [*made, *random.choices(made, k=3)] if made else []
    random.shuffle(heard)
    assert merged(*([push] for push in heard)) == whole
    assert policy_push.overrides_of(whole) == expected(made)
    assert policy_push.digest_of(whole) == policy_push.digest_of(
        merged(reversed(made)))


@hypothesis.given(st.lists(pushes(), min_size=1, max_size=7), st.data())
def test_who_hears_only_of_others_holds_the_same(made, data):
    """Each push reaches some, and all ask others until nothing is new."""
    agents = [()] * 3
    for push in made:
        for number in data.draw(st.sets(st.integers(0, 2), min_size=1)):
            agents[number] = merged(agents[number], [push])
    for _ in range(2):
        for asks in range(3):
            for answers in range(3):
                agents[asks] = merged(agents[asks], agents[answers])
    assert agents == [merged(made)] * 3


@hypothesis.given(st.lists(pushes(), max_size=5), pushes(),
                  st.lists(pushes(), max_size=5))
def test_dropped_flavors_stay_dropped(before, full, later):
    """Whoever brings older pushes, once more, or that were never heard."""
    hypothesis.assume(full.full)
    held = merged(before, [full], before, later)
    newest = max(push.order for push in (*before, full, *later) if push.full)
    assert all(push.order >= newest for push in held)
    allowed = {flavor_id for push in (*before, full, *later)
               if push.order >= newest for flavor_id in push.overrides}
    assert set(policy_push.overrides_of(held)) <= allowed


@hypothesis.given(st.lists(pushes(), max_size=7))
def test_nothing_useless_is_kept(made):
    held = merged(made)
    partial = [push for push in held if not push.full]
    assert len(partial) <= len(FLAVOR_IDS)
    for number, push in enumerate(held):
        # NOTE: two pushes of one generation may say the same of a flavor.
        later = policy_push.overrides_of(held[number + 1:])
        assert push.full or not push.overrides.keys() <= later.keys()


@hypothesis.given(pushes())
def test_a_push_arrives_as_it_was_sent(push):
    sent = json.loads(json.dumps(push.to_dict()))
    found = policy_push.from_dict(sent)
    assert found == push
    assert found.content == push.content


@hypothesis.given(pushes(), pushes())
def test_different_pushes_have_different_contents(one, other):
    same = one == policy_push.Push(
        other.generation, other.full, other.overrides, one.signature)
    assert (one.content == other.content) == same


@hypothesis.given(st.dictionaries(st.sampled_from(FLAVOR_IDS),
                                  test_policy_override.overrides))
def test_overrides_of_agents_before_pushes(overrides):
    found = policy_push.of_overrides(overrides)
    assert policy_push.overrides_of(found) == overrides
    assert merged(found) == found
    # A full push of the same generation is the whole of it.
    for push in found:
        full = policy_push.Push(push.generation, True, push.overrides)
        assert push not in merged(found, [full])


def test_no_room_for_more():
    most = policy_override.MOST_FLAVORS
    held = (policy_push.Push(5, True, {
        str(number): ONE for number in range(most)}),)
    more = policy_push.Push(6, False, {'0': ONE._replace(generation=6)})
    with pytest.raises(policy_push.TooManyFlavors):
        merged(held, [more])
    full = policy_push.Push(7, True, {'0': ONE._replace(generation=7)})
    assert merged(held, [full]) == (full,)


PUSH = policy_push.Push(5, True, {'f1': ONE}).to_dict()


@pytest.mark.parametrize('data', [
    None, [], {}, {**PUSH, 'more': 1}, {**PUSH, 'full': 1},
    {**PUSH, 'full': None}, {**PUSH, 'flavors': {}}, {**PUSH, 'flavors': []},
    {**PUSH, 'flavors': {'f1': {}}}, {**PUSH, 'generation': 0},
    {**PUSH, 'generation': 2**53}, {**PUSH, 'generation': 1.0},
    {**PUSH, 'signature': None}, {**PUSH, 'signature': 'x'},
    {**PUSH, 'signature': b'x' * 88}, {**PUSH, 'signature': 'x' * 88},
    {**PUSH, 'signature': 'x' * 86 + '==\n'},
])
def test_garbage_is_refused(data):
    with pytest.raises(policy_override.PushInvalid):
        policy_push.from_dict(data)
    with pytest.raises(policy_override.PushInvalid):
        policy_push.from_list([data])
