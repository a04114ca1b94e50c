# SPDX-License-Identifier: Apache-2.0
"""When a machine is quiet enough to measure."""

import itertools
import types

import pytest

from nova_vqos.tests.gate import machine

TEXT = ('some avg10={} avg60=1.21 avg300=1.08 total=5774921\n'
        'full avg10=0.00 avg60=0.00 avg300=0.00 total=0\n')


@pytest.fixture
def pressure(monkeypatch, tmp_path):
    """Lets the kernel say one percentage after the other, a second apart."""
    path = tmp_path / 'cpu'
    monkeypatch.setattr(machine, '_PRESSURE', path)
    now_s = itertools.count()

    def say(*percentages):
        left = iter(percentages)

        def next_second(_seconds=0):
            path.write_text(TEXT.format(next(left)))
        monkeypatch.setattr(machine, 'time', types.SimpleNamespace(
            monotonic=lambda: next(now_s), sleep=next_second))
        next_second()
    return say


def test_how_long_it_stood_still():
    still = machine.Standstill()
    # Both pCPUs at once, for a part of it.
    still._spans += [(10.0, 16.0), (0.0, 1.0), (15.0, 17.0)]
    assert still.lost_s(0.5, 20.0) == 7.5
    assert still.lost_s(0.5, 20.0, machine.LONG_S) == 6.0


def test_a_quiet_machine_is_measured_at_once(pressure):
    pressure(0.95)
    assert machine.wait_until_quiet() == 0.95


def test_a_busy_machine_is_waited_for(pressure):
    pressure(80.0, 40.0, 9.9)
    assert machine.wait_until_quiet() == 9.9


def test_one_that_is_never_quiet_is_measured_after_a_minute(pressure):
    pressure(*[80.0] * 100)
    assert machine.wait_until_quiet() == 80.0


def test_a_kernel_that_does_not_say_is_measured_at_once(pressure):
    assert machine.wait_until_quiet() is None
