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

"""Whether a profile still holds: a short measurement against a long one."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math

from nova_vqos import profile as profiles
from nova_vqos import verification
from nova_vqos.calibration import reference as references
from nova_vqos.calibration.benchmark import CalibrationError

#: As far as the profile goes.
OK = 'ok'
#: More than the intervals leave open, but no more than is tolerated.
DRIFTED = 'drifted'
#: The host is another one than was measured.
STALE = verification.STALE
#: Chance leaves more open than is tolerated: measure again, or for longer.
UNKNOWN = verification.UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """What became of a class of equal pCPUs.

    :ivar drift: of the coefficient, relative to the profile's
    :ivar open_by: how far it may be off by chance, relative to the profile's:
        half of the drift's 95 % interval
    :ivar verdict: OK, DRIFTED, STALE or UNKNOWN
    """

    pcpus: frozenset[int]
    promised: profiles.Measurement
    measured: profiles.Measurement
    drift: float
    open_by: float
    verdict: str


def classes(profile: profiles.Profile,
            looked_equal: Sequence[frozenset[int]],
            ) -> tuple[frozenset[int], ...]:
    """What to measure: the profile's classes of equal pCPUs.

    Some of them may look equal, and were measured to differ.

    :param looked_equal: the host's, as they are now
    :raises CalibrationError: when those of one class have become unlike
    """
    promised = tuple(c.pcpus for c in profile.cpu_classes)
    if not all(any(members <= one for one in looked_equal)
               for members in promised):
        raise CalibrationError(
            f'the profile has {_classes(promised)}, the host has '
            f'{_classes(looked_equal)}: calibrate it')
    return promised


def judge(profile: profiles.Profile,
          measured: Mapping[frozenset[int], profiles.Measurement],
          tolerance: float, *, beside_guests: bool = False) -> list[Finding]:
    """Hold a measurement against a profile, class by class, all pCPUs busy.

    :param measured: by class of equal pCPUs, the profile's
    :param tolerance: of the drift, relative to the profile's coefficient;
        what is open by chance comes on top
    :param beside_guests: whether guests were at work: what they take of
        caches, sibling threads and interrupts makes a host look slower than
        it is, by nobody knows how much, and never faster
    """
    promised = {c.pcpus: c.busy for c in profile.cpu_classes}
    found = [_judge(profile, pcpus, promised[pcpus], measured[pcpus],
                    tolerance) for pcpus in promised]
    return [dataclasses.replace(one, verdict=UNKNOWN)
            if beside_guests and one.drift < 0 and one.verdict == STALE
            else one for one in found]


def worst(findings: Iterable[Finding]) -> str:
    """:returns: the verdict on a profile, from those on its classes"""
    verdicts = {one.verdict for one in findings}
    return next(verdict for verdict in (STALE, UNKNOWN, DRIFTED, OK)
                if verdict in verdicts)


def _judge(profile: profiles.Profile, pcpus: frozenset[int],
           promised: profiles.Measurement, measured: profiles.Measurement,
           tolerance: float) -> Finding:
    drift = measured.coefficient / promised.coefficient - 1
    open_by = math.hypot(
        references.own_half_width(profile, promised),
        (measured.interval_high - measured.interval_low) / 2,
    ) / promised.coefficient
    verdict = (STALE if abs(drift) > open_by + tolerance
               else UNKNOWN if open_by > tolerance
               else DRIFTED if abs(drift) > open_by else OK)
    return Finding(pcpus, promised, measured, drift, open_by, verdict)


def _classes(found: Iterable[frozenset[int]]) -> str:
    return 'equal pCPUs ' + ' and '.join(map(profiles.format_pcpus, found))
