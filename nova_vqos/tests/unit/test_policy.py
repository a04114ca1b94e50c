# SPDX-License-Identifier: Apache-2.0
import types

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import policy

UNITS = policy.UNITS_KEY
CEILING = policy.PROJECT_CEILING_KEY
BURST = policy.BURST_KEY
SECONDS = policy.BURST_SECONDS_KEY
BURSTS = {UNITS: '60', BURST: '90', SECONDS: '600'}


def test_a_flavor_without_ours_is_stock():
    assert policy.parse({}, 2) is None
    assert policy.parse({'quota:cpu_quota': '50000', 'hw:cpu_policy':
                         'dedicated', 'resources:CUSTOM_OTHER': '1'},
                        2) is None


def test_units_with_defaults():
    assert policy.parse({UNITS: '60'}, 2) == policy.ServerPolicy(
        vcpus=2, units=60, cap='hard', quantum_class='default',
        dd_billing='off')


def test_every_key():
    assert policy.parse({
        UNITS: '60', 'vqos:cap': 'floor', 'vqos:quantum_class': 'cache',
        'vqos:dd_billing': 'charge', 'hw:cpu_policy': 'shared',
        'resources:VCPU': '0', 'trait:CUSTOM_VQOS_HOOK': 'required',
    }, 1) == policy.ServerPolicy(
        vcpus=1, units=60, cap='floor', quantum_class='cache',
        dd_billing='charge')


@pytest.mark.parametrize('quantum_class', [
    'default', 'io', 'spin', 'cache', 'neutral', 'auto'])
def test_class_and_accounting_go_without_units(quantum_class):
    assert policy.parse({'vqos:quantum_class': quantum_class,
                         'vqos:dd_billing': 'account'},
                        1) == policy.ServerPolicy(
        vcpus=1, quantum_class=quantum_class, dd_billing='account')


@pytest.mark.parametrize('key', [UNITS, CEILING, BURST, SECONDS])
@pytest.mark.parametrize('value', [
    '0', '-1', str(2**31), str(2**40), 'sixty', '', ' 60', '60 ', '6_0',
    '+60', '060', '6e1', '60.0', '0x3c', '\u0666\u0660', '60\n', '9' * 5000,
    60, None, ['60']])
def test_units_that_are_no_number(key, value):
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse({UNITS: '60', key: value}, 1)
    assert (caught.value.key, caught.value.value) == (key, value)
    assert caught.value.expected == (
        f'a whole number from 1 to {86_400 if key == SECONDS else 2**31 - 1}')


@pytest.mark.parametrize('length, shown', [
    (78, f"'{'9' * 78}'"), (79, f"'{'9' * 75}...")])
def test_a_long_value_is_not_all_in_the_message(length, shown):
    error = policy.PolicyError('key', '9' * length, 'short')
    assert str(error) == f'key is {shown}, it must be short'


def test_the_most_units():
    assert policy.parse({UNITS: '2147483647'}, 1).units == 2**31 - 1


@pytest.mark.parametrize('key', policy.CHOICES)
@pytest.mark.parametrize('value', ['', 'Hard', 'on', 'default ', None, 1])
def test_choices_name_what_they_may_be(key, value):
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse({UNITS: '60', key: value}, 1)
    assert (caught.value.key, caught.value.value) == (key, value)
    for choice in policy.CHOICES[key]:
        assert choice in caught.value.expected


