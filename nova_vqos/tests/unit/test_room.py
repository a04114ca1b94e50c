# SPDX-License-Identifier: Apache-2.0
"""How many CPU units a host sells, and whether there is room."""

from fractions import Fraction

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import room
from nova_vqos.agent import replies
from nova_vqos.agent.messages import host_report


@pytest.mark.parametrize(('used_cu', 'sold_cu', 'ratio', 'asked_cu', 'fits'), [
    (0, 100, 1.0, 100, True), (0, 100, 1.0, 101, False),
    (60, 100, 1.0, 40, True), (60, 100, 1.0, 41, False),
    (120, 100, 1.0, 1, False), (0, 0, 1.0, 1, False),
    # A ratio may leave a part of a unit, which no server can have.
    (90, 301, 0.5, 60, True), (90, 301, 0.5, 61, False)])
def test_as_many_as_the_host_sells(used_cu, sold_cu, ratio, asked_cu, fits):
    found = room.Room(used_cu, Fraction(used_cu),
                      room.Sale(sold_cu + 7, 7, ratio))
    if fits:
        found.check(asked_cu, asked_cu)
        return
    with pytest.raises(room.HostFull, match=f'{used_cu} of the .* {asked_cu}'):
        found.check(asked_cu, asked_cu)


SERVERS = st.lists(st.tuples(st.integers(1, 300), st.integers(0, 400_000)),
                   max_size=12)
RATIOS = st.sampled_from((0.5, 0.8, 1.0, 1.1, 1.5, 3.0, 16.0))


@hypothesis.given(st.integers(1, 2000), st.integers(0, 300), RATIOS, SERVERS)
def test_driver_and_agent_count_alike(capacity_cu, reserved_cu, ratio,
                                      servers):
    """Of what the driver accepts, in any order, the agent alarms of none."""
    sale = room.Sale(capacity_cu, min(reserved_cu, capacity_cu), ratio)
    units_cu, costs_cu = 0, Fraction(0)
    for server_cu, beyond in servers:
        cost_cu = server_cu + Fraction(beyond, 1000)
        try:
            room.Room(units_cu, costs_cu, sale).check(server_cu, cost_cu)
        except room.HostFull:
            continue
        units_cu += server_cu
        costs_cu += cost_cu
    known = host_report.Units(
        capacity_cu=capacity_cu, reserved_cu=room.reserved_cu(
            capacity_cu, host_cu=sale.reserved_cu, stock_cu=0, unsold_cu=0,
            work_cu=room.work_cu(units_cu, costs_cu, ratio)),
        allocation_ratio=ratio, used_cu=units_cu, slowest_cu=1.0,
        fastest_cu=1.0)
    assert replies.oversold(known) == ()
    # No more time is sold than there is.
    assert costs_cu <= Fraction(sale.sold_cu()) + Fraction(1, 10**6)


@pytest.mark.parametrize(('host_cu', 'stock_cu', 'unsold_cu', 'reserved_cu'), [
    (0, 0, 0, 0), (20, 0, 0, 20), (20, 100, 0, 120), (20, 0, 26, 26),
    # The time that the kernel does not reserve serves all others.
    (20, 5, 26, 26), (20, 100, 26, 120), (0, 0, 999, 200),
    (150, 150, 0, 200)])
def test_what_is_not_sold(host_cu, stock_cu, unsold_cu, reserved_cu):
    assert room.reserved_cu(
        200, host_cu=host_cu, stock_cu=stock_cu,
        unsold_cu=unsold_cu) == reserved_cu
    assert room.sold_cu(200, reserved_cu, 1.5) == (200 - reserved_cu) * 1.5


@pytest.mark.parametrize(('ratio', 'work_cu'), [
    (1.0, 31), (1.5, 21), (0.8, 39), (16.0, 2)])
def test_what_slow_kinds_of_work_take(ratio, work_cu):
    """Placement multiplies what is left, and so what is reserved."""
    found = room.work_cu(100, Fraction('130.5'), ratio)
    assert found == work_cu
    reserved_cu = room.reserved_cu(
        200, host_cu=20, stock_cu=0, unsold_cu=26, work_cu=found)
    assert reserved_cu == 26 + work_cu
    # Servers that claim all that is left of it take no more than there is.
    left_cu = room.sold_cu(200, reserved_cu, ratio) - 100
    assert 130.5 + left_cu <= room.sold_cu(200, 26, ratio)
    assert room.work_cu(100, Fraction(100), ratio) == 0
