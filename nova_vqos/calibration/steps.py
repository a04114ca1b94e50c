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


"""Benchmarks are run, in one state of the host's CPUs after the other."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import itertools
import logging
import time

from nova_vqos import profile
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.conditions import MIN_ROUNDS
from nova_vqos.calibration.conditions import Effort
from nova_vqos.calibration.conditions import Setting
from nova_vqos.calibration.conditions import pooled
from nova_vqos.calibration.notes import Notes
from nova_vqos.calibration.record import Record
from nova_vqos.calibration.record import Rounds
from nova_vqos.calibration.runner import Runner
from nova_vqos.calibration.runner import Samples

LOG = logging.getLogger(__name__)

ALONE = 'alone'
BUSY = 'busy'

Classes = Sequence[frozenset[int]]
# A state, and the pCPUs that work at once in it.
Step = tuple[str, frozenset[int]]
# Rounds by benchmark and state.
Taken = dict[tuple[str, str], list[Rounds]]


class Steps:
    """Takes the rounds of all benchmarks in some steps."""

    def __init__(self, members: Sequence[Member], setting: Setting,
                 effort: Effort, hashes: Mapping[str, str],
                 reference: profile.Reference | None, record: Record,
                 notes: Notes) -> None:
        """
        :param members: the benchmarks
        :param hashes: of their programs, by the name of the benchmark
        :param reference: whose rounds are of so many events; None: each
            benchmark finds how many
        :param record: of what was measured before, and is not again
        """
        self._members = members
        self._setting = setting
        self._effort = effort
        self._hashes = hashes
        self._reference = reference
        self._record = record
        self._notes = notes

    def take(self, steps: Sequence[Step], classes: Classes,
             deadline_s: float, taken: Taken) -> None:
        """Run each benchmark in each step.

        :param classes: of equal pCPUs
        :param deadline_s: of all of it, by the monotonic clock
        :param taken: what was measured before; what is, is added
        """
        todo = [(member, state, pcpus)
                for member in self._members for state, pcpus in steps]
        count = itertools.count(1)
        for member in self._members:
            with contextlib.ExitStack() as stack:
                runner: Runner | None = None
                for state, pcpus in steps:
                    number = next(count)
                    name = f'{member.name}/{state}/' + \
                        profile.format_pcpus(pcpus)
                    rounds = self._record.get(name)
                    if rounds is None:
                        # What was done before was of so many events.
                        so_far = taken.get((member.name, ALONE), [])
                        runner = runner or stack.enter_context(
                            contextlib.closing(self._open(member, next((
                                one.round_events for one in so_far), None))))
                        LOG.info('[%d of %d] %s, pCPU %s %s', number,
                                 len(todo), member.name,
                                 profile.format_pcpus(pcpus), state)
                        left = len(todo) - number + 1
                        rounds = self._measure(
                            member, runner, pcpus,
                            [name & pcpus for name in classes if name & pcpus],
                            (deadline_s - time.monotonic()) / left)
                        self._record.add(name, rounds)
                    taken.setdefault((member.name, state), []).append(rounds)

    def _open(self, member: Member, round_events: int | None) -> Runner:
        """:param round_events: of the other rounds of this host, if any"""
        known = (self._reference.benchmark(member.name)
                 if self._reference else None)
        if known and known.program_sha256 != self._hashes[member.name]:
            # Several benchmarks may be one program: it is said once.
            self._notes.warn(
                f'{member.benchmark.program} is another build than on '
                'the reference: compilers differ, compare the same package')
        return self._setting.open_runner(
            member, known.round_events if known else round_events)

    def _measure(self, member: Member, runner: Runner,
                 pcpus: frozenset[int], groups: Classes,
                 limit_s: float) -> Rounds:
        """Run one benchmark on these pCPUs at once, until that is enough.

        :param groups: of equal ones among them
        """
        effort = self._effort
        if not member.weight:
            # Only reported: a rough figure does.
            effort = dataclasses.replace(
                effort, max_rounds=min(effort.max_rounds, MIN_ROUNDS))

        def grouped(samples: Samples) -> list[list[list[float]]]:
            return [[samples[p] for p in sorted(group)] for group in groups]

        def progress(samples: Samples) -> str:
            return '; '.join(
                f'pCPU {profile.format_pcpus(group)}: '
                f'{_describe(pooled(scores), member.benchmark.unit)}'
                for group, scores in zip(groups, grouped(samples),
                                         strict=True))

        before = self._cpu_times()
        throttled_before = self._throttled()
        began_s = time.monotonic()
        samples = runner.measure(
            pcpus, lambda now: effort.is_enough(
                grouped(now), time.monotonic() - began_s, limit_s), progress)
        _busy, steal = self._cpu_times().since(before)
        LOG.info('  %s', progress(samples))
        return Rounds(
            {pcpu: tuple(float(f'{score:.6g}') for score in scores)
             for pcpu, scores in samples.items()},
            round(steal, 4), self._throttled() - throttled_before,
            runner.round_events)

    def _throttled(self) -> int:
        return host_cpus.throttle_count(self._setting.pcpus,
                                        self._setting.sysroot)

    def _cpu_times(self) -> host_cpus.CpuTimes:
        return host_cpus.cpu_times(self._setting.pcpus, self._setting.sysroot)


def _describe(scores: list[float], unit: str) -> str:
    if len(scores) < estimate.LEAST_SAMPLES:
        return f'{len(scores)} rounds'
    now = estimate.estimate(scores)
    return (f'{len(scores)} rounds, {now.mean:.5g} {unit}, '
            f'interval {now.width:.1%}')
