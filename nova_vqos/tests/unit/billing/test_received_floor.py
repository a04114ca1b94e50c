# SPDX-License-Identifier: Apache-2.0
"""How far packets of others lower the limit of a server that pays."""

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import charge
from nova_vqos.billing import runtime_charge

ENTITLEMENT_CU = 64.0
INTERVAL_S = 2.0
FLOORS = st.floats(0.01, 1.0)
#: Of the entitlement.
SHARES = st.floats(0.0, 20.0)

kinds = pytest.mark.parametrize('kind', [charge.Charge,
                                         runtime_charge.RuntimeCharge])


def terms(floor_share, received_floor_share):
    return charge.Terms(ENTITLEMENT_CU, floor_share,
                        received_floor_share=received_floor_share)


def limits(control, terms, *received, io_share=0.0):
    """What a busy server is left, whose I/O no limit holds.

    :param io_share: of its entitlement, by itself
    """
    for share in received:
        whole_cu_s = ENTITLEMENT_CU * INTERVAL_S
        control.step(terms, charge.Interval(
            INTERVAL_S, control.limit_share * whole_cu_s, 0.0,
            io_share * whole_cu_s, received_cu_s=share * whole_cu_s))
        yield control.limit_share


@hypothesis.given(floor=FLOORS, received_floor=FLOORS,
                  limit_share=st.floats(-3.0, 1.0), received=SHARES,
                  more=SHARES)
def test_a_limit_less_what_was_received(floor, received_floor, limit_share,
                                        received, more):
    these = terms(floor, received_floor)
    own = these.less_received(limit_share, 0.0)
    found = these.less_received(limit_share, received)
    assert floor <= found <= own <= 1.0
    assert found >= min(own, received_floor)
    assert found >= these.less_received(limit_share, received + more)
    # What is above the floors is left out whole.
    if max(floor, received_floor) < limit_share - received < charge.WHOLE:
        assert found == limit_share - received


@kinds
@hypothesis.given(floor=FLOORS, received_floor=FLOORS,
                  received=st.lists(SHARES, max_size=60))
def test_no_flood_takes_a_server_below_its_floor(kind, floor, received_floor,
                                                 received):
    for limit in limits(kind(), terms(floor, received_floor), *received):
        assert limit >= max(floor, received_floor)


@kinds
def test_at_a_floor_of_all_they_take_nothing(kind):
    """Nor does its own I/O, within its units."""
    control = kind()
    for _ in range(60):
        control.step(terms(0.1, 1.0), charge.Interval(
            INTERVAL_S, 0.2 * ENTITLEMENT_CU * INTERVAL_S, 0.0,
            0.1 * ENTITLEMENT_CU * INTERVAL_S,
            received_cu_s=5 * ENTITLEMENT_CU * INTERVAL_S))
        assert control.limit_share == 1.0
        assert not control.overdrawn


@kinds
def test_its_own_io_does(kind):
    """Down to the floor of what it pays itself, flooded or not."""
    *_, flooded = limits(kind(), terms(0.25, 0.75), *[2.0] * 60)
    assert flooded == 0.75
    *_, paying = limits(kind(), terms(0.25, 0.75), *[2.0] * 60, io_share=0.5)
    assert paying == pytest.approx(0.5, abs=0.02)
    *_, least = limits(kind(), terms(0.25, 0.75), *[2.0] * 60, io_share=2.0)
    assert least == 0.25
