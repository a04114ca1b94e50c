# SPDX-License-Identifier: Apache-2.0
"""What a step of the soak does, by chance and by what servers there are."""

import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos_lab import soak
from nova_vqos_lab import soak_checks
from nova_vqos_lab import soak_steps

STATUSES = sorted({status for action in soak_steps.ACTIONS
                   for status in action.statuses})


def servers(*statuses, task=None):
    return {str(number): soak_checks.Server(
        uuid=str(number), name=f'soak-{number}', status=status, task=task,
        cu=10, vcpus=1, is_charged=False, host='fast', has_run=True)
        for number, status in enumerate(statuses)}


def steps(found, count=200):
    return [soak.choose(random.Random(f'1 {number}'), found)
            for number in range(count)]


@pytest.mark.parametrize('status', STATUSES)
def test_a_server_is_asked_for_what_its_status_allows(status):
    asked = [(action, server) for action, server, _ in
             steps(servers(*[status] * 6)) if action]
    assert asked
    assert all(status in action.statuses for action, _ in asked)
    assert all(server for _, server in asked)


def test_servers_without_an_action_are_left_alone():
    """Such as those in error that are being deleted."""
    found = servers('ERROR', 'ERROR', 'ACTIVE', 'ERROR', 'ERROR', 'ERROR')
    asked = {server.uuid for _, server, _ in steps(found) if server}
    assert asked == {'2'}


def test_without_any_action_something_else_breaks():
    found = servers(*['ERROR'] * 6, task='deleting')
    for action, server, disturbance in steps(found):
        assert (action, server) == (None, None)
        assert disturbance


@given(st.integers(), st.lists(st.sampled_from([*STATUSES, 'ERROR']),
                               max_size=7))
def test_each_step_does_something(seed, statuses):
    action, server, disturbance = soak.choose(random.Random(seed),
                                              servers(*statuses))
    assert action or disturbance
    assert server is None or server.status in action.statuses
