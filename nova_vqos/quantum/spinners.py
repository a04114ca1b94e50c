# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""Two threads that want one pCPU, and how they take turns on it.

Each is in two nested cgroups, as libvirt makes them for vCPUs, in a group that
is idle as a whole: they take nothing from anybody else.
"""

from collections.abc import Iterator, Sequence
import contextlib
import mmap
import os
import pathlib
import signal
import time
import typing as ty

from nova_vqos.calibration import benchmark
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.io import system
from nova_vqos.hypervisor import sched_attr
from nova_vqos.hypervisor import schedstat

_PROC = '/proc'
# How long the threads may take to begin, and to be on their way with another
# slice than before.
_START_LIMIT_S = 1.0
_SETTLE_S = 0.01


class Turns(ty.NamedTuple):
    """What two threads did on a pCPU in some time.

    :ivar wall_us: that time
    :ivar run_us: of it, how long one or the other ran
    :ivar runs: how often one of them began to run
    :ivar handovers: how often it was the other one that had run before
    """

    wall_us: float
    run_us: float
    runs: int
    handovers: int

    @property
    def mean_run_us(self) -> float:
        """How long one ran at a time."""
        return self.run_us / max(1, self.runs)

    @property
    def interruptions(self) -> float:
        """The share of runs that others had a part in."""
        return max(0, self.runs - self.handovers) / max(1, self.runs)


class Spinners:
    """Two threads that run whenever they may."""

    def __init__(self, pids: Sequence[int], shared: memoryview) -> None:
        """
        :param shared: which of them ran last, and how often each of them took
            over from the other, see :func:`_spin`
        """
        self._pids = pids
        self._shared = shared
        self._last_us = 0

    def wait(self) -> None:
        """Wait until both of them have run.

        :raises CalibrationError: when they do not
        """
        until_s = time.monotonic() + _START_LIMIT_S
        while not (self._shared[1] and self._shared[2]):
            if time.monotonic() > until_s:
                raise benchmark.CalibrationError(
                    f'two processes of the probe, {self._pids}, did not begin '
                    f'to run within {_START_LIMIT_S:g} s: is the pCPU busy?')
            time.sleep(0.001)

    def measure(self, slice_us: int | None, window_s: float) -> Turns:
        """Give both a slice, and look at them for a while.

        :param slice_us: None: the kernel's own
        :raises nova_vqos.hypervisor.base.HypervisorError: when it cannot be
            set
        :raises CalibrationError: when the kernel counts no runs
        """
        for pid in self._pids:
            sched_attr.set_slice(pid, slice_us)
        # The one that runs goes on with the slice that it has.
        time.sleep(_SETTLE_S + self._last_us / 1e6)
        self._last_us = slice_us or 0
        before, before_s = self._read(), time.monotonic()
        time.sleep(window_s)
        after, after_s = self._read(), time.monotonic()
        return Turns(
            wall_us=(after_s - before_s) * 1e6, run_us=after[0] - before[0],
            runs=after[1] - before[1], handovers=after[2] - before[2])

    def _read(self) -> tuple[float, int, int]:
        """How long both ran, how often, and how often one after the other."""
        handovers = self._shared[1] + self._shared[2]
        found = []
        for pid in self._pids:
            try:
                content = pathlib.Path(
                    schedstat.path(_PROC, pid)).read_bytes()
            except OSError as error:
                raise benchmark.CalibrationError(
                    'this kernel does not count runs of threads '
                    f'(CONFIG_SCHED_INFO): {error}') from error
            found.append(schedstat.parse(content))
        return (sum(run.run_ns for run in found) / 1000,
                sum(run.runs for run in found), handovers)


@contextlib.contextmanager
def spinning(tree: server_groups.Tree, pcpu: int,
             name: str) -> Iterator[Spinners]:
    """Let two threads run on a pCPU; they are ended after, come what may.

    :param tree: where the groups of two servers are made
    :param name: that those begin with
    :raises CalibrationError: when they cannot be where they should, or do not
        run
    """
    with contextlib.ExitStack() as stack:
        shared = memoryview(mmap.mmap(-1, mmap.PAGESIZE)).cast('Q')
        spinners = Spinners([
            stack.enter_context(_process(
                tree.server(f'{name}-{number}'), pcpu, shared, number))
            for number in (1, 2)], shared)
        spinners.wait()
        yield spinners


@contextlib.contextmanager
def _process(server: server_groups.Server, pcpu: int, shared: memoryview,
             number: int) -> Iterator[int]:
    """Run a process as the only vCPU of a server; its id."""
    reader, writer = os.pipe()
    with os.fdopen(reader, 'rb') as said:
        pid = os.fork()
        if pid == 0:
            _work(server, pcpu, writer, shared, number)
        try:
            os.close(writer)
            trouble = said.read().decode(errors='replace')
            if trouble:
                raise benchmark.CalibrationError(
                    f'nothing can be tried on pCPU {pcpu}: {trouble}')
            yield pid
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _work(server: server_groups.Server, pcpu: int, writer: int,
          shared: memoryview, number: int) -> ty.NoReturn:
    """What a process does: it goes where it should be, and spins.

    :param writer: takes why it cannot, and is closed before it begins
    """
    try:
        for signal_number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP:
            signal.signal(signal_number, signal.SIG_DFL)
        system.die_with_parent()
        try:
            # Of another policy it would have no slice.
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
            os.sched_setaffinity(0, {pcpu})
            server.enter()
            server.move_vcpu(0, os.getpid())
        except (OSError, benchmark.CalibrationError) as error:
            os.write(writer, str(error).encode())
        else:
            os.close(writer)
            _spin(shared, number)
    finally:
        os._exit(1)


def _spin(shared: memoryview, number: int) -> ty.NoReturn:
    while True:
        if shared[0] != number:
            shared[0] = number
            shared[number] += 1
