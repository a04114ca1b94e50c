# SPDX-License-Identifier: Apache-2.0
"""The pace of a pCPU, and how well it is known."""

import math
import random
import statistics
import types

import pytest

from nova_vqos_lab import pace
from nova_vqos_lab import process


@pytest.fixture
def known(tmp_path):
    """The pace of a host whose guest did a round in each half second.

    :returns: called with the scores of the rounds
    """
    host = types.SimpleNamespace(name='fast',
                                 path=lambda name: str(tmp_path / 'pace'))

    def write(scores):
        (tmp_path / 'pace').write_text(''.join(
            f'{100 + number / 2} {score}\n'
            for number, score in enumerate(scores)))
        return pace.Pace(host, 0, 200.0)
    return write


def test_a_machine_as_fast_as_when_it_was_calibrated(known):
    one = known([200.0] * 100)
    assert one.between(100, 150) == pytest.approx(1)
    assert one.uncertainty(100, 150) == 0


def test_only_the_rounds_of_the_time_count(known):
    one = known([100.0] * 50 + [200.0] * 50)
    assert one.between(100, 124) == pytest.approx(0.5)
    assert one.between(125, 149.5) == pytest.approx(1)


def test_one_that_changes_is_less_certain(known):
    steady = known([200.0, 202.0] * 50).uncertainty(100, 150)
    drifting = known([200.0 + number for number in range(100)]
                     ).uncertainty(100, 150)
    assert steady < 0.005 < 0.05 < drifting


def test_rounds_that_are_not_independent(known):
    """The interval covers the mean more often than one that ignores it."""
    chance = random.Random(3)
    covered = naive = 0
    for _ in range(100):
        scores, off = [], 0.0
        for _ in range(100):
            off = 0.9 * off + chance.gauss(0, 4)
            scores.append(200 + off)
        one = known(scores)
        error = abs(one.between(100, 150) - 1)
        covered += error <= one.uncertainty(100, 150)
        naive += error <= (1.98 * statistics.stdev(scores)
                           / math.sqrt(len(scores)) / 200)
    assert covered > 75
    assert naive < 50


def test_too_few_rounds_for_an_interval(known):
    one = known([200.0] * 100)
    assert one.uncertainty(100, 102) == math.inf
    # The last ones before do for the pace itself.
    assert one.between(103, 103.2) == pytest.approx(1)


def test_no_rounds_at_all(known):
    with pytest.raises(process.LabError, match='pace of host fast'):
        known([]).between(100, 150)
