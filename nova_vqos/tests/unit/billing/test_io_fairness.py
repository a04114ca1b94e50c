# SPDX-License-Identifier: Apache-2.0
"""Whether servers that are offered alike are served alike."""

import dataclasses
import itertools

import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos.billing import io_fairness
from nova_vqos.tests.fixtures import billing_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.billing import test_host_load
from nova_vqos.tests.unit.billing import test_meter

AMOUNTS = st.lists(st.floats(0, 1e12), min_size=1, max_size=20).filter(any)
# The alert's.
TOO_UNLIKE = 0.95
MINUTE_S = 60.0


class TestJain:
    @pytest.mark.parametrize(('amounts', 'index'), [
        # As published for two senders that share a host.
        ((509, 431), 0.9932),
        ((1, 1, 1, 1), 1.0), ((1, 1, 0, 0), 0.5), ((7, 0, 0, 0), 0.25),
        ((1, 2, 3), 0.8571), ((5,), 1.0)])
    def test_amounts(self, amounts, index):
        assert io_fairness.jain(amounts) == pytest.approx(index, abs=5e-5)

    @pytest.mark.parametrize('amounts', [(), (0,), (0.0, 0.0)])
    def test_nothing_was_shared(self, amounts):
        with pytest.raises(ValueError):
            io_fairness.jain(amounts)

    @hypothesis.given(AMOUNTS)
    def test_it_is_within_its_bounds(self, amounts):
        assert 1 / len(amounts) * (1 - 1e-12) <= (
            io_fairness.jain(amounts)) <= 1

    @hypothesis.given(AMOUNTS, st.floats(1e-6, 1e6))
    def test_it_has_no_scale(self, amounts, factor):
        # Not so small that a float has fewer digits.
        amounts = [amount + 1e-3 for amount in amounts]
        assert io_fairness.jain([amount * factor for amount in amounts]) == (
            pytest.approx(io_fairness.jain(amounts)))

    @hypothesis.given(AMOUNTS.flatmap(lambda amounts: st.tuples(
        st.just(amounts), st.permutations(amounts))))
    def test_it_has_no_order(self, both):
        one, other = both
        assert io_fairness.jain(one) == pytest.approx(io_fairness.jain(other))

    @hypothesis.given(st.integers(1, 30), st.integers(0, 30))
    def test_some_share_all(self, sharing, others):
        assert io_fairness.jain([1] * sharing + [0] * others) == (
            pytest.approx(sharing / (sharing + others)))


def compare(*servers, units=10, covered_s=MINUTE_S, length_s=MINUTE_S):
    """Servers that received and did not receive so many packets a second.

    :returns: what is said of them, named by number; None: nothing
    """
    load = io_fairness.IoFairness()
    for number, (delivered, dropped) in enumerate(servers):
        load.add(str(number), units, covered_s, round(delivered * covered_s),
                 round(dropped * covered_s))
    return load.end(length_s).get(io_fairness.RECEIVED)


