# SPDX-License-Identifier: Apache-2.0
"""A reserve that follows the load of a host."""

import itertools

import hypothesis
from hypothesis import strategies as st

from nova_vqos.billing import reserve

LOADS = st.lists(st.floats(0, 10_000), max_size=300)
PCPU_CU = st.floats(1, 1000)


def follow(loads_cu, pcpu_cu=100.0, usual_cu=0.0, **options):
    """:returns: the reserve after each minute"""
    made = reserve.Reserve(**options)
    found = []
    for load_cu in loads_cu:
        made.add_minute(load_cu, usual_cu, pcpu_cu)
        found.append(made.cu)
    return found


def test_it_is_raised_at_once_and_in_steps():
    assert follow([41, 41, 49, 51, 55, 60]) == [0, 50, 50, 50, 60, 60]


def test_a_single_minute_raises_nothing():
    assert follow([5, 95, 5, 5]) == [0, 10, 10, 10]


def test_it_is_lowered_a_step_in_each_hour():
    found = follow([100, 100] + [0] * 200)
    assert found[1:61] == [100] * 60
    assert found[61] == 90
    assert found[120:123] == [90, 80, 80]


def test_it_is_not_lowered_below_the_load():
    assert follow([100] * 2 + [75] * 1000)[-1] == 80


def test_one_busy_minute_in_each_hour_keeps_it():
    assert set(follow(([100] + [0] * 50) * 20, cu=100)) == {100}


def test_it_is_not_lowered_below_what_is_usual():
    assert follow([100] * 2 + [0] * 1000, usual_cu=75)[-1] == 80


def test_what_is_usual_raises_it():
    assert follow([0], usual_cu=75) == [80]


def test_another_agent_goes_on_with_it():
    assert follow([0] * 59, cu=70) == [70] * 59
    assert follow([0] * 60, cu=70)[-1] == 60


@hypothesis.example([1.0, 5e-324], 100.0, 0)
@hypothesis.example([10.000000000000002] * 2, 100.0, 0)
@hypothesis.given(LOADS, PCPU_CU, st.integers(0, 10_000))
def test_it_suffices_for_all_but_single_minutes(loads_cu, pcpu_cu, cu):
    found = follow(loads_cu, pcpu_cu, cu=cu)
    for two_cu, reserve_cu in zip(itertools.pairwise(loads_cu), found[1:],
                                  strict=True):
        assert reserve_cu >= min(two_cu)


@hypothesis.given(LOADS, PCPU_CU)
def test_it_is_never_a_step_above_the_most(loads_cu, pcpu_cu):
    most_cu = max(loads_cu, default=0)
    assert all(0 <= cu < most_cu + 0.1 * pcpu_cu + 1
               for cu in follow(loads_cu, pcpu_cu))


@hypothesis.given(st.integers(0, 10_000), PCPU_CU)
def test_a_host_without_load_keeps_nothing_in_the_end(cu, pcpu_cu):
    hours = int(cu / (0.1 * pcpu_cu)) + 2
    last_cu = follow([0.0] * 60 * min(hours, 60), pcpu_cu, cu=cu)[-1]
    assert last_cu < 0.1 * pcpu_cu or hours > 60
