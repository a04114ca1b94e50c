# SPDX-License-Identifier: Apache-2.0
import math
import random
import statistics

from hypothesis import assume
from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration import estimate

SCORES = st.lists(st.floats(100, 200), min_size=4, max_size=60)


# From a printed table of Student's distribution, two-sided, 95 %.
@pytest.mark.parametrize(('degrees', 't'), [
    (3, 3.182), (4, 2.776), (5, 2.571), (7, 2.365), (10, 2.228), (20, 2.086),
    (30, 2.042), (120, 1.980)])
def test_student_t(degrees, t):
    assert estimate.student_t(degrees) == pytest.approx(t, rel=0.002)


@pytest.mark.parametrize(('degrees', 't'), [
    (3, 2.353), (4, 2.132), (8, 1.860), (20, 1.725), (120, 1.658)])
def test_student_t_of_90_percent(degrees, t):
    assert estimate.student_t(degrees, confidence=0.9) == pytest.approx(
        t, rel=0.002)


def test_interval_of_known_numbers():
    # Mean 10, standard deviation 1.5811, t(4) = 2.776: half width 1.963.
    found = estimate.estimate([10, 8, 12, 9, 11])
    assert found.mean == 10
    assert found.high - found.mean == pytest.approx(1.963, rel=0.002)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.width == pytest.approx(0.3926, rel=0.002)
    assert found.effective == 5
    assert found.cause == 'its 5 rounds scatter by 15.8%'


def test_interval_of_the_same_numbers_as_a_trend():
    # As good as 2.5 of them; t(1.5) = 6.017.
    found = estimate.estimate([8, 9, 10, 11, 12])
    assert found.mean == 10
    assert found.high - found.mean == pytest.approx(6.017, rel=0.03)


def test_interval_of_more_samples_than_batches():
    """The means of the batches are those of 24 rounds, two by two."""
    means = [99, 101, 100, 102, 98, 100, 101, 99, 100, 102, 99, 100]
    samples = [sample for mean in means for sample in (mean - 5, mean + 5)]
    found = estimate.estimate(samples)
    assert (found.width == pytest.approx(estimate.estimate(means).width))
    assert found.effective == 24


