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

"""Calibration of a host's CPUs: from scores to a profile."""

from collections.abc import Callable, Collection, Iterable, Sequence
import contextlib
import dataclasses
import datetime
import hashlib
import itertools
import logging
import math
import os
import socket
import statistics
import time

from nova_vqos import fingerprint
from nova_vqos import guest
from nova_vqos import profile
from nova_vqos.calibration import classes as cpu_classes
from nova_vqos.calibration import combine
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.record import Record
from nova_vqos.calibration.record import Rounds
from nova_vqos.calibration.reference import Yardstick
from nova_vqos.calibration.runner import Runner
from nova_vqos.calibration.runner import Samples

LOG = logging.getLogger(__name__)

ALONE = 'alone'
BUSY = 'busy'

#: A host that is busier than that, or loses more to a hypervisor below it,
#: gets a word of warning.
BUSY_WARNING = 0.05
STEAL_WARNING = 0.01

# A promise of speed should not rest on fewer.
_MIN_ROUNDS = 8
# No profile holds more of one class, see nova_vqos.profile.
_MAX_SAMPLES = 10_000
_LOAD_CHECK_S = 1
# Clocks are as high as they can be, or nobody here sets them.
_STEADY_GOVERNORS = ('performance', 'unknown')
_SPREAD_WARNING = 0.03
# Of the fingerprint, what people look at when speeds are odd.
_TOLD = ('cpu_model', 'governor', 'intel_no_turbo', 'boost', 'smt',
         'irq_time_accounting', 'halt_poll_ns')

