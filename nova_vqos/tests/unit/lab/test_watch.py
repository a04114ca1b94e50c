# SPDX-License-Identifier: Apache-2.0
"""The speed of guests, by what they print, whenever somebody looks."""

import types

import pytest

from nova_vqos_lab import watch


class Guest:
    """Does a round of 100 events in each second, and prints it."""

    name = domain = 'guest'

    def __init__(self, slow):
        """:param slow: rounds in which it has half of the time"""
        self._slow = slow
        self.host = types.SimpleNamespace(name='fast',
                                          vcpu_cgroup=lambda _domain: 'group')
        self.printed = 0

    def console(self):
        return ''.join(
            f'vqos-start sysbench {number}.5\nvqos-stop sysbench '
            f'{number + 1}.5\nvqos sysbench {number + 1}.5 '
            f'{50 if number in self._slow else 100} 1.0\n'
            for number in range(self.printed))


@pytest.fixture
def measure(monkeypatch):
    """:returns: called with the seconds after which somebody looks"""
    def run(looks_s, slow=()):
        guest, left_s = Guest(slow), list(looks_s)
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
    assert (found.unsteady, found.late_s) == (0, 1)


def test_a_round_in_which_the_machine_stood_still(measure):
    found = measure([*range(1, 7), *range(9, 20)], slow=[3])
    assert found.rounds == 9
    assert found.steady == pytest.approx(850 / 9)
    assert found.unsteady == pytest.approx(100 / found.steady - 1)


@pytest.mark.parametrize(('looks_s', 'late_s'), [
    ([1, 2, 3, 4, 7, 8], 1), ([1, 2, 3, 4, 5, 8], 3), ([1, 4, 5, 6, 7, 8], 3)])
def test_a_round_may_be_seen_late(measure, looks_s, late_s):
    assert measure(looks_s).late_s == late_s


@pytest.mark.parametrize('looks_s', [(1, 12), (12, 18)])
def test_seen_at_one_look_rounds_say_nothing_of_the_clock(measure, looks_s):
    """As on a machine that is too busy to look more often."""
    found = measure(looks_s)
    assert found.steady == 100
    assert (found.clock_error, found.clock_s) == (0, 0)
