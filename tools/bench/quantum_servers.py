# SPDX-License-Identifier: Apache-2.0
"""The servers of a scenario: loads in groups, and what they have done.

The loads are those of nova-vqos-calibrate quantum.
"""

import collections
from collections.abc import Callable, Mapping
from concurrent import futures
import contextlib
import os
import random
import time
import typing as ty

import quantum_results

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import caches
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import requests
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import model

_IO = model.Kind.IO
_SCRIPT_KINDS = {
    _IO: 'answer', model.Kind.SPIN: 'lock', model.Kind.CACHE: 'walk',
    model.Kind.NEUTRAL: 'walk', model.Kind.POLLUTER: 'walk'}
# So many io servers there are at most.
_CLIENTS = 8
# Each request ends two turns: of who runs where it is sent, and where the
# answer is read. There are to be few of those among all that end.
_REQUESTS_PER_S = 20.0
# A list that is measured alone: until it is in the caches, and then each time.
_WALK_S = 0.2
_WALKS = 4
# Until all of them have begun to run.
_SCATTER_S = 0.1
# An answer that took longer is none.
_PATIENCE_NS = 2e9
_S_NS = 1e9
_MS_NS = 1e6
_US_NS = 1e3


class Setting(ty.NamedTuple):
    """How a vCPU is to run.

    :ivar slice_us: None: the kernel's own
    """

    slice_us: int | None
    pcpus: frozenset[int]


class Measured(ty.NamedTuple):
    """What servers did in a while.

    :ivar runs_us: how long vCPUs ran at a time, by kind
    :ivar share: of all pCPUs' time that they had
    :ivar each: likewise as values, of each server by name
    """

    values: Mapping[quantum_results.Metric, float]
    runs_us: Mapping[str, float]
    share: float
    each: Mapping[str, Mapping[quantum_results.Metric, float]]


class _Server(ty.NamedTuple):
    """:ivar client: that sends it requests; None: it answers none
    """

    name: str
    label: str
    kind: model.Kind
    program: loads.Server
    client: requests.Client | None


class _Seen(ty.NamedTuple):
    """The sums of all vCPUs of a server, or of a kind."""

    work: float = 0.0
    run_ns: float = 0.0
    runs: int = 0

    def plus(self, other: '_Seen') -> '_Seen':
        return _Seen(self.work + other.work, self.run_ns + other.run_ns,
                     self.runs + other.runs)

    def since(self, before: '_Seen') -> '_Seen':
        return _Seen(self.work - before.work, self.run_ns - before.run_ns,
                     self.runs - before.runs)


