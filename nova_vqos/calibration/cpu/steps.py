# SPDX-License-Identifier: Apache-2.0
"""Runs benchmarks, in one state of the host's CPUs after the other."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
import contextlib
import dataclasses
import itertools
import logging
import time

from nova_vqos import cpuset
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import modes
from nova_vqos.calibration import run
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.cpu import two_speeds
from nova_vqos.calibration.cpu.record import Record
from nova_vqos.calibration.cpu.record import Rounds
from nova_vqos.calibration.runner import Runner
from nova_vqos.calibration.runner import Samples
from nova_vqos.hypervisor.linux import clock
from nova_vqos.profile import cpu

LOG = logging.getLogger(__name__)

ALONE = 'alone'
BUSY = 'busy'

# A promise of speed should not rest on fewer.
_MIN_ROUNDS = 8
# No profile holds more of one class, see nova_vqos.profile.
_MAX_SAMPLES = 10_000
# Of equal pCPUs: each keeps some files open.
_MOST_CLOCKS = 16

Classes = Sequence[frozenset[int]]
# A state, and the pCPUs that work at once in it.
Step = tuple[str, frozenset[int]]
# Rounds by benchmark and state.
Taken = dict[tuple[str, str], list[Rounds]]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where and how the benchmarks are run.

    :ivar pcpus: to measure
    :ivar measured_in: ``host``, or ``guest`` of an emulator
    :ivar open_runner: of a benchmark, for rounds of so many events (None: it
        finds how many)
    :ivar emulator: whose guests are measured, None: none
    :ivar virt_type: of the guests
    :ivar guest_kernel: path of the kernel that they boot
    :ivar beside_guests: measure even where guests are at work
    :ivar sysroot: directory with /proc and /sys, for tests
    """

    pcpus: frozenset[int]
    measured_in: str
    open_runner: Callable[[Member, int | None], Runner]
    emulator: str | None = None
    virt_type: str | None = None
    guest_kernel: str | None = None
    beside_guests: bool = False
    sysroot: str = '/'


