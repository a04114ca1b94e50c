# SPDX-License-Identifier: Apache-2.0
"""The speed of a host's pCPUs, and the reference that it is relative to."""

import math
import typing as ty

from nova_vqos import cpuset
from nova_vqos import files

#: Of a benchmark in the coefficient.
MAX_WEIGHT = 1000.0
MAX_BENCHMARKS = 20
#: Least lower end of an interval, relative to the coefficient: it must be
#: positive, however wide the interval is.
LEAST_LOW = 0.001

_TEXTS = ('name', 'kind', 'identity', 'unit', 'program_sha256')
_MAX_SAMPLES = 10_000
_COEFFICIENTS = (0.001, 1000.0)
_CLOCKS_MHZ = (1.0, 100_000.0)


class Benchmark(ty.NamedTuple):
    """A benchmark, with the score of the reference.

    :ivar name: of the plugin, or the operator's name of a command
    :ivar kind: of work, for people
    :ivar identity: program, version and parameters: scores with different
        identities are never compared
    :ivar unit: of the score
    :ivar program_sha256: of the program on the reference
    :ivar weight: in the coefficient, relative to other weights; 0: the score
        is only reported
    :ivar score: of the reference: work per CPU second
    :ivar half_width: of the score's 95 % confidence interval, relative to it
    :ivar round_events: of a round in the reference's guests; None: it was not
        measured in guests
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
    """The CPU whose speed is 100 CU.

    :ivar created_at: time of its measurement, ISO 8601, UTC
    """

    name: str
    created_at: str
    benchmarks: tuple[Benchmark, ...]

    @property
    def half_width(self) -> float:
        """Its part of the interval of a coefficient, relative to that."""
        total = math.fsum(b.weight for b in self.benchmarks)
        return math.hypot(*(b.weight / total * b.half_width
                            for b in self.benchmarks))

    def has(self, name: str) -> bool:
        """Whether a benchmark of this name is one of it."""
        return any(found.name == name for found in self.benchmarks)

    def benchmark(self, name: str) -> Benchmark:
        """A benchmark by its name.

        :raises files.FileInvalid: when there is none
        """
        for found in self.benchmarks:
            if found.name == name:
                return found
        raise files.FileInvalid(
            f'benchmark {name!r} is not one of the reference: '
            f'{", ".join(b.name for b in self.benchmarks)}')


def reference_of(fields: files.Fields) -> Reference:
    """A reference from its fields in a document.

    :raises files.FileInvalid: when they are invalid
    """
    reference = Reference(
        name=fields.text('name'), created_at=fields.text('created_at'),
        benchmarks=tuple(
            Benchmark(
                **{key: child.text(key) for key in _TEXTS},
                weight=child.number('weight', 0, MAX_WEIGHT),
                score=child.number('score', 1e-9, 1e15),
                half_width=child.number('half_width', 0, 1),
                round_events=(int(child.number('round_events', 1, 1e12))
                              if child.has('round_events') else None))
            for child in fields.children('benchmarks', MAX_BENCHMARKS)))
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
            {key: getattr(b, key) for key in _TEXTS}
            | {key: float(getattr(b, key))
               for key in ('weight', 'score', 'half_width')}
            | ({} if b.round_events is None
               else {'round_events': b.round_events})
            for b in reference.benchmarks]}


class Score(ty.NamedTuple):
    """A coefficient by one benchmark, with its 95 % confidence interval.

    :ivar benchmark: its name
    :ivar outliers: number of samples left out of the coefficient
    :ivar samples: work per CPU second
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

    :ivar scores: of all benchmarks, with those that are only reported
    """

    coefficient: float
    interval_low: float
    interval_high: float
    scores: tuple[Score, ...]

    @property
    def interval_width(self) -> float:
        """Relative to the coefficient."""
        return (self.interval_high - self.interval_low) / self.coefficient

    @property
    def kinds(self) -> dict[str, float]:
        """The coefficient of each kind of work, by its name."""
        return {score.benchmark: score.coefficient for score in self.scores}

    def score(self, benchmark: str) -> Score:
        """The coefficient by one benchmark, by its name.

        :raises files.FileInvalid: when there is none
        """
        for found in self.scores:
            if found.benchmark == benchmark:
                return found
        raise files.FileInvalid(
            f'the profile has no score of {benchmark!r}, it has '
            f'{", ".join(self.kinds)}')


class CpuClass(ty.NamedTuple):
    """Equal pCPUs, measured alone, and with all pCPUs of the host busy.

    :ivar clock_mhz: their mean clock while all were busy; None: not known
    """

    pcpus: frozenset[int]
    alone: Measurement
    busy: Measurement
    clock_mhz: float | None = None


def interval(coefficient: float, half_width: float) -> tuple[float, float]:
    """The ends of an interval, of which the lower is positive.

    :param half_width: in units of the coefficient
    """
    return (max(coefficient - half_width, coefficient * LEAST_LOW),
            coefficient + half_width)


def class_of(fields: files.Fields,
             reference: Reference) -> CpuClass:
    """A class of pCPUs from its fields in a document.

    :raises files.FileInvalid: when they are invalid
    """
    return CpuClass(pcpus=fields.parsed('pcpus', cpuset.parse_pcpus,
                                        'a list of pCPUs such as 0-3,8'),
                    alone=_measurement(fields.child('alone'), reference),
                    busy=_measurement(fields.child('busy'), reference),
                    clock_mhz=(fields.number('clock_mhz', *_CLOCKS_MHZ)
                               if fields.has('clock_mhz') else None))


def class_document(cpu_class: CpuClass) -> dict[str, ty.Any]:
    """The inverse of :func:`class_of`."""
    return {'pcpus': cpuset.format_pcpus(cpu_class.pcpus),
            'alone': _document(cpu_class.alone),
            'busy': _document(cpu_class.busy),
            # A missing one does not change the profile's id.
            **({} if cpu_class.clock_mhz is None
               else {'clock_mhz': float(cpu_class.clock_mhz)})}


def _measurement(fields: files.Fields,
                 reference: Reference) -> Measurement:
    scores = tuple(
        Score(child.text('benchmark'), *_interval(child),
              int(child.number('outliers', 0, _MAX_SAMPLES)),
              child.numbers('samples', 1, _MAX_SAMPLES))
        for child in fields.children('scores', MAX_BENCHMARKS))
    if ([s.benchmark for s in scores]
            != [b.name for b in reference.benchmarks]):
        raise fields.error('scores', 'one of each benchmark of the reference, '
                           'in its order')
    return Measurement(*_interval(fields), scores)


def _interval(fields: files.Fields) -> tuple[float, float, float]:
    """:returns: a coefficient, and its interval"""
    low, high = fields.numbers('interval', 2, 2)
    coefficient = fields.number('coefficient', *_COEFFICIENTS)
    if not low <= coefficient <= high:
        raise fields.error('interval', 'around the coefficient')
    return coefficient, low, high


def _document(measurement: Measurement) -> dict[str, ty.Any]:
    return _interval_document(measurement) | {'scores': [
        {'benchmark': score.benchmark, **_interval_document(score),
         'outliers': score.outliers,
         'samples': list(map(float, score.samples))}
        for score in measurement.scores]}


def _interval_document(found: Measurement | Score) -> dict[str, ty.Any]:
    return {'coefficient': float(found.coefficient),
            'interval': [float(found.interval_low),
                         float(found.interval_high)]}
