# SPDX-License-Identifier: Apache-2.0
"""Two speeds in one measurement, and what only looks like them."""

import math
import random

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import modes

ROUNDS = (8, 16, 40, 80)
DRAWS = 500
NOISE = {
    'normal': lambda chance: chance.gauss(0, 0.03),
    'uniform': lambda chance: chance.uniform(-0.2, 0.2),
    # Student's with three degrees of freedom: tails as of a busy host.
    'heavy tails': lambda chance: 0.02 * chance.gauss(0, 1) / math.sqrt(
        chance.gammavariate(1.5, 2) / 3),
    # Most rounds are disturbed a little, some by far, and none is faster.
    'one-sided': lambda chance: -chance.lognormvariate(-3, 0.6)}

logs = st.floats(-0.02, 0.02)


def draw(chance, noise, rounds):
    return [100 * math.exp(NOISE[noise](chance)) for _ in range(rounds)]


def two(rounds, share, ratio, noise=0.01, seed=2):
    """As many rounds at one speed and at another."""
    chance = random.Random(seed)
    found = [chance.gauss(1, noise) / (ratio if i < share * rounds else 1)
             for i in range(rounds)]
    chance.shuffle(found)
    return found


@pytest.mark.parametrize('noise', NOISE)
@pytest.mark.parametrize('rounds', ROUNDS)
def test_noise_is_refused_in_less_than_one_of_a_hundred(noise, rounds):
    chance = random.Random(f'{noise}{rounds}')
    refused = sum(modes.find(draw(chance, noise, rounds)) is not None
                  for _ in range(DRAWS))
    assert refused < DRAWS / 100


@pytest.mark.parametrize('share', [0.1, 0.2, 0.3, 0.4, 0.5])
@pytest.mark.parametrize('ratio', [1.4, 1.1, 1 / 1.1, 1 / 1.4])
def test_two_modes(share, ratio):
    found = [modes.find(two(40, share, ratio, seed=seed))
             for seed in range(50)]
    hits = [one for one in found if one is not None]
    # Ten times as far apart as they scatter; by chance less.
    assert len(hits) >= (50 if max(ratio, 1 / ratio) > 1.3 else 48)
    for one in hits:
        # Which of two halves is the rarer one is a convention: the slower.
        expected = 1 / (max(ratio, 1 / ratio) if share == 0.5 else ratio)
        assert one.ratio == pytest.approx(expected, rel=0.02)
        assert one.share == pytest.approx(share)


@pytest.mark.parametrize('share', [0.1, 0.25, 0.5])
def test_all_samples_of_a_mode_are_on_its_side(share):
    samples = two(40, share, 1.4)
    found = modes.find(samples)
    assert sum(one < found.boundary for one in samples) == share * 40


@pytest.mark.parametrize('disturbed', [1, 2, 3])
def test_single_disturbances_are_no_mode(disturbed):
    """However alike these happen to be."""
    samples = two(40, disturbed / 40, 1.4)
    assert modes.find(samples) is None


def test_disturbances_that_scatter_are_no_mode():
    chance = random.Random(1)
    refused = 0
    for _ in range(200):
        samples = two(40, 0, 1, seed=chance.random())
        samples[:6] = [one / chance.uniform(1.02, 2) for one in samples[:6]]
        refused += modes.find(samples) is not None
    assert refused < 10


def test_a_wild_round_hides_no_mode():
    """It is far from both: their gap is the larger part of the rest."""
    samples = two(40, 0.3, 1.2)
    assert modes.find([*samples, 0.1, 9.0]) is not None


def test_a_drift_is_no_mode():
    chance = random.Random(1)
    assert modes.find([chance.gauss(1 + i / 200, 0.01)
                       for i in range(40)]) is None


@pytest.mark.parametrize('samples', [
    [1.0] * 40, [1.0] * 39 + [1.4], [1.0] * 3 + [1.4] * 4,
    [1.0, 1.4] * 3, [1.0]])
def test_too_few_or_one_value(samples):
    assert modes.find(samples) is None


def test_without_any_scatter():
    found = modes.find([1.0] * 30 + [2.0] * 10)
    assert (found.share, found.ratio) == (0.25, pytest.approx(2))
    assert 1 < found.boundary < 2


def test_close_modes_do_not_matter():
    assert modes.find([1.0] * 20 + [1.04] * 20) is None


@settings(deadline=None)
@given(st.lists(logs, min_size=8, max_size=40),
       st.lists(logs, min_size=8, max_size=40),
       st.sampled_from([0.001, 1.0, 1e6]))
def test_units_and_order_do_not_matter(slow, fast, unit):
    samples = [*map(math.exp, slow), *(2 * math.exp(one) for one in fast)]
    plain = modes.find(samples)
    # Twice as fast, and 4 % wide.
    assert plain is not None
    other = modes.find([one * unit for one in sorted(samples)])
    assert other.share == plain.share
    assert other.ratio == pytest.approx(plain.ratio)
    assert other.boundary == pytest.approx(plain.boundary * unit)
