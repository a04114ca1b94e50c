# SPDX-License-Identifier: Apache-2.0
"""One coefficient from several benchmarks."""

import math

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.calibration.cpu import combine
from nova_vqos.tests.fixtures import make_profiles

coefficients = st.floats(0.01, 100)
weights = st.floats(0.01, 100)


def combined(*scores):
    """Of (coefficient, weight, width of the interval)."""
    reference = make_profiles.make_reference('gold', *(
        make_profiles.make_benchmark(str(i), weight=weight)
        for i, (_, weight, _) in enumerate(scores)))
    found = combine.measurement([
        make_profiles.make_score(coefficient, width=width, benchmark=str(i))
        for i, (coefficient, _, width) in enumerate(scores)], reference)
    return found, reference


def errors(*scores):
    found, reference = combined(*scores)
    return [combine.error(score, found, reference) for score in found.scores]


def test_geometric_mean():
    assert combined((2, 1, 0), (8, 1, 0))[0].coefficient == pytest.approx(4)
    # 2, 2, 2, and 32.
    assert combined((2, 3, 0), (32, 1, 0))[0].coefficient == pytest.approx(4)


def test_what_is_only_reported_does_not_count():
    found, _ = combined((2, 1, 0.01), (50, 0, 0.9))
    assert found[:3] == pytest.approx((2, 1.99, 2.01))


def test_interval():
    """Half widths of 3 and 4 %, half of each: 2.5 %."""
    found, _ = combined((1, 1, 0.06), (1, 1, 0.08))
    assert found.interval_width == pytest.approx(0.05)


def test_errors_leave_one_out():
    # 1 against 4, and 4 against 1; 2 against 2.
    assert errors((1, 1, 0), (4, 1, 0), (2, 0, 0)) == pytest.approx(
        [-0.75, 3, 0])


def test_one_alone_has_no_error():
    assert errors((1, 1, 0), (2, 0, 0)) == [None, pytest.approx(1)]


def test_equal_kinds_are_off_by_nothing():
    assert combine.off_by([2.0] * 9, [1.0] * 9) == pytest.approx(0)


def test_off_by_of_known_numbers():
    """Half of nine kinds e times as fast, half as slow, and one between.

    Leaving one out each is 9/8 from the mean: a root mean square of 9/8 times
    the root of 8/9. t(8) is 1.860 at 90 %.
    """
    logs = [0.1] * 4 + [-0.1] * 4 + [0]
    found = combine.off_by([math.exp(log) for log in logs], [3.0] * 9)
    assert math.log1p(found) == pytest.approx(
        1.2 * 1.860 * 0.1 * 9 / 8 * (8 / 9) ** 0.5, rel=0.002)


@pytest.mark.parametrize('weights', [
    [1.0] * 3, [1.0, 1.0, 1.0, 0.9], [9.0, 1.0, 1.0, 1.0, 1.0, 1.0]])
def test_too_few_kinds_are_off_by_an_unknown_amount(weights):
    assert combine.off_by([1.0] * len(weights), weights) is None


def test_what_is_only_reported_is_no_part_of_the_bound():
    found, reference = combined(
        *((c, 1, 0.01) for c in (0.8, 0.9, 1.1, 1.2)), (9, 0, 0.01))
    assert combine.error_bound(found, reference) == pytest.approx(
        combine.off_by([0.8, 0.9, 1.1, 1.2], [1.0] * 4))
    few, reference = combined((2, 1, 0), (3, 1, 0))
    assert combine.error_bound(few, reference) is None


@settings(deadline=None)
@given(st.lists(coefficients, min_size=4, max_size=12), coefficients, weights)
def test_off_by_depends_on_no_unit(found, factor, weight):
    """Neither on the scale, nor on which of two hosts is the reference."""
    bound = combine.off_by(found, [1.0] * len(found))
    assert bound >= 0
    for same in ([factor * one for one in found],
                 [1 / one for one in found]):
        assert math.log1p(combine.off_by(same, [weight] * len(found))) == \
            pytest.approx(math.log1p(bound), abs=1e-6)


@settings(deadline=None)
@given(st.lists(coefficients, min_size=4, max_size=12))
def test_off_by_grows_with_the_differences(found):
    plain, twice = (combine.off_by(kinds, [1.0] * len(kinds)) for kinds in (
        found, [one ** 2 for one in found]))
    assert math.log1p(twice) == pytest.approx(2 * math.log1p(plain), abs=1e-6)


@settings(deadline=None)
@given(st.lists(st.tuples(coefficients, coefficients, weights), min_size=1,
                max_size=6))
def test_either_host_is_the_reference(scores):
    """A over B is the same through any third host."""
    a, b, ratio = (combined(*((pick(s), s[2], 0) for s in scores))[0]
                   for pick in (lambda s: s[0], lambda s: s[1],
                                lambda s: s[0] / s[1]))
    assert ratio.coefficient == pytest.approx(a.coefficient / b.coefficient)


@settings(deadline=None)
@given(st.lists(st.tuples(coefficients, weights), min_size=2, max_size=6))
def test_errors_have_their_weight(scores):
    """A score is off the others by so much that it pulls the mean to it."""
    found, reference = combined(*((c, w, 0.01) for c, w in scores))
    total = math.fsum(w for _, w in scores)
    for score, (coefficient, weight) in zip(found.scores, scores, strict=True):
        error = combine.error(score, found, reference)
        others = coefficient / (1 + error)
        assert found.coefficient == pytest.approx(
            coefficient ** (weight / total)
            * others ** (1 - weight / total), rel=1e-6)
    assert found.interval_low < found.coefficient < found.interval_high
