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
