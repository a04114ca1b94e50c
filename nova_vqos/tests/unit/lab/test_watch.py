# SPDX-License-Identifier: Apache-2.0
"""The speed of guests, by what they print, whenever somebody looks."""

import types

import pytest

from nova_vqos_lab import watch


class Guest:
    """Does a round of 100 events in each second, and prints it."""

    name = domain = 'guest'

    def __init__(self):
        self.host = types.SimpleNamespace(name='fast',
                                          vcpu_cgroup=lambda _domain: 'group')
        self.printed = 0

    def console(self):
        return ''.join(
            f'vqos-start sysbench {number}.5\nvqos-stop sysbench '
            f'{number + 1}.5\nvqos sysbench {number + 1}.5 100 1.0\n'
            for number in range(self.printed))


@pytest.fixture
def measure(monkeypatch):
    """:returns: called with the seconds after which somebody looks"""
    def run(looks_s):
        guest, left_s = Guest(), list(looks_s)
        now = types.SimpleNamespace(s=0.0)

        def wait_until(condition, *_limit, **_options):
            while True:
                now.s = left_s.pop(0)
                guest.printed = int(now.s)
                if condition():
                    return
        monkeypatch.setattr(watch.process, 'wait_until', wait_until)
        monkeypatch.setattr(watch.time, 'monotonic', lambda: now.s)
        return watch.measure({guest: (guest.host, 'sysbench')},
                             rounds=8)[guest]
    return run


def test_each_round_is_seen(measure):
    found = measure(range(1, 20))
    assert (found.steady, found.rounds) == (100, 8)
    assert found.clock_error == pytest.approx(0)
    assert found.clock_s == 6


@pytest.mark.parametrize('looks_s', [(1, 12), (12, 18)])
def test_seen_at_one_look_rounds_say_nothing_of_the_clock(measure, looks_s):
    """As on a machine that is too busy to look more often."""
    found = measure(looks_s)
    assert found.steady == 100
    assert (found.clock_error, found.clock_s) == (0, 0)
