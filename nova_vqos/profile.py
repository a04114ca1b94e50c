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

"""The host profile: what a host's pCPUs were measured to be worth.

A YAML document, written by ``nova-vqos-calibrate`` and read by the compute
driver, the agent and libvirt's hook. Of YAML it is the part that is JSON too:
libyaml's parser ends the process at a deeply nested document, and importing
any takes a third of the time that the hook has. For the hook's sake there are
named tuples here, no dataclasses, and rare imports are late
(tools/bench/hook.py).
"""

import functools
import json
import math
import os
import stat
import types
import typing as ty

if ty.TYPE_CHECKING:
    from nova_vqos import io_profile
    from nova_vqos.billing import costs

SCHEMA = 2
DEFAULT_PATH = '/etc/nova-vqos/profile.yaml'
MAX_FILE_BYTES = 4 * 1024 * 1024
#: An interval's lower end must be positive, however wide it is: this much of
#: the coefficient.
LEAST_LOW = 0.001
#: Of a benchmark in the coefficient.
MAX_WEIGHT = 1000.0

_MAX_PCPU = 8191
_MAX_CLASSES = 64
_MAX_BENCHMARKS = 20
_MAX_SAMPLES = 10_000
_MAX_TEXT = 256
_COEFFICIENTS = (0.001, 1000.0)
_BENCHMARK_TEXTS = ('name', 'kind', 'identity', 'unit', 'program_sha256')


class ProfileError(Exception):
    """A profile that cannot be used."""


class ProfileMissing(ProfileError):
    """There is no profile at this path."""


class ProfileUnsafe(ProfileError):
    """Somebody else than its owner could have written the profile."""


class ProfileInvalid(ProfileError):
    """The content is not that of a profile."""


class Benchmark(ty.NamedTuple):
    """A kind of work that hosts are compared by, and the reference's score.

    :ivar name: of the plugin, or what the operator called a command
    :ivar kind: of work, for people
    :ivar identity: program, version and parameters: scores of different ones
        are never compared
    :ivar unit: of the score
    :ivar program_sha256: which build it was, on the reference
    :ivar weight: in the coefficient, relative to that of others; 0: reported
        only
    :ivar score: of the reference: its work per CPU second
    :ivar half_width: of the score's 95 % confidence interval, relative to it
    :ivar round_events: of a round in the reference's guests; None: it was
        measured in none
    """

    name: str
    kind: str
    identity: str
    unit: str
    program_sha256: str
    weight: float
    score: float
    half_width: float
    round_events: int | None = None


class Reference(ty.NamedTuple):
    """The CPU that 100 CU are the speed of.

    :ivar created_at: when it was measured, ISO 8601, UTC
    """

    name: str
    created_at: str
    benchmarks: tuple[Benchmark, ...]

    @property
    def half_width(self) -> float:
        """Its part of the interval of a combined coefficient, relative."""
        total = math.fsum(b.weight for b in self.benchmarks)
        return math.hypot(*(b.weight / total * b.half_width
                            for b in self.benchmarks))

    def benchmark(self, name: str) -> Benchmark:
        """One by its name.

        :raises ProfileInvalid: when there is none
        """
        for found in self.benchmarks:
            if found.name == name:
                return found
        raise ProfileInvalid(
            f'benchmark {name!r} is none of the reference: '
            f'{", ".join(b.name for b in self.benchmarks)}')


class Score(ty.NamedTuple):
    """A coefficient by one benchmark, with its 95 % confidence interval.

    :ivar benchmark: its name
    :ivar outliers: how many of the samples are left out of the coefficient
    :ivar samples: scores that it was computed from, work per CPU second
    """

    benchmark: str
    coefficient: float
    interval_low: float
    interval_high: float
    outliers: int
    samples: tuple[float, ...]

    @property
    def interval_width(self) -> float:
        """Relative to the coefficient."""
        return (self.interval_high - self.interval_low) / self.coefficient


