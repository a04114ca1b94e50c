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

"""The reference: what 100 CU are the speed of, and how to hand it on.

It travels in each profile that was measured against it, and by itself as a
small document, for other clouds and later years.
"""

from collections.abc import Mapping
import dataclasses
import datetime
import hashlib
import json
import math
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import version
from nova_vqos.calibration import combine
from nova_vqos.calibration.benchmark import CalibrationError

KIND = 'nova_vqos reference'
SCHEMA = 2
# Of the host that a document is exported from: what tells people and
# archaeologists which CPU it was.
_TOLD = ('cpu_vendor', 'cpu_model', 'microcode', 'kernel', 'emulator',
         'emulator_sha256')


@dataclasses.dataclass(frozen=True, slots=True)
class Yardstick:
    """What a host is measured against."""

    reference: profiles.Reference
    measured_in: str


def load(path: str) -> Yardstick:
    """Read a reference: from its document, or a profile measured against it.

    :raises ProfileError: when the file is neither
    """
    content = profiles.read(path)
    try:
        document = json.loads(content)
        if isinstance(document, dict) and 'kind' in document:
            return _from_document(profiles.Fields(document, ''))
        return of_profile(profiles.loads(content))
    except (ValueError, RecursionError, OverflowError,
            profiles.ProfileInvalid) as error:
        raise profiles.ProfileInvalid(f'{path}: {error}') from error


def of_profile(profile: profiles.Profile) -> Yardstick:
    """:returns: the reference that a profile was made against"""
    return Yardstick(profile.reference, profile.measured_in)


def own_half_width(profile: profiles.Profile,
                   measured: profiles.Measurement) -> float:
    """What is not known about a coefficient, but for the reference's part.

    :param measured: of this profile
    :returns: half of its 95 % interval without the reference's uncertainty
    """
    return _own_half_width(profile, measured, profile.reference.half_width)


def _own_half_width(profile: profiles.Profile,
                    measured: profiles.Measurement | profiles.Score,
                    reference_half_width: float) -> float:
    half = (measured.interval_high - measured.interval_low) / 2
    # In the profile of the reference itself there is nothing to subtract: its
    # interval is that of its own score.
    if profile.is_reference:
        return half
    return math.sqrt(max(0.0, half ** 2 - (
        measured.coefficient * reference_half_width) ** 2))


def check_comparable(found: Mapping[str, profiles.Profile]) -> None:
    """See that hosts were measured alike, and against the same reference.

    :param found: profiles by name
    :raises CalibrationError: when they were not
    """
    first_path, first = next(iter(found.items()))
    for path, profile in found.items():
        for what, mine, theirs in (
                ('against', first.reference, profile.reference),
                ('in the', first.measured_in, profile.measured_in)):
            if mine != theirs:
                name, other = (
                    (f'{one.name} of {one.created_at} '
                     f'({", ".join(b.identity for b in one.benchmarks)})'
                     if isinstance(one, profiles.Reference) else one)
                    for one in (mine, theirs))
                raise CalibrationError(
                    f'{first_path} was measured {what} {name}, {path} {what} '
                    f'{other}: only hosts that were measured alike can be '
                    'compared')


def document(profile: profiles.Profile, signed_off_by: str) -> str:
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
    content: dict[str, ty.Any] = {
        'kind': KIND, 'schema': SCHEMA,
        **profiles.reference_document(profile.reference),
        'measured_in': profile.measured_in,
        'exported': {
            'from_host': profile.host, 'from_profile': profile.id,
            'nova_vqos': version.version(),
            **{key: profile.fingerprint[key] for key in _TOLD
               if key in profile.fingerprint}},
        'signed_off_by': signed_off_by,
        'signed_off_at': datetime.datetime.now(datetime.UTC).isoformat(
            timespec='seconds'),
    }
    return json.dumps(content | {'id': _id(content)}, indent=2) + '\n'


def _from_document(fields: profiles.Fields) -> Yardstick:
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
    return Yardstick(profiles.reference_of(fields),
                     fields.text('measured_in'))


def _id(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def rescale(profile: profiles.Profile, onto: profiles.Profile,
            name: str) -> profiles.Profile:
    """Express a profile in units of another reference.

    As if the host had been measured against that one: its scores are the
    same, and so is the speed of each pCPU in work per second. Of its intervals
    the old reference's part is taken out, and the new one's is added.

    :param onto: the profile of the host that becomes the reference, by its
        first class of pCPUs; measured as this one was
    :param name: of the new reference
    :raises CalibrationError: when the two were not measured alike
    :raises ProfileInvalid: when the outcome cannot be a profile, as where
        one CPU is a thousand times as fast as the other
    """
    check_comparable({'the profile': profile, 'the new reference': onto})
    old = profile.reference
    new = profiles.Reference(name, onto.created_at, tuple(
        benchmark._replace(
            score=benchmark.score * score.coefficient,
            half_width=min(1.0, _own_half_width(
                onto, score, benchmark.half_width) / score.coefficient))
        for benchmark, score in zip(
            old.benchmarks, onto.cpu_classes[0].busy.scores, strict=True)))
    # To itself a reference is certain.
    its_own = profile.id == onto.id

    def rescaled(score: profiles.Score) -> profiles.Score:
        before, after = (one.benchmark(score.benchmark) for one in (old, new))
        factor = before.score / after.score
        own = factor * _own_half_width(profile, score, before.half_width)
        coefficient = factor * score.coefficient
        half = own if its_own else math.hypot(
            own, coefficient * after.half_width)
        low, high = profiles.interval(coefficient, half)
        return score._replace(coefficient=coefficient, interval_low=low,
                              interval_high=high)

    def combined(measured: profiles.Measurement) -> profiles.Measurement:
        return combine.measurement(map(rescaled, measured.scores), new)

    return profiles.loads(profiles.dumps(profile._replace(
        reference=new, is_reference=its_own,
        cpu_classes=tuple(one._replace(alone=combined(one.alone),
                                       busy=combined(one.busy))
                          for one in profile.cpu_classes),
        provenance={**profile.provenance, 'rescaled_from': profile.id,
                    'rescaled_from_reference': old.name})))
