# SPDX-License-Identifier: Apache-2.0
"""What a server saves: by examples and by properties."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import policy
from nova_vqos.billing import account
from nova_vqos.billing import savings

TERMS = savings.Terms(30, 90, 100)
S = 10**6


def balance(saved_cu_us, length_s, used_cu_us):
    """That of an account after an interval."""
    return account.Account('').with_savings(
        saved_cu_us + TERMS.gained_cu_us(length_s, used_cu_us),
        TERMS.least_cu_us, TERMS.most_cu_us).saved_cu_us


@pytest.mark.parametrize('saved, length_s, used, found', [
    # It earns its units, and pays what it uses.
    (0, 10.0, 0, 300), (0, 10.0, 300, 0), (0, 10.0, 100, 200),
    # It may overspend, and pays that back.
    (50, 10.0, 900, -550), (-550, 10.0, 0, -250),
    # No more than its flavor says,
    (5900, 10.0, 0, 6000), (9000, 0.0, 0, 6000),
    # and no more than what a day of bursts overspends.
    (0, 1.0, 10**9, -60 * 86_400),
    # Nothing is earned or paid in a time that is not known.
    (500, 0.0, 700, 500), (500, -1.0, 700, 500)])
def test_a_balance(saved, length_s, used, found):
    assert balance(saved * S, length_s, used * S) == found * S


@hypothesis.given(
    st.lists(st.tuples(st.floats(0.0, 60.0), st.floats(0.0, 1.0)),
             min_size=1, max_size=50),
    st.integers(0, 6000))
def test_no_window_has_more_than_units_and_savings(intervals, saved_cu_s):
    """Nor than what is overspent in the interval in which it shows.

    :param intervals: seconds, and the part of its burst that it wants
    """
    saved, used_cu_s, time_s, longest_s = saved_cu_s * S, 0.0, 0.0, 0.0
    for length_s, wanted in intervals:
        # It bursts while it has savings, and has its units otherwise.
        rate_cu = wanted * 90 if saved > 0 else min(30, wanted * 90)
        used = rate_cu * length_s
        saved = balance(saved, length_s, account.cu_us(used))
        used_cu_s, time_s = used_cu_s + used, time_s + length_s
        longest_s = max(longest_s, length_s)
        assert used_cu_s <= (30 * time_s + TERMS.most_cu_us / S
                             + 60 * longest_s + 1e-3)


def test_the_largest_flavor_fits_a_ledger():
    terms = savings.Terms(1, 2**31 - 1, policy.MOST_BURST_SECONDS)
    assert -account.MOST < terms.least_cu_us < terms.most_cu_us < (
        account.MOST)


def test_terms_of_a_flavor():
    found = policy.ServerPolicy(1, 30, burst_cu=90, burst_seconds=100)
    assert savings.terms(found) == TERMS
    assert savings.terms(policy.ServerPolicy(1, 30)) is None
    assert savings.terms(None) is None
