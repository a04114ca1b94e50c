# SPDX-License-Identifier: Apache-2.0
"""The speed of a server, by what its guest executes."""

import itertools
import math
import random

from hypothesis import given
from hypothesis import strategies as st
import pytest

from nova_vqos import speeds
from nova_vqos.agent.correction import measurement
from nova_vqos.billing import usage

CAP_SHARE = 0.5
SPEEDS = st.floats(1e6, 1e11)


class Guest:
    """A guest of two vCPUs that its cap holds back, read every five seconds.

    :ivar readings: its counters
    """

    def __init__(self, run='1'):
        self.measured = measurement.Measurement()
        self.reading = usage.GuestWork(
            run=run, read_at_s=100.0, instructions=5e9, vcpu_ns=10**9,
            throttled_ns=0, vcpus=2)
        self.measured.add(self.reading, CAP_SHARE)

    def work(self, speed, *, cpu_s=4.9, throttled_s=5.0, cap=CAP_SHARE,
             **others):
        """Work for a window.

        :param speed: in instructions per CPU second
        :returns: whether its work changed
        """
        last = self.reading
        self.reading = last._replace(
            read_at_s=last.read_at_s + 5.0,
            instructions=last.instructions + speed * cpu_s,
            vcpu_ns=last.vcpu_ns + round(cpu_s * 1e9),
            throttled_ns=last.throttled_ns + round(throttled_s * 1e9),
            **others)
        return self.measured.add(self.reading, cap)

    @property
    def speed(self):
        found = self.measured.speed
        return None if found is None else found.per_cpu_s


@given(SPEEDS)
def test_three_windows_give_a_speed(speed):
    guest = Guest()
    for _ in range(2):
        guest.work(speed)
        assert guest.speed is None
    guest.work(speed)
    assert guest.speed == pytest.approx(speed)
    assert guest.measured.windows == 3


@given(SPEEDS, st.lists(st.floats(-0.02, 0.02), min_size=12, max_size=40),
       st.floats(0.2, 5.0))
def test_one_window_moves_it_little(speed, noises, outlier):
    guest = Guest()
    for noise in noises:
        guest.work(speed * math.exp(noise))
    before = guest.speed
    guest.work(speed * outlier)
    assert guest.speed == pytest.approx(before, rel=0.03)
    assert not guest.measured.phases


@pytest.mark.parametrize(('window', 'counts'), [
    ({}, True),
    # One of its vCPUs is busy, and held back.
    ({'cpu_s': 2.45, 'throttled_s': 2.5}, True),
    # Its cap is in use, though little throttled: the last bit is its own.
    ({'cpu_s': 4.7, 'throttled_s': 0.0}, True),
    ({'cpu_s': 4.0, 'throttled_s': 0.0}, False),
    ({'cpu_s': 4.0, 'throttled_s': 0.05}, False),
    ({'cpu_s': 0.05}, False),
    ({'cap': None}, False),
    ({'vcpus': 3}, False),
])
def test_only_windows_count_in_which_the_cap_held_it_back(window, counts):
    guest = Guest()
    guest.work(2e9, **window)
    assert guest.measured.windows == counts


def test_no_window_spans_two_runs_or_a_pause():
    guest = Guest()
    guest.work(2e9, run='2')
    assert not guest.measured.windows
    guest.measured.restart_window()
    guest.work(2e9)
    assert not guest.measured.windows
    guest.work(2e9)
    assert guest.measured.windows == 1


@pytest.mark.parametrize('factor', [0.5, 0.84, 1.2, 2.0])
def test_other_work_is_seen_after_three_windows(factor):
    guest = Guest()
    for _ in range(6):
        guest.work(2e9)
    assert [guest.work(2e9 * factor) for _ in range(3)] == [
        False, False, True]
    assert guest.speed == pytest.approx(2e9 * factor)
    assert (guest.measured.phases, guest.measured.windows) == (1, 3)


@pytest.mark.parametrize('factor', [0.88, 1.14])
def test_a_machine_among_others_is_no_other_work(factor):
    guest = Guest()
    for _ in range(6):
        guest.work(2e9)
    assert not any(guest.work(2e9 * factor) for _ in range(12))
    assert guest.measured.phases == 0


def test_windows_on_both_sides_are_no_other_work():
    guest = Guest()
    for _ in range(6):
        guest.work(2e9)
    assert not any(guest.work(2e9 * factor)
                   for factor in (0.5, 2.0) * 6)
    assert guest.speed == pytest.approx(2e9)


def test_a_steady_speed_is_rarely_taken_for_other_work():
    chance = random.Random(7)
    phases = 0
    for _ in range(50):
        guest = Guest()
        for _ in range(100):
            guest.work(2e9 * math.exp(chance.gauss(0, 0.02)))
        phases += guest.measured.phases
    assert phases <= 1


def test_more_windows_are_more_certain():
    chance = random.Random(7)
    variances = []
    for windows in 3, 12:
        found = []
        for _ in range(200):
            guest = Guest()
            for _ in range(windows):
                guest.work(2e9 * math.exp(chance.gauss(0, 0.02)))
            if guest.measured.speed is not None:
                found.append(guest.measured.speed.variance)
        variances.append(sum(found) / len(found))
    assert all(second < first / 2
               for first, second in itertools.pairwise(variances))


def test_two_measurements_are_apart_by_what_is_certain():
    sure = speeds.Speed(math.log(2e9), 0.003 ** 2)
    assert not sure.is_apart(sure._replace(log=math.log(2.3e9)))
    assert sure.is_apart(sure._replace(log=math.log(2.4e9)))
    assert not sure.is_apart(speeds.Speed(math.log(2.4e9), 0.05 ** 2))