class Measurement(ty.NamedTuple):
    """A coefficient, with its 95 % confidence interval.

    :ivar scores: those that it was combined from, and those reported only
    """

    coefficient: float
    interval_low: float
    interval_high: float
    scores: tuple[Score, ...]

    @property
    def interval_width(self) -> float:
        """Relative to the coefficient."""
        return (self.interval_high - self.interval_low) / self.coefficient


class CpuClass(ty.NamedTuple):
    """Equal pCPUs, measured one alone and all pCPUs of the host busy."""

    pcpus: frozenset[int]
    alone: Measurement
    busy: Measurement


class _ProfileFields(ty.NamedTuple):
    """The calibration of one host, see :class:`Profile`.

    :ivar created_at: ISO 8601, UTC
    :ivar host: name of the host that was measured
    :ivar measured_in: ``host``, or ``guest`` of the host's hypervisor
    :ivar fingerprint: what was measured, see :func:`host_fingerprint`
    :ivar is_reference: whether this host is the reference itself
    :ivar provenance: what was seen while measuring, for people to read
    :ivar io: what I/O costs the kernel, as in the document, not looked at
        yet: see :attr:`Profile.io_profile`; None: not measured
    """

    created_at: str
    host: str
    reference: Reference
    measured_in: str
    fingerprint: ty.Mapping[str, str]
    cpu_classes: tuple[CpuClass, ...]
    is_reference: bool = False
    provenance: ty.Mapping[str, str] = types.MappingProxyType({})
    io: ty.Mapping[str, ty.Any] | None = None


class Profile(_ProfileFields):
    """The calibration of one host."""

    @functools.cached_property
    def id(self) -> str:
        """Names this content, and no other: 16 hexadecimal digits."""
        import hashlib
        canonical = json.dumps(_content(self), sort_keys=True)
        return hashlib.sha256(canonical.encode()).hexdigest()[:16]

    @functools.cached_property
    def pcpus(self) -> frozenset[int]:
        """The pCPUs that were measured."""
        return frozenset[int]().union(*(c.pcpus for c in self.cpu_classes))

    @property
    def tick_us(self) -> int:
        """Length of the scheduler's tick; the longest there is if unknown."""
        try:
            return int(self.fingerprint['tick_us'])
        except (KeyError, ValueError):
            return 10_000

    @functools.cached_property
    def io_profile(self) -> 'io_profile.IoProfile | None':
        """What I/O costs the kernel, with all that was measured of it.

        :returns: None: it was not measured
        :raises ProfileInvalid: when the field ``io`` is nonsense
        """
        from nova_vqos import io_profile
        return None if self.io is None else io_profile.from_document(self.io)

    @functools.cached_property
    def io_costs(self) -> 'costs.IoCosts | None':
        """What the kernel's part of I/O is billed by.

        :returns: None: it was not measured
        :raises ProfileInvalid: when the field ``io`` is nonsense
        """
        return None if self.io_profile is None else self.io_profile.costs

    def coefficient(self, pcpu: int) -> float:
        """The coefficient of a pCPU while all pCPUs are busy.

        It is the busy one since the promise has to hold on a full host.

        :raises ProfileInvalid: when the pCPU was not measured
        """
        for cpu_class in self.cpu_classes:
            if pcpu in cpu_class.pcpus:
                return cpu_class.busy.coefficient
        raise ProfileInvalid(
            f'pCPU {pcpu} is not in the profile, which has '
            f'{format_pcpus(self.pcpus)}: calibrate it')

    def slowest(self, pcpus: ty.Iterable[int]) -> float:
        """The least coefficient among some pCPUs.

        :raises ProfileInvalid: when one was not measured, or none is given
        """
        return min(self._coefficients(pcpus))

    def fastest(self, pcpus: ty.Iterable[int]) -> float:
        """The greatest coefficient among some pCPUs.

        :raises ProfileInvalid: when one was not measured, or none is given
        """
        return max(self._coefficients(pcpus))

    def _coefficients(self, pcpus: ty.Iterable[int]) -> list[float]:
        coefficients = [self.coefficient(pcpu) for pcpu in pcpus]
        if not coefficients:
            raise ProfileInvalid('no pCPU is left for servers to share')
        return coefficients


