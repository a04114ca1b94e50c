# SPDX-License-Identifier: Apache-2.0
"""Lines through what requests of several sizes cost."""

import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import estimate
from nova_vqos.calibration.io import fit

SIZES = (64, 256, 512, 1024, 1514, 4096, 9000)
costs = st.floats(1, 1e6)
byte_costs = st.floats(0.01, 100)
seeds = st.integers(0, 2**32)


def noisy(seed, at, spread, count=30):
    """Samples around a line, by size."""
    chance = random.Random(seed)
    return {size: [chance.gauss(at(size), spread) for _ in range(count)]
            for size in SIZES}


@settings(deadline=None)
@given(request=costs, byte=st.floats(0.01, 1))
def test_an_exact_line(request, byte):
    line = fit.fit({size: [request + size * byte] * 4 for size in SIZES})
    assert line.byte.value == pytest.approx(byte, rel=1e-6)
    assert line.request.value == pytest.approx(request, rel=1e-6)
    assert (line.samples, line.outliers) == (28, 0)


@settings(deadline=None)
@given(request=costs, byte=byte_costs, seed=seeds,
       spread=st.floats(0.001, 10))
def test_values_are_in_their_intervals_or_nothing(request, byte, seed, spread):
    line = fit.fit(noisy(seed, lambda size: request + size * byte,
                         spread * request))
    for part in (line.request, line.byte):
        assert part.value >= 0
        assert part.low <= part.value <= part.high or (
            part.value == 0 and part.low <= 0)


@settings(deadline=None)
@given(seed=seeds, scale=st.floats(1e-3, 1e3))
def test_the_unit_does_not_matter(seed, scale):
    samples = noisy(seed, lambda size: 2000 + size * 0.1, 300)
    line = fit.fit(samples)
    scaled = fit.fit({size: [scale * one for one in found]
                      for size, found in samples.items()})
    for part in ('request', 'byte'):
        for name in ('value', 'low', 'high'):
            assert getattr(getattr(scaled, part), name) == pytest.approx(
                scale * getattr(getattr(line, part), name), rel=1e-6,
                abs=scale * 1e-9)


def test_the_truth_is_in_the_interval_as_often_as_is_said():
    inside = 0
    for seed in range(300):
        line = fit.fit(noisy(seed, lambda size: 2000 + size * 0.2, 300))
        inside += line.request.low <= 2000 <= line.request.high
    # 95 % of 300 and a little more, since a misfit only widens it.
    assert inside >= 275
    # And no wider than it must be.
    assert line.request.high - line.request.low < 600


def test_disturbed_samples_are_left_out():
    samples = noisy(1, lambda size: 2000 + size * 0.2, 20)
    samples[64][3] = samples[9000][5] = 1e7
    line = fit.fit(samples)
    assert line.outliers >= 2
    assert line.request.value == pytest.approx(2000, rel=0.02)


def test_noise_is_not_billed():
    line = fit.fit(noisy(4, lambda size: 0, 50))
    assert line.request.value == line.byte.value == 0
    assert line.request.low <= 0 <= line.request.high


def test_without_a_cost_per_byte_the_cost_is_the_mean():
    """As certain as all samples together make it."""
    line = fit.fit(noisy(5, lambda size: 2000, 50))
    assert line.byte.value == 0
    assert line.request.value == pytest.approx(2000, abs=15)
    assert line.request.high - line.request.low < 60


def test_larger_ones_are_never_cheaper():
    line = fit.fit(noisy(6, lambda size: 20_000 - size, 50))
    assert line.byte.value == 0 and line.byte.high < 0


def test_without_a_cost_per_request():
    line = fit.fit(noisy(7, lambda size: 2 * size, 100))
    assert line.request.value == 0
    assert line.byte.value == pytest.approx(2, rel=0.02)


def test_what_is_no_line_has_wide_intervals():
    def bent(size):
        return 1000 if size < 1000 else 5000
    straight = fit.fit(noisy(8, lambda size: 1000 + size, 10))
    line = fit.fit(noisy(8, bent, 10))
    assert (line.request.high - line.request.low
            > 20 * (straight.request.high - straight.request.low))


@pytest.mark.parametrize(('samples', 'said'), [
    ({}, '0 sizes are too few'),
    ({size: [1.0] * 9 for size in SIZES[:fit.LEAST_SIZES - 1]}, 'too few'),
    ({size: [1.0] * (estimate.LEAST_SAMPLES - 1) for size in SIZES},
     '3 samples of size 64 are too few'),
])
def test_too_few(samples, said):
    with pytest.raises(ValueError, match=said):
        fit.fit(samples)