def test_rounds_that_drift():
    found = estimate.estimate([100 + place // 10 for place in range(40)])
    assert found.effective < 3
    assert found.cause == 'its speed drifts, 40 rounds count as 2.4'


# Noise, as it is in a number of rounds of which 0 is the true mean.

def noise(chance, number):
    return [chance.gauss(0, 1) for _ in range(number)]


def heavy_tails(chance, number):
    """Student's, with three degrees of freedom."""
    return [one / math.sqrt(chance.gammavariate(1.5, 2) / 3)
            for one in noise(chance, number)]


def alike(rho):
    """Each round has so much of the one before it: AR(1)."""
    def made(chance, number):
        found = noise(chance, 1)
        for one in noise(chance, number - 1):
            found.append(rho * found[-1] + math.sqrt(1 - rho ** 2) * one)
        return found

    return made


def drift_in_noise(chance, number):
    return [slow + fast for slow, fast in zip(
        alike(0.9)(chance, number), noise(chance, number), strict=True)]


def shift(chance, number):
    """By three standard deviations, midway: the last level is the true one."""
    place = chance.randint(number // 4, 3 * number // 4)
    return [one - 3 * (at < place)
            for at, one in enumerate(noise(chance, number))]


def walk(chance, number):
    """A random walk: the mean of as many rounds afterwards is the true one."""
    found = noise(chance, 1)
    for step in noise(chance, 2 * number - 1):
        found.append(found[-1] + step)
    after = statistics.fmean(found[number:])
    return [one - after for one in found[:number]]


def as_if_independent(samples):
    """Half the interval that takes rounds for independent, and its middle."""
    kept = estimate.without_outliers(samples)
    return statistics.fmean(kept), (
        estimate.student_t(len(kept) - 1) * statistics.stdev(kept)
        / math.sqrt(len(kept)))


def honest(samples):
    found = estimate.estimate(samples)
    return found.mean, found.high - found.mean


def coverage(interval, make, number, times=500):
    """How often an interval of so many rounds has the true mean."""
    chance = random.Random(6)
    hits = 0
    for _ in range(times):
        middle, half = interval(make(chance, number))
        hits += abs(middle) <= half
    return hits / times


@pytest.mark.parametrize(('make', 'number', 'least', 'before'), [
    (noise, 8, 0.92, 0.97),
    (noise, 40, 0.93, 0.97),
    (noise, 100, 0.93, 0.97),
    (heavy_tails, 40, 0.93, 0.97),
    (alike(0.5), 40, 0.9, 0.8),
    (alike(0.8), 40, 0.9, 0.55),
    (alike(0.9), 40, 0.9, 0.4),
    (alike(0.9), 100, 0.9, 0.4),
    (shift, 40, 0.95, 0.1),
    (shift, 100, 0.95, 0.1),
    (drift_in_noise, 40, 0.8, 0.5),
    (drift_in_noise, 100, 0.85, 0.5),
    (walk, 40, 0.75, 0.2),
    (walk, 100, 0.75, 0.2),
    # Ten seconds do not show what minutes will be.
    (alike(0.9), 8, 0.65, 0.4),
    (alike(0.9), 12, 0.75, 0.4),
])
def test_how_often_the_interval_has_the_true_mean(make, number, least, before):
    """And how often one that takes rounds for independent has it, at most."""
    assert coverage(honest, make, number) >= least
    assert coverage(as_if_independent, make, number) <= before


def test_disturbed_rounds_are_left_out_but_kept():
    quiet = [100.0, 100.2, 99.8, 100.1, 99.9, 100.3, 99.7, 100.0]
    found = estimate.estimate([*quiet, 61.0])
    assert found.outliers == 1
    assert found.mean == pytest.approx(statistics.fmean(quiet))
    assert found.samples == (*quiet, 61.0)


def test_equal_samples_are_certain():
    found = estimate.estimate([5.0] * 4)
    assert (found.mean, found.low, found.high) == (5.0, 5.0, 5.0)


def test_a_sample_is_never_dropped_since_all_others_are_equal():
    assert estimate.estimate([5.0] * 8 + [5.1]).outliers == 0


def test_too_few_samples():
    with pytest.raises(ValueError, match='3 samples are too few'):
        estimate.estimate([1.0, 2.0, 3.0])


@settings(deadline=None)
@given(SCORES)
def test_interval_surrounds_the_mean(scores):
    found = estimate.estimate(scores)
    assert found.low <= found.mean <= found.high
    assert min(scores) * 0.999999 <= found.mean <= max(scores) * 1.000001
    assert 0 <= found.outliers <= len(scores) - estimate.LEAST_SAMPLES


@settings(deadline=None)
@given(SCORES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_units_of_the_score_do_not_matter(scores, factor):
    plain = estimate.estimate(scores)
    scaled = estimate.estimate([s * factor for s in scores])
    assert scaled.mean == pytest.approx(plain.mean * factor)
    assert scaled.width == pytest.approx(plain.width)
    assert scaled.outliers == plain.outliers


FEW = st.lists(st.floats(100, 200), min_size=4, max_size=12)


@settings(deadline=None)
@given(FEW)
def test_backwards_in_time_is_as_certain(scores):
    assert (estimate.estimate(scores[::-1]).width
            == pytest.approx(estimate.estimate(scores).width))


@settings(deadline=None)
@given(FEW)
def test_never_more_certain_than_independent_rounds(scores):
    found = estimate.estimate(scores)
    _mean, half = as_if_independent(scores)
    assert found.high - found.mean >= half * 0.999999
    assert 0 < found.effective <= len(scores)


@settings(deadline=None)
@given(FEW, st.integers(2, 5))
def test_pcpus_that_drift_together_are_one(scores, pcpus):
    one = estimate.estimate(scores)
    together = estimate.estimate_together([scores] * pcpus)
    # Which of a few is disturbed, more of them may show better.
    assume(one.outliers == together.outliers == 0)
    assert together.width == pytest.approx(one.width)
    assert together.mean == pytest.approx(one.mean)
    assert len(together.samples) == len(scores) * pcpus


def test_pcpus_that_are_unlike_are_certain():
    """Their mean is: what it is promised for is a matter of classes."""
    scores = [100.0, 101.0, 99.0, 100.5, 99.5, 100.0, 101.5, 98.5]
    one = estimate.estimate(scores)
    other = estimate.estimate_together(
        [scores, [score + 10 for score in scores]])
    assert other.mean == pytest.approx(one.mean + 5)
    assert other.high - other.low == pytest.approx(one.high - one.low)


def test_pcpus_with_noise_of_their_own_are_more_certain():
    chance = random.Random(1)
    series = [[100 + one for one in noise(chance, 12)] for _ in range(64)]
    assert (estimate.estimate_together(series).width
            < estimate.estimate(series[0]).width / 4)


@settings(deadline=None)
@given(st.lists(SCORES, min_size=1, max_size=5))
def test_pcpus_with_unlike_numbers_of_rounds(series):
    found = estimate.estimate_together(series)
    assert found.low <= found.mean <= found.high
    assert 0 < found.effective <= len(found.samples) - found.outliers


def test_too_few_of_one_pcpu():
    with pytest.raises(ValueError, match='3 samples are too few'):
        estimate.estimate_together([[1.0] * 9, [1.0] * 3])
