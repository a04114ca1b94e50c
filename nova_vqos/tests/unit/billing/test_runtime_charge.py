# SPDX-License-Identifier: Apache-2.0
"""The control of servers whose reservation follows, on a simulated one."""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import charge
from nova_vqos.billing import runtime_charge
from nova_vqos.tests.fixtures import charged

ENTITLEMENT_CU = 60.0
INTERVAL_S = 2.0
TERMS = charge.Terms(ENTITLEMENT_CU, floor_share=0.1)
# Of what is left of it, the floor keeps a tenth.
SHARES = st.floats(0.0, 0.9)


class ReservedServer(charged.Server):
    """One that was simulated by periods, with a reservation in place of a
    quota: a write gives nothing away, and no thread but a vCPU is held.
    """

    kind = runtime_charge.RuntimeCharge

    def __init__(self, pattern, **options):
        super().__init__(pattern, limits_threads=False, **options)

    def _period(self):
        self._pending = False
        return super()._period()


class Server:
    """A server whose vCPUs have just what is reserved for them.

    :ivar used: in each interval, in seconds of its entitlement
    """

    def __init__(self, terms=TERMS, **control):
        self.control = runtime_charge.RuntimeCharge(**control)
        self.terms = terms
        self.used = []
        self.limits = []

    def run(self, io_share, times=1, *, vcpu_share=1.0, received_share=0.0,
            length_s=INTERVAL_S):
        """
        :param io_share: of the entitlement, for threads and kernel alike
        :param vcpu_share: what its vCPUs want of it
        """
        whole_cu_s = self.terms.entitlement_cu * length_s
        for _ in range(times):
            vcpu_share_had = min(vcpu_share, self.control.limit_share)
            self.control.step(self.terms, charge.Interval(
                length_s, whole_cu_s * vcpu_share_had,
                whole_cu_s * io_share / 3, whole_cu_s * io_share * 2 / 3,
                limits_threads=False,
                received_cu_s=whole_cu_s * received_share))
            self.used.append(length_s * (
                vcpu_share_had + io_share + received_share))
            self.limits.append(self.control.limit_share)
        return self

    @property
    def excess_s(self):
        return sum(self.used) - INTERVAL_S * len(self.used)


@hypothesis.given(st.lists(SHARES, min_size=1, max_size=60))
def test_a_busy_server_uses_what_it_is_entitled_to(io_shares):
    """Whatever its I/O does, but for that of one interval."""
    server = Server()
    for io_share in io_shares:
        server.run(io_share)
        # A change below the dead band is none, for an interval each time.
        assert -0.1 <= server.excess_s <= INTERVAL_S * max(io_shares) + 0.3


@hypothesis.given(st.lists(st.tuples(SHARES, st.floats(0.0, 1.0)),
                           min_size=1, max_size=60))
def test_none_uses_more(intervals):
    """In any time, but for the I/O of one interval and what was kept."""
    server = Server()
    most = 0.0
    for io_share, vcpu_share in intervals:
        server.run(io_share, vcpu_share=vcpu_share)
        most = max(most, 0.0) + server.used[-1] - INTERVAL_S
        assert most <= INTERVAL_S * 0.9 + 0.4
        assert 0.1 <= server.control.limit_share <= 1.0


@pytest.mark.parametrize('share', [0.1, 0.3, 0.5])
@pytest.mark.parametrize('on_s, off_s', [
    (2, 2), (4, 26), (10, 60), (20, 20), (30, 30)])
def test_a_window_holds_too_much_by_an_interval_of_io(share, on_s, off_s):
    """In whatever bursts it comes; and on the average there is no loss."""
    for phase_s in charged.PHASES_S:
        server = ReservedServer(charged.later(
            charged.on_off(share, on_s, off_s), phase_s),
            threads=0.0).run(600)
        # Of an interval that is cut in two, each half may be the worst.
        assert server.worst_excess() <= (
            (INTERVAL_S * share + 0.1) / charge.WINDOW_S)
        assert server.mean_share() >= 0.995


@pytest.mark.parametrize('share', [0.02, 0.2, 0.5, 0.9])
def test_steady_io_leaves_no_debt_and_one_limit(share):
    server = Server().run(share, 100)
    assert max(server.limits[20:]) - min(server.limits[20:]) < 0.001
    assert server.limits[-1] == pytest.approx(1 - share, abs=0.01)
    assert server.control.debt_cu_s == 0


def test_one_that_stays_below_is_never_limited():
    assert set(Server().run(0.3, 50, vcpu_share=0.6).limits) == {1.0}


def test_io_that_ends_is_paid_once():
    server = Server().run(0.5, 10).run(0, 2)
    assert server.limits[-1] == 1.0
    assert server.excess_s == pytest.approx(0, abs=0.02)


def test_an_old_debt_is_paid_over_a_while():
    server = Server(debt_cu_s=6 * ENTITLEMENT_CU).run(0)
    assert server.limits[-1] == pytest.approx(
        1 - 0.3 / 2 - 5.7 / charge.PAY_S)
    server.run(0, 100)
    assert server.control.debt_cu_s == 0
    assert server.limits[-1] == 1.0


def test_what_the_floor_leaves_unpaid_is_a_debt():
    server = Server().run(2.0, 30)
    assert server.limits[-1] == 0.1
    assert server.control.overdrawn
    assert server.control.debt_cu_s == pytest.approx(
        1.1 * 60 * ENTITLEMENT_CU, rel=0.05)


@pytest.mark.parametrize('io_share, is_overdrawn', [
    (0.4, False), (0.6, True), (0.75, True)])
def test_io_above_what_the_floor_leaves_is_overdrawn(io_share, is_overdrawn):
    """Also where it is less than the entitlement, until it ends."""
    server = Server(dataclasses.replace(TERMS, floor_share=0.5))
    server.run(io_share, 30)
    assert server.control.overdrawn is is_overdrawn
    server.run(0, 100)
    assert not server.control.overdrawn


def test_no_debt_is_above_its_ceiling():
    server = Server(dataclasses.replace(TERMS, ceiling_s=10.0)).run(2.0, 30)
    assert server.control.debt_cu_s <= 10 * ENTITLEMENT_CU


def test_what_others_send_leaves_no_debt():
    server = Server().run(0, 30, received_share=0.4)
    assert server.limits[-1] == pytest.approx(0.6)
    assert server.control.debt_cu_s == 0
    assert server.run(0).limits[-1] == 1.0


def test_neither_do_threads_that_receive_it():
    """What the flood and the floor leave of its units is more than theirs."""
    server = Server(dataclasses.replace(TERMS, floor_share=0.5))
    server.run(0.4, 60, received_share=0.9)
    assert server.limits[-1] == 0.5
    assert server.control.debt_cu_s == 0
    assert server.run(0, 3).limits[-1] == 1.0


@hypothesis.given(st.lists(st.floats(0.2, 10.0), min_size=2, max_size=40),
                  SHARES)
def test_intervals_of_any_length(lengths_s, io_share):
    """It may pay for some of them too soon, never too late."""
    server = Server()
    for length_s in lengths_s:
        server.run(io_share, length_s=length_s)
        assert 0.1 <= server.control.limit_share <= 1.0
        assert server.control.debt_cu_s >= 0
    server.run(0, 30)
    assert server.limits[-1] == 1.0
