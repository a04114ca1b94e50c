# SPDX-License-Identifier: Apache-2.0
"""The control that holds an overdrawn server's disks back, on a simulated one.

The simulated server takes all CPU time that charging leaves it. Its disks do
what it asks for, within their limit, and what that costs is beside the limit
on its CPU time.
"""

import dataclasses

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import charge
from nova_vqos.billing import costs
from nova_vqos.billing import runtime_charge
from nova_vqos.billing import throttle

UNITS = 60.0
INTERVAL_S = 2.0
# A request costs as many CU seconds as its size says: 0.6 us and 0.12 us/KiB.
COST = costs.RequestCost(((0, 600.0), (1 << 22, 600.0 + 0.12 * (1 << 22))))
#: Requests per second whose kernel work is all of the units, of 4 KiB.
WHOLE = UNITS / 100 / (float(COST.total_ns(1, 4096)) / 1e9)


@dataclasses.dataclass
class Asked:
    """What a server asks of its disks."""

    share: float
    size_bytes: int = 4096

    @property
    def requests_per_s(self):
        """Whose cost is that share of the units."""
        return self.share * UNITS / 100 * 1e9 / float(
            COST.total_ns(1, self.size_bytes))


class Server:
    """A server, and what charges it and holds it back.

    :ivar limits: the limit on its disks after each interval
    :ivar costs: what its disks cost in each, as a part of the units
    :ivar used: what it used in each in all, likewise
    """

    def __init__(self, asked, *, floor_share=0.5, sent=0.0, busy=True,
                 throttles=True, kind=charge.Charge, **control):
        """:param asked: what it asks for at a time
        :param sent: the kernel's work for what it sends, likewise
        :param busy: whether its vCPUs want all that they can get
        :param kind: of its charging
        """
        self.charge = kind(**control)
        self.terms = charge.Terms(UNITS, floor_share)
        self.throttle = throttle.Throttle()
        self.limits, self.costs, self.used = [], [], []
        self._asked, self._sent, self._busy = asked, sent, busy
        self._throttles = throttles
        self._owed_cu_s = self.charge.debt_cu_s

    def run(self, length_s):
        for _ in range(round(length_s / INTERVAL_S)):
            self._interval(self._asked(len(self.used) * INTERVAL_S))
        return self

    def _interval(self, asked):
        rate, limit = asked.requests_per_s, self.throttle.limit
        if limit is not None:
            rate = min(rate, limit.requests_per_s,
                       limit.bytes_per_s / asked.size_bytes)
        requests = round(rate * INTERVAL_S)
        size_bytes = requests * asked.size_bytes
        disk_cu_s = float(COST.total_ns(requests, size_bytes)) / 1e7
        sent_cu_s = self._sent * UNITS * INTERVAL_S
        vcpu_cu_s = (self.charge.limit_share if self._busy else 0.0
                     ) * UNITS * INTERVAL_S
        written_off = self.charge.step(self.terms, charge.Interval(
            INTERVAL_S, vcpu_cu_s, 0.0, disk_cu_s + sent_cu_s))
        owed = self._owed_cu_s
        self._owed_cu_s = self.charge.debt_cu_s
        if self._throttles:
            self.throttle.step(self.terms, throttle.Interval(
                INTERVAL_S, disk_cu_s, sent_cu_s, requests, size_bytes,
                self._owed_cu_s - owed + written_off),
                limit_share=self.charge.limit_share,
                debt_cu_s=self.charge.debt_cu_s)
        whole = UNITS * INTERVAL_S
        self.limits.append(self.throttle.limit)
        self.costs.append(disk_cu_s / whole)
        self.used.append((disk_cu_s + sent_cu_s + vcpu_cu_s) / whole)

    @property
    def turns(self):
        """How often its limit began or ended."""
        there = [limit is not None for limit in (None, *self.limits)]
        return sum(a != b for a, b in zip(there, there[1:], strict=False))

    @property
    def changes(self):
        """How often its limit was written."""
        limits = [None, *self.limits]
        return sum(a != b for a, b in zip(limits, limits[1:], strict=False))


def mean(values, last_s):
    last = values[-round(last_s / INTERVAL_S):]
    return sum(last) / len(last)


def constant(share, size_bytes=4096):
    return lambda _now_s: Asked(share, size_bytes)


def on_off(share, on_s, off_s):
    return lambda now_s: Asked(share if now_s % (on_s + off_s) < on_s else 0.0)


