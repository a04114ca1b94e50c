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

from collections.abc import Collection, Mapping
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
from nova_vqos import profile
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import Benchmark
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.reference import IS_REFERENCE
from nova_vqos.calibration.reference import Yardstick
from nova_vqos.calibration.runner import Runner
from nova_vqos.calibration.runner import Samples

LOG = logging.getLogger(__name__)

#: A host that is busier than that, or loses more to a hypervisor below it,
#: gets a word of warning.
BUSY_WARNING = 0.05
STEAL_WARNING = 0.01
#: Guests that use more of one pCPU than that are at work.
GUESTS_LIMIT = 0.05

# A promise of speed should not rest on fewer.
_MIN_ROUNDS = 8
# No profile holds more, see nova_vqos.profile.
_MAX_SAMPLES = 10_000
_LOAD_CHECK_S = 1
# Clocks are as high as they can be, or nobody here sets them.
_STEADY_GOVERNORS = ('performance', 'unknown')
_SPREAD_WARNING = 0.03


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    :ivar max_rounds: of each pCPU, alone and busy
    :ivar max_interval: good enough, relative to the score
    :ivar max_s: wall time of each measurement, once it has the least rounds
        that an interval needs
    """

    max_rounds: int = 40
    max_interval: float = 0.02
    max_s: float = 40

    def is_enough(self, groups: Collection[list[list[float]]],
                  spent_s: float) -> bool:
        """Whether each group of equal pCPUs is known well enough.

        :param groups: the scores of each pCPU of each group
        :param spent_s: wall time since the measurement began
        """
        rounds = min(len(scores) for group in groups for scores in group)
        count = sum(len(group) for group in groups)
        if rounds >= min(self.max_rounds, _MAX_SAMPLES // count):
            return True
        if rounds >= estimate.LEAST_SAMPLES and spent_s > self.max_s:
            return True
        return rounds >= _MIN_ROUNDS and all(
            estimate.estimate(_pooled(group)).width <= self.max_interval
            for group in groups)


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """A new profile, and what people should know about it."""

    profile: profile.Profile
    warnings: tuple[str, ...]


class Calibration:
    """One calibration of the CPUs of this host.

    :ivar against: None: this host becomes the reference
    """

    def __init__(self, benchmark: Benchmark, runner: Runner,
                 pcpus: frozenset[int], *, reference_name: str | None = None,
                 against: Yardstick | None = None,
                 effort: Effort | None = None,
                 emulator: str | None = None,
                 virt_type: str | None = None, beside_guests: bool = False,
                 sysroot: str = '/') -> None:
        """Prepare; nothing is measured yet.

        :param reference_name: what to call this host as the reference
        :param emulator: whose guests are measured, None: none
        :param beside_guests: measure even where guests are at work
        :param sysroot: where /proc and /sys are looked for, for tests
        :raises CalibrationError: when it cannot be compared with the other
        """
        self._benchmark = benchmark
        self._runner = runner
        self._pcpus = pcpus
        self._sysroot = sysroot
        self._classes = host_cpus.classes(pcpus, sysroot)
        self._reference_name = reference_name or socket.gethostname()
        self._against = against
        self._effort = effort or Effort()
        self._emulator = emulator
        self._virt_type = virt_type
        self._beside_guests = beside_guests
        self._warnings: list[str] = []
        self._provenance: dict[str, str] = {}
        if against is not None:
            self._check_comparable(against)

    def run(self) -> Result:
        """Measure, and make a profile of it.

        :raises CalibrationError: when the benchmark cannot be run, or guests
            are at work on the pCPUs
        """
        self._look_at_load()
        alone = {members: self._measure({min(members)}, 'alone')[0]
                 for members in self._classes} if len(self._pcpus) > 1 else {}
        busy = dict(zip(self._classes, self._measure(self._pcpus, 'busy'),
                        strict=True))
        self._provenance.update(self._runner.provenance)
        # A single pCPU is as busy as it can be when it is measured alone.
        alone = alone or busy
        reference, half_width = self._reference(busy)
        self._provenance['reference_half_width'] = f'{half_width:.9g}'
        own = self._against is None
        if own:
            self._provenance[IS_REFERENCE] = 'yes'
        cpu_classes = tuple(
            profile.CpuClass(
                members,
                _measurement(alone[members], reference,
                             0.0 if own else half_width),
                _measurement(busy[members], reference,
                             0.0 if own else half_width))
            for members in self._classes)
        for cpu_class in cpu_classes:
            width = cpu_class.busy.interval_width
            if width > self._effort.max_interval:
                self._warnings.append(
                    'the interval of pCPU '
                    f'{profile.format_pcpus(cpu_class.pcpus)} is {width:.1%} '
                    f'wide, more than {self._effort.max_interval:.1%}: '
                    'measure again on a quieter host, or with more --rounds')
        return Result(
            profile.Profile(
                created_at=_now(), host=socket.gethostname(),
                reference=reference, measured_in=self._runner.measured_in,
                fingerprint=fingerprint.of_host(self._emulator,
                                                self._sysroot),
                cpu_classes=cpu_classes, provenance=self._provenance),
            tuple(self._warnings))

    def measure_busy(self) -> dict[frozenset[int], profile.Measurement]:
        """Measure all pCPUs at once, and nothing else.

        :returns: the coefficients of each class of equal pCPUs, of which the
            interval is that of this measurement alone
        :raises CalibrationError: when the benchmark cannot be run, guests are
            at work on the pCPUs, or there is no reference
        """
        if self._against is None:
            raise CalibrationError('there is no reference to measure against')
        self._look_at_load()
        return {members: _measurement(score, self._against.reference, 0.0)
                for members, score in zip(
                    self._classes, self._measure(self._pcpus, 'busy'),
                    strict=True)}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know of what was measured so far."""
        return tuple(self._warnings)

    def _check_comparable(self, against: Yardstick) -> None:
        theirs = against.reference.benchmark
        if theirs != self._benchmark.identity:
            raise CalibrationError(
                f'the reference was measured with {theirs!r}, this host has '
                f'{self._benchmark.identity!r}: scores of the two cannot be '
                'compared')
        if against.measured_in != self._runner.measured_in:
            flag = '--in-guest' if against.measured_in == 'guest' else \
                'no --in-guest'
            raise CalibrationError(
                f'the reference was measured in the {against.measured_in}, '
                f'measure this host likewise: {flag}')

    def _look_at_load(self) -> None:
        """See whether the host is quiet enough to be measured."""
        before = self._cpu_times()
        guests_before = host_cpus.guest_ticks(self._pcpus, self._sysroot)
        time.sleep(_LOAD_CHECK_S)
        after = self._cpu_times()
        busy, _steal = after.since(before)
        guests = host_cpus.guest_pcpus(
            guests_before, host_cpus.guest_ticks(self._pcpus, self._sysroot),
            (after.total - before.total) / len(self._pcpus))
        program_hash = _hash(self._benchmark.program)
        seen = fingerprint.of_host(self._emulator, self._sysroot)
        self._provenance.update(
            load_average=' '.join(f'{n:.2f}' for n in os.getloadavg()),
            busy_before=f'{busy:.3f}', guests_before_pcpus=f'{guests:.3f}',
            benchmark_sha256=program_hash)
        if self._virt_type is not None:
            self._provenance['virt_type'] = self._virt_type
        if guests > GUESTS_LIMIT and not self._beside_guests:
            raise CalibrationError(
                f'guests use {guests:.2f} pCPUs of '
                f'{profile.format_pcpus(self._pcpus)}, and would be slowed '
                'down: move them away, or give --beside-guests to measure '
                'all the same')
        governor = seen.get('governor', 'unknown')
        if governor not in _STEADY_GOVERNORS:
            self._warnings.append(
                f'the CPU frequency governor is {governor}: servers that '
                'leave the CPU idle at times run slower than what is measured '
                f'here, prefer {_STEADY_GOVERNORS[0]}')
        if busy > BUSY_WARNING:
            self._warnings.append(
                f'the host was {busy:.0%} busy before: its own work makes the '
                'scores scatter, and slows them through shared caches')
        if self._against and self._against.program_hash != program_hash:
            self._warnings.append(
                f'{self._benchmark.program} is another build than on the '
                'reference: compilers differ, compare the same package')

    def _measure(self, pcpus: Collection[int],
                 state: str) -> list[estimate.Estimate]:
        """Measure these pCPUs at once; an estimate for each class of them."""
        names = [frozenset(c & frozenset(pcpus)) for c in self._classes]
        names = [name for name in names if name]

        def grouped(samples: Samples) -> list[list[list[float]]]:
            return [[samples[p] for p in sorted(name)] for name in names]

        def progress(samples: Samples) -> str:
            return '; '.join(
                f'{state}, pCPU {profile.format_pcpus(name)}: '
                f'{self._describe(_pooled(group))}'
                for name, group in zip(names, grouped(samples), strict=True))

        LOG.info('Measuring pCPU %s, %s, in the %s with %s',
                 profile.format_pcpus(pcpus), state,
                 self._runner.measured_in, self._benchmark.identity)
        before = self._cpu_times()
        throttled_before = self._throttled()
        began_s = time.monotonic()
        samples = self._runner.measure(
            pcpus, lambda now: self._effort.is_enough(
                grouped(now), time.monotonic() - began_s), progress)
        _busy, steal = self._cpu_times().since(before)
        LOG.info('  %s', progress(samples))
        self._note_disturbance(state, names, grouped(samples), steal,
                               self._throttled() - throttled_before)
        return [estimate.estimate(_pooled(group))
                for group in grouped(samples)]

    def _note_disturbance(self, state: str, names: list[frozenset[int]],
                          groups: list[list[list[float]]],
                          steal: float, throttled: int) -> None:
        key = f'{state}_pcpu_{profile.format_pcpus(itertools.chain(*names))}'
        self._provenance[f'{key}_steal'] = f'{steal:.4f}'
        self._provenance[f'{key}_outliers'] = str(
            sum(estimate.estimate(_pooled(g)).outliers for g in groups))
        self._provenance[f'{key}_throttled'] = str(throttled)
        if throttled > 0:
            self._warnings.append(
                f'heat slowed the CPUs {throttled} times while they were '
                f'measured {state}: see to the cooling, and measure again')
        if steal > STEAL_WARNING:
            self._warnings.append(
                f'{steal:.1%} of the time was stolen by a hypervisor below '
                f'this host while it was measured {state}')
        for name, group in zip(names, groups, strict=True):
            means = [statistics.median(scores) for scores in group]
            spread = (max(means) - min(means)) / min(means)
            if spread > max(self._effort.max_interval, _SPREAD_WARNING):
                self._warnings.append(
                    f'pCPUs {profile.format_pcpus(name)} look equal but '
                    f'their scores differ by {spread:.0%}: their mean is '
                    'promised for all')

    def _throttled(self) -> int:
        return host_cpus.throttle_count(self._pcpus, self._sysroot)

    def _cpu_times(self) -> host_cpus.CpuTimes:
        return host_cpus.cpu_times(self._pcpus, self._sysroot)

    def _describe(self, scores: list[float]) -> str:
        if len(scores) < estimate.LEAST_SAMPLES:
            return f'{len(scores)} rounds'
        now = estimate.estimate(scores)
        return (f'{len(scores)} rounds, {now.mean:.1f} '
                f'{self._benchmark.unit}, interval {now.width:.1%}')

    def _reference(self, busy: Mapping[frozenset[int], estimate.Estimate],
                   ) -> tuple[profile.Reference, float]:
        if self._against is not None:
            return self._against.reference, self._against.half_width
        # The busy score, so that 100 CU are what the reference host can
        # promise on each of its pCPUs at once.
        own = busy[self._classes[0]]
        return profile.Reference(
            name=self._reference_name, benchmark=self._benchmark.identity,
            unit=self._benchmark.unit, score=own.mean,
            created_at=_now()), own.width / 2


def _measurement(result: estimate.Estimate, reference: profile.Reference,
                 reference_half_width: float) -> profile.Measurement:
    """A score as a coefficient.

    Its interval is that of a quotient: relative half widths of independent
    scores add as squares.
    """
    coefficient = result.mean / reference.score
    half = coefficient * math.hypot(result.width / 2, reference_half_width)
    return profile.Measurement(
        coefficient=coefficient,
        interval_low=max(coefficient - half, coefficient * profile.LEAST_LOW),
        interval_high=coefficient + half,
        samples=tuple(float(f'{s:.6g}') for s in result.samples))


def _pooled(group: list[list[float]]) -> list[float]:
    return list(itertools.chain.from_iterable(group))


def _hash(path: str) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