class Steps:
    """The rounds of all benchmarks, step by step.

    :ivar taken: what was measured so far
    """

    def __init__(self, members: Sequence[Member], setting: Setting,
                 effort: run.Effort, known: Iterable[cpu.Benchmark],
                 record: Record, observations: run.Observations) -> None:
        """
        :param members: the benchmarks
        :param known: those of the reference, which defines the events of
            their rounds; any other benchmark finds how many
        :param record: of earlier measurements, which are not repeated
        """
        self.taken: Taken = {}
        self._members = members
        self._setting = setting
        self._effort = effort
        self._known = {one.name: one for one in known}
        self._record = record
        self._observations = observations
        # Measurements that may be repeated.
        self._spare = 1

    def run(self, steps: Sequence[Step], classes: Classes,
            deadline_s: float) -> None:
        """Run each benchmark in each step.

        The first measurement whose rounds had two speeds is repeated, since
        other work on the host may have been why. What makes two speeds all
        the time does so in the second one as well.

        :param classes: of equal pCPUs
        :param deadline_s: of all of it, by the monotonic clock
        """
        total = len(self._members) * len(steps)
        count = itertools.count(1)
        for member in self._members:
            with contextlib.ExitStack() as stack:
                runner: Runner | None = None
                for state, pcpus in steps:
                    number = next(count)
                    name = f'{member.name}/{state}/' + \
                        cpuset.format_pcpus(pcpus)
                    rounds = self._record.get(name)
                    if rounds is None:
                        runner = runner or stack.enter_context(
                            contextlib.closing(self._open(member)))
                        LOG.info('[%d of %d] %s, pCPU %s %s', number, total,
                                 member.name, cpuset.format_pcpus(pcpus),
                                 state)
                        rounds = self._measure_well(
                            member, runner, state, pcpus,
                            [name & pcpus for name in classes if name & pcpus],
                            (deadline_s - time.monotonic())
                            / (total - number + 1 + self._spare))
                        self._record.add(name, rounds)
                    self.taken.setdefault((member.name, state), []).append(
                        rounds)

    def _open(self, member: Member) -> Runner:
        known = self._known.get(member.name)
        if known is None:
            # As many events as in the rounds of this host so far.
            return self._setting.open_runner(member, next((
                one.round_events
                for one in self.taken.get((member.name, ALONE), ())), None))
        if known.program_sha256 != member.benchmark.program_sha256:
            # Several benchmarks may be one program: the warning comes once.
            self._observations.warn(
                f'{member.benchmark.program} is another build than on '
                'the reference: compilers differ, compare the same package')
        return self._setting.open_runner(member, known.round_events)

    def _measure_well(self, member: Member, runner: Runner, state: str,
                      pcpus: frozenset[int], groups: Classes,
                      limit_s: float) -> Rounds:
        """Run one benchmark, and again where its rounds had two speeds.

        :param limit_s: of one measurement
        """
        rounds = self._measure(member, runner, pcpus, groups, limit_s)
        serious = [found for found in two_speeds.find([rounds], groups)
                   if found.is_serious]
        if not (member.weight and serious and self._spare):
            return rounds
        self._spare -= 1
        self._observations.warn(*(
            f'measured again, since rounds had two speeds: {member.name}, '
            f'{state} on {found}' for found in serious))
        LOG.info('  rounds had two speeds, %s: measuring again',
                 '; '.join(map(str, serious)))
        return self._measure(member, runner, pcpus, groups, limit_s)

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
                effort, max_rounds=min(effort.max_rounds, _MIN_ROUNDS))

        def grouped(samples: Samples) -> list[list[list[float]]]:
            return [[samples[p] for p in sorted(group)] for group in groups]

        def progress(samples: Samples) -> str:
            return '; '.join(
                f'pCPU {cpuset.format_pcpus(group)}: '
                f'{_describe(scores, member.benchmark.unit)}'
                for group, scores in zip(groups, grouped(samples),
                                         strict=True))

        before = self._cpu_times()
        throttled_before = self._throttled()
        began_s = time.monotonic()
        with clock.PcpuClock(_some(groups), self._setting.sysroot) as clocks:
            samples = runner.measure(
                pcpus, lambda now: is_enough(
                    effort, grouped(now), time.monotonic() - began_s,
                    limit_s),
                progress)
            clocks_mhz = clocks.read_mhz()
        _busy, steal = self._cpu_times().since(before)
        LOG.info('  %s', progress(samples))
        return Rounds(
            {pcpu: tuple(float(f'{score:.6g}') for score in scores)
             for pcpu, scores in samples.items()},
            round(steal, 4), self._throttled() - throttled_before,
            runner.round_events,
            {pcpu: round(mhz, 1) for pcpu, mhz in clocks_mhz.items()})

    def _throttled(self) -> int:
        return host_cpus.throttle_count(self._setting.pcpus,
                                        self._setting.sysroot)

    def _cpu_times(self) -> host_cpus.CpuTimes:
        return host_cpus.cpu_times(self._setting.pcpus, self._setting.sysroot)


def _some(groups: Iterable[frozenset[int]]) -> Iterator[int]:
    """Some pCPUs of each group of equal ones, of all of it alike."""
    for group in groups:
        step = -(-len(group) // _MOST_CLOCKS)
        yield from sorted(group)[::step]


def is_enough(effort: run.Effort, groups: Collection[list[list[float]]],
               spent_s: float, limit_s: float) -> bool:
    """Whether each group of equal pCPUs is known well enough.

    :param groups: the scores of each pCPU of each group
    :param spent_s: wall time since the measurement began
    :param limit_s: of this measurement
    """
    rounds = min(len(scores) for group in groups for scores in group)
    if rounds < estimate.LEAST_SAMPLES:
        return False
    if rounds >= effort.max_rounds or spent_s > limit_s or any(
            sum(map(len, group)) >= _MAX_SAMPLES for group in groups):
        return True
    # An interval that is looked at often is narrow by chance, some time. That
    # of the first three quarters has to be as well.
    return rounds >= _MIN_ROUNDS and all(
        _is_known(part, effort.max_interval) for group in groups
        for part in (group, [scores[:len(scores) * 3 // 4]
                             for scores in group]))


def _is_known(group: list[list[float]], max_interval: float) -> bool:
    """Whether the mean is, and that it is one of a single mode."""
    now = estimate.estimate_together(group)
    # More outliers than that may be a second mode. More rounds show it.
    return (now.width <= max_interval
            and now.outliers < modes.LEAST_SHARE * len(now.samples))


def _describe(group: list[list[float]], unit: str) -> str:
    """:param group: the scores of each of some equal pCPUs"""
    rounds = f'{sum(map(len, group))} rounds'
    if min(map(len, group)) < estimate.LEAST_SAMPLES:
        return rounds
    now = estimate.estimate_together(group)
    return (f'{rounds}, {now.mean:.5g} {unit}, '
            f'interval {now.width:.1%}')