def load(path: str = DEFAULT_PATH) -> Profile:
    """Read a profile.

    :raises ProfileMissing: when there is none
    :raises ProfileUnsafe: when others than root and the reader may write it
    :raises ProfileInvalid: when it is no profile, or of another schema
    """
    content = read(path)
    try:
        return loads(content)
    except ProfileInvalid as error:
        raise ProfileInvalid(f'{path}: {error}') from error


def read(path: str) -> bytes:
    """Read the file of a profile, or of what is as critical.

    :raises ProfileMissing: when there is none
    :raises ProfileUnsafe: when others than root and the reader may write it
    :raises ProfileInvalid: when it cannot be read, or is too large
    """
    try:
        with open(path, 'rb') as file:
            _check_safe(path, os.fstat(file.fileno()))
            content = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError as error:
        raise ProfileMissing(
            f'{path} does not exist: run nova-vqos-calibrate cpu') from error
    except OSError as error:
        raise ProfileInvalid(f'{path} cannot be read: {error}') from error
    if len(content) > MAX_FILE_BYTES:
        raise ProfileInvalid(
            f'{path} has more than {MAX_FILE_BYTES} bytes')
    return content


def loads(content: str | bytes) -> Profile:
    """Read a profile from its text.

    :raises ProfileInvalid: when it is no profile, or of another schema
    """
    try:
        return _from_document(Fields(json.loads(content), ''))
    except (ValueError, RecursionError) as error:
        raise ProfileInvalid(f'not the JSON of a profile: {error}') from error
    except OverflowError as error:
        raise ProfileInvalid(f'a number is too large: {error}') from error


def dumps(profile: Profile) -> str:
    """The text of a profile."""
    import re
    # The id comes last: a text that was cut off is none, wherever it was cut.
    text = json.dumps(_content(profile) | {'id': profile.id}, indent=2) + '\n'
    # Thousands of samples are no reading matter: one line for each list.
    return re.sub(r'\[\n[-+.,\deE\s]+\]',
                  lambda found: ' '.join(found[0].split()), text)


def store(profile: Profile, path: str = DEFAULT_PATH) -> None:
    """Write a profile so that readers see the old one or the new, no part.

    It is read back before anybody else sees it.

    :raises OSError: when it cannot be written; the old one is then untouched
    :raises ProfileInvalid: when what was written is not that profile; the old
        one is untouched then, too
    """
    def check(written: str) -> None:
        try:
            found = loads(read(written))
        except ProfileError as error:
            raise ProfileInvalid(
                f'{path} was not written, what would have been there cannot '
                f'be used: {error}') from error
        if found.id != profile.id:
            raise ProfileInvalid(
                f'{path} was not written, what would have been there reads as '
                f'another profile: {found.id} for {profile.id}')

    write(dumps(profile), path, check)


def write(text: str, path: str,
          check: ty.Callable[[str], None] | None = None) -> None:
    """Write a file that all may read, whole or not at all.

    :param check: is given the path of the file before it gets its name, and
        keeps it from that by raising
    :raises OSError: when it cannot be written; an old one is then untouched
    """
    import tempfile
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, mode=0o755, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=directory, prefix='.profile-')
    try:
        with os.fdopen(handle, 'w') as file:
            file.write(text)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        if check is not None:
            check(temporary)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def staleness(profile: Profile, fingerprint: ty.Mapping[str, str], *,
              max_interval: float = 0.05) -> list[str]:
    """Why a profile does not hold on a host; nothing where it does.

    :param fingerprint: of the host as it is now
    :param max_interval: widest confidence interval of a coefficient,
        relative to it
    """
    reasons = [
        f'{key} was {was!r} and is {fingerprint.get(key, "unknown")!r}'
        for key, was in sorted(profile.fingerprint.items())
        if fingerprint.get(key, 'unknown') != was]
    reasons += [
        f'the interval of pCPUs {format_pcpus(c.pcpus)} is '
        f'{c.busy.interval_width:.1%} wide, more than {max_interval:.1%}'
        for c in profile.cpu_classes
        if c.busy.interval_width > max_interval]
    return reasons


