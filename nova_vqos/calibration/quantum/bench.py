# SPDX-License-Identifier: Apache-2.0
"""Servers of each kind, ready to be measured at any slice.

All servers are started once, and stopped. Those of a measurement go on for its
length, so that kinds, numbers and slices can take turns in any order.
"""

from collections.abc import Collection, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import os
import random
import time
import typing as ty

from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import caches
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import place
from nova_vqos.calibration.quantum import requests
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import sched_attr

#: vCPUs that share a pCPU, as in the research.
RUNNABLE = (2, 4)
#: Right below the root.
TREE = 'nova-vqos-quantum'
# Until turns are steady.
_SETTLE_S = 0.15
# Of a list of each size, alone.
_PROBE_S = 0.2
# Servers with two vCPUs are watched in so many parts.
_PHASES = 4
# Where the kernel's own slice is unknown: some ticks.
_DEFAULT_TURN_US = 4000

_random = random.SystemRandom()


class Cell(ty.NamedTuple):
    """One combination that is measured.

    :ivar slice_us: None: the kernel's default
    """

    kind: str
    runnable: int
    slice_us: int | None


class Sample(ty.NamedTuple):
    """One measurement of a cell.

    :ivar value_ns: see :class:`nova_vqos.profile.quantum.Point`
    :ivar share: of the servers together, of the pCPU's time
    """

    value_ns: float
    median_ns: float | None
    mean_run_us: float | None
    share: float


@dataclasses.dataclass(frozen=True, slots=True)
class _Running:
    """A server, and which pCPU each of its vCPUs is on."""

    server: loads.Server
    pcpus: tuple[int, ...]


class _Window(ty.NamedTuple):
    """What happened while one server was watched.

    :ivar waited_ns: by each request, where there are any
    :ivar done: by the server
    :ivar all_cpu_ns: CPU time of all servers
    :ivar run_ns: of its vCPUs, by the kernel
    :ivar runs: how often these began to run
    """

    waited_ns: list[int]
    done: loads.Done
    all_cpu_ns: float
    passed_s: float
    run_ns: int
    runs: int


