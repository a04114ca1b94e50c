# SPDX-License-Identifier: Apache-2.0
"""Calibration of a host's CPUs: from scores to a profile."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import itertools
import logging
import math
import socket
import statistics
import time

from nova_vqos import cpuset
from nova_vqos import utc
from nova_vqos.calibration import benchmark
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import classes as cpu_classes
from nova_vqos.calibration.cpu import combine
from nova_vqos.calibration.cpu import disturbances
from nova_vqos.calibration.cpu import steps
from nova_vqos.calibration.cpu import two_speeds
from nova_vqos.calibration.cpu.record import Record
from nova_vqos.calibration.cpu.reference import Yardstick
from nova_vqos.calibration.run import Effort
from nova_vqos.calibration.run import Observations
from nova_vqos.calibration.run import Result
from nova_vqos.profile import cpu
from nova_vqos.profile import fingerprint
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

#: Of each pCPU in each measurement, by default.
EFFORT = Effort(max_rounds=40)
#: Wider intervals are refused, relative to the coefficient: by default a host
#: has no use for such a profile.
WIDEST_INTERVAL = 0.05


class UnfitRoundsError(CalibrationError):
    """Rounds from which no figure may come: going on with them is of no use.
    """


class UnfitProfileError(CalibrationError):
    """A profile that no host should use.

    :ivar profile: with the samples, to look at
    """

    def __init__(self, why: str, profile: model.Profile) -> None:
        super().__init__(why)
        self.profile = profile


class TwoModesError(UnfitProfileError):
    """Rounds of one measurement had two speeds: no mean is their promise."""

    def __init__(self, seen: str, profile: model.Profile) -> None:
        super().__init__(
            f'rounds of one measurement had two speeds: {seen}. The clock '
            'rate may change (turbo, governor, heat), memory may be on two '
            'NUMA nodes, or other work takes turns with the measurement. Fix '
            'the clock rate, give the pCPUs of one node by --pcpus, or stop '
            'the other work, and measure again', profile)


class WideIntervalError(UnfitProfileError):
    """The coefficient is not known well enough."""

    def __init__(self, seen: str, profile: model.Profile) -> None:
        super().__init__(
            f'{seen}; or accept a wider interval by --widest-interval',
            profile)


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
    """What benchmarks scored, one by one.

    :ivar estimates: by benchmark, state, and class of equal pCPUs; those
        alone are those of the busy ones where no pCPU was measured alone
    :ivar round_events: by benchmark; None: they depended on the pCPU
    """

    estimates: Mapping[tuple[str, str, frozenset[int]], estimate.Estimate]
    round_events: Mapping[str, int | None]


class Calibration:
    """One calibration of the CPUs of this host."""

    def __init__(self, members: Sequence[benchmark.Member],
                 setting: steps.Setting, *, against: Yardstick | None = None,
                 reference_name: str | None = None,
                 effort: Effort = EFFORT, record_path: str | None = None,
                 restart: bool = False, classes: steps.Classes | None = None,
                 class_tolerance: float = cpu_classes.TOLERANCE) -> None:
        """Prepare; nothing is measured yet.

        :param members: the benchmarks; those of the reference, if there is
            one
        :param against: None: this host becomes the reference
        :param reference_name: name of this host as the reference
        :param record_path: file from which an interrupted calibration
            continues; None: none does
        :param restart: ignore an interrupted calibration
        :param classes: of equal pCPUs; None: those that look equal
        :param class_tolerance: how much faster one of those that look equal
            may be than another; beyond that they become two classes
        :raises CalibrationError: when it cannot be compared with the other
        """
        self._setting = setting
        self._members = members
        self._against = against
        self._effort = effort
        self._reference_name = reference_name or socket.gethostname()
        self._classes: steps.Classes = classes or host_cpus.classes(
            setting.pcpus, setting.sysroot)
        self._class_tolerance = class_tolerance
        self._observations = Observations()
        self._load = host_cpus.Load(0.0, 0.0)
        self._fingerprint = fingerprint.of_host(setting.emulator,
                                                setting.sysroot)
        if against is not None and against.measured_in != setting.measured_in:
            flag = '--in-guest' if against.measured_in == 'guest' else \
                'no --in-guest'
            raise CalibrationError(
                f'the reference was measured in the {against.measured_in}, '
                f'measure this host likewise: {flag}')
        self._record = Record(record_path, self._key(), restart=restart)
        self._steps = steps.Steps(
            members, setting, effort,
            () if against is None else against.reference.benchmarks,
            self._record, self._observations)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What may be wrong with the measurements so far."""
        return self._observations.warnings

    @property
    def provenance(self) -> Mapping[str, str]:
        """The conditions of the measurements so far."""
        return self._observations.provenance

    @property
    def guests_at_work(self) -> bool:
        """Whether guests used the pCPUs when measuring began."""
        return self._load.guests_at_work

    def run(self, widest_interval: float = WIDEST_INTERVAL,
            ) -> Result[model.Profile]:
        """Measure, and make a profile of it.

        :param widest_interval: of the coefficient of busy pCPUs, relative to
            it
        :raises TwoModesError: when rounds of a benchmark that counts had two
            speeds
        :raises WideIntervalError: when one is wider
        :raises CalibrationError: when a benchmark cannot be run, or guests
            are at work on the pCPUs
        """
        deadline_s = self._begin()
        alone = self._alone()
        self._steps.run([*alone, (steps.BUSY, self._setting.pcpus)],
                        self._classes, deadline_s)
        if self._split():
            # New classes have not been measured alone.
            self._steps.run([step for step in self._alone()
                             if step not in alone], self._classes, deadline_s)
        self._observe_disturbances()
        two_modes = self._find_modes()
        reference = (self._against.reference if self._against
                     else self._own_reference())
        made = tuple(
            self._class_of(members, reference,
                           steps.ALONE if alone else steps.BUSY)
            for members in self._classes)
        busy = {one.pcpus: one.busy for one in made}
        profile = model.Profile(
            created_at=utc.text(), host=socket.gethostname(),
            reference=reference, measured_in=self._setting.measured_in,
            fingerprint=self._fingerprint, cpu_classes=made,
            is_reference=self._against is None,
            provenance=self._observations.provenance)
        if two_modes:
            raise TwoModesError('; '.join(two_modes), profile)
        is_other = self._against is not None
        too_wide = self._find_wide(busy, widest_interval, reference,
                                   with_reference=is_other)
        if too_wide:
            raise WideIntervalError('; '.join(too_wide), profile)
        self._observations.warn(*self._find_wide(
            busy, self._effort.max_interval, reference,
            with_reference=is_other))
        return Result(profile, self.warnings)

    def measure_busy(self) -> dict[frozenset[int], cpu.Measurement]:
        """Measure all pCPUs at once, and nothing else.

        :returns: the coefficients of each class of equal pCPUs; their
            intervals are those of this measurement alone
        :raises CalibrationError: when a benchmark cannot be run, guests are
            at work on the pCPUs, or there is no reference; when rounds of a
            benchmark that counts had two speeds, and no guests at work can
            be why
        """
        if self._against is None:
            raise CalibrationError('there is no reference to measure against')
        self._steps.run([(steps.BUSY, self._setting.pcpus)], self._classes,
                        self._begin())
        self._observe_disturbances()
        two_modes = '; '.join(self._find_modes())
        if two_modes and not self.guests_at_work:
            raise CalibrationError(
                f'rounds of one measurement had two speeds: {two_modes}. '
                'Neither is known to be that of the profile: measure again')
        if two_modes:
            self._observations.warn(
                f'rounds beside guests had two speeds: {two_modes}')
        known = self._against.reference
        found = {members: self._combined(
            steps.BUSY, members, known, with_reference=False)
            for members in self._classes}
        self._observations.warn(*self._find_wide(
            found, self._effort.max_interval, known, with_reference=False))
        return found

    def measure_each(self, *, also_alone: bool) -> Taken:
        """Measure each benchmark, and make no coefficient of all of them.

        A benchmark that the reference lacks finds how many events its rounds
        have.

        :param also_alone: one pCPU of each class alone, before all at once
        :raises UnfitRoundsError: when rounds of one with a weight had two
            speeds
        :raises CalibrationError: when a benchmark cannot be run, or guests are
            at work on the pCPUs
        """
        alone = self._alone() if also_alone else []
        self._steps.run([*alone, (steps.BUSY, self._setting.pcpus)],
                        self._classes, self._begin())
        self._observe_disturbances()
        two_modes = '; '.join(self._find_modes())
        if two_modes:
            raise UnfitRoundsError(
                f'rounds of one measurement had two speeds: {two_modes}. No '
                'mean is their promise: see the guide to calibration, and '
                'measure again')
        return Taken(
            {(member.name, state, members): self._estimate(
                member.name, state if alone else steps.BUSY, members)
             for member in self._members
             for state in (steps.ALONE, steps.BUSY)
             for members in self._classes},
            {member.name:
             self._steps.taken[member.name, steps.BUSY][0].round_events
             for member in self._members})

    def remove_record(self) -> None:
        """Remove the file from which an interrupted calibration continues."""
        self._record.remove()

    def _key(self) -> dict[str, object]:
        """What must be the same for two measurements to belong together."""
        return {
            'fingerprint': self._fingerprint,
            'pcpus': cpuset.format_pcpus(self._setting.pcpus),
            'measured_in': self._setting.measured_in,
            'virt_type': self._setting.virt_type,
            'guest_kernel': (None if self._setting.guest_kernel is None else
                             benchmark.sha256(self._setting.guest_kernel)),
            'effort': [self._effort.max_rounds, self._effort.max_interval],
            'benchmarks': [
                [m.name, m.benchmark.identity, m.benchmark.program_sha256]
                for m in self._members],
            'reference': self._against and cpu.reference_document(
                self._against.reference)}

    def _begin(self) -> float:
        """Look at the host, and at an interrupted calibration.

        :returns: when all has to be measured, by the monotonic clock
        :raises CalibrationError: when guests are at work
        """
        self._load = disturbances.observe_before(
            self._setting, self._fingerprint, self._observations)
        if self._record.discarded:
            LOG.info('Not gone on with: %s', self._record.discarded)
        elif self._record.found:
            LOG.info('Going on after %d measurements of an earlier '
                     'calibration; --restart would begin anew',
                     self._record.found)
        return time.monotonic() + self._effort.max_s

    def _alone(self) -> list[steps.Step]:
        """:returns: a step for one pCPU of each class

        None where there is a single pCPU: it is as busy as it can be when it
        is measured alone.
        """
        if len(self._setting.pcpus) < 2:
            return []
        return [(steps.ALONE, frozenset({min(members)}))
                for members in self._classes]

    def _split(self) -> bool:
        """Divide classes whose pCPUs are not equally fast.

        :returns: whether there are any
        """
        looked_equal = self._classes
        self._log_equal_classes()
        self._classes = cpu_classes.split(
            looked_equal, {
                pcpu: found for pcpu in self._setting.pcpus
                if (found := self._speed({pcpu})) is not None},
            tolerance=self._class_tolerance)
        self._observations.provenance['classes_by_topology'] = str(
            len(looked_equal))
        for members in looked_equal:
            parts = [one for one in self._classes if one < members]
            if parts:
                self._observations.warn(
                    f'pCPUs {cpuset.format_pcpus(members)} look equal and '
                    f'are not, by more than {self._class_tolerance:.0%} '
                    'beyond what chance leaves open: they are '
                    f'{len(parts)} classes, '
                    + ' and '.join(map(cpuset.format_pcpus, parts)))
        return len(self._classes) > len(looked_equal)

    def _log_equal_classes(self) -> None:
        """Equally fast ones stay as many classes as they look."""
        pairs = list(itertools.combinations(self._classes, 2))
        for one, other in pairs:
            speed, theirs = self._speed(one), self._speed(other)
            if speed and theirs and not speed.differs(
                    theirs, tolerance=0.0, comparisons=len(pairs)):
                LOG.info('pCPUs %s and %s do not look equal, but are equally '
                         'fast as far as was measured: they stay two classes',
                         *map(cpuset.format_pcpus, (one, other)))

    def _speed(self, pcpus: Collection[int]) -> cpu_classes.Speed | None:
        return cpu_classes.speed(
            (member.weight,
             self._steps.taken[member.name, steps.BUSY][0].scores(pcpus))
            for member in self._members if member.weight)

    def _own_reference(self) -> cpu.Reference:
        """By the busy scores of the first class of pCPUs.

        So that 100 CU are what this host can promise on all of them at once.
        """
        benchmarks = []
        for member in self._members:
            (rounds,) = self._steps.taken[member.name, steps.BUSY]
            benchmarks.append(defined(
                member, estimate.estimate_together(
                    rounds.series(self._classes[0])),
                rounds.round_events))
        return cpu.Reference(self._reference_name, utc.text(),
                             tuple(benchmarks))

    def _class_of(self, pcpus: frozenset[int], reference: cpu.Reference,
                  alone: str) -> cpu.CpuClass:
        """:param alone: the state in which pCPUs were alone"""
        is_other = self._against is not None
        return cpu.CpuClass(
            pcpus,
            self._combined(alone, pcpus, reference, with_reference=is_other),
            self._combined(steps.BUSY, pcpus, reference,
                           with_reference=is_other),
            self._clock_mhz(pcpus))

    def _combined(self, state: str, pcpus: frozenset[int],
                  reference: cpu.Reference, *,
                  with_reference: bool) -> cpu.Measurement:
        """The coefficient of a class of pCPUs in a state.

        :param with_reference: whether the reference's uncertainty is part of
            the interval
        """
        scores = []
        for member in self._members:
            known = reference.benchmark(member.name)
            scores.append(coefficient(
                self._estimate(member.name, state, pcpus), known,
                known.half_width if with_reference else 0.0))
        return combine.measurement(scores, reference)

    def _estimate(self, name: str, state: str,
                  pcpus: frozenset[int]) -> estimate.Estimate:
        return estimate.estimate_together([
            scores for rounds in self._steps.taken[name, state]
            for scores in rounds.series(pcpus)])

    def _find_wide(self, busy: Mapping[frozenset[int], cpu.Measurement],
                   limit: float, reference: cpu.Reference, *,
                   with_reference: bool) -> list[str]:
        """Classes of pCPUs that are known less well than that, and why.

        :param limit: of the interval's width, relative to the coefficient
        """
        return [
            disturbances.describe_interval(
                pcpus, measured.interval_width, limit,
                {member.name: self._estimate(member.name, steps.BUSY, pcpus)
                 for member in self._members if member.weight},
                reference, with_reference=with_reference)
            for pcpus, measured in busy.items()
            if measured.interval_width > limit]

    def _clock_mhz(self, pcpus: frozenset[int]) -> float | None:
        """The mean clock of a class of pCPUs while all were busy."""
        found = [mhz for member in self._members if member.weight
                 for rounds in self._steps.taken[member.name, steps.BUSY]
                 for mhz in rounds.clocks(pcpus)]
        return round(statistics.fmean(found), 1) if found else None

    def _find_modes(self) -> list[str]:
        """Look for two speeds in the rounds of one measurement.

        :returns: what was seen where the coefficient would be wrong; all else
            is a warning
        """
        serious = []
        for member in self._members:
            for (name, state), measured in self._steps.taken.items():
                if name != member.name:
                    continue
                for found in two_speeds.find(measured, self._classes):
                    text = f'{name}, {state} on {found}'
                    if member.weight and found.is_serious:
                        serious.append(text)
                    else:
                        self._observations.warn(
                            f'rounds had two speeds: {text}')
        return serious

    def _observe_disturbances(self) -> None:
        disturbances.observe_during(
            self._steps.taken, self._members, self._classes,
            self._effort.max_interval, self._observations)


def defined(member: benchmark.Member, own: estimate.Estimate,
            round_events: int | None) -> cpu.Benchmark:
    """A benchmark of the reference, whose own score this is."""
    return cpu.Benchmark(
        name=member.name, kind=member.benchmark.kind,
        identity=member.benchmark.identity, unit=member.benchmark.unit,
        program_sha256=member.benchmark.program_sha256,
        weight=member.weight, score=own.mean,
        # More would be no more uncertain, and no profile.
        half_width=min(1.0, own.width / 2), round_events=round_events)


def coefficient(found: estimate.Estimate, known: cpu.Benchmark,
                reference_half_width: float) -> cpu.Score:
    """A score as a coefficient.

    Its interval is that of a quotient: relative half widths of independent
    scores add as squares.
    """
    ratio = found.mean / known.score
    half = ratio * math.hypot(found.width / 2, reference_half_width)
    return cpu.Score(
        known.name, ratio, *cpu.interval(ratio, half),
        found.outliers, found.samples)