@pytest.mark.parametrize('extra_specs, vcpus, key, says', [
    ({UNITS: '3'}, 4, UNITS, 'at least 1 for each of the 4 vCPUs'),
    ({UNITS: '60', 'quota:cpu_quota': '1'}, 1, 'quota:cpu_quota', 'left out'),
    ({UNITS: '60', 'quota:cpu_period': '1'}, 1, 'quota:cpu_period',
     'left out'),
    ({UNITS: '60', 'quota:cpu_shares': '1'}, 1, 'quota:cpu_shares',
     'left out'),
    ({UNITS: '60', 'hw:cpu_policy': 'dedicated'}, 1, 'hw:cpu_policy',
     'dedicated CPUs are not sold'),
    ({UNITS: '60', 'hw:cpu_policy': 'mixed'}, 1, 'hw:cpu_policy',
     'dedicated CPUs are not sold'),
    ({UNITS: '60', 'resources:PCPU': '1'}, 1, 'resources:PCPU', 'left out'),
    ({UNITS: '60', 'resources2:PCPU': '1'}, 1, 'resources2:PCPU',
     'left out'),
    ({UNITS: '60', 'hw:cpu_dedicated_mask': '0-1'}, 1,
     'hw:cpu_dedicated_mask', 'left out'),
    ({'resources1:CUSTOM_VQOS_CPU_UNIT': '60'}, 1,
     'resources1:CUSTOM_VQOS_CPU_UNIT', UNITS),
    ({'resources_A:CUSTOM_VQOS_CPU_UNIT': '60', UNITS: '60'}, 1,
     'resources_A:CUSTOM_VQOS_CPU_UNIT', UNITS),
    ({'vqos:cap': 'hard'}, 1, 'vqos:cap', 'left out'),
    ({'vqos:dd_billing': 'charge'}, 1, 'vqos:dd_billing', 'off or account'),
    ({'vqos:guarantee': 'required'}, 1, 'vqos:guarantee', UNITS),
    ({'vqos:work': 'integer'}, 1, 'vqos:work', UNITS),
    ({UNITS: '60', 'vqos:quantum': 'io'}, 1, 'vqos:quantum',
     'vqos:quantum_class'),
    ({CEILING: '60'}, 1, CEILING, UNITS),
    ({UNITS: '60', CEILING: '59'}, 1, CEILING, 'at least the 60 CU'),
    ({UNITS: '60', CEILING: '60', 'vqos:cap': 'floor'}, 1, 'vqos:cap',
     'hard'),
    ({UNITS: '60', CEILING: '60', 'vqos:guarantee': 'preferred'}, 1,
     'vqos:guarantee', 'off'),
    ({BURST: '90', SECONDS: '600'}, 1, BURST, UNITS),
    ({SECONDS: '600'}, 1, SECONDS, UNITS),
    ({UNITS: '60', BURST: '90'}, 1, BURST, SECONDS),
    ({UNITS: '60', SECONDS: '600'}, 1, SECONDS, BURST),
    ({**BURSTS, BURST: '60'}, 1, BURST, 'more than the 60 CU'),
    ({**BURSTS, SECONDS: '86401'}, 1, SECONDS, '1 to 86400'),
    ({**BURSTS, 'vqos:cap': 'floor'}, 1, 'vqos:cap', 'hard'),
    ({**BURSTS, 'vqos:guarantee': 'preferred'}, 1, 'vqos:guarantee', 'off'),
    ({**BURSTS, 'vqos:dd_billing': 'charge'}, 1, 'vqos:dd_billing',
     'off or account'),
    ({**BURSTS, CEILING: '100'}, 1, CEILING, 'left out'),
])
def test_contradictions(extra_specs, vcpus, key, says):
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse(extra_specs, vcpus)
    assert (caught.value.key, str(caught.value.value)) == (
        key, extra_specs[key])
    assert says in caught.value.expected


def test_a_ceiling():
    found = policy.parse({UNITS: '60', CEILING: '100'}, 1)
    assert found == policy.ServerPolicy(1, 60, project_ceiling_cu=100)
    assert policy.ServerPolicy.from_dict(found.to_dict()) == found
    # Who does not know ceilings does not see one where there is none.
    assert 'project_ceiling_cu' not in policy.ServerPolicy(1, 60).to_dict()


@pytest.mark.parametrize('dd_billing', ['off', 'account'])
def test_a_burst(dd_billing):
    found = policy.parse({**BURSTS, 'vqos:dd_billing': dd_billing}, 1)
    assert found == policy.ServerPolicy(
        1, 60, dd_billing=dd_billing, burst_cu=90, burst_seconds=600)
    assert policy.ServerPolicy.from_dict(found.to_dict()) == found
    # Who does not know bursts does not see one where there is none.
    assert not {'burst_cu', 'burst_seconds'} & set(
        policy.ServerPolicy(1, 60).to_dict())


@pytest.mark.parametrize(('text', 'weights'), [
    ('integer', {'integer': 1}), ('integer:0.5,memory-chase:2', {
        'integer': 0.5, 'memory-chase': 2})])
def test_a_kind_of_work(text, weights):
    found = policy.parse({UNITS: '60', 'vqos:work': text}, 1)
    assert found == policy.ServerPolicy(1, 60, work=text)
    assert dict(found.mix.weights) == weights
    assert policy.ServerPolicy(1, 60).mix is None


@pytest.mark.parametrize('value', [
    '', 'Integer', 'integer:0', 'integer,hash', 'integer:1001', None, 1,
    'x' * 300])
def test_work_that_is_none(value):
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse({UNITS: '60', 'vqos:work': value}, 1)
    assert (caught.value.key, caught.value.value) == ('vqos:work', value)
    assert 'integer:0.5,hash:0.5' in caught.value.expected


