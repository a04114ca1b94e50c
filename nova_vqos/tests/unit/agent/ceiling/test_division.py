# SPDX-License-Identifier: Apache-2.0
"""How a ceiling is divided: by examples and by properties."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.agent.ceiling import division

UNITS = st.integers(1, 10_000)


@st.composite
def members(draw):
    units = draw(UNITS)
    return division.Member(
        units=units, most_cu=units * draw(st.floats(0.01, 1.0)),
        used_cu=draw(st.none() | st.floats(0.0, 2.0 * units)),
        is_held=draw(st.booleans()),
        is_free=draw(st.integers(0, 9)) == 0)


GROUPS = st.lists(members(), min_size=1, max_size=20)


def total_units(group):
    return sum(one.units for one in group)


def busy(units):
    return division.Member(units, units, units)


def idle(units, used_cu=0.0):
    return division.Member(units, units, used_cu, is_held=False)


@pytest.mark.parametrize('ceiling_cu, group, found', [
    # All are busy: by their units,
    (60, [busy(60), busy(30)], [40, 20]),
    # also where it is not known what they use.
    (60, [idle(60, None), idle(30, None)], [40, 20]),
    # One that is idle lends all but a fifth of its part,
    (80, [busy(60), idle(60)], [60, 20]),
    (60, [busy(60), idle(60)], [54, 6]),
    # to all in proportion.
    (90, [busy(60), busy(30), idle(60)], [55.2, 27.6, 7.2]),
    # What one uses it keeps, and some more.
    (60, [busy(60), idle(60, 16)], [40, 20]),
    # No more of it than its own part, where others want theirs.
    (60, [busy(60), idle(60, 40)], [30, 30]),
    # All are idle: what nobody wants goes by units, too.
    (60, [idle(60), idle(60)], [30, 30]),
    # What pays for I/O is not of use to its server.
    (60, [busy(60)._replace(most_cu=15), busy(60)], [15, 45]),
    # One that is free has what it uses and some more, others what is left,
    (80, [busy(60)._replace(is_free=True), busy(60)], [60, 20]),
    (80, [idle(60, None)._replace(is_free=True), busy(60)], [60, 20]),
    (80, [idle(60, 32)._replace(is_free=True), busy(60)], [40, 40]),
    (60, [idle(60, 8)._replace(is_free=True), busy(60)], [10, 50]),
    # at least what one that is not free keeps,
    (60, [idle(60)._replace(is_free=True), busy(60)], [6, 54]),
    # and at least what a limit can leave.
    (60, [busy(60)._replace(is_free=True), busy(60)._replace(least_cu=2)],
     [60, 2]),
    # It limits nobody.
    (120, [busy(60), busy(60)], [60, 60]),
    (120, [idle(60)._replace(is_free=True), busy(60)], [60, 60])])
def test_examples(ceiling_cu, group, found):
    assert division.divide(ceiling_cu, group) == pytest.approx(found)


@hypothesis.given(GROUPS, st.floats(0.01, 1.5))
def test_the_sum_is_the_ceiling_or_all_units(group, part):
    hypothesis.assume(not any(one.is_free for one in group))
    ceiling_cu = part * total_units(group)
    assert sum(division.divide(ceiling_cu, group)) == pytest.approx(
        min(ceiling_cu, total_units(group)))


@hypothesis.given(GROUPS, st.floats(0.01, 1.5))
def test_none_gets_more_than_its_units_or_less_than_it_keeps(group, part):
    ceiling_cu = part * total_units(group)
    found = division.divide(ceiling_cu, group)
    free_cu = sum(cu for one, cu in zip(group, found, strict=True)
                  if one.is_free)
    bound_cu = sum(one.units for one in group if not one.is_free)
    for one, cu in zip(group, found, strict=True):
        assert cu <= one.units * (1 + 1e-9)
        if one.is_free:
            assert cu == one.units or cu == pytest.approx(max(
                1.25 * one.used_cu, division.LEAST_SHARE * part * one.units))
        else:
            part_cu = one.units * min(
                1.0, max(0.0, ceiling_cu - free_cu) / bound_cu)
            assert cu >= division.LEAST_SHARE * part_cu * (1 - 1e-9)


@hypothesis.given(GROUPS, st.floats(0.01, 1.0))
def test_one_that_wants_its_part_by_units_gets_it(group, part):
    hypothesis.assume(not any(one.is_free for one in group))
    ceiling_cu = part * total_units(group)
    for one, cu in zip(group, division.divide(ceiling_cu, group),
                       strict=True):
        if one.is_held and one.most_cu == one.units:
            assert cu >= part * one.units * (1 - 1e-9)


@hypothesis.given(GROUPS, st.floats(0.01, 1.0), st.randoms())
def test_the_order_does_not_matter(group, part, random):
    ceiling_cu = part * total_units(group)
    order = list(range(len(group)))
    random.shuffle(order)
    found = division.divide(ceiling_cu, group)
    assert division.divide(
        ceiling_cu, [group[index] for index in order]) == pytest.approx(
            [found[index] for index in order])


@hypothesis.given(GROUPS, st.floats(0.01, 1.0))
def test_nothing_is_left_idle_that_another_wants(group, part):
    """Beyond the least: lent as long as any member wants more."""
    hypothesis.assume(not any(one.is_free for one in group))
    ceiling_cu = part * total_units(group)
    found = division.divide(ceiling_cu, group)
    hungry = [one for one, cu in zip(group, found, strict=True)
              if one.is_held and cu < one.most_cu * (1 - 1e-9)]
    if hungry:
        for one, cu in zip(group, found, strict=True):
            if not one.is_held and one.used_cu is not None:
                assert cu <= max(
                    1.25 * one.used_cu,
                    division.LEAST_SHARE * part * one.units) * (1 + 1e-9)