def interval(coefficient: float, half_width: float) -> tuple[float, float]:
    """The ends of an interval, of which the lower one must be positive.

    :param half_width: in units of the coefficient
    """
    return (max(coefficient - half_width, coefficient * LEAST_LOW),
            coefficient + half_width)


def parse_pcpus(text: str) -> frozenset[int]:
    """pCPUs from the kernel's list format, such as ``0-3,8``.

    :raises ValueError: when it is something else
    """
    pcpus: set[int] = set()
    for part in text.split(','):
        first, dash, last = part.strip().partition('-')
        if not (first.isdecimal() and (last.isdecimal() or not dash)):
            raise ValueError(f'{text!r} is no list of pCPUs such as 0-3,8')
        low, high = int(first), int(last or first)
        if not low <= high <= _MAX_PCPU:
            raise ValueError(
                f'{part!r} in {text!r} is no range of pCPUs up to {_MAX_PCPU}')
        pcpus.update(range(low, high + 1))
    return frozenset(pcpus)


def format_pcpus(pcpus: ty.Iterable[int]) -> str:
    """The inverse of :func:`parse_pcpus`."""
    ranges: list[list[int]] = []
    for pcpu in sorted(pcpus):
        if ranges and ranges[-1][1] == pcpu - 1:
            ranges[-1][1] = pcpu
        else:
            ranges.append([pcpu, pcpu])
    return ','.join(str(low) if low == high else f'{low}-{high}'
                    for low, high in ranges)


