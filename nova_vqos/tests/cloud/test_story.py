# SPDX-License-Identifier: Apache-2.0
"""The demo's steps as assertions: one test for each check of the story."""

import json

import pytest

from nova_vqos_lab import story

# A wrong cap shows as more than this: the hosts differ by more than two, and
# what the machine's pace leaves of its noise was seen to be some percent.
COARSE_TOLERANCE = 0.1


@pytest.mark.parametrize('name', [
    name for name in story.CHECKS if name not in story.MACHINE_CHECKS])
def test_check(told, name):
    """A check was made, and passed."""
    found = one_check(told, name)
    assert found.passed, found.detail


@pytest.mark.parametrize('name', story.MACHINE_CHECKS)
def test_check_of_the_machine(told, name):
    """A check was made; where it did not pass, it says by how much.

    The demo counts it as failed. Here it is reported and no more: what the
    machine did meanwhile cannot be told from what nova_vqos did. That is
    tested by the cap, by the CPU time had, and coarsely by the speed.
    """
    found = one_check(told, name)
    if not found.passed:
        pytest.xfail(found.detail)


def one_check(told, name):
    found = [one for one in told.checks if one.name == name]
    assert len(found) == 1, f'{len(found)} checks of that name'
    return found[0]


def test_no_check_is_unknown(told):
    """Each check that is made has a test here."""
    assert {one.name for one in told.checks} == set(story.CHECKS)


@pytest.mark.parametrize('host', ['fast', 'slow'])
@pytest.mark.parametrize('moment', ['boot', 'migrated'])
def test_calibrated_work_runs_at_the_promised_speed(told, host, moment):
    """Coarsely, on both hosts, before and after; see MACHINE_CHECKS.

    With the machine's pace divided out, or as it is: what slows the one who
    measures the pace need not slow the server (58 CU of 60 became 68 so). A
    wrong cap is wrong either way.
    """
    (found,) = [
        one for one in told.measurements
        if (one.story, one.host, one.moment, one.work, one.promised_cu) == (
            'units', host, moment, story.CALIBRATED, story.PROMISED_CU)]
    assert min(abs(cu / found.promised_cu - 1) for cu in (
        found.delivered_cu, found.raw_cu)) <= COARSE_TOLERANCE, found


def test_json(told, tmp_path):
    """What --json writes has the fields that readers rely on."""
    path = tmp_path / 'demo.json'
    told.write(str(path))
    written = json.loads(path.read_text())
    assert set(written) == {'measurements', 'checks'}
    for one in written['measurements']:
        assert set(one) == {'story', 'host', 'moment', 'work', 'promised_cu',
                            'delivered_cu', 'raw_cu', 'pace'}
        assert one['story'] in ('stock', 'units', 'work', 'guarantee')
        assert one['moment'] in ('boot', 'migrated', 'sold out', 'noise')
    for one in written['checks']:
        assert set(one) == {'name', 'passed', 'detail'}
