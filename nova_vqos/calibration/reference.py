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
from nova_vqos.calibration.benchmark import CalibrationError

#: In the provenance of the reference's own profile.
IS_REFERENCE = 'is_reference'
KIND = 'nova_vqos reference'
SCHEMA = 1
# Of the host that a document is exported from: what tells people and
# archaeologists which CPU it was.
_TOLD = ('cpu_vendor', 'cpu_model', 'microcode', 'kernel', 'emulator',
         'emulator_sha256')


@dataclasses.dataclass(frozen=True, slots=True)
class Yardstick:
    """What a host is measured against.

    :ivar half_width: of the reference's own interval, relative to its score
    :ivar program_hash: of the benchmark's program on the reference
    :ivar round_events: events of a round in its guests; None: not known, or
        measured in none
    """

    reference: profiles.Reference
    measured_in: str
    half_width: float
    program_hash: str
    round_events: int | None = None


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
    events = profile.provenance.get('round_events')
    return Yardstick(
        profile.reference, profile.measured_in,
        reference_half_width(profile),
        profile.provenance.get('benchmark_sha256', ''),
        int(events) if events and events.isdecimal() else None)


def own_half_width(profile: profiles.Profile,
                   measured: profiles.Measurement) -> float:
    """What is not known about a coefficient, but for the reference's part.

    :param measured: of this profile
    :returns: half of its 95 % interval without the reference's uncertainty
    """
    half = (measured.interval_high - measured.interval_low) / 2
    # In the profile of the reference itself there is nothing to subtract: its
    # interval is that of its own score.
    reference = (0.0 if IS_REFERENCE in profile.provenance
                 else reference_half_width(profile))
    return math.sqrt(max(
        0.0, half ** 2 - (measured.coefficient * reference) ** 2))


def reference_half_width(profile: profiles.Profile) -> float:
    """The uncertainty of what a profile was measured against.

    :returns: half of the interval of the reference's score, relative to it
    :raises ProfileInvalid: when its provenance has nonsense there
    """
    text = profile.provenance.get('reference_half_width', '0')
    try:
        width = float(text)
    except ValueError:
        width = math.nan
    if not 0 <= width <= 1:
        raise profiles.ProfileInvalid(
            f'provenance.reference_half_width is {text!r}, it must be a '
            'number from 0 to 1')
    return width


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
                    (f'{one.name} of {one.created_at} ({one.benchmark})'
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
    if IS_REFERENCE not in profile.provenance:
        raise CalibrationError(
            f'the profile of {profile.host} is not that of the reference, '
            f'{profile.reference.name}: export it from there')
    found = of_profile(profile)
    reference = found.reference
    benchmark: dict[str, ty.Any] = {
        'identity': reference.benchmark, 'unit': reference.unit,
        'score': reference.score, 'half_width': found.half_width,
        'program_sha256': found.program_hash or 'unknown'}
    if found.round_events is not None:
        benchmark['round_events'] = found.round_events
    content: dict[str, ty.Any] = {
        'kind': KIND, 'schema': SCHEMA, 'name': reference.name,
        'created_at': reference.created_at, 'measured_in': found.measured_in,
        # A list, since a reference may be the scores of several one day.
        'benchmarks': [benchmark],
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
    (benchmark,) = fields.children('benchmarks', 1)
    return Yardstick(
        profiles.Reference(
            name=fields.text('name'), benchmark=benchmark.text('identity'),
            unit=benchmark.text('unit'),
            score=benchmark.number('score', 1e-9, 1e15),
            created_at=fields.text('created_at')),
        fields.text('measured_in'), benchmark.number('half_width', 0, 1),
        benchmark.text('program_sha256'),
        int(benchmark.number('round_events', 1, 1e12))
        if benchmark.has('round_events') else None)


def _id(content: Mapping[str, object]) -> str:
    canonical = json.dumps(content, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def rescale(profile: profiles.Profile, onto: profiles.Profile,
            name: str) -> profiles.Profile:
    """Express a profile in units of another reference.

    As if the host had been measured against that one: its score is the same,
    and so is the speed of each pCPU in work per second. Of its interval the
    old reference's part is taken out, and the new one's is added.

    :param onto: the profile of the host that becomes the reference, by its
        first class of pCPUs; measured as this one was
    :param name: of the new reference
    :raises CalibrationError: when the two were not measured alike
    :raises ProfileInvalid: when the outcome cannot be a profile, as where
        one CPU is a thousand times as fast as the other
    """
    check_comparable({'the profile': profile, 'the new reference': onto})
    new = onto.cpu_classes[0].busy
    half_width = own_half_width(onto, new) / new.coefficient
    # To itself a reference is certain.
    its_own = profile.id == onto.id

    def rescaled(measured: profiles.Measurement) -> profiles.Measurement:
        coefficient = measured.coefficient / new.coefficient
        own = own_half_width(profile, measured) / measured.coefficient
        half = coefficient * (own if its_own else math.hypot(own, half_width))
        return measured._replace(
            coefficient=coefficient,
            interval_low=max(coefficient - half,
                             coefficient * profiles.LEAST_LOW),
            interval_high=coefficient + half)

    old = profile.reference
    provenance = {**profile.provenance,
                  'reference_half_width': f'{half_width:.9g}',
                  'rescaled_from': profile.id,
                  'rescaled_from_reference': old.name}
    provenance.pop(IS_REFERENCE, None)
    if its_own:
        provenance[IS_REFERENCE] = 'yes'
    return profiles.loads(profiles.dumps(profile._replace(
        reference=old._replace(name=name, score=old.score * new.coefficient,
                               created_at=onto.created_at),
        cpu_classes=tuple(one._replace(alone=rescaled(one.alone),
                                       busy=rescaled(one.busy))
                          for one in profile.cpu_classes),
        provenance=provenance)))