class Bench:
    """All servers, started and standing still.

    :ivar caches: of the pCPU
    :ivar cache_lines: of the list that ``cache`` walks; None: the last-level
        cache holds none
    """

    def __init__(self, where: place.Place, kinds: Collection[str]) -> None:
        """Start them.

        :param kinds: those to be measured
        :raises CalibrationError: when they cannot be started
        """
        self._place = where
        self._subjects: dict[str, _Running] = {}
        self._neighbours: dict[int, list[_Running]] = {}
        self._servers: list[loads.Server] = []
        self.caches = caches.of_pcpu(where.first)
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
        # All at once: on a busy pCPU, ending takes a while.
        for server in self._servers:
            server.kill()
        self._stack.close()

    def _start(self, kinds: Collection[str]) -> None:
        most = max(RUNNABLE) - 1
        loads.check_memory(
            self.caches.beyond_lines * loads.LINE_BYTES
            * (most * len(self._place.pcpus) + 2))
        self._tree = self._stack.enter_context(server_groups.Tree(TREE))
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
        """Start a server, and stop it."""
        pcpus = pcpus or (self._place.first,)
        group = self._tree.server(str(len(self._servers) + 1), len(pcpus))

        def enter(process: int) -> None:
            group.enter(process)
            os.sched_setaffinity(process, pcpus)

        server = loads.Server(self._board, kind, enter=enter,
                              vcpus=len(pcpus), **options)
        self._servers.append(server)
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
            before = self._read(running)
            time.sleep(_PROBE_S)
            found = loads.between(before, self._read(running)).cost_ns
        finally:
            running.server.close()
        if found is None:
            raise CalibrationError(
                f'pCPU {self._place.first} had no time for a walk in '
                f'{_PROBE_S} s: it is not idle')
        return found

    def measure(self, cell: Cell, window_s: float) -> Sample | None:
        """Let vCPUs share the pCPU at a slice, and watch one of them.

        :returns: None: it did no work
        :raises CalibrationError: when one has ended, or slices cannot be set
        """
        subject = self._subjects[cell.kind]
        neighbours = {pcpu: self._neighbours[pcpu][:cell.runnable - 1]
                      for pcpu in subject.pcpus}
        servers = [subject, *itertools.chain(*neighbours.values())]
        for running in servers:
            _set_slices(running.server, cell.slice_us)
        windows = []
        phases = _PHASES if len(subject.pcpus) > 1 else 1
        for _ in range(phases):
            try:
                self._resume(subject, neighbours, cell)
                windows.append(self._watch(cell, servers,
                                           window_s / phases))
            finally:
                for running in servers:
                    running.server.pause()
        return _sample(cell, windows, len(subject.pcpus))

    def _resume(self, subject: _Running,
                neighbours: Mapping[int, Sequence[_Running]],
                cell: Cell) -> None:
        """Resume all of them, and wait until their turns are steady.

        Those on one pCPU take turns with no regard to the other, and two
        vCPUs of a server may for long run at the same time, or never. So
        those of the second pCPU begin at a time of chance within a turn.
        """
        subject.server.resume()
        for pcpu, those in neighbours.items():
            if pcpu != self._place.first:
                time.sleep(_random.random() * cell.runnable
                           * (cell.slice_us or _DEFAULT_TURN_US) / 1e6)
            for running in those:
                running.server.resume()
        if cell.kind == 'io':
            self._client.ask(_SETTLE_S, 0)
        else:
            time.sleep(_SETTLE_S)

    def _watch(self, cell: Cell, servers: Sequence[_Running],
               window_s: float) -> _Window:
        """:param servers: the watched server is the first"""
        waited_ns: list[int] = []
        subject = servers[0].server
        before = list(map(self._read, servers))
        runs_before = host_cpus.thread_runs(subject.vcpu_threads())
        began_s = time.monotonic()
        if cell.kind == 'io':
            waited_ns = self._client.ask(0, window_s)
        else:
            time.sleep(window_s)
        after = list(map(self._read, servers))
        runs = host_cpus.thread_runs(subject.vcpu_threads())
        return _Window(
            waited_ns, loads.between(before[0], after[0]),
            sum(done.cpu_ns for done in map(loads.between, before, after)),
            time.monotonic() - began_s,
            sum(new.run_ns - old.run_ns
                for old, new in zip(runs_before, runs, strict=True)),
            sum(new.runs - old.runs
                for old, new in zip(runs_before, runs, strict=True)))

    def _read(self, running: _Running) -> list[loads.Done]:
        return [self._board.read(slot) for slot in running.server.vcpus]


def _set_slices(server: loads.Server, slice_us: int | None) -> None:
    """Of all its threads: the smallest slice in a group is the group's."""
    try:
        for thread in server.threads():
            with contextlib.suppress(ProcessLookupError):
                sched_attr.set_slice(thread, slice_us)
    except base.HypervisorError as error:
        raise CalibrationError(str(error)) from error


def _sample(cell: Cell, windows: Sequence[_Window],
            pcpus: int) -> Sample | None:
    """The sample of a cell, from all windows of it."""
    work = sum(window.done.work for window in windows)
    waited_ns = [ns for window in windows for ns in window.waited_ns]
    runs = sum(window.runs for window in windows)
    mean_run_us = (sum(window.run_ns for window in windows) / runs / 1000
                   if runs else None)
    share = (sum(window.all_cpu_ns for window in windows) / 1e9 / pcpus
             / sum(window.passed_s for window in windows))
    if cell.kind == 'io' and waited_ns:
        return Sample(requests.percentile(waited_ns, 0.95),
                      requests.percentile(waited_ns, 0.5), mean_run_us, share)
    if cell.kind != 'io' and work > 0:
        return Sample(
            sum(window.done.cpu_ns for window in windows) / work, None,
            mean_run_us, share)
    return None