class TestOverdrawn:
    # Charge: by a quota. RuntimeCharge: by what is reserved for it.
    @pytest.mark.parametrize('kind', [
        charge.Charge, runtime_charge.RuntimeCharge])
    @pytest.mark.parametrize('share, before', [
        (0.7, 1.2), (1.0, 1.5), (2.0, 2.5), (20.0, 20.5)])
    def test_it_gets_its_units_and_no_more(self, share, before, kind):
        free = Server(constant(share), throttles=False, kind=kind).run(600)
        assert mean(free.used, 300) == pytest.approx(before, rel=0.01)
        server = Server(constant(share), kind=kind).run(3600)
        assert mean(server.used, 600) <= 1.005
        # From the first second on, its debt included.
        assert sum(server.used) * INTERVAL_S - (
            server.charge.debt_cu_s / UNITS) <= 3600 * 1.001

    @pytest.mark.parametrize('share', [0.7, 2.0, 20.0, 1000.0])
    def test_its_disks_keep_their_share(self, share):
        server = Server(constant(share)).run(900)
        assert mean(server.costs, 300) == pytest.approx(
            throttle.ROOM_SHARE * 0.5, rel=0.02)
        assert server.turns == 1
        assert server.changes <= 2

    def test_more_of_it_is_held_back_sooner(self):
        began_s = [next(at for at, limit in enumerate(
            Server(constant(share)).run(120).limits)
            if limit is not None) * INTERVAL_S for share in (0.7, 2.0, 20.0)]
        assert began_s == sorted(began_s, reverse=True)
        assert began_s[-1] <= 2 * INTERVAL_S
        assert began_s[0] <= 40

    @pytest.mark.parametrize('share, busy', [
        (0.3, True), (0.5, True), (0.9, False)])
    def test_one_that_pays_is_left_alone(self, share, busy):
        server = Server(constant(share), busy=busy).run(600)
        assert server.turns == 0

    def test_what_it_sends_leaves_its_disks_less(self):
        server = Server(constant(2.0), sent=0.2).run(600)
        assert mean(server.costs, 300) == pytest.approx(0.45 - 0.2, rel=0.02)

    def test_its_disks_never_stand_still(self):
        server = Server(constant(2.0), sent=0.9).run(600)
        assert mean(server.costs, 300) == pytest.approx(
            throttle.LEAST_SHARE, rel=0.02)
        whole = Server(constant(2.0), floor_share=1.0).run(600)
        assert mean(whole.costs, 300) == pytest.approx(
            throttle.LEAST_SHARE, rel=0.02)


class TestEnd:
    @pytest.mark.parametrize('later', [0.0, 0.3])
    def test_it_ends_when_it_is_not_needed(self, later):
        server = Server(lambda now_s: Asked(
            2.0 if now_s < 120 else later), busy=False).run(300)
        assert server.limits[round(120 / INTERVAL_S)] is not None
        assert server.limits[-1] is None
        assert server.turns == 2

    def test_not_while_it_owes(self):
        """It asks for less than it may, and pays a fifth of its units."""
        server = Server(lambda now_s: Asked(2.0 if now_s < 20 else 0.3),
                        debt_cu_s=60 * UNITS).run(200)
        assert server.charge.debt_cu_s > UNITS
        assert server.limits[-1] is not None
        server.run(400)
        assert server.charge.debt_cu_s < UNITS
        assert server.limits[-1] is None

    def test_nor_while_it_holds_anything_back(self):
        server = Server(on_off(2.0, 4, 36), busy=False).run(900)
        assert server.turns <= 1

    def test_one_that_was_found_ends_too(self):
        server = Server(constant(0.0))
        server.throttle = throttle.Throttle(throttle.DiskLimit(10, 40_960))
        server.run(throttle.QUIET_S - INTERVAL_S)
        assert server.limits[-1] is not None
        assert server.run(INTERVAL_S).limits[-1] is None


class TestSize:
    @pytest.mark.parametrize('before, after', [
        (4096, 1 << 20), (1 << 20, 512), (65_536, 4096)])
    def test_another_size_costs_no_more_and_gets_its_share(self, before,
                                                           after):
        server = Server(lambda now_s: Asked(
            2.0, before if now_s < 300 else after)).run(900)
        assert max(server.costs[round(60 / INTERVAL_S):]) <= 0.45 * 1.02
        assert mean(server.costs, 300) >= 0.9 * 0.45


PHASES = st.lists(st.tuples(
    st.floats(0.0, 30.0), st.sampled_from([512, 4096, 65_536, 1 << 20]),
    st.integers(1, 40)), min_size=1, max_size=8)


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(PHASES, st.sampled_from([0.1, 0.5, 0.8]), st.booleans())
def test_whatever_it_asks_for(phases, floor_share, busy):
    length_s = sum(intervals for *_rest, intervals in phases) * INTERVAL_S

    def asked(now_s):
        at_s = now_s % length_s
        for share, size_bytes, intervals in phases:
            at_s -= intervals * INTERVAL_S
            if at_s < 0:
                return Asked(share, size_bytes)
        return Asked(0.0)
    server = Server(asked, floor_share=floor_share, busy=busy).run(900)
    room = throttle.ROOM_SHARE * (1 - floor_share)
    limited = [cost for cost, limit in zip(
        server.costs[1:], server.limits, strict=False) if limit is not None]
    # Within a limit no size costs more than there is room for.
    assert all(cost <= 1.12 * room for cost in limited)
    # It comes and goes rarely, and is seldom changed.
    assert server.turns <= 2 * 900 / throttle.QUIET_S
    assert server.changes <= 2 * 900 / throttle.WINDOW_S
    # Each is of something.
    assert all(min(limit) >= 1 for limit in server.limits if limit)
    # And ends, once nothing is asked for any more.
    server._asked, server._busy = constant(0.0), False
    server.run(server.charge.debt_cu_s / UNITS + throttle.QUIET_S + 40)
    assert server.limits[-1] is None


@hypothesis.settings(deadline=None, max_examples=60)
@hypothesis.given(st.floats(0.0, 50.0), st.sampled_from([512, 4096, 1 << 20]),
                  st.sampled_from([0.1, 0.5, 0.8]), st.floats(0.0, 0.3))
def test_what_stays_is_settled_once(share, size_bytes, floor_share, sent):
    server = Server(constant(share, size_bytes), floor_share=floor_share,
                    sent=sent).run(1200)
    assert server.turns <= 1
    assert server.changes <= 3
    if server.limits[-1] is not None:
        room = max(throttle.LEAST_SHARE,
                   throttle.ROOM_SHARE * (1 - floor_share) - sent)
        assert mean(server.costs, 300) >= 0.85 * min(share, room)
