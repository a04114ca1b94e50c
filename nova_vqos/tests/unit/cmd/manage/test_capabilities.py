# SPDX-License-Identifier: Apache-2.0
"""What a host makes of each extra spec."""

import pytest

from nova_vqos import policy
from nova_vqos import primitives
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import capabilities
from nova_vqos.tests.fixtures import metrics


def states(**fields):
    """:returns: state and reason, by key and value"""
    host = primitives.parse(host_report.Host, {
        'host': 'a', 'version': '1', **metrics.make_host(**fields)})
    found = capabilities.of_host(host)
    assert len({(one.key, one.value) for one in found}) == len(found)
    return {str(one).split(': ')[0]: (one.state, one.why) for one in found}


def test_every_key_is_there():
    keys = {name.partition('=')[0] for name in states()}
    assert keys >= set(policy.KEYS)
    assert keys - set(policy.KEYS) == {
        *policy.QUOTA_KEYS, *policy.DEDICATED_KEYS, 'hw:cpu_policy'}


@pytest.mark.parametrize('key, values', policy.CHOICES.items())
@pytest.mark.parametrize('fields', [{}, {'units': None}])
def test_every_value_but_off_is_there(key, values, fields):
    found = {name for name in states(**fields) if name.startswith(key)}
    assert found in ({key}, {
        f'{key}={value}' for value in values if value != 'off'})


def test_a_host_that_can_all():
    found = states(quantum_classes=policy.CHOICES[policy.QUANTUM_CLASS_KEY])
    assert {state for name, (state, _) in found.items()
            if name.startswith(('vqos:', policy.UNITS_KEY))} == {
                capabilities.ENFORCED, capabilities.APPROXIMATED}
    assert found['vqos:guarantee=required'] == (
        capabilities.ENFORCED, '1.25 pCPUs are free')


@pytest.mark.parametrize('fields, why', [
    ({'units': None, 'profile': None}, 'it has no profile'),
    # One that is there, and cannot be used.
    ({'problem': 'it is stale'}, 'it is stale')])
def test_a_host_without_units(fields, why):
    found = states(**fields)
    for name in (policy.UNITS_KEY, policy.CAP_KEY, policy.WORK_KEY,
                 'vqos:dd_billing=charge', 'vqos:guarantee=required',
                 'vqos:guarantee=preferred'):
        assert found[name] == (capabilities.REFUSED,
                               f'the host sells no units: {why}')
    assert found['vqos:dd_billing=account'][0] == capabilities.APPROXIMATED


def test_a_host_that_keeps_no_savings():
    found = states(keeps_bursts=False)
    for key in policy.BURST_KEY, policy.BURST_SECONDS_KEY:
        assert found[key][0] == capabilities.IGNORED


def test_slices_that_the_kernel_does_not_have():
    found = states(proof={
        'kernel': '6.18', 'measured_at': '2026-11-22T10:00:00+00:00',
        'classes': {'io': {'slice_us': 1000, 'mean_run_us': 3700.0,
                           'enforced': False, 'reason': 'the tick is 4 ms'}}})
    assert found['vqos:quantum_class=io'] == (
        capabilities.REFUSED, 'the tick is 4 ms')
    # It needs none, but pools.
    state, why = found['vqos:quantum_class=spin']
    assert state == capabilities.REFUSED
    assert 'pool_interval_s' in why
    assert found['vqos:quantum_class=cache'] == (capabilities.ENFORCED, '')


def test_sources_that_recognition_lacks():
    _, why = states(quantum={'sources': {'io': '', 'cache': 'no PMU'}})[
        'vqos:quantum_class=auto']
    assert 'cache' in why
    assert 'io' not in why


def test_what_is_never_ignored():
    """A guarantee, and billing: servers find no place instead."""
    found = states(guarantee=None, dd_billing=['off'],
                   quantum_classes=['default'])
    assert {found[name][0] for name in (
        'vqos:guarantee=required', 'vqos:dd_billing=account',
        'vqos:dd_billing=charge', 'vqos:quantum_class=auto',
        'vqos:quantum_class=neutral', 'vqos:quantum_class=cache')} == {
            capabilities.REFUSED}
    assert found['vqos:guarantee=preferred'][0] == capabilities.IGNORED


def test_a_host_whose_time_is_all_reserved():
    found = states(guarantee={'total_pcpus': 1.5, 'reserved_pcpus': 1.5,
                              'free_pcpus': 0.0})
    assert found['vqos:guarantee=required'][0] == capabilities.REFUSED
    assert found['vqos:guarantee=preferred'][0] == capabilities.IGNORED
