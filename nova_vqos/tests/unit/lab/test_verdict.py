# SPDX-License-Identifier: Apache-2.0
"""Verdicts: yes, no, undecided."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos_lab import verdict

ERRORS = st.floats(-0.9, 9.0)
POSITIVE = st.floats(0.0, 1.0)


@pytest.mark.parametrize(('error', 'uncertainty', 'raw', 'wanted'), [
    (0.01, 0.02, 0.01, True),
    (-0.03, 0.02, -0.2, True),
    # An interval that is wider than what is tolerated shows nothing...
    (0.0, 0.04, 0.0, None),
    # ... but that an error is greater still.
    (0.2, 0.04, 0.2, False),
    (0.04, 0.02, 0.04, None),
    (0.06, 0.02, 0.06, False),
    (-0.06, 0.02, -0.06, False),
    # One of the two ways to measure is right.
    (0.06, 0.02, 0.04, None),
])
def test_errors(error, uncertainty, raw, wanted):
    assert verdict.of_error(error, 0.03, uncertainty, raw) is wanted


@given(ERRORS, POSITIVE, POSITIVE)
def test_less_certainty_never_decides_more(error, tolerance, uncertainty):
    better = verdict.of_error(error, tolerance, uncertainty)
    worse = verdict.of_error(error, tolerance, uncertainty + 0.01)
    assert worse in (None, better)


@given(ERRORS, POSITIVE, POSITIVE)
def test_an_unknown_uncertainty_decides_nothing(error, tolerance, raw):
    assert verdict.of_error(error, tolerance, float('inf'), raw) is None


@pytest.mark.parametrize(('error', 'is_first', 'wanted'), [
    (0.0, False, True), (0.003, False, True), (0.004, False, None),
    (0.012, False, None), (0.014, False, False), (0.012, True, True),
    (0.014, True, False), (-0.003, True, True), (-0.004, True, None),
    (-0.1, False, None), (-0.3, False, False), (-0.5, True, False)])
def test_cpu_time(error, is_first, wanted):
    assert verdict.of_cpu_time(error, 0.003, 0.01,
                               is_first=is_first) is wanted


@pytest.mark.parametrize(('still', 'wanted'), [(0.0, False), (0.2, None)])
def test_a_machine_that_stood_still_gives_nothing(still, wanted):
    assert verdict.of_cpu_time(-0.4, 0.003, 0.01, still=still) is wanted


def test_a_machine_that_stood_still_gives_no_more():
    assert verdict.of_cpu_time(0.4, 0.003, 0.01, still=0.5) is False


@pytest.mark.parametrize(('verdicts', 'wanted'), [
    ((True, True), True), ((True, None), None), ((None, False), False),
    ((False, True), False)])
def test_all_of_them(verdicts, wanted):
    assert verdict.of_all(*verdicts) is wanted


@pytest.mark.parametrize(('verdicts', 'wanted'), [
    ([True, False], [True, None]), ([None, False], [None, None]),
    ([False, False], [False, False]), ([True, None], [True, None])])
def test_what_holds_for_most(verdicts, wanted):
    assert verdict.of_most(verdicts) == wanted
