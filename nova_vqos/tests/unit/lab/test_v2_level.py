# SPDX-License-Identifier: Apache-2.0
"""What is known of tests that ran on an emulated machine."""

import json

import pytest

from nova_vqos.tests.host import v2_level


def output(*said):
    return '\n'.join(json.dumps(one) for one in said)


BEGUN = {'test': 'a'}
PASSED, FAILED, ERROR, SKIPPED = (
    {'test': 'a', 'outcome': outcome, 'text': ''}
    for outcome in ('passed', 'failed', 'error', 'skipped'))


@pytest.mark.parametrize('said, outcome', [
    ([BEGUN, PASSED], 'passed'),
    ([BEGUN, SKIPPED], 'skipped'),
    # Its cleaning up failed.
    ([BEGUN, PASSED, ERROR], 'error'),
    ([BEGUN, FAILED, ERROR], 'failed'),
    # The machine was ended, or its kernel died.
    ([BEGUN], 'unfinished'),
    ([ERROR], 'error'),
])
def test_the_worst_of_a_test_counts(said, outcome):
    (found,) = v2_level.outcomes_of(output(*said))
    assert found['outcome'] == outcome


def test_a_line_that_was_cut_is_none():
    text = output(BEGUN, PASSED, {'test': 'b'})
    found = v2_level.outcomes_of(f'{text}\n{{"test": "b", "outc')
    assert [(one['test'], one['outcome']) for one in found] == [
        ('a', 'passed'), ('b', 'unfinished')]
