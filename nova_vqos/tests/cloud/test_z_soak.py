# SPDX-License-Identifier: Apache-2.0
"""Three minutes of chance, the same each time; see devstack/lab soak."""

import pytest

from nova_vqos_lab import soak

SEED = 16
MINUTES = 3
# A slow machine does fewer steps in that time, but not none.
FEWEST_STEPS = 10

# The servers' ends, and what Nova leaves, are waited for besides.
pytestmark = pytest.mark.timeout(900, func_only=True)


def test_what_must_hold_does(lab, told):
    assert lab.is_deployed, told.checks[-1]
    found = soak.run(lab, SEED, MINUTES)
    assert found.violations == []
    assert found.steps >= FEWEST_STEPS
