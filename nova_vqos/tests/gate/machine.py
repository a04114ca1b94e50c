# SPDX-License-Identifier: Apache-2.0
"""What this machine did while a test measured, and when it is quiet.

A machine among others is kept from its pCPUs now and then, for up to seconds.
What a test measures by the clock meanwhile is nothing that nova_vqos did.
"""

import contextlib
import os
import pathlib
import re
import threading
import time

# A thread that is late by less was not kept from its pCPU.
_LEAST_S = 0.05
_INTERVAL_S = 0.005
# NOTE: each time it wakes up it ends the turn of what runs there: two threads
# that took turns of 30 ms had 4 where it woke each 5 ms.
_SELDOM_S = 0.5
#: Later than this, no test of a protocol, with its limits of time, is right.
LONG_S = 5.0
# NOTE: as it is before tests replace it.
_sleep = time.sleep
# Of the last ten seconds, the percentage in which a thread waited for a pCPU.
_QUIET_PERCENT = 10.0
_QUIET_LIMIT_S = 60
_PRESSURE = pathlib.Path('/proc/pressure/cpu')


def pressure_percent():
    """:returns: of the last ten seconds; None: this kernel does not say"""
    try:
        text = _PRESSURE.read_text(encoding='ascii')
    except OSError:
        return None
    return float(re.search(r'some avg10=([\d.]+)', text).group(1))


def wait_until_quiet():
    """Wait until the pCPUs have little to do, for a minute at most.

    :returns: pressure_percent() then
    """
    end_s = time.monotonic() + _QUIET_LIMIT_S
    while True:
        now = pressure_percent()
        if now is None or now < _QUIET_PERCENT or time.monotonic() > end_s:
            return now
        time.sleep(1)


class Standstill:
    """Has a thread on each pCPU that wakes up all the time, and is late where
    the pCPU does something else.

    Its priority is above all that tests start, so that only what is outside
    of this machine, or real-time threads, make it late.
    """

    def __init__(self, least_s=_LEAST_S, interval_s=_INTERVAL_S):
        """
        :param least_s: by which it is late where its pCPU stood still
        :param interval_s: after which it wakes up
        """
        self._least_s, self._interval_s = least_s, interval_s
        self._spans = []
        self._stops = False
        self._threads = [
            threading.Thread(target=self._watch, args=(pcpu,), daemon=True)
            for pcpu in sorted(os.sched_getaffinity(0))]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception):
        self._stops = True
        for thread in self._threads:
            thread.join()

    def lost_s(self, since_s, until_s, least_s=0.0):
        """For how long any pCPU stood still.

        :param since_s: on the monotonic clock
        :param until_s: likewise; a pCPU that stands still then is not known
            to, before it goes on
        :param least_s: how long it stood still at a time
        """
        lost_s, end_s = 0.0, since_s
        for began_s, ended_s in sorted(self._spans):
            if ended_s - began_s < least_s:
                continue
            began_s, ended_s = max(began_s, end_s), min(ended_s, until_s)
            if ended_s > began_s:
                lost_s, end_s = lost_s + ended_s - began_s, ended_s
        return lost_s

    def _watch(self, pcpu):
        os.sched_setaffinity(0, {pcpu})
        # Kernels that give real time by group refuse it to most groups.
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                                  os.sched_param(1))
        while not self._stops:
            due_s = time.monotonic() + self._interval_s
            _sleep(self._interval_s)
            now_s = time.monotonic()
            if now_s - due_s > self._least_s:
                self._spans.append((due_s, now_s))


def seldom():
    """For all the time.

    :returns: Standstill, which sees by chance what is short
    """
    return Standstill(interval_s=_SELDOM_S)


class Watch:
    """Keeps what explains a measurement that failed."""

    def __init__(self, still):
        """:param still: Standstill, which runs"""
        self._still = still
        self._began_s = time.monotonic()
        self._steal = _steal_s()
        self._pressure = pressure_percent()

    def seen(self):
        """:returns: {what: seconds, percentages, or loads}"""
        now_s = time.monotonic()
        return {
            'lasted_s': round(now_s - self._began_s, 2),
            'stood_still_s': round(
                self._still.lost_s(self._began_s, now_s), 2),
            'stolen_s': round(_steal_s() - self._steal, 2),
            'pressure_percent': [self._pressure, pressure_percent()],
            'load': os.getloadavg(),
        }


def _steal_s():
    with open('/proc/stat', encoding='ascii') as stat:
        return int(stat.readline().split()[8]) / os.sysconf('SC_CLK_TCK')
