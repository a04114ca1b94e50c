# SPDX-License-Identifier: Apache-2.0
"""The cost of requests of any size, from those of a few."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import costs

COSTS_NS = st.floats(0, 1e6)
SIZES = st.lists(st.integers(1, 100_000), min_size=1, max_size=9,
                 unique=True).map(sorted)


@st.composite
def tables(draw, order=list):
    """:param order: makes what costs are drawn the costs by size"""
    sizes = draw(SIZES)
    found = draw(st.lists(COSTS_NS, min_size=len(sizes),
                          max_size=len(sizes)))
    return costs.RequestCost(tuple(zip(sizes, order(found), strict=True)))


REQUESTS = st.integers(1, 1000)
BYTES = st.integers(0, 10**8)


def mean_ns(table, requests, size_bytes):
    return table.total_ns(requests, size_bytes) / requests


def test_a_straight_line_between_sizes():
    table = costs.RequestCost(((100, 1000.0), (200, 1500.0), (400, 1100.0)))
    assert [float(table.total_ns(1, size)) for size in (
        0, 50, 100, 150, 200, 300, 400, 401, 10**9)] == [
            1000, 1000, 1000, 1250, 1500, 1300, 1100, 1100, 1100]
    # Of their mean size, which need not be whole.
    assert table.total_ns(2, 301) == 2 * Fraction('1252.5')


@hypothesis.given(tables(), REQUESTS)
def test_as_measured_at_what_was_measured(table, requests):
    for size, cost_ns in table.by_size:
        assert table.total_ns(requests, requests * size) == (
            requests * Fraction(cost_ns))


@hypothesis.given(tables(sorted), REQUESTS, BYTES, BYTES)
def test_larger_ones_are_not_cheaper_where_none_was(table, requests, one,
                                                    other):
    less, more = sorted((one, other))
    assert table.total_ns(requests, less) <= table.total_ns(requests, more)


@hypothesis.given(tables(), REQUESTS, BYTES)
def test_no_jump(table, requests, size_bytes):
    """A byte more changes the bill by no more than the steepest line does."""
    steepest = max((abs(Fraction(after) - Fraction(before)) / (larger - size)
                    for (size, before), (larger, after) in zip(
                        table.by_size, table.by_size[1:], strict=False)),
                   default=Fraction(0))
    assert abs(table.total_ns(requests, size_bytes + 1)
               - table.total_ns(requests, size_bytes)) <= steepest


@hypothesis.given(tables(), REQUESTS, BYTES)
def test_between_the_least_and_the_most(table, requests, size_bytes):
    found = [Fraction(cost_ns) for _, cost_ns in table.by_size]
    assert min(found) <= mean_ns(table, requests, size_bytes) <= max(found)


@hypothesis.given(tables(), st.integers(1, 50), REQUESTS, BYTES)
def test_as_often_the_same_costs_as_many_times_more(table, times, requests,
                                                    size_bytes):
    assert table.total_ns(times * requests, times * size_bytes) == (
        times * table.total_ns(requests, size_bytes))


@pytest.mark.parametrize('size_bytes', [0, 1, 10**9])
def test_bytes_without_a_request(size_bytes):
    assert costs.RequestCost(((64, 7.0),)).total_ns(0, size_bytes) == 0