def _check_safe(path: str, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise ProfileUnsafe(f'{path} is not a regular file')
    if status.st_mode & 0o022:
        raise ProfileUnsafe(
            f'{path} has mode {stat.S_IMODE(status.st_mode):04o}, others '
            'than its owner may write it: chmod go-w')
    if status.st_uid not in (0, os.geteuid()):
        raise ProfileUnsafe(
            f'{path} belongs to user {status.st_uid}, it must belong to root '
            f'or to its reader, {os.geteuid()}')


class Fields:
    """Checked access to a mapping of the document; errors name the field."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise ProfileInvalid(
                f'{where or "the document"} is no mapping of fields')
        self._fields = value
        self._where = where

    def _get(self, key: str, kind: type | tuple[type, ...],
             expected: str) -> ty.Any:
        value = self._fields.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise self.error(key, expected)
        return value

    def _name(self, key: str) -> str:
        return f'{self._where}.{key}'.lstrip('.')

    def error(self, key: str, expected: str) -> ProfileInvalid:
        name = self._name(key)
        if key not in self._fields:
            return ProfileInvalid(f'{name} is missing, it must be {expected}')
        shown = repr(self._fields[key])
        if len(shown) > 80:
            shown = f'{shown[:76]}...'
        return ProfileInvalid(f'{name} is {shown}, it must be {expected}')

    def text(self, key: str) -> str:
        expected = f'a text of 1 to {_MAX_TEXT} characters'
        value: str = self._get(key, str, expected)
        if not 0 < len(value) <= _MAX_TEXT:
            raise self.error(key, expected)
        return value

    def texts(self, key: str) -> dict[str, str]:
        fields = self.child(key)
        if len(fields._fields) > 100:
            raise self.error(key, 'at most 100 texts')
        return {name: fields.text(name) for name in fields._fields}

    def number(self, key: str, low: float, high: float) -> float:
        expected = f'a number from {low:g} to {high:g}'
        value = float(self._get(key, (int, float), expected))
        if not low <= value <= high:
            raise self.error(key, expected)
        return value

    def truth(self, key: str) -> bool:
        # NOTE: to _get a bool is no number, and so nothing.
        if not isinstance(self._fields.get(key), bool):
            raise self.error(key, 'true or false')
        return bool(self._fields[key])

    def numbers(self, key: str, least: int, most: int) -> tuple[float, ...]:
        expected = f'a list of {least} to {most} positive numbers'
        values = self._get(key, list, expected)
        # NOTE: no Python for each number: the hook waits for thousands. A sum
        # is as finite as its parts.
        if (not least <= len(values) <= most
                or not {int, float}.issuperset(map(type, values))
                or not math.isfinite(math.fsum(values)) or min(values) <= 0):
            raise self.error(key, expected)
        return tuple(map(float, values))

    def signed_numbers(self, key: str, count: int,
                       most: float) -> tuple[float, ...]:
        expected = f'a list of {count} numbers from {-most:g} to {most:g}'
        values = self._get(key, list, expected)
        if len(values) != count or not all(
                type(value) in (int, float) and -most <= value <= most
                for value in values):
            raise self.error(key, expected)
        return tuple(map(float, values))

    def pcpus(self, key: str) -> frozenset[int]:
        expected = 'a list of pCPUs such as 0-3,8'
        value = self._fields.get(key)
        try:
            # NOTE: YAML reads a list of one pCPU as a number.
            return parse_pcpus(str(value) if isinstance(value, int)
                               else self._get(key, str, expected))
        except ValueError as error:
            raise self.error(key, expected) from error

    def children(self, key: str, most: int) -> list['Fields']:
        expected = f'a list of 1 to {most} mappings'
        values = self._get(key, list, expected)
        if not 0 < len(values) <= most:
            raise self.error(key, expected)
        return [Fields(value, f'{self._name(key)}[{i}]')
                for i, value in enumerate(values)]

    def child(self, key: str) -> 'Fields':
        return Fields(self._fields.get(key), self._name(key))

    def has(self, key: str) -> bool:
        return key in self._fields

    def is_filled(self, key: str) -> bool:
        return self._fields.get(key) != []

    def mapping(self, key: str) -> dict[str, ty.Any] | None:
        """One that is not looked at; None: there is none."""
        value = self._fields.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.error(key, 'a mapping of fields')
        return value

    def without(self, key: str) -> dict[str, object]:
        return {k: v for k, v in self._fields.items() if k != key}


def _from_document(fields: Fields) -> Profile:
    schema = fields.number('schema', -math.inf, math.inf)
    if schema != SCHEMA:
        raise fields.error('schema', f'{SCHEMA}: calibrate with this version')
    measured_in = fields.text('measured_in')
    if measured_in not in ('host', 'guest'):
        raise fields.error('measured_in', 'host or guest')
    reference = reference_of(fields.child('reference'))
    profile = Profile(
        created_at=fields.text('created_at'),
        host=fields.text('host'),
        reference=reference,
        measured_in=measured_in,
        fingerprint=fields.texts('fingerprint'),
        cpu_classes=tuple(
            CpuClass(pcpus=child.pcpus('pcpus'),
                     alone=_measurement(child.child('alone'), reference),
                     busy=_measurement(child.child('busy'), reference))
            for child in fields.children('cpu_classes', _MAX_CLASSES)),
        is_reference=fields.truth('is_reference'),
        provenance=(fields.texts('provenance')
                    if fields.has('provenance') else {}),
        io=fields.mapping('io'))
    if len(profile.pcpus) != sum(len(c.pcpus) for c in profile.cpu_classes):
        raise ProfileInvalid('a pCPU is in several of cpu_classes')
    if fields.text('id') != profile.id:
        raise fields.error('id', f'{profile.id}: the content was changed or '
                           'cut off since it was measured')
    return profile


def reference_of(fields: Fields) -> Reference:
    """A reference from its fields in a document.

    :raises ProfileInvalid: when they are none of a reference
    """
    reference = Reference(
        name=fields.text('name'), created_at=fields.text('created_at'),
        benchmarks=tuple(
            Benchmark(
                **{key: child.text(key) for key in _BENCHMARK_TEXTS},
                weight=child.number('weight', 0, MAX_WEIGHT),
                score=child.number('score', 1e-9, 1e15),
                half_width=child.number('half_width', 0, 1),
                round_events=(int(child.number('round_events', 1, 1e12))
                              if child.has('round_events') else None))
            for child in fields.children('benchmarks', _MAX_BENCHMARKS)))
    names = [b.name for b in reference.benchmarks]
    if len(set(names)) < len(names):
        raise fields.error('benchmarks', 'each of another name')
    if not any(b.weight for b in reference.benchmarks):
        raise fields.error('benchmarks', 'at least one with a weight above 0')
    return reference


def reference_document(reference: Reference) -> dict[str, ty.Any]:
    """The inverse of :func:`reference_of`."""
    return {
        'name': reference.name, 'created_at': reference.created_at,
        'benchmarks': [
            {key: getattr(b, key) for key in _BENCHMARK_TEXTS}
            | {key: float(getattr(b, key))
               for key in ('weight', 'score', 'half_width')}
            | ({} if b.round_events is None
               else {'round_events': b.round_events})
            for b in reference.benchmarks]}


def _measurement(fields: Fields, reference: Reference) -> Measurement:
    scores = tuple(
        Score(child.text('benchmark'), *_interval(child),
              int(child.number('outliers', 0, _MAX_SAMPLES)),
              child.numbers('samples', 1, _MAX_SAMPLES))
        for child in fields.children('scores', _MAX_BENCHMARKS))
    if ([s.benchmark for s in scores]
            != [b.name for b in reference.benchmarks]):
        raise fields.error('scores', 'one of each benchmark of the reference, '
                           'in its order')
    return Measurement(*_interval(fields), scores)


def _interval(fields: Fields) -> tuple[float, float, float]:
    """:returns: a coefficient, and the interval that it must be in"""
    low, high = fields.numbers('interval', 2, 2)
    coefficient = fields.number('coefficient', *_COEFFICIENTS)
    if not low <= coefficient <= high:
        raise fields.error('interval', 'around the coefficient')
    return coefficient, low, high


def _content(profile: Profile) -> dict[str, ty.Any]:
    return {
        'schema': SCHEMA,
        'created_at': profile.created_at,
        'host': profile.host,
        'measured_in': profile.measured_in,
        'reference': reference_document(profile.reference),
        'is_reference': profile.is_reference,
        'fingerprint': dict(profile.fingerprint),
        'provenance': dict(profile.provenance),
        'cpu_classes': [
            {'pcpus': format_pcpus(c.pcpus),
             'alone': _measurement_document(c.alone),
             'busy': _measurement_document(c.busy)}
            for c in profile.cpu_classes],
        # One without it is named as it always was.
        **({} if profile.io is None else {'io': dict(profile.io)}),
    }


def _measurement_document(measurement: Measurement) -> dict[str, ty.Any]:
    return _interval_document(measurement) | {'scores': [
        {'benchmark': score.benchmark, **_interval_document(score),
         'outliers': score.outliers,
         'samples': list(map(float, score.samples))}
        for score in measurement.scores]}


def _interval_document(found: Measurement | Score) -> dict[str, ty.Any]:
    return {'coefficient': float(found.coefficient),
            'interval': [float(found.interval_low),
                         float(found.interval_high)]}
