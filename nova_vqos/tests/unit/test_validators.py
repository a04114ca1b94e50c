# SPDX-License-Identifier: Apache-2.0
"""What nova-api answers to an extra spec, asked as nova-api asks."""

from nova.api.validation.extra_specs import validators as nova_validators
import pytest

from nova import exception
from nova_vqos import policy
from nova_vqos import validators


def refusal(key, value):
    with pytest.raises(exception.ValidationError) as caught:
        nova_validators.validate(key, value)
    return caught.value.format_message()


def test_nova_loads_them_by_the_entry_point():
    names = {validator.name for validator in validators.register()}
    assert names >= set(policy.KEYS)
    for name in policy.KEYS:
        loaded = nova_validators.VALIDATORS[name]
        assert isinstance(loaded, validators.PolicyValidator)


@pytest.mark.parametrize(('key', 'value'), [
    (policy.UNITS_KEY, '1'), (policy.UNITS_KEY, '60'),
    (policy.UNITS_KEY, str(2**31 - 1)),
    *((key, value) for key, values in policy.CHOICES.items()
      for value in values),
    (policy.WORK_KEY, 'integer'), (policy.WORK_KEY, 'integer:0.5,hash:0.5')])
def test_valid(key, value):
    nova_validators.validate(key, value)


@pytest.mark.parametrize('value', [
    '0', '-60', str(2**31), str(2**40), 'sixty', '', '60.0', ' 60 ', '6_0',
    '+60', '060', '٦٠', '0x3c', '60\n'])
def test_units_are_strict_integers(value):
    answer = refusal(policy.UNITS_KEY, value)
    assert policy.UNITS_KEY in answer
    assert repr(value) in answer
    assert 'a whole number from 1 to 2147483647' in answer


@pytest.mark.parametrize(('key', 'values'), policy.CHOICES.items())
@pytest.mark.parametrize('value', ['', 'HARD', 'no such value'])
def test_choices_are_named(key, values, value):
    answer = refusal(key, value)
    assert key in answer
    assert repr(value) in answer
    assert ', '.join(values) in answer


@pytest.mark.parametrize('value', ['', 'integer,hash', 'hash:0', 'Hash'])
def test_work_is_a_kind_or_weights(value):
    answer = refusal(policy.WORK_KEY, value)
    assert policy.WORK_KEY in answer
    assert repr(value) in answer
    assert 'weights above 0 and up to 1000' in answer


@pytest.mark.parametrize('key', ['vqos:kap', 'vqos:', 'vqos:cap:x'])
def test_unknown_names_of_ours_are_refused_with_the_known_ones(key):
    answer = refusal(key, 'hard')
    assert key in answer
    assert "'hard'" in answer
    assert policy.CAP_KEY in answer
    assert policy.WORK_KEY in answer


def test_a_long_value_is_cut():
    assert len(refusal(policy.CAP_KEY, 'x' * 10_000)) < 300


@pytest.mark.parametrize(('key', 'value'), [
    ('resources:CUSTOM_OTHER', '7'), ('quota:cpu_quota', '10000'),
    ('hw:cpu_policy', 'dedicated'), ('anything', 'goes'),
    ('other:namespace', 'too')])
def test_others_are_left_to_nova(key, value):
    nova_validators.validate(key, value)
    assert not isinstance(nova_validators.VALIDATORS.get(key),
                          validators.PolicyValidator)
