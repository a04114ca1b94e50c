# SPDX-License-Identifier: Apache-2.0
"""The mean use in a rolling window, against a sum over single bills."""

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import rolling

HOUR_S = 3600.0
# Above what a part of five minutes can be wrong.
MOST_WRONG = 300.0 / rolling.WINDOW_S

# Lengths in seconds, and use in CU, of bills one after the other.
BILLS = st.lists(st.tuples(st.sampled_from([0.5, 2.0, 30.0, 300.0, 1000.0,
                                            7200.0, 20_000.0]),
                           st.floats(0, 1000)), min_size=1, max_size=60)


def add_all(use, bills, now_s=1234.5):
    """:returns: the last mean, and what it is by the bills themselves."""
    spans, mean = [], None
    for length_s, cu in bills:
        now_s += length_s
        mean = use.add(now_s, length_s, cu * length_s * 1e6)
        spans.append((now_s - length_s, now_s, cu))
    begin_s = now_s - rolling.WINDOW_S
    return mean, sum(cu * max(0.0, end_s - max(from_s, begin_s))
                     for from_s, end_s, cu in spans) / rolling.WINDOW_S


@given(BILLS)
def test_it_is_the_mean_of_the_window(bills):
    use = rolling.RollingUse()
    mean, expected = add_all(use, bills)
    highest = max(cu for _length_s, cu in bills)
    assert mean.cu == pytest.approx(
        expected, abs=highest * MOST_WRONG + 1e-6)
    assert -1e-6 <= mean.cu <= highest + 1e-6
    assert len(use._used_cu_us) <= 49


@given(st.floats(0.1, 1e5), st.sampled_from([2.0, 30.0, 60.0]))
def test_steady_use_is_exact(cu, length_s):
    mean, _expected = add_all(
        rolling.RollingUse(), [(length_s, cu)] * round(
            2 * rolling.WINDOW_S / length_s))
    assert mean.cu == pytest.approx(cu)
    assert mean.covered_s == rolling.WINDOW_S


def test_what_was_not_billed_counts_as_nothing():
    mean, _expected = add_all(rolling.RollingUse(), [(HOUR_S, 100.0)])
    assert mean == rolling.Mean(pytest.approx(25.0), HOUR_S)


def test_a_burst_weighs_little_and_leaves_the_window():
    use = rolling.RollingUse()
    mean, _expected = add_all(use, [(240.0, 1000.0)])
    assert mean.cu == pytest.approx(1000 / 60)
    mean, _expected = add_all(use, [(60.0, 0.0)] * 250, now_s=1474.5)
    assert mean.cu == 0
    assert mean.covered_s == rolling.WINDOW_S


def test_a_bill_of_no_time_is_counted():
    use = rolling.RollingUse()
    assert use.add(100.0, 0.0, 14_400e6).cu == pytest.approx(1.0)


def test_servers_that_stopped_are_forgotten_after_the_window():
    uses = rolling.RollingUses()
    uses.add('a', 1000.0, 10.0, 14_400e6)
    assert uses.add('b', 1010.0, 10.0, 0).cu == 0
    # Another start of it, within the window.
    assert uses.add('a', 2000.0, 10.0, 0).cu == pytest.approx(1.0)
    uses.add('c', 2000.0 + rolling.WINDOW_S, 10.0, 0)
    assert set(uses._uses) == {'c'}
