# SPDX-License-Identifier: Apache-2.0
"""For how long this machine itself stood still, for bounds of time.

A machine among others is kept from its pCPUs now and then, for up to seconds.
What a test measures by the clock meanwhile is nothing that nova_vqos did.
"""

import contextlib
import os
import threading
import time

# A thread that is late by less was not kept from its pCPU.
_LEAST_S = 0.05
_INTERVAL_S = 0.005


class Standstill:
    """Has a thread on each pCPU that wakes up all the time, and is late where
    the pCPU does something else.

    Its priority is above all that tests start, so that only what is outside
    of this machine, or real-time threads, make it late.
    """

    def __init__(self):
        self._spans = []
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch, args=(pcpu,), daemon=True)
            for pcpu in sorted(os.sched_getaffinity(0))]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exception):
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def lost_s(self, since_s, until_s):
        """For how long any pCPU stood still.

        :param since_s: on the monotonic clock
        :param until_s: likewise; a pCPU that stands still then is not known
            to, before it goes on
        """
        lost_s, end_s = 0.0, since_s
        for began_s, ended_s in sorted(self._spans):
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
        while not self._stop.is_set():
            due_s = time.monotonic() + _INTERVAL_S
            time.sleep(_INTERVAL_S)
            now_s = time.monotonic()
            if now_s - due_s > _LEAST_S:
                self._spans.append((due_s, now_s))


def undisturbed(measure, tries=5):
    """Measure while the machine does not stand still.

    A thread does not get back what it had no pCPU for: neither of its quota
    nor of its reservation.

    :returns: what was measured at the last try
    """
    for _ in range(tries):
        with Standstill() as still:
            began_s = time.monotonic()
            found = measure()
            ended_s = time.monotonic()
        lost_s = still.lost_s(began_s, ended_s)
        if not lost_s:
            break
        print(f'the machine stood still for {lost_s:.2f} s while {found} was '
              'measured')
    return found
