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

"""Servers of each kind, ready to be measured at any slice.

All are started once, and stopped; what is measured goes on for that while. So
that kinds, numbers and slices can take turns in any order.
"""

from collections.abc import Collection, Sequence
import contextlib
import dataclasses
import os
import time
import typing as ty

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import caches
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import requests
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import sched_attr
from nova_vqos.hypervisor import schedstat

#: vCPUs that share a pCPU, as in the research.
RUNNABLE = (2, 4)
_TREE = 'nova-vqos-quantum'
# Until turns are as they will stay.
_SETTLE_S = 0.15
# Each size of a list, alone; some turns of what happens every now and then.
_PROBE_S = 0.2


class Cell(ty.NamedTuple):
    """What is measured at a time.

    :ivar slice_us: None: the kernel's default
    """

    kind: str
    runnable: int
    slice_us: int | None


class Sample(ty.NamedTuple):
    """What one cell cost once.

    :ivar value_ns: see :class:`nova_vqos.quantum_profile.Point`
    :ivar share: of the pCPU's time that the servers got together
    """

    value_ns: float
    median_ns: float | None
    mean_run_us: float | None
    share: float


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """pCPUs to measure on.

    :ivar first: where vCPUs are
    :ivar second: where the other vCPU of a server with two is; None: there is
        no idle one
    """

    first: int
    second: int | None

    @property
    def pcpus(self) -> tuple[int, ...]:
        return (self.first,) if self.second is None else (
            self.first, self.second)


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    """A server, and which pCPU each of its vCPUs is on."""

    server: loads.Server
    pcpus: tuple[int, ...]


