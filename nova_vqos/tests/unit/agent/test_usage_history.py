# SPDX-License-Identifier: Apache-2.0
"""What a server's vCPUs had lately, by readings of their counters."""

from hypothesis import given
from hypothesis import settings
from hypothesis import strategies as st
import pytest

from nova_vqos.agent import messages
from nova_vqos.agent import usage_history
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
        assert history.rates(1.5, 20.0) == messages.Rates(20, 75.0, 0.1)

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
        (1, 60), (10, 60), (25, 75), (60, 60)])
    def test_it_is_the_last_minute(self, interval_s, over_s):
        history = make_history(*[reading(number * interval_s)
                                 for number in range(200)])
        now_s = history.last.read_at_s
        assert history.rates(1.0, now_s).over_s == over_s

    def test_a_server_is_not_held_back_more_than_all_of_the_time(self):
        history = make_history(reading(0, vcpus=0),
                               reading(10, 0, 30, vcpus=0))
        assert history.rates(1.0, 10.0).throttled == 1.0


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
