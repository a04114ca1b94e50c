# SPDX-License-Identifier: Apache-2.0
"""That a pCPU which is taken away is noticed, and a busy one is not."""

import os
import subprocess
import sys
import time

import pytest

from nova_vqos.tests.fixtures import readings
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.gate import machine

TAKEN_S = 0.4
# Until which the threads that watch are due anyway, and more.
SLACK_S = 0.08
# What differences of the clock are off by, in floating point.
ROUNDING_S = 1e-6
# Works for that long on a pCPU, with a policy and a priority.
_WORK = """
import os, sys, time
pcpu, policy, priority, seconds = sys.argv[1:]
os.sched_setaffinity(0, {int(pcpu)})
os.sched_setscheduler(0, int(policy), os.sched_param(int(priority)))
began_s = time.monotonic()
while time.monotonic() < began_s + float(seconds):
    pass
print(began_s)
"""

pytestmark = pytest.mark.measured


def work(pcpu, policy, priority):
    """:returns: when it began, on the monotonic clock"""
    return float(subprocess.run(
        [sys.executable, '-c', _WORK, str(pcpu), str(policy), str(priority),
         str(TAKEN_S)], check=True, capture_output=True, timeout=60).stdout)


def test_what_is_taken_away_is_lost():
    for pcpu in sorted(os.sched_getaffinity(0)):
        with machine.Standstill() as still:
            try:
                began_s = work(pcpu, os.SCHED_FIFO, 2)
            except subprocess.CalledProcessError as error:
                if b'PermissionError' not in error.stderr:
                    raise
                requirement.need('this kernel lets no thread of this group be '
                                 'a real-time one (CONFIG_RT_GROUP_SCHED)')
            until_s = began_s + TAKEN_S
            time.sleep(0.1)
        assert readings.between(TAKEN_S - SLACK_S,
                                still.lost_s(began_s, until_s), TAKEN_S,
                                ROUNDING_S)
        # What was before is none of it, and is not counted twice.
        assert (still.lost_s(until_s - TAKEN_S / 4, until_s)
                < TAKEN_S / 4 + ROUNDING_S)


def test_a_busy_machine_does_not_stand_still():
    with machine.Standstill() as still:
        began_s = work(min(os.sched_getaffinity(0)), os.SCHED_OTHER, 0)
        time.sleep(0.1)
    assert still.lost_s(began_s, began_s + TAKEN_S) == 0