class Bench:
    """All servers, started and standing still.

    :ivar caches: of the pCPU
    :ivar cache_lines: of the list that ``cache`` walks; None: the last-level
        cache holds none
    """

    def __init__(self, place: Place, kinds: Collection[str]) -> None:
        """Start them.

        :param kinds: those to be measured
        :raises CalibrationError: when they cannot be started
        """
        self._place = place
        self._subjects: dict[str, _Running] = {}
        self._neighbours: dict[int, list[_Running]] = {}
        self._count = 0
        self.caches = caches.of_pcpu(place.first)
        self.cache_lines: int | None = None
        with contextlib.ExitStack() as stack:
            self._stack = stack
            self._board = loads.Board()
            stack.callback(self._board.close)
            self._client = requests.Client()
            stack.callback(self._client.close)
            self._start(kinds)
            self._stack = stack.pop_all()

    def close(self) -> None:
        """End all of them, and remove their groups."""
        self._stack.close()

    def _start(self, kinds: Collection[str]) -> None:
        most = max(RUNNABLE) - 1
        loads.check_memory(
            self.caches.beyond_lines * loads.LINE_BYTES
            * (most * len(self._place.pcpus) + 2))
        self._tree = self._stack.enter_context(server_groups.Tree(_TREE))
        if 'cache' in kinds:
            self.cache_lines = caches.held_lines(self.caches, self._walk_ns)
        lines = {'cache': self.cache_lines,
                 'neutral': self.caches.neutral_lines,
                 'polluter': self.caches.beyond_lines}
        first, second = self._place.first, self._place.second
        neighbours_on = [first]
        for kind in kinds:
            if lines.get(kind):
                self._subjects[kind] = self._run('walk', lines=lines[kind])
            elif kind == 'spin' and second is not None:
                self._subjects[kind] = self._run('lock', (first, second))
                neighbours_on.append(second)
            elif kind == 'io':
                self._subjects[kind] = self._run(
                    'answer', socket=self._client.server.fileno())
        self._neighbours = {pcpu: [
            self._run('walk', (pcpu,), lines=self.caches.beyond_lines)
            for _ in range(most)] for pcpu in neighbours_on}

    @property
    def kinds(self) -> tuple[str, ...]:
        """Those that can be measured."""
        return tuple(self._subjects)

    def _run(self, kind: str, pcpus: tuple[int, ...] = (),
             **options: ty.Any) -> _Running:
        """Start a server, and have it stand still."""
        pcpus = pcpus or (self._place.first,)
        self._count += 1
        group = self._tree.server(str(self._count), len(pcpus))

        def enter() -> None:
            group.enter()
            os.sched_setaffinity(0, pcpus)

        server = loads.Server(self._board, kind, enter=enter,
                              vcpus=len(pcpus), **options)
        self._stack.callback(server.close)
        for number, thread in enumerate(server.vcpu_threads()):
            group.move_vcpu(number, thread)
            os.sched_setaffinity(thread, {pcpus[number]})
        for thread in server.other_threads():
            group.move_other(thread)
        server.pause()
        return _Running(server, pcpus)

    def _walk_ns(self, lines: int) -> float:
        """See :func:`caches.held_lines`."""
        running = self._run('walk', lines=lines)
        try:
            running.server.resume()
            # A first walk finds nothing in any cache.
            time.sleep(_PROBE_S)
            before = self._told(running)
            time.sleep(_PROBE_S)
            found = loads.cost_ns(before, self._told(running))
        finally:
            running.server.close()
        if found is None:
            raise CalibrationError(
                f'pCPU {self._place.first} had no time for a walk in '
                f'{_PROBE_S} s: it is not idle')
        return found

    def measure(self, cell: Cell, window_s: float) -> Sample | None:
        """Have vCPUs share the pCPU at a slice, and look at one of them.

        :returns: None: it got nothing done
        :raises CalibrationError: when one has ended, or slices cannot be set
        """
        subject = self._subjects[cell.kind]
        others = [neighbour for pcpu in subject.pcpus
                  for neighbour in self._neighbours[pcpu][:cell.runnable - 1]]
        everybody = [subject, *others]
        for running in everybody:
            _set_slices(running.server, cell.slice_us)
        try:
            for running in everybody:
                running.server.resume()
            waited_ns: list[int] = []
            if cell.kind == 'io':
                self._client.ask(0, _SETTLE_S)
            else:
                time.sleep(_SETTLE_S)
            told_before = list(map(self._told, everybody))
            runs_before = _runs(subject.server)
            began_s = time.monotonic()
            if cell.kind == 'io':
                waited_ns = self._client.ask(0, window_s)
            else:
                time.sleep(window_s)
            told = list(map(self._told, everybody))
            runs = _runs(subject.server)
            passed_s = time.monotonic() - began_s
        finally:
            for running in everybody:
                running.server.pause()
        used_ns = sum(loads.cpu_ns(before, after) for before, after
                      in zip(told_before, told, strict=True))
        if cell.kind == 'io':
            value_ns = (requests.percentile(waited_ns, 0.95)
                        if waited_ns else None)
        else:
            value_ns = loads.cost_ns(told_before[0], told[0])
        if value_ns is None:
            return None
        return Sample(
            value_ns,
            requests.percentile(waited_ns, 0.5) if waited_ns else None,
            _mean_run_us(runs_before, runs),
            used_ns / 1e9 / passed_s / len(subject.pcpus))

    def _told(self, running: _Running) -> list[loads.Told]:
        return [self._board.told(slot) for slot in running.server.vcpus]


def _set_slices(server: loads.Server, slice_us: int | None) -> None:
    """Of all its threads: the smallest slice in a group is the group's."""
    try:
        for thread in server.threads():
            with contextlib.suppress(ProcessLookupError):
                sched_attr.set_slice(thread, slice_us)
    except base.HypervisorError as error:
        raise CalibrationError(str(error)) from error


def _runs(server: loads.Server) -> list[schedstat.ThreadRun]:
    """
    :raises CalibrationError: when the kernel does not tell
    """
    found = []
    for thread in server.vcpu_threads():
        path = schedstat.path('/proc', thread)
        try:
            with open(path, 'rb') as file:
                found.append(schedstat.parse(file.read()))
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f'{path} cannot be read: {error}') from error
    return found


def _mean_run_us(before: Sequence[schedstat.ThreadRun],
                 after: Sequence[schedstat.ThreadRun]) -> float | None:
    runs = sum(new.runs - old.runs
               for old, new in zip(before, after, strict=True))
    if runs <= 0:
        return None
    return sum(new.run_ns - old.run_ns for old, new in zip(
        before, after, strict=True)) / runs / 1000
