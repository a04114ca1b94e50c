# SPDX-License-Identifier: Apache-2.0
"""The project's tempest tests, by tempest, on the lab's cloud.

Those of speed are run where the hosts are calibrated: test_story.py.
"""

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
    """What a run of all but those of speed printed, and its status."""
    assert lab.is_deployed, told.checks[-1]
    tempest.prepare(lab)
    # Given profiles do not know how fast the machine is.
    return run('--regex', 'nova_vqos', '--exclude-regex', SPEED_TESTS)


def run(*arguments):
    done = subprocess.run(
        # The hosts have a pCPU each: room for the servers of one worker.
        [LAB, 'tempest', 'run', *arguments, '--serial'],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=TIMEOUT_S, check=False)
    print(done.stdout)
    return done


def test_passed(ran):
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
        found = run('--regex',
                    r'nova_vqos_tempest_plugin\.tests\.api\.test_guarantee')
    assert found.returncode == 0, found.stdout[-8000:]
    assert len(re.findall(r'\.\.\. ok$', found.stdout, re.MULTILINE)) == 2
