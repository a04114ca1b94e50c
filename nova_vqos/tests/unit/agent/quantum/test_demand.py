# SPDX-License-Identifier: Apache-2.0
"""What vCPUs were seen to want."""

import pytest

from nova_vqos.agent.quantum import demand
from nova_vqos.hypervisor import base

INTERVAL_S = 60.0


def run(ran_s, waited_s=0.0):
    return base.ThreadRun(round(ran_s * 1e9), round(waited_s * 1e9), 1)


def seen(*wants):
    """What is known after intervals in which it wanted parts of a pCPU."""
    found = demand.Demand()
    total = 0.0
    found.update({0: run(0)}, 0.0, INTERVAL_S)
    for number, part in enumerate(wants, 1):
        total += part * INTERVAL_S
        found.update({0: run(total / 3, total * 2 / 3)},
                     number * INTERVAL_S, INTERVAL_S)
    return found.tenths.get(0)


@pytest.mark.parametrize('wants, tenths', [
    ((), None),
    ((0.0,), 1), ((0.1,), 1), ((0.11,), 2), ((0.25,), 3), ((0.84,), 9),
    # It is to be clearly less.
    ((0.86,), 10), ((0.25, 0.16), 3), ((0.25, 0.14), 2),
    # More counts at once.
    ((0.25, 0.31), 4), ((0.0, 1.0), 10), ((0.0, 1.5), 10)])
def test_what_it_wants(wants, tenths):
    assert seen(*wants) == tenths


def test_less_than_an_interval_shows_nothing():
    found = demand.Demand()
    for second in range(60):
        found.update({0: run(0)}, float(second), INTERVAL_S)
        assert found.tenths == {}
    found.update({0: run(0)}, 60.0, INTERVAL_S)
    assert found.tenths == {0: 1}


def test_a_long_time_says_nothing():
    found = demand.Demand()
    for at_s in (0.0, 60.0, 361.0):
        found.update({0: run(at_s / 4)}, at_s, INTERVAL_S)
    found.update({0: run(361 / 4)}, 662.0, INTERVAL_S)
    assert found.tenths == {0: 3}
    found.update({0: run(361 / 4)}, 722.0, INTERVAL_S)
    assert found.tenths == {0: 1}


@pytest.mark.parametrize('now', [{}, {0: run(1)}, {0: run(5, 1)}])
def test_one_that_is_gone_or_another_is_unknown(now):
    found = demand.Demand()
    found.update({0: run(5, 5), 1: run(0)}, 0.0, INTERVAL_S)
    found.update({0: run(5, 5), 1: run(0)}, 60.0, INTERVAL_S)
    assert found.tenths == {0: 1, 1: 1}
    found.update({**now, 1: run(0)}, 120.0, INTERVAL_S)
    assert found.tenths == {1: 1}


def test_a_reading_that_failed_changes_nothing():
    found = demand.Demand()
    found.update({0: run(0)}, 0.0, INTERVAL_S)
    found.update({0: run(0)}, 60.0, INTERVAL_S)
    found.update({}, 120.0, INTERVAL_S)
    assert found.tenths == {0: 1}
    found.update({0: run(60)}, 180.0, INTERVAL_S)
    assert found.tenths == {0: 5}


def test_readings_may_be_as_rare_as_an_operator_wants():
    found = demand.Demand()
    for at_s in (0.0, 600.0):
        found.update({0: run(at_s / 4)}, at_s, 600.0)
    assert found.tenths == {0: 3}
