# SPDX-License-Identifier: Apache-2.0
"""The reference, whose speed 100 CU are, and its document.

The reference travels in each profile that was measured against it, and by
itself as a small document, for other clouds and later years.
"""

from collections.abc import Mapping
import dataclasses
import hashlib
import json
import math
import typing as ty

from nova_vqos import files
from nova_vqos import utc
from nova_vqos import version
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import combine
from nova_vqos.profile import cpu
from nova_vqos.profile import document
from nova_vqos.profile import model

KIND = 'nova_vqos reference'
SCHEMA = 2
# Of the host that a document is exported from, so that people can identify
# its CPU later.
_EXPORTED = ('cpu_vendor', 'cpu_model', 'microcode', 'kernel', 'emulator',
             'emulator_sha256')


@dataclasses.dataclass(frozen=True, slots=True)
class Yardstick:
    """What a host is measured against."""

    reference: cpu.Reference
    measured_in: str


def load(path: str) -> Yardstick:
    """Read a reference: from its document, or a profile measured against it.

    :raises files.FileError: when the file is neither
    """
    content = files.read(path)
    try:
        fields = json.loads(content)
        if isinstance(fields, dict) and 'kind' in fields:
            return _from_document(files.Fields(fields, ''))
        return of_profile(document.loads(content))
    except (ValueError, RecursionError, OverflowError,
            files.FileInvalid) as error:
        raise files.FileInvalid(f'{path}: {error}') from error


def of_profile(profile: model.Profile) -> Yardstick:
    """:returns: the reference that a profile was made against"""
    return Yardstick(profile.reference, profile.measured_in)


def own_half_width(profile: model.Profile,
                   measured: cpu.Measurement | cpu.Score,
                   reference_half_width: float | None = None) -> float:
    """The uncertainty of a coefficient without the reference's part.

    :param measured: of this profile
    :param reference_half_width: of a score's benchmark; None: of all of them
    :returns: half of its 95 % interval without the reference's uncertainty
    """
    # The upper one: the lower end is above 0, however wide the interval is.
    half = measured.interval_high - measured.coefficient
    # In the profile of the reference itself there is nothing to subtract: its
    # interval is that of its own score.
    if profile.is_reference:
        return half
    if reference_half_width is None:
        reference_half_width = profile.reference.half_width
    return math.sqrt(max(0.0, half ** 2 - (
        measured.coefficient * reference_half_width) ** 2))


def are_same(one: cpu.Reference, other: cpu.Reference) -> bool:
    """Whether two references are one, of which either may lack some kinds.

    A kind of work is added to one profile after the other. Benchmarks that
    count must be in both; one that is only reported may be in one of them.
    """
    if (one.name, one.created_at) != (other.name, other.created_at):
        return False
    mine, theirs = ({known.name: known for known in each.benchmarks}
                    for each in (one, other))
    return (all(mine[name] == theirs[name]
                for name in mine.keys() & theirs.keys())
            and not any((mine | theirs)[name].weight
                        for name in mine.keys() ^ theirs.keys()))


def check_comparable(found: Mapping[str, model.Profile]) -> None:
    """See that hosts were measured alike, and against the same reference.

    :param found: profiles by name
    :raises CalibrationError: when they were not
    """
    first_path, first = next(iter(found.items()))
    for path, profile in found.items():
        for what, mine, theirs, is_same in (
                ('against', first.reference, profile.reference,
                 are_same(first.reference, profile.reference)),
                ('in the', first.measured_in, profile.measured_in,
                 first.measured_in == profile.measured_in)):
            if not is_same:
                name, other = (
                    (f'{one.name} of {one.created_at} '
                     f'({", ".join(b.identity for b in one.benchmarks)})'
                     if isinstance(one, cpu.Reference) else one)
                    for one in (mine, theirs))
                raise CalibrationError(
                    f'{first_path} was measured {what} {name}, {path} {what} '
                    f'{other}: only hosts that were measured alike can be '
                    'compared')


def export(profile: model.Profile, signed_off_by: str) -> str:
    """The text of the document of a reference.

    :param profile: the reference's own: which CPU it was, and which build of
        the benchmark it ran, others do not know
    :param signed_off_by: who vouches for it
    :raises CalibrationError: when it is another host's
    """
    if not profile.is_reference:
        raise CalibrationError(
            f'the profile of {profile.host} is not that of the reference, '
            f'{profile.reference.name}: export it from there')
    return dumps(of_profile(profile), signed_off_by, {
        'from_host': profile.host, 'from_profile': profile.id,
        **{key: profile.fingerprint[key] for key in _EXPORTED
           if key in profile.fingerprint}})


