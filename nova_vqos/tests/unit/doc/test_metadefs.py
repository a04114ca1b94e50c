# SPDX-License-Identifier: Apache-2.0
"""Glance's definitions of our extra specs, as Horizon shows them."""

import json
import re
import runpy

import pytest

from nova_vqos import policy
from nova_vqos import work
from nova_vqos.tests.fixtures import project

SAMPLE = 'etc/glance/metadefs/compute-vqos.json'
# Here, since the validators import Nova, which looks for the host's address.
MAKER = (runpy.run_path(str(project.TOP / 'tools' / 'metadefs.py'))
         if project.IS_CHECKOUT else {})


@pytest.fixture(scope='module')
def properties():
    return json.loads(project.sample(SAMPLE).read_text('utf-8'))['properties']


@project.needs_checkout
def test_the_file_is_up_to_date():
    assert project.sample(SAMPLE).read_text('utf-8') == MAKER['text'](), (
        'run tools/metadefs.py')


def test_all_of_our_extra_specs_are_there(properties):
    assert properties.keys() == set(policy.KEYS)


@pytest.mark.parametrize('key', policy.CHOICES)
def test_each_value_that_is_offered_is_taken(properties, key):
    assert properties[key]['enum'] == list(policy.CHOICES[key])
    assert properties[key]['default'] == policy.CHOICES[key][0]
    for value in properties[key]['enum']:
        policy.check_value(key, value)


def test_limits_of_units(properties):
    units = properties[policy.UNITS_KEY]
    for value in (units['minimum'], units['maximum']):
        policy.check_value(policy.UNITS_KEY, str(value))
    for value in (units['minimum'] - 1, units['maximum'] + 1):
        with pytest.raises(policy.PolicyError):
            policy.check_value(policy.UNITS_KEY, str(value))


def test_each_text_has_a_value_to_begin_with(properties):
    """Horizon saves the word null where it has none, and none is entered."""
    for key, one in properties.items():
        if one['type'] == 'string':
            policy.check_value(key, one['default'])


@pytest.mark.parametrize('text', [
    'auto', 'integer', 'x' * 32, 'integer:2', 'memory-chase:0.5,integer:1000',
    ','.join(f'k{number}:1.000001' for number in range(work.MOST_KINDS))])
def test_kinds_of_work_are_taken(properties, text):
    policy.check_value(policy.WORK_KEY, text)
    assert re.search(properties[policy.WORK_KEY]['pattern'], text)


@pytest.mark.parametrize('text', [
    '', 'Integer', 'integer ', '-x', 'x' * 33, 'integer,hash', 'integer:',
    'integer:1e2', 'integer:.5', 'integer:1.1234567', 'integer:1,',
    'integer:1;hash:1', 'integer:1, hash:1', 'autoX', 'Xauto', 'integer\n1',
    ','.join(f'k{number}:1' for number in range(work.MOST_KINDS + 1))])
def test_what_is_no_kind_of_work_is_not(properties, text):
    with pytest.raises(policy.PolicyError):
        policy.check_value(policy.WORK_KEY, text)
    assert not re.search(properties[policy.WORK_KEY]['pattern'], text)