class Servers(contextlib.ExitStack):
    """All servers of a scenario; to be used in a ``with`` statement.

    :ivar vcpus: name of the server, number and kind of each
    """

    def __init__(self, tree: server_groups.Tree, pcpus: int) -> None:
        """
        :param tree: where they get their groups
        :param pcpus: how many there are for all of them
        """
        super().__init__()
        self.vcpus: list[tuple[str, int, model.Kind]] = []
        self._tree = tree
        self._pcpus = pcpus
        self._board = loads.Board()
        self.callback(self._board.close)
        self._servers: list[_Server] = []
        self._clients_pcpus: frozenset[int] = frozenset()
        self._executor = self.enter_context(futures.ThreadPoolExecutor(
            _CLIENTS, initializer=_run_before_all))

    def start(self, kind: model.Kind, vcpus: int, lines: int, *,
              label: str = '', per_second: float = _REQUESTS_PER_S,
              **more: int) -> str:
        """Start one more server.

        :param lines: of the list that it walks; 0: it walks none
        :param label: its name begins with it; '': with its kind
        :param per_second: requests that are sent to one that answers them
        :param more: options of the script
        :returns: its name
        :raises CalibrationError: when it does not start
        """
        label = label or kind.value
        name = f'{label}{len(self._servers)}'
        group = self._tree.server(name, vcpus)
        options = {'lines': lines, **more} if lines else more
        client = None
        if kind is _IO:
            client = requests.Client(per_second=per_second)
            self.callback(client.close)
            options['socket'] = client.server.fileno()
            # One that waits for requests would not begin.
            client.greet()
        program = loads.Server(self._board, _SCRIPT_KINDS[kind], vcpus=vcpus,
                               enter=group.enter, **options)
        self.callback(program.close)
        for number, thread in enumerate(program.vcpu_threads()):
            group.move_vcpu(number, thread)
            self.vcpus.append((name, number, kind))
        for thread in program.other_threads():
            group.move_other(thread)
        self._servers.append(_Server(name, label, kind, program, client))
        return name

    def threads(self, name: str) -> tuple[int, ...]:
        """The threads of a server's vCPUs, by number."""
        return self._find(name).program.vcpu_threads()

    def other_threads(self, name: str) -> tuple[int, ...]:
        """The threads of a server that are no vCPUs."""
        return self._find(name).program.other_threads()

    def work(self, name: str) -> list[float]:
        """What each vCPU of a server has done so far, by number."""
        return [self._board.read(slot).work
                for slot in self._find(name).program.vcpus]

    def sent(self, name: str) -> int:
        """How many requests a server has been sent so far."""
        client = self._find(name).client
        return 0 if client is None else client.sent

    def _find(self, name: str) -> _Server:
        return next(one for one in self._servers if one.name == name)

    def set_up(self, settings: Mapping[tuple[str, int], Setting]) -> None:
        """Have vCPUs run as an arm wants.

        On which of its pCPUs each one begins is by lot, with as many of each
        kind on each: where an arm leaves that to the kernel, it would be where
        the arm before had it.

        :param settings: by name of the server, and number of the vCPU
        :raises CalibrationError: when a server has ended
        """
        for server in self._servers:
            server.program.pause()
        # Packets of a server are moved where it runs.
        self._clients_pcpus = frozenset().union(*(
            settings[name, number].pcpus
            for name, number, kind in self.vcpus if kind is _IO))
        threads: dict[int, Setting] = {}
        kinds: dict[int, str] = {}
        for server in self._servers:
            found = {tid: settings[server.name, number] for number, tid
                     in enumerate(server.program.vcpu_threads())}
            for tid, setting in found.items():
                sched_attr.set_slice(tid, setting.slice_us)
            # The shortest slice in a group wins: others get the longest.
            longest_us = max((
                setting.slice_us for setting in found.values()
                if setting.slice_us is not None), default=None)
            for tid in server.program.other_threads():
                sched_attr.set_slice(tid, longest_us)
            threads.update(found)
            kinds.update(dict.fromkeys(found, server.label))
        self._scatter(threads, kinds)
        for server in self._servers:
            server.program.resume()
        time.sleep(_SCATTER_S)
        for tid, setting in threads.items():
            os.sched_setaffinity(tid, setting.pcpus)

    def _scatter(self, threads: Mapping[int, Setting],
                 kinds: Mapping[int, str]) -> None:
        begun: collections.Counter[object] = collections.Counter()
        for tid in random.sample(list(threads), len(threads)):
            kind, pcpus = kinds[tid], threads[tid].pcpus
            pcpu = min(random.sample(sorted(pcpus), len(pcpus)),
                       key=lambda one: (begun[one, kind], begun[one]))
            begun.update((pcpu, (pcpu, kind)))
            os.sched_setaffinity(tid, {pcpu})

    def measure(self, pause_s: float, seconds: float,
                wait: Callable[[float], None] = time.sleep) -> Measured:
        """Let them work for a while, and see what they did.

        :param pause_s: how long before that
        :param wait: for so many seconds
        :raises CalibrationError: when one has ended
        """
        asked = {server.name: self._executor.submit(
            _ask, server.client, self._clients_pcpus, pause_s, seconds)
            for server in self._servers if server.client is not None}
        # Not waits for anything: caches and queues are to be as this arm
        # makes them; then the length of the measurement.
        wait(pause_s)
        before, began_s = self._look(), time.monotonic()
        wait(seconds)
        for server in self._servers:
            # Says so when it has ended.
            server.program.resume()
        after, length_s = self._look(), time.monotonic() - began_s
        waited_ns = {name: answer.result() for name, answer in asked.items()}
        done = {name: seen.since(before[name]) for name, seen in after.items()}
        of_all = [one for answers in waited_ns.values() for one in answers]
        values = _of_latencies(of_all) if of_all else {}
        runs_us = {}
        by_kind: dict[model.Kind, _Seen] = {}
        for server in self._servers:
            by_kind[server.kind] = by_kind.get(server.kind, _Seen()).plus(
                done[server.name])
        for kind, seen in by_kind.items():
            values.update(_of_work(kind, seen.work, seen.run_ns / _S_NS,
                                   length_s))
            runs_us[kind.value] = seen.run_ns / max(1, seen.runs) / _US_NS
        return Measured(
            values, runs_us, sum(seen.run_ns for seen in done.values())
            / _S_NS / length_s / self._pcpus, {
                name: _of_server(seen, waited_ns.get(name), length_s)
                for name, seen in done.items()})

    @staticmethod
    def run_before_all() -> None:
        """Have this thread never keep the others from measuring.

        They wait for it, since they are Python's: it is not to wait for a
        server's turn.
        """
        _run_before_all()

    def _look(self) -> dict[str, _Seen]:
        found: dict[str, _Seen] = {}
        for server in self._servers:
            seen = _Seen()
            for slot, tid in zip(server.program.vcpus,
                                 server.program.vcpu_threads(), strict=True):
                run = procfs.read_run(tid)
                seen = seen.plus(_Seen(self._board.read(slot).work,
                                       run.run_ns, run.runs))
            found[server.name] = seen
        return found


