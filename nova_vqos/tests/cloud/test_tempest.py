# SPDX-License-Identifier: Apache-2.0
"""The project's tempest tests, by tempest, on the lab's cloud."""

import os
import re
import subprocess

import pytest

from nova_vqos.tests.cloud import conftest
from nova_vqos_lab import tempest

LAB = os.path.join(conftest.TOP, 'devstack', 'lab')
TIMEOUT_S = 1500
SPEED_TESTS = r'nova_vqos_tempest_plugin\.tests\.scenario\.test_(speed|ways)\.'

pytestmark = pytest.mark.timeout(TIMEOUT_S + 60, func_only=True)


@pytest.fixture(scope='module')
def ran(lab, told):
    """What a run of all of them printed, and its status."""
    assert lab.is_deployed, told.checks[-1]
    tempest.prepare(lab)
    return run('nova_vqos')


def run(regex):
    done = subprocess.run(
        # The hosts have a pCPU each: room for the servers of one worker.
        [LAB, 'tempest', 'run', '--regex', regex, '--serial'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=TIMEOUT_S, check=False)
    print(done.stdout)
    return done


def test_passed(ran):
    """All did; a speed that was wrong is measured once more.

    Guests measure it by the clock, on a machine that may be slower for a
    while: by 40 % for a minute was seen, and not again when it was repeated.
    What is wrong by our fault is wrong again.
    """
    failed = re.findall(r'^\{\d+\} (\S+) \[\S+\] \.\.\. FAILED$',
                        ran.stdout, re.MULTILINE)
    if ran.returncode and failed and all(
            re.match(SPEED_TESTS, test) for test in failed):
        ran = run(SPEED_TESTS)
    assert ran.returncode == 0, ran.stdout[-8000:]


def test_none_was_skipped(ran):
    """The lab has all that they ask for."""
    count = dict(re.findall(r'^ - (\w+): +(\d+)$', ran.stdout, re.MULTILINE))
    assert int(count['Passed']) >= 28, count
    assert int(count['Skipped']) == 0, count


def test_where_a_host_guarantees_speed(lab, ran):
    """Its own test boots a server there; without, it is refused."""
    del ran
    with tempest.guaranteeing(lab):
        found = run(r'nova_vqos_tempest_plugin\.tests\.api\.test_guarantee')
    assert found.returncode == 0, found.stdout[-8000:]
    assert len(re.findall(r'\.\.\. ok$', found.stdout, re.MULTILINE)) == 2
