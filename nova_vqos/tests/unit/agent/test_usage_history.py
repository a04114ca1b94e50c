# SPDX-License-Identifier: Apache-2.0
"""What a server's vCPUs had lately, by readings of their counters."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.agent import usage_history
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import usage

S_NS = 1_000_000_000


def reading(at_s, vcpu_s=0.0, throttled_s=0.0, run='run', vcpus=2):
    return usage.VcpuTime(run, at_s, round(vcpu_s * S_NS),
                          round(throttled_s * S_NS), vcpus)


def make_history(*readings):
    history = usage_history.History()
    for each in readings:
        history.add(each)
    return history


class TestRates:
    def test_two_readings_make_a_rate(self):
        history = make_history(reading(0, 5, 1), reading(20, 15, 5))
        assert history.rates(1.5, 20.0) == server_report.Rates(20, 75.0, 0.1)

    def test_without_a_profile_no_speed_is_known(self):
        history = make_history(reading(0), reading(20, 5))
        assert history.rates(None, 20.0).delivered_cu is None

    @pytest.mark.parametrize('readings', [
        [], [reading(0)], [reading(0), reading(0, 1)],
        [reading(0), reading(9, 1, run='other')]])
    def test_one_look_is_none(self, readings):
        assert make_history(*readings).rates(1.0, 9.0) is None

    def test_old_usage_is_none(self):
        history = make_history(reading(0), reading(20, 5))
        assert history.rates(1.0, 110.0) is not None
        assert history.rates(1.0, 111.0) is None

    @pytest.mark.parametrize('interval_s, over_s', [
        (1, 59), (10, 60), (25, 75), (60, 60)])
    def test_it_is_the_last_minute(self, interval_s, over_s):
        history = make_history(*[reading(number * interval_s)
                                 for number in range(200)])
        now_s = history.last.read_at_s
        assert history.rates(1.0, now_s).over_s == over_s

    def test_a_server_is_not_held_back_more_than_all_of_the_time(self):
        history = make_history(reading(0, vcpus=0),
                               reading(10, 0, 30, vcpus=0))
        assert history.rates(1.0, 10.0).throttled == 1.0


class TestFullRates:
    @pytest.mark.parametrize('window_s, interval_s, over_s', [
        (10, 1, 9), (10, 5, 10), (10, 9.5, 9.5), (10, 10, 10), (10, 20, 20),
        (300, 1, 299), (300, 10, 300), (300, 60, 300)])
    def test_they_are_of_the_window(self, window_s, interval_s, over_s):
        history = make_history(*[
            reading(number * interval_s, number)
            for number in range(1000)])
        now_s = history.last.read_at_s
        assert history.full_rates(window_s, 1.0, now_s) == server_report.Rates(
            over_s, pytest.approx(100 / interval_s), 0.0)

    def test_each_is_of_its_own_window(self):
        """A server was idle, and began to work 10 s ago."""
        history = make_history(*[reading(at_s, max(0, at_s - 390))
                                 for at_s in range(0, 401, 10)])
        assert history.full_rates(10, 1.0, 400).delivered_cu == 100
        assert history.rates(1.0, 400).delivered_cu == pytest.approx(100 / 6)
        assert history.full_rates(300, 1.0, 400).delivered_cu == (
            pytest.approx(100 / 30))

    @pytest.mark.parametrize('last_at_s, over_s', [
        (0, None), (290, None), (300, 300), (310, 300)])
    def test_a_window_that_is_not_full_is_none(self, last_at_s, over_s):
        history = make_history(*[reading(at_s)
                                 for at_s in range(0, last_at_s + 1, 10)])
        found = history.full_rates(300, 1.0, last_at_s)
        assert (found and found.over_s) == over_s

    def test_readings_too_rare_for_it_are_none(self):
        history = make_history(*[reading(at_s) for at_s in range(0, 900, 25)])
        assert history.full_rates(10, 1.0, 875) is None

    def test_old_usage_is_none(self):
        history = make_history(*[reading(at_s) for at_s in range(0, 401, 10)])
        assert history.full_rates(10, 1.0, 420) is not None
        assert history.full_rates(10, 1.0, 421) is None
        assert history.full_rates(300, 1.0, 490) is not None
        assert history.full_rates(300, 1.0, 491) is None

    def test_another_run_begins_anew(self):
        history = make_history(*[reading(at_s) for at_s in range(0, 401, 10)],
                               reading(410, run='other'),
                               reading(420, run='other'))
        assert history.full_rates(10, 1.0, 420) is not None
        assert history.full_rates(300, 1.0, 420) is None

    def test_no_more_is_kept_than_they_need(self):
        history = make_history(*[reading(at_s)
                                 for at_s in range(0, 9000, 10)])
        assert len(history._readings) == 31


class TestCounters:
    @settings(deadline=None)
    @given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)),
                    min_size=1))
    def test_they_never_fall_within_a_run(self, values):
        history = usage_history.History()
        before = reading(0)
        for number, (vcpu_s, throttled_s) in enumerate(values):
            history.add(reading(number, vcpu_s, throttled_s))
            last = history.last
            assert last.vcpu_ns >= before.vcpu_ns
            assert last.throttled_ns >= before.throttled_ns
            before = last

    def test_another_run_begins_anew(self):
        history = make_history(reading(0, 50, 5),
                               reading(10, 1, 0, run='other'))
        assert history.last.vcpu_ns == S_NS
        assert history.last.throttled_ns == 0


class TestClock:
    def clocked(self, at_s, ran_s, mhz, run='run'):
        return reading(at_s, run=run)._replace(clock=usage.ClockTime(
            round(ran_s * S_NS), ran_s * mhz * 1e6))

    def test_it_is_the_mean_of_the_last_minute(self):
        # Two clocks, the higher one for three quarters of the minute.
        made, ran_s, cycles = make_history(), 0.0, 0.0
        for at_s in range(0, 121, 15):
            mhz = 1000 if at_s <= 75 else 3000
            ran_s, cycles = ran_s + 5, cycles + 5 * mhz * 1e6
            made.add(reading(at_s)._replace(clock=usage.ClockTime(
                round(ran_s * S_NS), cycles)))
        assert made.clock(120.0).mhz == pytest.approx(2500)
        assert made.clock(120.0).ran_ns == 20 * S_NS

    def test_one_that_did_not_run_has_none(self):
        made = make_history(self.clocked(0, 5, 3000), self.clocked(30, 5,
                                                                   3000))
        assert made.clock(30.0).ran_ns == 0

    def test_old_usage_has_none(self):
        made = make_history(self.clocked(0, 0, 3000), self.clocked(60, 5,
                                                                   3000))
        assert made.clock(150.0).ran_ns
        assert made.clock(151.0) == usage.NO_CLOCK_TIME
        assert make_history().clock(0.0) == usage.NO_CLOCK_TIME

    @pytest.mark.parametrize('last_s, ran_ns', [(58, 0), (60, 5 * S_NS)])
    def test_a_minute_may_be_asked_for_whole(self, last_s, ran_ns):
        made = make_history(self.clocked(0, 0, 3000),
                            self.clocked(last_s, 5, 3000))
        assert made.clock(60.0, full=True).ran_ns == ran_ns
