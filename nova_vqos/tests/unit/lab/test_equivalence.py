# SPDX-License-Identifier: Apache-2.0
"""Whether two hosts are equally fast: shown, or not."""

import math
import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos_lab import equivalence


def visits(chance, *, difference=0.0, scatter, cycles=8):
    """Cycles of two hosts that differ by this much, as a logarithm."""
    return [tuple(math.exp(chance.gauss(difference * (visit in (0, 3)),
                                        scatter)) for visit in range(4))
            for _ in range(cycles)]


@given(difference=st.floats(-0.5, 0.5), drift=st.floats(-0.2, 0.2),
       scale=st.floats(1e-3, 1e9))
def test_a_linear_drift_cancels(difference, drift, scale):
    found = equivalence.compare([
        tuple(scale * math.exp(difference * (visit in (0, 3))
                               + drift * (4 * cycle + visit))
              for visit in range(4)) for cycle in range(5)])
    for one in (found.mean, found.low, found.high):
        assert one == pytest.approx(math.expm1(difference), abs=1e-6)


def test_equal_hosts_are_shown_to_be():
    found = equivalence.compare(visits(random.Random(1), scatter=0.003))
    assert found.is_shown_equal
    assert not found.is_shown_unequal


def test_unequal_hosts_are_shown_to_be():
    found = equivalence.compare(visits(random.Random(1), difference=0.04,
                                       scatter=0.003))
    assert found.is_shown_unequal
    assert not found.is_shown_equal


def test_a_poor_measurement_shows_nothing():
    found = equivalence.compare(visits(random.Random(1), scatter=0.05))
    assert found.low < 0 < found.high
    assert not found.is_shown_equal
    assert not found.is_shown_unequal


def test_hosts_at_the_margin_are_rarely_shown_equal():
    """In one of forty experiments, by the size of each test."""
    chance = random.Random(1)
    experiments = 2000
    shown = sum(equivalence.compare(visits(
        chance, difference=math.log1p(equivalence.MARGIN), scatter=0.003,
    )).is_shown_equal for _ in range(experiments))
    assert 0.01 < shown / experiments < 0.04


def test_too_few_cycles():
    with pytest.raises(ValueError, match='3 cycles'):
        equivalence.compare([(1.0, 1.0, 1.0, 1.0)] * 3)
