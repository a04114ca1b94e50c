# SPDX-License-Identifier: Apache-2.0
"""The agent's quantum code on the servers of a bench, instead of libvirt's.

Recognition, trials, plans and enforcement are the agent's own; only what
libvirt would say of a server is said by the bench.
"""

import argparse
from collections.abc import Collection, Mapping, Set
import datetime
from fractions import Fraction
import os
import time
import typing as ty

import quantum_scenarios
import quantum_servers

from nova_vqos.agent.quantum import enforced_server
from nova_vqos.agent.quantum import enforcer
from nova_vqos.agent.quantum import watcher
from nova_vqos.agent.quantum.sources import base as source_base
from nova_vqos.agent.quantum.sources import io
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import procfs
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import probe_result
from nova_vqos.quantum import recognition

# Of a list that is walked, each line is a reference of the last-level cache
# if it is beyond a pCPU's own, and a miss if it is beyond that one, too.
_REFERS = frozenset({model.Kind.CACHE, model.Kind.POLLUTER})
_MISSES = frozenset({model.Kind.POLLUTER})
_LOOK_S = 1.0
# The agent looks each 5 s; what takes a minute there, takes this here.
enforcer.IDLE_INTERVAL_S = 12 * _LOOK_S
# Rates over a longer time do not count: see sources.base.
_LEAP_S = 301.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a bench that the agent's code takes part in."""
    quantum_scenarios.add_classes(parser)
    parser.add_argument('--weight', type=_weight_of, default=1, metavar='N',
                        help='of all servers together, in that of a group of '
                        'the kernel\'s, 1 to 100: on a machine with other '
                        'work more (default %(default)s)')
    parser.add_argument('--pcpus', type=quantum_scenarios.pcpus_of,
                        metavar='N,N',
                        default=frozenset(sorted(os.sched_getaffinity(0))[:2]),
                        help='that share a last-level cache (default: the '
                        'first two)')


def _weight_of(text: str) -> int:
    if text.isdecimal() and 1 <= int(text) <= 100:
        return int(text)
    raise argparse.ArgumentTypeError(f'{text} is not from 1 to 100')


class Agent:
    """The slices and pools of servers, by the agent's code.

    :ivar pools: that are in force, for people
    """

    def __init__(self, servers: quantum_servers.Servers,
                 quantum_classes: Mapping[str, str],
                 kinds: Mapping[str, model.Kind], pcpus: frozenset[int],
                 enforced_us: Mapping[str, int], proof_path: str) -> None:
        """
        :param quantum_classes: of the flavor of each server
        :param kinds: of the load of each server
        :param enforced_us: slices that this kernel was seen to enforce, by
            class
        :param proof_path: of a file to write that to
        """
        probe_result.store(probe_result.ProbeResult(
            kernel=os.uname().release, boot_id=probe_result.boot_id(),
            tick_us=4000,
            measured_at=datetime.datetime.now(datetime.UTC).isoformat(),
            outcomes={name: probe_result.Outcome(
                slice_us, mean_run_us=None, enforced=True,
                # What the probe finds on Linux 6.18.
                work_us=probe_result.LONG_WORKS_US[-1])
                for name, slice_us in enforced_us.items()}), proof_path)
        self._hypervisor = _Hypervisor(servers, pcpus)
        self._leapt_s = 0.0
        self._enforcer = enforcer.Enforcer(
            ty.cast(base.ThreadDriver, self._hypervisor),
            watcher.Watcher(
                {'io': io.IoSource(), 'cache': _Cache(servers, kinds)},
                recognition.Limits(), self._hypervisor.activity,
                min_interval_s=0.8 * _LOOK_S),
            enforcer.Options(
                classes.DEFAULT_SLICES_US, proof_path, interval_s=_LOOK_S,
                pool_interval_s=0.5 * _LOOK_S),
            clock=lambda: time.monotonic() + self._leapt_s)
        self._targets = [enforced_server.Target(
            uuid=name, name=name, quantum_class=quantum_class,
            share=Fraction(0), cap=None, pcpus=pcpus)
            for name, quantum_class in quantum_classes.items()]
        self._last: enforcer.Enforcement | None = None

    def leap(self) -> None:
        """Have what servers did since the last look not count.

        They were without the agent meanwhile.
        """
        self._leapt_s += _LEAP_S

    def wait(self, seconds: float) -> None:
        """Look after servers for a while."""
        end_s = time.monotonic() + seconds
        while True:
            self._last = self._enforcer.enforce(self._targets)
            left_s = end_s - time.monotonic()
            time.sleep(max(0.0, min(_LOOK_S, left_s)))
            if left_s <= _LOOK_S:
                return

    def described(self) -> list[str]:
        """What each server is to the agent, and where it runs; for people."""
        if self._last is None:
            return []
        lines = []
        for name, slices in self._last.slices.items():
            vcpus = ', '.join(
                f'{vcpu.kind} '
                + ('kernel\'s slice' if vcpu.slice_us is None
                   else f'{vcpu.slice_us / 1000:g} ms')
                + (f' on pCPU {vcpu.pcpus}' if vcpu.pcpus else '')
                for vcpu in slices.vcpus.values())
            lines.append(f'{name}: {vcpus}' + (
                f' ({slices.left_alone})' if slices.left_alone else ''))
        return lines

    def close(self) -> None:
        self._enforcer.close()


