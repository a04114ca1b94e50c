# SPDX-License-Identifier: Apache-2.0
"""A tap whose packets a worker of vhost moves, without a guest.

For hosts that have vhost: see newer_machine.
"""

import os
import time

from nova_vqos.calibration import runner
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import tap
from nova_vqos.calibration.io import traffic
from nova_vqos.calibration.probe import vhost

_PAUSE_S = 1e-4
_WAIT_S = 5
#: A buffer for any packet.
BUFFER = bytes(traffic.MOST_BYTES + len(tap.HEADER))


class Guest(network.Guest):
    """A set-up whose tap a worker reads, of as many packets as are ordered.

    A guest's queue has room for so many then. One packet more is left: while
    there are packets and no room, the worker waits for room alone. So none
    wakes it, as in what is calibrated.
    """

    def __init__(self, mode, pcpu, stack):
        self.mode = mode
        self.setup = traffic.Setup(mode, stack)
        self._queue = vhost.Queue(BUFFER, number=vhost.RECEIVE)
        before = set(os.listdir('/proc/self/task'))
        self._kept = vhost.start_worker(self._queue, self.setup.tap._file)
        (worker,) = set(os.listdir('/proc/self/task')) - before
        runner.pin(int(worker), pcpu)
        # Of a thread of this process, see accounts.cpu_time_ns.
        self._clock = (~int(worker) << 3) | 6
        self._is_one_left = False

    @property
    def backend_ns(self):
        return time.clock_gettime_ns(self._clock)

    def read(self, count):
        if count and not self._is_one_left:
            self._is_one_left = True
            count -= 1
        target = (self._queue.done + count) & 0xFFFF
        self._queue.add(count)
        until_s = time.monotonic() + _WAIT_S
        while True:
            time.sleep(_PAUSE_S)
            if self._queue.done == target:
                return
            if time.monotonic() > until_s:
                raise SystemExit('packets got lost on their way to the tap')


class Bench(network.Bench):
    """Set-ups, each twice: with a reader like QEMU's, and with a worker."""

    def __init__(self, modes, pcpus, *, apart, sizes):
        super().__init__(modes, pcpus, apart=apart, sizes=sizes)
        try:
            self._guests |= {with_vhost(mode): Guest(mode, pcpus[1],
                                                     self._stack)
                             for mode in modes}
        except BaseException:
            self.close()
            raise


def with_vhost(mode):
    """The name of a set-up of :class:`Bench`."""
    return f'{mode}, vhost'
