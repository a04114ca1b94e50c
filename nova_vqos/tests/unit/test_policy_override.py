# SPDX-License-Identifier: Apache-2.0
"""What is pushed of flavors, and that the newest of it holds."""

import json

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import policy as policies
from nova_vqos import policy_override

FIELDS = {'name': 'small', 'vcpus': 2, 'units': 60, 'quantum_class': 'cache',
          'dd_billing': 'charge', 'guarantee': 'required'}
ONE = policy_override.Override(5, **FIELDS)

overrides = st.builds(
    policy_override.Override, generation=st.integers(1, 6),
    name=st.just('small'),
    vcpus=st.just(2), units=st.sampled_from([None, 60]),
    quantum_class=st.sampled_from(policies.CHOICES['vqos:quantum_class']),
    dd_billing=st.sampled_from(policies.CHOICES['vqos:dd_billing']),
    guarantee=st.sampled_from(policies.CHOICES['vqos:guarantee']))
pushes = st.dictionaries(st.sampled_from(['f1', 'f2', 'f3']), overrides,
                         max_size=3)


@hypothesis.given(st.lists(pushes, max_size=6), st.randoms())
def test_in_whatever_order_pushes_come_the_newest_holds(made, random):
    """However often, and also where two have the same generation."""
    agents = []
    for _ in range(3):
        heard = [*made, *random.choices(made, k=3)] if made else []
        random.shuffle(heard)
        held = policy_override.NOTHING
        for push in heard:
            held = policy_override.merged(held, push)
        agents.append(held)
    assert agents[0] == agents[1] == agents[2]
    for flavor_id, override in agents[0].items():
        assert override.generation == max(
            push[flavor_id].generation for push in made if flavor_id in push)
    assert len({policy_override.digest_of(held) for held in agents}) == 1


@hypothesis.given(st.lists(pushes, min_size=1, max_size=6), st.data())
def test_a_host_that_hears_only_other_hosts_holds_the_same(made, data):
    """Each push reaches some, and all ask others until nothing is new."""
    agents = [policy_override.NOTHING] * 3
    for push in made:
        for number in data.draw(st.sets(st.integers(0, 2), min_size=1)):
            agents[number] = policy_override.merged(agents[number], push)
    for _ in range(2):
        for asks in range(3):
            for answers in range(3):
                agents[asks] = policy_override.merged(
                    agents[asks], agents[answers])
    whole = policy_override.NOTHING
    for push in made:
        whole = policy_override.merged(whole, push)
    assert agents == [whole] * 3


@hypothesis.given(pushes)
def test_a_push_arrives_as_it_was_sent(push):
    sent = json.loads(json.dumps(policy_override.to_dict(push)))
    assert policy_override.from_dict(sent) == push


def test_a_push_has_one_generation():
    assert policy_override.from_dict({'f1': FIELDS}, 5) == {'f1': ONE}


@pytest.mark.parametrize('data', [
    None, [], 'f1', {'f1': None}, {'f1': {}}, {'f1': []},
    {'f1': {**FIELDS, 'more': 1}},
    {'f1': {**FIELDS, 'generation': 6}},
    {'': FIELDS}, {'x' * 256: FIELDS}, {7: FIELDS}, {'a\nb': FIELDS},
    {'f1': {**FIELDS, 'name': ''}}, {'f1': {**FIELDS, 'name': 'x' * 256}},
    {'f1': {**FIELDS, 'name': '\ud800'}}, {'f1': {**FIELDS, 'name': None}},
    {'f1': {**FIELDS, 'name': '\x1b[2J'}},
    {'f1': {**FIELDS, 'vcpus': 0}}, {'f1': {**FIELDS, 'vcpus': True}},
    {'f1': {**FIELDS, 'vcpus': '2'}}, {'f1': {**FIELDS, 'units': 0}},
    {'f1': {**FIELDS, 'units': 2**40}}, {'f1': {**FIELDS, 'units': 1.5}},
    {'f1': {**FIELDS, 'quantum_class': 'fast'}},
    {'f1': {**FIELDS, 'dd_billing': ['off']}},
    {'f1': {**FIELDS, 'dd_billing': None}},
    {'f1': {**FIELDS, 'guarantee': 'perhaps'}},
    {str(number): FIELDS for number in range(1501)},
])
def test_garbage_is_refused(data):
    with pytest.raises(policy_override.PushInvalid):
        policy_override.from_dict(data, 5)


@pytest.mark.parametrize('generation', [
    None, 0, -1, 2**53, 1.0, True, '5', float('nan')])
def test_generations_that_are_none(generation):
    with pytest.raises(policy_override.PushInvalid, match='generation'):
        policy_override.check_generation(generation)
    with pytest.raises(policy_override.PushInvalid, match='generation'):
        policy_override.from_dict({'f1': {**FIELDS, 'generation': generation}})


def test_a_generation_far_in_the_future_is_refused():
    now_us = 1_000_000_000
    most_us = 300 * 10**6
    assert policy_override.check_generation(
        now_us + most_us, now_us) == now_us + most_us
    with pytest.raises(policy_override.PushInvalid, match='clock skew'):
        policy_override.check_generation(now_us + most_us + 1, now_us)


class TestMatch:
    held = {'f1': ONE}

    def test_the_flavor_itself(self):
        assert policy_override.match(self.held, 'f1', 'small', 2) == (ONE, '')

    def test_another_flavor(self):
        assert policy_override.match(self.held, 'f2', 'large', 4) == (None, '')

    @pytest.mark.parametrize('flavor_id, name, vcpus, reason', [
        ('f0', 'small', 2, 'another flavor named small'),
        ('', 'small', 2, 'lacks the flavor'),
        ('f1', 'small', 4, 'is now that of small of 2'),
        ('f1', 'tiny', 2, 'is now that of small of 2'),
    ])
    def test_one_that_was_made_anew(self, flavor_id, name, vcpus, reason):
        found, why = policy_override.match(self.held, flavor_id, name, vcpus)
        assert found is None
        assert reason in why


class TestEffective:
    def test_what_is_pushed_and_nothing_else(self):
        policy = policy_override.effective(
            {'resources:CUSTOM_VQOS_CPU_UNIT': '40', 'vqos:cap': 'floor',
             'vqos:dd_billing': 'off'}, 4, ONE)
        assert policy == policies.ServerPolicy(4, 40, 'floor', 'cache',
                                               'charge', 'required')

    def test_nothing_was_pushed(self):
        assert policy_override.effective({}, 2, None) is None

    def test_defaults_end_what_was_booted_with(self):
        policy = policy_override.effective(
            {'vqos:dd_billing': 'account', 'vqos:quantum_class': 'io',
             'resources:CUSTOM_VQOS_CPU_UNIT': '40',
             'vqos:guarantee': 'required'}, 2,
            policy_override.of_flavor('small', 2, {}))
        assert policy == policies.ServerPolicy(2, 40)

    @pytest.mark.parametrize('override, key', [
        (ONE, 'dd_billing'), (ONE._replace(dd_billing='off'), 'guarantee')])
    def test_what_a_server_without_units_cannot_have(self, override, key):
        with pytest.raises(policies.PolicyError, match=key):
            policy_override.effective({}, 2, override)


def test_a_flavor_that_cannot_be_honoured_is_not_pushed():
    with pytest.raises(policies.PolicyError, match='vqos:quantum_class'):
        policy_override.of_flavor('small', 2, {'vqos:quantum_class': 'fast'})