Classes = Sequence[frozenset[int]]
# Rounds by benchmark and state.
Taken = dict[tuple[str, str], list[Rounds]]


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    :ivar max_rounds: of each pCPU in each measurement
    :ivar max_interval: good enough, relative to the score
    :ivar max_s: wall time of all measurements together; each one has the
        least rounds that an interval needs, however long they take
    """

    max_rounds: int = 40
    max_interval: float = 0.02
    max_s: float = 240

    def is_enough(self, groups: Collection[list[list[float]]],
                  spent_s: float, limit_s: float) -> bool:
        """Whether each group of equal pCPUs is known well enough.

        :param groups: the scores of each pCPU of each group
        :param spent_s: wall time since the measurement began
        :param limit_s: of this measurement
        """
        rounds = min(len(scores) for group in groups for scores in group)
        if rounds >= self.max_rounds or any(
                sum(map(len, group)) >= _MAX_SAMPLES for group in groups):
            return True
        if rounds >= estimate.LEAST_SAMPLES and spent_s > limit_s:
            return True
        return rounds >= _MIN_ROUNDS and all(
            estimate.estimate(_pooled(group)).width <= self.max_interval
            for group in groups)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where and how the benchmarks are run.

    :ivar pcpus: to measure
    :ivar measured_in: ``host``, or ``guest`` of an emulator
    :ivar open_runner: of a benchmark, for rounds of so many events (None: it
        finds how many)
    :ivar emulator: whose guests are measured, None: none
    :ivar virt_type: of the guests
    :ivar guest_kernel: path of what they boot
    :ivar beside_guests: measure even where guests are at work
    :ivar sysroot: where /proc and /sys are looked for, for tests
    """

    pcpus: frozenset[int]
    measured_in: str
    open_runner: Callable[[Member, int | None], Runner]
    emulator: str | None = None
    virt_type: str | None = None
    guest_kernel: str | None = None
    beside_guests: bool = False
    sysroot: str = '/'


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A new profile, and what people should know about it."""

    profile: profile.Profile
    warnings: tuple[str, ...]


class Calibration:
    """One calibration of the CPUs of this host."""

    def __init__(self, members: Sequence[Member], setting: Setting, *,
                 against: Yardstick | None = None,
                 reference_name: str | None = None,
                 effort: Effort | None = None,
                 record_path: str | None = None,
                 restart: bool = False,
                 classes: Classes | None = None,
                 class_tolerance: float = cpu_classes.TOLERANCE) -> None:
        """Prepare; nothing is measured yet.

        :param members: the benchmarks; those of the reference, if there is
            one
        :param against: None: this host becomes the reference
        :param reference_name: what to call this host as the reference
        :param record_path: where an interrupted calibration is kept, and gone
            on with; None: nowhere
        :param restart: do not go on with one
        :param classes: of equal pCPUs; None: what looks equal
        :param class_tolerance: how much faster one of those that look equal
            may be than another; beyond that they become two classes
        :raises CalibrationError: when it cannot be compared with the other
        """
        self._setting = setting
        self._members = members
        self._against = against
        self._effort = effort or Effort()
        self._reference_name = reference_name or socket.gethostname()
        self._classes: Classes = classes or host_cpus.classes(
            setting.pcpus, setting.sysroot)
        self._class_tolerance = class_tolerance
        self._warnings: list[str] = []
        self._provenance: dict[str, str] = {}
        self._load = host_cpus.Load(0.0, 0.0)
        self._fingerprint = fingerprint.of_host(setting.emulator,
                                                setting.sysroot)
        self._hashes = {member.name: _hash(member.benchmark.program)
                        for member in members}
        if against is not None and against.measured_in != setting.measured_in:
            flag = '--in-guest' if against.measured_in == 'guest' else \
                'no --in-guest'
            raise CalibrationError(
                f'the reference was measured in the {against.measured_in}, '
                f'measure this host likewise: {flag}')
        self._record = Record(record_path, self._key(), restart=restart)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know of what was measured so far."""
        return tuple(self._warnings)

    @property
    def guests_at_work(self) -> bool:
        """Whether guests used the pCPUs when measuring began."""
        return self._load.guests_at_work

    def run(self) -> Result:
        """Measure, and make a profile of it.

        :raises CalibrationError: when a benchmark cannot be run, or guests
            are at work on the pCPUs
        """
        self._look_at_host()
        self._tell_of_record()
        deadline_s = self._deadline_s()
        # A single pCPU is as busy as it can be when it is measured alone.
        alone = self._alone() if len(self._setting.pcpus) > 1 else []
        taken: Taken = {}
        self._measure([*alone, (BUSY, self._setting.pcpus)], deadline_s, taken)
        if self._split(taken):
            # Of the new ones, nothing was measured alone.
            self._measure([step for step in self._alone()
                           if step not in alone], deadline_s, taken)
        self._note_disturbances(taken)
        reference = (self._against.reference if self._against
                     else self._own_reference(taken))
        made = tuple(
            profile.CpuClass(members, *(
                self._combined(taken, state if alone else BUSY, members,
                               reference, with_reference=True)
                for state in (ALONE, BUSY)))
            for members in self._classes)
        for cpu_class in made:
            self._warn_of_interval(cpu_class)
        return Result(
            profile.Profile(
                created_at=_now(), host=socket.gethostname(),
                reference=reference, measured_in=self._setting.measured_in,
                fingerprint=self._fingerprint, cpu_classes=made,
                is_reference=self._against is None,
                provenance=self._provenance),
            self.warnings)

    def measure_busy(self) -> dict[frozenset[int], profile.Measurement]:
        """Measure all pCPUs at once, and nothing else.

        :returns: the coefficients of each class of equal pCPUs, of which the
            interval is that of this measurement alone
        :raises CalibrationError: when a benchmark cannot be run, guests are
            at work on the pCPUs, or there is no reference
        """
        if self._against is None:
            raise CalibrationError('there is no reference to measure against')
        self._look_at_host()
        self._tell_of_record()
        taken: Taken = {}
        self._measure([(BUSY, self._setting.pcpus)], self._deadline_s(), taken)
        self._note_disturbances(taken)
        return {members: self._combined(taken, BUSY, members,
                                        self._against.reference,
                                        with_reference=False)
                for members in self._classes}

    def forget(self) -> None:
        """Remove what was kept to go on with: it is not needed any more."""
        self._record.remove()

    def _key(self) -> dict[str, object]:
        """What must be the same for two measurements to belong together."""
        return {
            'fingerprint': self._fingerprint,
            'pcpus': profile.format_pcpus(self._setting.pcpus),
            'measured_in': self._setting.measured_in,
            'virt_type': self._setting.virt_type,
            'guest_kernel': (None if self._setting.guest_kernel is None
                             else _hash(self._setting.guest_kernel)),
            'effort': [self._effort.max_rounds, self._effort.max_interval],
            'benchmarks': [
                [m.name, m.benchmark.identity, self._hashes[m.name]]
                for m in self._members],
            'reference': self._against and profile.reference_document(
                self._against.reference)}

    def _deadline_s(self) -> float:
        return time.monotonic() + self._effort.max_s

    def _alone(self) -> list[tuple[str, frozenset[int]]]:
        """:returns: a step for one pCPU of each class"""
        return [(ALONE, frozenset({min(members)}))
                for members in self._classes]

    def _split(self, taken: Taken) -> bool:
        """Divide classes whose pCPUs are not equally fast.

        :returns: whether there are any
        """
        looked_equal = self._classes
        self._tell_of_equal_classes(taken)
        self._classes = cpu_classes.split(
            looked_equal, {
                pcpu: found for pcpu in self._setting.pcpus
                if (found := self._speed(taken, {pcpu})) is not None},
            tolerance=self._class_tolerance)
        self._provenance['classes_by_topology'] = str(len(looked_equal))
        for members in looked_equal:
            parts = [one for one in self._classes if one < members]
            if parts:
                self._warnings.append(
                    f'pCPUs {profile.format_pcpus(members)} look equal and '
                    f'are not, by more than {self._class_tolerance:.0%} '
                    'beyond what chance leaves open: they are '
                    f'{len(parts)} classes, '
                    + ' and '.join(map(profile.format_pcpus, parts)))
        return len(self._classes) > len(looked_equal)

    def _tell_of_equal_classes(self, taken: Taken) -> None:
        """Say which classes are equally fast: they stay what they look."""
        pairs = list(itertools.combinations(self._classes, 2))
        for one, other in pairs:
            speeds = self._speed(taken, one), self._speed(taken, other)
            if None not in speeds and not speeds[0].differs(
                    speeds[1], tolerance=0.0, comparisons=len(pairs)):
                LOG.info('pCPUs %s and %s do not look equal, but are equally '
                         'fast as far as was measured: they stay two classes',
                         *map(profile.format_pcpus, (one, other)))

    def _speed(self, taken: Taken,
               pcpus: Collection[int]) -> cpu_classes.Speed | None:
        return cpu_classes.speed(
            (member.weight, taken[member.name, BUSY][0].of(pcpus))
            for member in self._members if member.weight)

    def _measure(self, steps: Sequence[tuple[str, frozenset[int]]],
                 deadline_s: float, taken: Taken) -> None:
        """Run each benchmark in each step.

        :param steps: state, and pCPUs that work at once in it
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
                        rounds = self._measure_once(
                            member, runner, pcpus,
                            (deadline_s - time.monotonic()) / left)
                        self._record.add(name, rounds)
                    taken.setdefault((member.name, state), []).append(rounds)

    def _open(self, member: Member, round_events: int | None) -> Runner:
        """:param round_events: of the other rounds of this host, if any"""
        known = (self._against.reference.benchmark(member.name)
                 if self._against else None)
        if known and known.program_sha256 != self._hashes[member.name]:
            warning = (f'{member.benchmark.program} is another build than on '
                       'the reference: compilers differ, compare the same '
                       'package')
            # Several benchmarks may be one program.
            if warning not in self._warnings:
                self._warnings.append(warning)
        return self._setting.open_runner(
            member, known.round_events if known else round_events)

    def _measure_once(self, member: Member, runner: Runner,
                      pcpus: frozenset[int], limit_s: float) -> Rounds:
        """Run one benchmark on these pCPUs at once, until that is enough."""
        names = [name & pcpus for name in self._classes if name & pcpus]
        effort = self._effort
        if not member.weight:
            # Only reported: a rough figure does.
            effort = dataclasses.replace(
                effort, max_rounds=min(effort.max_rounds, _MIN_ROUNDS))

        def grouped(samples: Samples) -> list[list[list[float]]]:
            return [[samples[p] for p in sorted(name)] for name in names]

        def progress(samples: Samples) -> str:
            return '; '.join(
                f'pCPU {profile.format_pcpus(name)}: '
                f'{_describe(_pooled(group), member.benchmark.unit)}'
                for name, group in zip(names, grouped(samples), strict=True))

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

    def _own_reference(self, taken: Taken) -> profile.Reference:
        """This host's: the busy scores of its first class of pCPUs.

        So that 100 CU are what it can promise on each of these at once.
        """
        benchmarks = []
        for member in self._members:
            (rounds,) = taken[member.name, BUSY]
            own = estimate.estimate(rounds.of(self._classes[0]))
            benchmarks.append(profile.Benchmark(
                name=member.name, kind=member.benchmark.kind,
                identity=member.benchmark.identity,
                unit=member.benchmark.unit,
                program_sha256=self._hashes[member.name],
                weight=member.weight, score=own.mean,
                half_width=own.width / 2, round_events=rounds.round_events))
        return profile.Reference(self._reference_name, _now(),
                                 tuple(benchmarks))

    def _combined(self, taken: Taken, state: str, members: frozenset[int],
                  reference: profile.Reference, *,
                  with_reference: bool) -> profile.Measurement:
        """The coefficient of a class of pCPUs in a state.

        :param with_reference: whether the reference's uncertainty is part of
            the interval, unless it is this host's own
        """
        adds = with_reference and self._against is not None
        scores = []
        for member in self._members:
            found = estimate.estimate(
                [score for rounds in taken[member.name, state]
                 for score in rounds.of(members)])
            known = reference.benchmark(member.name)
            scores.append(_score(found, known,
                                 known.half_width if adds else 0.0))
        return combine.measurement(scores, reference)

    def _look_at_host(self) -> None:
        """See whether the host is quiet enough to be measured."""
        pcpus, sysroot = self._setting.pcpus, self._setting.sysroot
        load = self._load = host_cpus.load(pcpus, _LOAD_CHECK_S, sysroot)
        self._provenance.update(
            load_average=' '.join(f'{n:.2f}' for n in os.getloadavg()),
            busy_before=f'{load.busy:.3f}',
            guests_before_pcpus=f'{load.guests_pcpus:.3f}')
        if self._setting.virt_type is not None:
            self._provenance['virt_type'] = self._setting.virt_type
        if self._setting.guest_kernel is not None:
            self._provenance['guest_kernel'] = guest.kernel_release(
                self._setting.guest_kernel)
        LOG.info('This host: %s', ', '.join(
            f'{key} {value}' for key, value in itertools.chain(
                ((key, self._fingerprint[key]) for key in _TOLD
                 if key in self._fingerprint), self._provenance.items())))
        if not self._setting.beside_guests:
            load.refuse_guests(pcpus)
        governor = self._fingerprint.get('governor', 'unknown')
        if governor not in _STEADY_GOVERNORS:
            self._warnings.append(
                f'the CPU frequency governor is {governor}: servers that '
                'leave the CPU idle at times run slower than what is measured '
                f'here, prefer {_STEADY_GOVERNORS[0]}')
        if load.busy > BUSY_WARNING:
            self._warnings.append(
                f'the host was {load.busy:.0%} busy before: its own work '
                'makes the scores scatter, and slows them through shared '
                'caches')

    def _tell_of_record(self) -> None:
        if self._record.discarded:
            LOG.info('Not gone on with: %s', self._record.discarded)
        elif self._record.found:
            LOG.info('Going on after %d measurements of an earlier '
                     'calibration; --restart would begin anew',
                     self._record.found)

    def _note_disturbances(self, taken: Taken) -> None:
        for state in sorted({state for _name, state in taken}):
            rounds = [one for (_name, its), found in taken.items()
                      if its == state for one in found]
            steal = max(one.steal for one in rounds)
            throttled = sum(one.throttled for one in rounds)
            self._provenance[f'{state}_steal'] = f'{steal:.4f}'
            self._provenance[f'{state}_throttled'] = str(throttled)
            if throttled > 0:
                self._warnings.append(
                    f'heat slowed the CPUs {throttled} times while they were '
                    f'measured {state}: see to the cooling, and measure again')
            if steal > STEAL_WARNING:
                self._warnings.append(
                    f'{steal:.1%} of the time was stolen by a hypervisor '
                    f'below this host while it was measured {state}')
        for member in self._members:
            if member.weight:
                (busy,) = taken[member.name, BUSY]
                self._warn_of_spread(member, busy)

    def _warn_of_spread(self, member: Member, rounds: Rounds) -> None:
        for name in self._classes:
            # Of thousands of pCPUs not each one has its own.
            medians = [statistics.median(scores) for pcpu in name
                       if (scores := rounds.samples[pcpu])]
            spread = (max(medians) - min(medians)) / min(medians)
            if spread > max(self._effort.max_interval, _SPREAD_WARNING):
                self._warnings.append(
                    f'pCPUs {profile.format_pcpus(name)} look equal but '
                    f'their scores by {member.name} differ by {spread:.0%}: '
                    'their mean is promised for all')

    def _warn_of_interval(self, cpu_class: profile.CpuClass) -> None:
        width = cpu_class.busy.interval_width
        if width > self._effort.max_interval:
            self._warnings.append(
                f'the interval of pCPU {profile.format_pcpus(cpu_class.pcpus)}'
                f' is {width:.1%} wide, more than '
                f'{self._effort.max_interval:.1%}: measure again on a quieter '
                'host, or with more --rounds and --max-seconds')

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


def _score(found: estimate.Estimate, known: profile.Benchmark,
           reference_half_width: float) -> profile.Score:
    """A score as a coefficient.

    Its interval is that of a quotient: relative half widths of independent
    scores add as squares.
    """
    coefficient = found.mean / known.score
    half = coefficient * math.hypot(found.width / 2, reference_half_width)
    return profile.Score(
        known.name, coefficient, *profile.interval(coefficient, half),
        found.outliers, found.samples)


def _pooled(group: Iterable[list[float]]) -> list[float]:
    return list(itertools.chain.from_iterable(group))


def _hash(path: str) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