class _Hypervisor:
    """Threads and counters of servers, as libvirt's driver has them."""

    def __init__(self, servers: quantum_servers.Servers,
                 pcpus: frozenset[int]) -> None:
        self._servers = servers
        self._pcpus = pcpus

    def vcpu_threads(self, uuid: str) -> Mapping[int, int]:
        return dict(enumerate(self._servers.threads(uuid)))

    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        threads = self._servers.threads(uuid)
        wanted = [(threads[number], slice_us)
                  for number, slice_us in vcpus.items()]
        wanted += [(thread, others)
                   for thread in self._servers.other_threads(uuid)]
        return sum(sched_attr.set_slice(*one) for one in wanted)

    def vcpu_runs(self, uuids: Collection[str]
                  ) -> Mapping[str, Mapping[int, base.ThreadRun]]:
        return {uuid: {number: procfs.read_run(thread) for number, thread
                       in enumerate(self._servers.threads(uuid))}
                for uuid in uuids}

    def vcpu_sleeps(self, uuids: Collection[str]
                    ) -> Mapping[str, Mapping[int, int]]:
        return {uuid: {number: procfs.read_sleeps(thread) for number, thread
                       in enumerate(self._servers.threads(uuid))}
                for uuid in uuids}

    def topology(self) -> tuple[model.Socket, ...]:
        return (model.Socket(0, tuple(
            (pcpu,) for pcpu in sorted(self._pcpus))),)

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        threads = self._servers.threads(uuid)
        changed = False
        for number, pcpus in pcpus_by_vcpu.items():
            if os.sched_getaffinity(threads[number]) != pcpus:
                os.sched_setaffinity(threads[number], pcpus)
                changed = True
        return changed

    def activity(self, uuids: Collection[str]
                 ) -> Mapping[str, recognition.Activity]:
        return {uuid: recognition.Activity(
            run=1,
            # A packet for each request, and one for its answer.
            requests={'interface': 2 * self._servers.sent(uuid)},
            runs={number: run.runs for number, run in runs.items()},
            waits={},
            ran_ns={number: run.run_ns for number, run in runs.items()},
            ready_ns={number: run.run_ns + run.waited_ns
                      for number, run in runs.items()})
            for uuid, runs in self.vcpu_runs(uuids).items()}


class _Cache(source_base.Source):
    """What a PMU would count, by what the loads did."""

    def __init__(self, servers: quantum_servers.Servers,
                 kinds: Mapping[str, model.Kind]) -> None:
        self._servers = servers
        self._kinds = kinds
        self._rates = source_base.Rates()

    def read(self, observed: source_base.Observation
             ) -> Mapping[model.Key, recognition.Sample]:
        self.missing = ''
        samples = {}
        for uuid in observed.servers:
            kind = self._kinds[uuid]
            for number, work in enumerate(self._servers.work(uuid)):
                lines = self._rates.update((uuid, number), int(work),
                                           observed.now_s)
                if lines is not None:
                    samples[uuid, number] = recognition.Sample(
                        references=lines if kind in _REFERS else 0.0,
                        misses=lines if kind in _MISSES else 0.0)
        return samples

    def close(self) -> None:
        """There is nothing to close."""
