# SPDX-License-Identifier: Apache-2.0
"""Whether a host has drifted from its profile, by a short measurement."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math

from nova_vqos import cpuset
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import reference
from nova_vqos.profile import cpu
from nova_vqos.profile import model
from nova_vqos.profile import validity

OK = validity.OK
DRIFTED = validity.DRIFTED
STALE = validity.STALE
UNKNOWN = validity.UNKNOWN


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """The drift of a class of equal pCPUs.

    :ivar kind: a benchmark; '': all those that count
    :ivar drift: of the coefficient, relative to the profile's
    :ivar open_by: how far it may be off by chance, relative to the profile's:
        half of the drift's 95 % interval
    :ivar verdict: OK, DRIFTED, STALE or UNKNOWN
    """

    pcpus: frozenset[int]
    promised: cpu.Measurement | cpu.Score
    measured: cpu.Measurement | cpu.Score
    drift: float
    open_by: float
    verdict: str
    kind: str = ''


def classes(profile: model.Profile,
            looked_equal: Sequence[frozenset[int]],
            ) -> tuple[frozenset[int], ...]:
    """The classes to measure: those of the profile.

    Some of them may look equal, though the calibration found them to differ.

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


def judge(profile: model.Profile,
          measured: Mapping[frozenset[int], cpu.Measurement],
          tolerance: float, *, beside_guests: bool = False) -> list[Finding]:
    """Compare a measurement of all busy pCPUs with a profile, by class.

    :param measured: by class of equal pCPUs, the profile's
    :param tolerance: of the drift, relative to the profile's coefficient;
        what is open by chance comes on top
    :param beside_guests: whether guests were at work: they take caches,
        sibling threads and interrupts, and make a host look slower than it
        is, by an unknown amount, and never faster
    """
    return _beside_guests([
        _judge(c.pcpus, c.busy, reference.own_half_width(profile, c.busy),
               measured[c.pcpus], tolerance)
        for c in profile.cpu_classes], beside_guests)


def judge_kind(profile: model.Profile, kind: str,
               measured: Mapping[frozenset[int], cpu.Score],
               tolerance: float, *,
               beside_guests: bool = False) -> list[Finding]:
    """Compare a measurement by one benchmark with a profile, by class.

    :param kind: name of the benchmark
    :param measured, tolerance, beside_guests: see :func:`judge`
    """
    known = profile.reference.benchmark(kind)
    found = []
    for c in profile.cpu_classes:
        promised = c.busy.score(kind)
        found.append(dataclasses.replace(
            _judge(c.pcpus, promised, reference.own_half_width(
                profile, promised, known.half_width), measured[c.pcpus],
                tolerance), kind=kind))
    return _beside_guests(found, beside_guests)


def worst(findings: Iterable[Finding]) -> str:
    """:returns: the verdict on a profile, from those on its classes"""
    verdicts = {one.verdict for one in findings}
    return next(verdict for verdict in (STALE, UNKNOWN, DRIFTED, OK)
                if verdict in verdicts)


def _beside_guests(found: Iterable[Finding],
                   beside_guests: bool) -> list[Finding]:
    return [dataclasses.replace(one, verdict=UNKNOWN)
            if beside_guests and one.drift < 0 and one.verdict == STALE
            else one for one in found]


def _judge(pcpus: frozenset[int], promised: cpu.Measurement | cpu.Score,
           promised_half_width: float,
           measured: cpu.Measurement | cpu.Score,
           tolerance: float) -> Finding:
    """
    :param promised_half_width: of its interval, without the reference's part
    """
    drift = measured.coefficient / promised.coefficient - 1
    open_by = math.hypot(
        promised_half_width,
        (measured.interval_high - measured.interval_low) / 2,
    ) / promised.coefficient
    verdict = (STALE if abs(drift) > open_by + tolerance
               else UNKNOWN if open_by > tolerance
               else DRIFTED if abs(drift) > open_by else OK)
    return Finding(pcpus, promised, measured, drift, open_by, verdict)


def _classes(found: Iterable[frozenset[int]]) -> str:
    return 'equal pCPUs ' + ' and '.join(map(cpuset.format_pcpus, found))