def test_an_older_receiver_knows_no_work():
    """It refuses a field that it does not know."""
    assert 'work' not in policy.ServerPolicy(1, 60).to_dict()
    assert policy.ServerPolicy(1, 60, work='hash').to_dict()['work'] == 'hash'


def make_topology(*cpu_policies):
    return types.SimpleNamespace(cells=[
        types.SimpleNamespace(cpu_policy=one) for one in cpu_policies])


@pytest.mark.parametrize('cpu_policy', ['dedicated', 'mixed'])
def test_an_image_with_dedicated_cpus(cpu_policy):
    topology = make_topology('shared', None, cpu_policy)
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse({UNITS: '60'}, 1, topology)
    assert (caught.value.key, caught.value.value) == (
        'hw_cpu_policy', cpu_policy)
    # Without units it is Nova's.
    assert policy.parse({'vqos:quantum_class': 'io'}, 1, topology)


def test_an_image_with_shared_cpus():
    assert policy.parse({UNITS: '60'}, 1, make_topology('shared', None))


@pytest.mark.parametrize('vcpus', [0, -1, None, '2', 1.0, True])
def test_vcpus_out_of_range(vcpus):
    with pytest.raises(policy.PolicyError) as caught:
        policy.parse({UNITS: '60'}, vcpus)
    assert (caught.value.key, caught.value.value) == ('vcpus', vcpus)


def test_check_value_leaves_others_alone():
    policy.check_value('hw:cpu_policy', 'nonsense')
    policy.check_value('resources:VCPU', 'nonsense')


@pytest.mark.parametrize('key, value', [
    (UNITS, '0'), ('vqos:cap', 'Hard'), ('vqos:cup', 'hard'),
    ('resources1:CUSTOM_VQOS_CPU_UNIT', '60')])
def test_check_value_refuses_ours(key, value):
    with pytest.raises(policy.PolicyError) as caught:
        policy.check_value(key, value)
    assert (caught.value.key, caught.value.value) == (key, value)


@pytest.mark.parametrize('message, value', [
    ([1], [1]), ({'vcpus': 1, 'units': 60, 'other': 1, 7: 1}, ['7', 'other'])])
def test_a_message_that_is_none_of_ours(message, value):
    with pytest.raises(policy.PolicyError) as caught:
        policy.ServerPolicy.from_dict(message)
    assert (caught.value.key, caught.value.value) == ('policy', value)


@st.composite
def policies(draw):
    vcpus = draw(st.integers(1, 64))
    has_units = draw(st.booleans())
    return policy.ServerPolicy(
        vcpus=vcpus,
        units=draw(st.integers(vcpus, 2**31 - 1)) if has_units else None,
        cap=draw(st.sampled_from(['hard', 'floor'])) if has_units else 'hard',
        quantum_class=draw(st.sampled_from(
            policy.CHOICES[policy.QUANTUM_CLASS_KEY])),
        dd_billing=draw(st.sampled_from(
            policy.CHOICES[policy.DD_BILLING_KEY][:3 if has_units else 2])),
        guarantee=draw(st.sampled_from(policy.CHOICES[policy.GUARANTEE_KEY][
            :3 if has_units else 1])),
        work=draw(st.sampled_from(['', 'hash', 'hash:0.5,integer:1'])
                  ) if has_units else '')


@given(policies())
def test_a_policy_survives_a_message(server_policy):
    assert policy.ServerPolicy.from_dict(
        server_policy.to_dict()) == server_policy


@given(st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(
        st.sampled_from(['vcpus', 'units', 'cap', 'quantum_class',
                         'dd_billing', 'guarantee', 'work', 'other']),
        children, max_size=6)))
def test_garbage_in_a_message_is_a_typed_error(garbage):
    try:
        parsed = policy.ServerPolicy.from_dict(garbage)
    except policy.PolicyError:
        return
    assert policy.ServerPolicy.from_dict(parsed.to_dict()) == parsed


@given(st.dictionaries(
    st.sampled_from([*policy.KEYS, 'vqos:x', 'resources1:' +
                     policy.RESOURCE_CLASS, 'quota:cpu_quota']),
    st.text(max_size=5) | st.sampled_from(['60', 'hard', 'io', 'charge',
                                           'required', 'hash:1']),
    max_size=5), st.integers(1, 8))
def test_any_flavor_is_a_policy_or_a_typed_error(extra_specs, vcpus):
    try:
        parsed = policy.parse(extra_specs, vcpus)
    except policy.PolicyError as error:
        assert error.key in str(error)
        return
    if parsed is None:
        assert not [key for key in extra_specs if 'vqos' in key.lower()]
    elif parsed.units is not None:
        assert parsed.units >= vcpus