def measure_lists(tree: server_groups.Tree,
                  pcpus: frozenset[int]) -> Mapping[model.Kind, int]:
    """Find out how long the lists are to be that servers walk.

    Those of kind cache on all pCPUs at a time take what the last-level cache
    holds for one: of half of it, for of that a virtual machine gets a part.

    :param pcpus: that share it
    :returns: by kind
    :raises CalibrationError: when no work is done, or no cache is known
    """
    pcpu = min(pcpus)
    sizes = caches.of_pcpu(pcpu)

    def walk_ns(lines: int) -> float:
        group = tree.server(f'walk{lines}', 1)
        with contextlib.ExitStack() as stack:
            board = loads.Board()
            stack.callback(board.close)
            program = loads.Server(board, 'walk', enter=group.enter,
                                   lines=lines)
            stack.callback(program.close)
            for thread in program.threads():
                os.sched_setaffinity(thread, {pcpu})
            time.sleep(_WALK_S)
            costs_ns = []
            for _ in range(_WALKS):
                before = board.read(program.vcpus[0])
                time.sleep(_WALK_S)
                cost_ns = loads.between(
                    [before], [board.read(program.vcpus[0])]).cost_ns
                if cost_ns is not None:
                    costs_ns.append(cost_ns)
        if not costs_ns:
            raise CalibrationError(f'pCPU {pcpu} had no time for a walk')
        # Others may have had it in between, and its caches.
        return min(costs_ns)

    held = caches.held_lines(sizes, walk_ns) or 0
    return {model.Kind.NEUTRAL: sizes.neutral_lines,
            # What the own cache holds is what long turns save at least.
            model.Kind.CACHE: max(held // len(pcpus),
                                  sizes.private_bytes // loads.LINE_BYTES),
            model.Kind.POLLUTER: sizes.beyond_lines}


def _run_before_all() -> None:
    """What is late is to be the server, not who measures it."""
    os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK,
                          os.sched_param(1))


def _ask(client: requests.Client, pcpus: frozenset[int], pause_s: float,
         seconds: float) -> list[int]:
    """Send requests, from some pCPUs alone; see :class:`requests.Client`."""
    os.sched_setaffinity(0, pcpus)
    return client.ask(pause_s, seconds)


def _of_latencies(waited_ns: list[int]
                  ) -> dict[quantum_results.Metric, float]:
    return {quantum_results.Metric(f'io, {name} of latency', 'ms',
                                   is_time=True):
            requests.percentile(waited_ns, share) / _MS_NS
            for name, share in (('median', 0.5), ('p95', 0.95))}


def _of_work(kind: model.Kind, work: float, cpu_s: float, length_s: float,
             ) -> dict[quantum_results.Metric, float]:
    name = 'io, own work' if kind is _IO else kind.value
    found = {quantum_results.Metric(name, '/s'): work / length_s}
    if cpu_s > 0:
        found[quantum_results.Metric(f'{name} per CPU time', '/s')] = (
            work / cpu_s)
    return found


def _of_server(seen: _Seen, waited_ns: list[int] | None, length_s: float,
               ) -> dict[quantum_results.Metric, float]:
    """What one server did.

    :param waited_ns: by its requests; None: it answers none
    """
    found = {quantum_results.Metric('CPU time', '%'):
             100 * seen.run_ns / _S_NS / length_s}
    if waited_ns is None:
        found[quantum_results.Metric('work', '/s')] = seen.work / length_s
    elif waited_ns:
        found[quantum_results.Metric('answered', '%')] = 100 * sum(
            one < _PATIENCE_NS for one in waited_ns) / len(waited_ns)
        found.update({
            quantum_results.Metric(name, 'ms', is_time=True):
            requests.percentile(waited_ns, share) / _MS_NS
            for name, share in (('median', 0.5), ('p99', 0.99))})
    return found
