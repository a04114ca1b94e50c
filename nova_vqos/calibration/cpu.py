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

from collections.abc import Collection, Sequence
import dataclasses
import datetime
import hashlib
import itertools
import logging
import socket
import time

from nova_vqos import fingerprint
from nova_vqos import profile
from nova_vqos.calibration import classes as cpu_classes
from nova_vqos.calibration import disturbances
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import scores
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.conditions import Effort
from nova_vqos.calibration.conditions import Setting
from nova_vqos.calibration.notes import Notes
from nova_vqos.calibration.record import Record
from nova_vqos.calibration.reference import Yardstick
from nova_vqos.calibration.steps import ALONE
from nova_vqos.calibration.steps import BUSY
from nova_vqos.calibration.steps import Classes
from nova_vqos.calibration.steps import Step
from nova_vqos.calibration.steps import Steps
from nova_vqos.calibration.steps import Taken

LOG = logging.getLogger(__name__)


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
        self._notes = Notes()
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
        self._steps = Steps(
            members, setting, self._effort, self._hashes,
            None if against is None else against.reference, self._record,
            self._notes)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What people should know of what was measured so far."""
        return self._notes.warnings

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
        self._steps.take([*alone, (BUSY, self._setting.pcpus)],
                         self._classes, deadline_s, taken)
        if self._split(taken):
            # Of the new ones, nothing was measured alone.
            self._steps.take([step for step in self._alone()
                              if step not in alone],
                             self._classes, deadline_s, taken)
        self._note_disturbances(taken)
        reference = (self._against.reference if self._against
                     else self._own_reference(taken))
        made = tuple(
            profile.CpuClass(members, *(
                scores.combined(
                    self._members, taken, state if alone else BUSY, members,
                    reference, with_reference=self._against is not None)
                for state in (ALONE, BUSY)))
            for members in self._classes)
        disturbances.warn_of_intervals(made, self._effort.max_interval,
                                       self._notes)
        return Result(
            profile.Profile(
                created_at=_now(), host=socket.gethostname(),
                reference=reference, measured_in=self._setting.measured_in,
                fingerprint=self._fingerprint, cpu_classes=made,
                is_reference=self._against is None,
                provenance=self._notes.provenance),
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
        self._steps.take([(BUSY, self._setting.pcpus)], self._classes,
                         self._deadline_s(), taken)
        self._note_disturbances(taken)
        reference = self._against.reference
        return {members: scores.combined(self._members, taken, BUSY, members,
                                         reference, with_reference=False)
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

    def _alone(self) -> list[Step]:
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
        self._notes.provenance['classes_by_topology'] = str(len(looked_equal))
        for members in looked_equal:
            parts = [one for one in self._classes if one < members]
            if parts:
                self._notes.warn(
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

    def _own_reference(self, taken: Taken) -> profile.Reference:
        return profile.Reference(
            self._reference_name, _now(), scores.benchmarks_of(
                self._members, self._hashes, taken, self._classes[0]))

    def _look_at_host(self) -> None:
        """:raises CalibrationError: when guests are at work"""
        setting = self._setting
        self._load = disturbances.look_before(
            setting, self._fingerprint, self._notes)
        if not setting.beside_guests:
            self._load.refuse_guests(setting.pcpus)
        disturbances.warn_before(self._load, self._fingerprint, self._notes)

    def _note_disturbances(self, taken: Taken) -> None:
        disturbances.note_during(taken, self._members, self._classes,
                                 self._effort.max_interval, self._notes)

    def _tell_of_record(self) -> None:
        if self._record.discarded:
            LOG.info('Not gone on with: %s', self._record.discarded)
        elif self._record.found:
            LOG.info('Going on after %d measurements of an earlier '
                     'calibration; --restart would begin anew',
                     self._record.found)


def _hash(path: str) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec='seconds')
