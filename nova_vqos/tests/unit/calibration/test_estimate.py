# SPDX-License-Identifier: Apache-2.0
import statistics

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
    found = estimate.estimate([8, 9, 10, 11, 12])
    assert found.mean == 10
    assert found.high - found.mean == pytest.approx(1.963, rel=0.002)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)
    assert found.width == pytest.approx(0.3926, rel=0.002)


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


@settings(deadline=None)
@given(SCORES)
def test_order_does_not_matter(scores):
    assert (estimate.estimate(sorted(scores)).width
            == pytest.approx(estimate.estimate(scores).width))
