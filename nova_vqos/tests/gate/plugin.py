# SPDX-License-Identifier: Apache-2.0
"""A plugin of pytest: what each test cost, for the JUnit report.

It adds to each test case the properties

``nodeid``
    to run it again by
``cpu_s``
    CPU seconds of this process and of the children that it waited for, on a
    machine of the reference's speed
``waited_s``
    seconds for which its own thread slept by ``time.sleep``, but for those in
    functions of the name wait.. or _wait..: how long these take is the
    machine's affair
``machine``
    of tests that are marked ``measured``: what the machine did meanwhile, as
    JSON; of others, where it stood still for long: for how long
"""

import json
import os
import sys
import threading
import time

import pytest

from nova_vqos.tests.gate import machine

# What _work() takes on the machine that budgets are from.
_REFERENCE_S = 0.0085
# The machine's speed changes, with what its neighbours do.
_PACE_AGE_S = 20

_slept_s = 0.0


def pytest_configure(config):
    config.pluginmanager.register(_Costs(machine.seldom()))


class _Costs:

    def __init__(self, still):
        self._pace = _Pace()
        self._still = still.__enter__()
        self._watch = None
        sleep = time.sleep

        def counted(seconds):
            global _slept_s
            if (threading.current_thread() is threading.main_thread()
                    and not _caller().lstrip('_').startswith('wait')):
                _slept_s += seconds
            sleep(seconds)

        time.sleep = counted

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item):
        self._pace.renew()
        self._cpu_s, self._waited_s = _cpu_s(), _slept_s
        self._began_s = time.monotonic()
        self._watch = (machine.Watch(self._still)
                       if item.get_closest_marker('measured') else None)
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item, call):
        if call.when == 'teardown':
            cpu_s = (_cpu_s() - self._cpu_s) * self._pace.factor
            item.user_properties += [
                ('nodeid', _nodeid(item)), ('cpu_s', f'{cpu_s:.3f}'),
                ('waited_s', f'{_slept_s - self._waited_s:.2f}')]
            seen = self._watch.seen() if self._watch else self._seen()
            if seen:
                item.user_properties.append(('machine', json.dumps(seen)))
        return (yield)

    def _seen(self):
        lost_s = self._still.lost_s(self._began_s, time.monotonic(),
                                    machine.LONG_S)
        return {'stood_still_s': round(lost_s, 2)} if lost_s else {}


def _caller():
    """:returns: the name of the function that called time.sleep"""
    return sys._getframe(2).f_code.co_name


def _nodeid(item):
    """:returns: a test's, from the working directory on"""
    _path, _, name = item.nodeid.partition('::')
    return f'{os.path.relpath(item.path)}::{name}'


class _Pace:
    """How fast this machine is at present.

    :ivar factor: reference's CPU seconds in one of this machine
    """

    def __init__(self):
        self.factor = 1.0
        self._until_s = 0.0

    def renew(self):
        if time.monotonic() > self._until_s:
            self.factor = _REFERENCE_S / min(_work() for _ in range(3))
            self._until_s = time.monotonic() + _PACE_AGE_S


def _work():
    """:returns: CPU seconds that a fixed piece of work took"""
    began_s = time.thread_time()
    table = {}
    for number in range(100_000):
        table[number % 1000] = table.get(number % 1000, 0) + number
    return time.thread_time() - began_s


def _cpu_s():
    found = os.times()
    return sum(found[:4])