class TestLikeOffers:
    def test_those_that_get_unlike_parts(self):
        assert compare((900, 100), (300, 700), (900, 100)) == (
            io_fairness.Fairness(pytest.approx(2.1**2 / 3 / 1.71), 3, '1'))

    @pytest.mark.parametrize('servers', [
        (), ((900, 0),),
        # They were sent unlike amounts.
        ((900, 100), (600, 0)),
        # They were sent too little to say anything.
        ((90, 9), (9, 90)),
        # One takes nothing: it is paused, or has no driver.
        ((900, 0), (0, 900))])
    def test_those_that_say_nothing(self, servers):
        assert compare(*servers) is None

    def test_other_units_are_another_right(self):
        load = io_fairness.IoFairness()
        for units in (10, 30, None):
            load.add(str(units), units, MINUTE_S, 1000 * (units or 1),
                     60_000 - 1000 * (units or 1))
        assert load.end(MINUTE_S) == {}

    def test_those_without_units_are_alike(self):
        found = compare((900, 0), (100, 800), units=None)
        assert (found.servers, found.least_server) == (2, '1')

    def test_of_several_groups_the_worst(self):
        """Many that idle alike do not hide two that compete."""
        found = compare(*[(150, 0)] * 20, (9000, 0), (3000, 6000))
        assert found == io_fairness.Fairness(pytest.approx(0.8), 2, '21')

    def test_each_two_that_are_alike_are_compared(self):
        """Also where others are alike to one of them only."""
        found = compare((1000, 0), (1400, 0), (500, 1400))
        assert (found.servers, found.least_server) == (2, '2')

    @pytest.mark.parametrize(('covered_s', 'servers'), [
        (29.0, None), (31.0, 2), (119.0, 2), (3600.0, None), (0.0, None)])
    def test_bills_of_another_time_say_nothing(self, covered_s, servers):
        found = compare((900, 0), (100, 800), covered_s=covered_s)
        assert (None if found is None else found.servers) == servers

    def test_a_rate_counts_and_not_for_how_long(self):
        load = io_fairness.IoFairness()
        for uuid, covered_s in (('a', 40.0), ('b', 80.0)):
            for _ in range(2):
                load.add(uuid, 10, covered_s / 2, round(500 * covered_s),
                         round(50 * covered_s))
        assert load.end(MINUTE_S)[io_fairness.RECEIVED].jain == 1

    def test_each_time_begins_anew(self):
        load = io_fairness.IoFairness()
        for delivered in (900, 100):
            load.add(str(delivered), 10, MINUTE_S, 60 * delivered,
                     60 * (1000 - delivered))
        assert load.end(MINUTE_S)
        assert load.end(MINUTE_S) == {}

    @hypothesis.given(st.lists(st.floats(1000, 1e6), min_size=2, max_size=12),
                      st.floats(50, 1e6))
    def test_a_fair_host_is_never_too_unlike(self, offered, most):
        """Each gets the same, or all that was sent to it.

        However many of them are alike, and how much they were sent.
        """
        found = compare(*[(min(one, most), max(0, one - most))
                          for one in offered])
        assert found is None or found.jain > TOO_UNLIKE

    @hypothesis.given(st.lists(
        st.tuples(st.floats(0, 1e5), st.floats(0, 1e5)), max_size=8))
    def test_none_is_left_out(self, servers):
        found = compare(*servers)
        alike = [
            (one, other) for one, other in itertools.combinations(servers, 2)
            if all(map(round, (one[0] * 60, other[0] * 60)))
            and min(sum(one), sum(other)) > 101
            and max(sum(one), sum(other)) < 1.49 * min(sum(one), sum(other))]
        if alike:
            assert 2 <= found.servers <= len(servers)


class TestBiller:
    """What servers received is in their bills' readings already."""

    def minutes(self, host):
        for minute in range(2):
            for uuid, (rx, dropped) in {
                    fakes.UUID: (900, 100), fakes.OTHER_UUID: (300, 700),
            }.items():
                reading = host.hypervisor.used[uuid]
                host.hypervisor.used[uuid] = dataclasses.replace(
                    reading, read_at_s=host.now_s, interfaces={
                        name: test_meter.packets(
                            rx=rx * 30 * minute, dropped=dropped * 30 * minute)
                        for name in ('tap0', 'tap1')})
            host.hypervisor.host_used = test_host_load.host_usage(host.now_s)
            host.biller.bill_all(list(host.subjects.values()), host.costs,
                                 set(host.subjects), 100)
            host.now_s += MINUTE_S

    @pytest.mark.parametrize('costs', [test_meter.COSTS, None])
    def test_a_host_that_serves_one_less(self, tmp_path, costs):
        host = billing_host.Host(tmp_path)
        host.costs = costs
        for uuid in (fakes.UUID, fakes.OTHER_UUID):
            host.run(uuid, origin='migrated')
        self.minutes(host)
        assert host.biller.capacity.fairness == {
            io_fairness.RECEIVED: io_fairness.Fairness(
                pytest.approx(0.8), 2, fakes.OTHER_UUID)}

    def test_one_alone(self, tmp_path):
        host = billing_host.Host(tmp_path)
        for uuid in (fakes.UUID, fakes.OTHER_UUID):
            host.run(uuid, origin='migrated')
        del host.subjects[fakes.OTHER_UUID]
        self.minutes(host)
        assert host.biller.capacity.fairness == {}