def dumps(yardstick: Yardstick, signed_off_by: str,
          made_from: Mapping[str, str]) -> str:
    """The text of the document of a reference.

    :param signed_off_by: who vouches for it
    :param made_from: what people may want to know of its origin later
    """
    content: dict[str, ty.Any] = {
        'kind': KIND, 'schema': SCHEMA,
        **cpu.reference_document(yardstick.reference),
        'measured_in': yardstick.measured_in,
        'exported': {**made_from, 'nova_vqos': version.version()},
        'signed_off_by': signed_off_by,
        'signed_off_at': utc.text(),
    }
    return json.dumps(content | {'id': _id(content)}, indent=2) + '\n'


def _from_document(fields: files.Fields) -> Yardstick:
    if fields.text('kind') != KIND:
        raise fields.error('kind', repr(KIND))
    if fields.number('schema', -math.inf, math.inf) != SCHEMA:
        raise fields.error('schema', f'{SCHEMA}: export it with this version')
    expected = _id(fields.without('id'))
    if fields.text('id') != expected:
        raise fields.error('id', f'{expected}: the content was changed since '
                           f'{fields.text("signed_off_by")} signed it off')
    if fields.text('measured_in') not in ('host', 'guest'):
        raise fields.error('measured_in', 'host or guest')
    return Yardstick(cpu.reference_of(fields),
                     fields.text('measured_in'))


def _id(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def rescale(profile: model.Profile, onto: model.Profile,
            name: str) -> model.Profile:
    """Express a profile in units of another reference.

    As if the host had been measured against that one: its scores are the
    same, and so is the speed of each pCPU in work per second. Of its intervals
    the old reference's part is taken out, and the new one's is added.

    :param onto: the profile of the host that becomes the reference, by its
        first class of pCPUs; measured as this one was
    :param name: of the new reference
    :raises CalibrationError: when the two were not measured alike, or the new
        reference lacks a kind of work of the profile
    :raises files.FileInvalid: when the outcome cannot be a profile, as where
        one CPU is a thousand times as fast as the other
    """
    check_comparable({'the profile': profile, 'the new reference': onto})
    old = profile.reference
    lacking = [known.name for known in old.benchmarks
               if not onto.reference.has(known.name)]
    if lacking:
        raise CalibrationError(
            f'the profile of {profile.host} has {", ".join(lacking)}, that '
            f'of {onto.host} does not: add it there with the command '
            'add-kind first')
    onto_busy = onto.cpu_classes[0].busy
    new = cpu.Reference(name, onto.created_at, tuple(
        benchmark._replace(
            score=benchmark.score * score.coefficient,
            half_width=min(1.0, own_half_width(
                onto, score, benchmark.half_width) / score.coefficient))
        for benchmark in old.benchmarks
        for score in (onto_busy.score(benchmark.name),)))
    # To itself a reference is certain.
    its_own = profile.id == onto.id

    def rescaled(score: cpu.Score) -> cpu.Score:
        before, after = (one.benchmark(score.benchmark) for one in (old, new))
        # Divided, and not by the scores: a reference is exactly 1, and its
        # host has no unit less for a rounding.
        unit = onto_busy.score(score.benchmark).coefficient
        own = own_half_width(profile, score, before.half_width) / unit
        coefficient = score.coefficient / unit
        half = own if its_own else math.hypot(
            own, coefficient * after.half_width)
        low, high = cpu.interval(coefficient, half)
        return score._replace(coefficient=coefficient, interval_low=low,
                              interval_high=high)

    def combined(measured: cpu.Measurement) -> cpu.Measurement:
        return combine.measurement(map(rescaled, measured.scores), new)

    return document.loads(document.dumps(profile._replace(
        reference=new, is_reference=its_own,
        cpu_classes=tuple(one._replace(alone=combined(one.alone),
                                       busy=combined(one.busy))
                          for one in profile.cpu_classes),
        provenance={**profile.provenance, 'rescaled_from': profile.id,
                    'rescaled_from_reference': old.name})))
