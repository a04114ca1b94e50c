# SPDX-License-Identifier: Apache-2.0
"""Slices with each preemption model, and HRTICK, on a newer kernel.

They are set on a machine of its own (newer_machine, scheduling_guest), never
on this one.
"""

import pytest

from nova_vqos.tests.host import newer_machine

TIMEOUT_S = 500

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
    found = newer_machine.observe(
        'nova_vqos.tests.host.scheduling_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=1)
    print(found['kernel'], found['unmounted'], found['at boot'])
    for tried in found['tried']:
        print(tried)
    return found


def test_without_debugfs_hrtick_is_not_known(seen):
    assert seen['unmounted']['hrtick'] == 'unknown'
    assert seen['at boot']['preemption'] in seen['models']
    assert seen['at boot']['hrtick'] in ('y', 'n')


def test_what_is_set_is_seen(seen):
    assert len(seen['models']) >= 2
    assert [(one['preemption'], one['hrtick']) for one in seen['tried']] == [
        (model, hrtick) for model in seen['models'] for hrtick in 'ny']


def test_a_long_slice_makes_runs_long_always(seen):
    assert seen['tried']
    for one in seen['tried']:
        found = one['outcomes']['cache']
        # Whatever else the machine does cuts them.
        assert found['mean_run_us'] > 4 * one['tick_us'], one


def test_one_that_wakes_preempts_others_always(seen):
    """In nested groups, as the servers'."""
    assert seen['tried']
    for one in seen['tried']:
        io, default = (one['outcomes'][name] for name in ('io', 'default'))
        assert io['enforced'], one
        assert io['wait_us'] < default['wait_us'] / 2, one
