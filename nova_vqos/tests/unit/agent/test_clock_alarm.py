# SPDX-License-Identifier: Apache-2.0
"""The alarm that servers ran at a lower clock than the host's calibration."""

import pytest

from nova_vqos.agent import clock_alarm
from nova_vqos.billing import usage

S_NS = 1_000_000_000


def ran(scale, seconds=30, mhz=3000.0):
    return usage.ClockTime(seconds * S_NS, seconds * mhz * scale * 1e6), mhz


@pytest.fixture
def alarm():
    return clock_alarm.ClockAlarm()


@pytest.mark.parametrize('scales, on', [
    ((1.0,), False), ((0.91,), False), ((0.89,), True), ((1.3,), False),
    # It is not on and off again.
    ((0.89, 0.92), True), ((0.89, 0.92, 0.89), True), ((0.89, 0.94), False),
    ((0.89, 0.94, 0.92), False)])
def test_it_begins_lower_than_it_ends(alarm, scales, on):
    for scale in scales:
        alarm.update([ran(scale)])
    assert bool(alarm.text) is on


def test_servers_count_by_their_time(alarm):
    alarm.update([ran(0.5, seconds=1), ran(1.0, seconds=30)])
    assert not alarm.text
    alarm.update([ran(0.5, seconds=30), ran(1.0, seconds=1)])
    assert alarm.text


def test_each_counts_by_the_clock_of_its_own_pcpus(alarm):
    alarm.update([ran(1.0, mhz=1500.0), ran(1.0, mhz=3500.0)])
    assert not alarm.text


def test_it_says_how_far(alarm):
    alarm.update([ran(0.8)])
    for figure in ('2400 MHz', '20%', '3000 MHz'):
        assert figure in alarm.text
    assert len(alarm.text) < 300


@pytest.mark.parametrize('idle', [[], [ran(0.1, seconds=0)]])
def test_idle_servers_have_no_clock(alarm, idle):
    alarm.update(idle)
    assert not alarm.text
    alarm.update([ran(0.8)])
    alarm.update(idle)
    assert not alarm.text


def test_it_is_logged_once(alarm, caplog):
    caplog.set_level('INFO')
    for scale in 0.8, 0.79, 0.8, 1.0, 1.0:
        alarm.update([ran(scale)])
    assert [record.levelname for record in caplog.records] == [
        'WARNING', 'INFO']
