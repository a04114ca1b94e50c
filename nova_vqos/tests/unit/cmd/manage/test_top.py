# SPDX-License-Identifier: Apache-2.0
"""What server top draws, and when it ends."""

import argparse
import curses
import datetime
import itertools

import pytest

from nova_vqos.agent.messages import server_report
from nova_vqos.cmd.manage import servers
from nova_vqos.cmd.manage import top
from nova_vqos.tests.fixtures import fakes

AT = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)


def placed(host, *, uuid=fakes.UUID, entitled=60, delivered=None,
           throttled=None, debt=None, **others):
    return servers.Placed(host, server_report.Server(
        server_uuid=uuid, entitled_cu=entitled, right=True,
        quantum_class='default',
        rates=None if delivered is None else server_report.Rates(
            60.0, delivered, throttled),
        bill=None if debt is None else server_report.Bill(
            used_cu_s={}, used_lately_cu={}, debt_cu_s=debt,
            written_off_cu_s=0.0, limit_cu=None), **others))


FOUND = (placed('a', delivered=10.0, throttled=0.5),
         placed('b', delivered=50.0, throttled=0.0, debt=1.0),
         placed('c'), placed('d', delivered=1.0, throttled=0.1, debt=9.0))


def view(found=FOUND, silent=0, problem=''):
    return top.View(found, 4, silent, AT, problem)


@pytest.mark.parametrize(('sort', 'hosts'), [
    ('throttled', 'adbc'), ('delivered', 'badc'), ('debt', 'dbac')])
def test_the_most_comes_first(sort, hosts):
    _first, _second, _header, *lines = top.lines(view(), sort)
    assert ''.join(line.split()[1] for line in lines) == hosts


def test_the_totals_come_first():
    first, second, header, *_lines = top.lines(view(silent=1), 'debt')
    assert first == ('03:04:05 UTC  hosts: 4, no answer: 1; servers: 4, '
                     'wrong: 0; sorted by debt')
    assert second == 'promised 240 CU, delivered 61 CU'
    assert header.split() == list(servers.SHORT)


def test_one_that_migrates_is_counted_once():
    first, second, *_lines = top.lines(view([
        *FOUND, placed('e', delivered=10.0, throttled=0.5, arriving=True)]),
        'debt')
    assert 'servers: 4,' in first
    assert second == 'promised 240 CU, delivered 61 CU'


def test_a_bus_that_goes_down_is_shown():
    assert top.lines(view((), 4, 'the bus is down'), 'debt')[1] == (
        'the bus is down')


def test_answers_of_agents_cannot_steer_the_terminal():
    lines = top.lines(view([placed('a', flavor='x\x1b[2J\ny')]), 'debt')
    assert len(lines) == 4
    assert r'x\x1b[2J\ny' in lines[3]


class Window:
    """A terminal of some size, on which some keys are pressed."""

    def __init__(self, keys, height=24, width=80):
        self._keys = iter(keys)
        self._size = (height, width)
        self.lines = []
        self.first = []

    def timeout(self, _limit_ms):
        pass

    def getmaxyx(self):
        return self._size

    def erase(self):
        self.lines = []

    def addnstr(self, number, column, text, most, _attribute):
        assert (number, column) == (len(self.lines), 0)
        assert 0 <= number < self._size[0]
        assert most < self._size[1]
        self.lines.append(text[:most])

    def refresh(self):
        self.first.append(self.lines[0])

    def getch(self):
        key = next(self._keys)
        if isinstance(key, BaseException):
            raise key
        return key


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch):
    """As on one without colours."""
    def fail(*_arguments):
        raise curses.error('no colours')
    monkeypatch.setattr(curses, 'use_default_colors', fail)


def screen(look=view, interval=3600.0):
    return top._Screen(look, view(), argparse.Namespace(
        sort='throttled', interval=interval))


def test_keys_sort_and_quit():
    window = Window([ord('d'), curses.KEY_RESIZE, -1, ord('o'), ord('t'),
                     ord('x'), ord('q')])
    screen().run(window)
    assert [line.rsplit(maxsplit=1)[1] for line in window.first] == [
        'throttled', 'delivered', 'delivered', 'delivered', 'debt',
        'throttled', 'throttled']


@pytest.mark.parametrize(('height', 'width'), [(2, 80), (24, 5), (1, 2)])
def test_a_small_terminal_is_enough(height, width):
    window = Window([-1, ord('q')], height, width)
    screen().run(window)
    assert len(window.lines) == min(height, 7)


def test_new_rows_are_drawn():
    news = view((), 4, 'the bus is down')
    window = Window(itertools.repeat(-1))
    made = screen(lambda: news, interval=0.01)
    with pytest.raises(KeyboardInterrupt):
        def keys():
            while window.lines[1] != news.problem:
                yield -1
            yield KeyboardInterrupt()
        window._keys = keys()
        made.run(window)
    # What asks ends with it.
    assert made._stopping.is_set()
