# SPDX-License-Identifier: Apache-2.0
"""What servers burst with: by examples and by properties."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.agent.burst import division

CU = st.floats(0.0, 1e6)
MEMBERS = st.lists(st.builds(division.Member, extra_cu=st.floats(0.5, 1e5),
                             wants=st.booleans()), min_size=1, max_size=20)


def busy(extra_cu):
    return division.Member(extra_cu, wants=True)


def idle(extra_cu):
    return division.Member(extra_cu, wants=False)


@pytest.mark.parametrize('room, members, found', [
    # There is enough, also for those that are idle: they may wake.
    (200, [busy(60), idle(60)], [60, 60]),
    # Those that use all of their units come first,
    (60, [idle(60), busy(60)], [0, 60]),
    (90, [idle(60), busy(60)], [30, 60]),
    # in proportion to what they may use beyond them,
    (60, [busy(80), busy(40)], [40, 20]),
    # in steps of an eighth.
    (59, [busy(80), busy(40)], [30, 15]),
    (7, [busy(80)], [0]), (0, [busy(80), idle(40)], [0, 0])])
def test_divide(room, members, found):
    assert division.divide(room, members) == pytest.approx(found)


@hypothesis.given(CU, CU, MEMBERS)
def test_none_beyond_the_room_or_its_flavor(room, more, members):
    found = division.divide(room, members)
    assert sum(found) <= room * (1 + 1e-9)
    assert all(0 <= cu <= one.extra_cu
               for cu, one in zip(found, members, strict=True))
    # With more room no server has less.
    assert all(before <= after for before, after in zip(
        found, division.divide(room + more, members), strict=True))


@hypothesis.given(CU, MEMBERS)
def test_those_that_are_alike_get_alike(room, members):
    found = division.divide(room, members)
    of_kind = {}
    for one, cu in zip(members, found, strict=True):
        assert of_kind.setdefault(one, cu) == cu


@pytest.mark.parametrize('use, expected_cu, wants', [
    (division.Use(60), 60, True), (division.Use(60, 0.0), 0, False),
    (division.Use(60, 40.0), 50, False), (division.Use(60, 54.0), 60, True),
    # A burst is no part of what it may use without one.
    (division.Use(60, 150.0), 60, True),
    (division.Use(60, 0.0, 8.0), 10, False)])
def test_what_a_server_may_use(use, expected_cu, wants):
    assert (use.expected_cu, use.wants) == (expected_cu, wants)


def test_the_room_is_what_none_uses():
    uses = [division.Use(60, 40.0), division.Use(30, 30.0)]
    assert division.room_cu(200, uses) == 120
    assert division.room_cu(70, uses) == 0
