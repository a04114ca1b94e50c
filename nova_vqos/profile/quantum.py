# SPDX-License-Identifier: Apache-2.0
"""The measured slices in a host's profile.

Imported and checked only when a profile's ``quantum_profile`` is read.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import statistics
import typing as ty

from nova_vqos import files
from nova_vqos.quantum import classes

#: Measured kinds of work, in the order of tables, and their quantum classes.
CLASSES: ty.Final[Mapping[str, str]] = {
    'io': classes.IO, 'spin': classes.SPIN, 'cache': classes.CACHE,
    'neutral': classes.NEUTRAL, 'polluter': classes.NEUTRAL}

#: A slice is better than the kernel's default.
BETTER = 'better'
#: The kernel's default is as good as any, or within noise of it.
AS_DEFAULT = 'as the default'
#: All slices are within noise of each other.
NO_DIFFERENCE = 'no difference'
#: The kernel's default is better than all others.
DEFAULT_BEST = 'default is best'
VERDICTS = (BETTER, AS_DEFAULT, NO_DIFFERENCE, DEFAULT_BEST)

MAX_RUNNABLE = 64
MAX_ROUNDS = 1000
MAX_MARGIN = 1000.0

_MOST_POINTS = 200
_MOST_NS = 1e12
_MOST_RUN_US = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Point:
    """The cost of a kind of work at one slice; less is better.

    :ivar slice_us: None: the kernel's default
    :ivar runnable: number of vCPUs that shared the pCPU
    :ivar values_ns: of each round: the 95th percentile of the time to answer
        a request; or the CPU time for a critical section, or for a node of a
        linked list
    :ivar medians_ns: of each round with requests: the median of that time
    :ivar mean_run_us: mean time that a vCPU ran without interruption; None: it
        was never interrupted
    :ivar disturbed: number of rounds in which other work took CPU time
    """

    slice_us: int | None
    runnable: int
    values_ns: tuple[float, ...]
    medians_ns: tuple[float, ...]
    mean_run_us: float | None
    disturbed: int

    @property
    def value_ns(self) -> float:
        return statistics.median(self.values_ns)

    @property
    def median_ns(self) -> float | None:
        return statistics.median(self.medians_ns) if self.medians_ns else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the rounds, relative to their median.

        :returns: None: one value has none
        """
        if len(self.values_ns) < 2:
            return None
        return statistics.stdev(self.values_ns) / self.value_ns


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """One kind of work at all slices.

    :ivar best_us: the best slice among equals; None: there is none
    :ivar verdict: one of :data:`VERDICTS`
    :ivar margin: values that differ by less, relatively, count as equal
    :ivar points: with those of the kernel's default for each number of
        runnable vCPUs
    """

    kind: str
    best_us: int | None
    verdict: str
    margin: float
    points: tuple[Point, ...]

    @property
    def runnables(self) -> tuple[int, ...]:
        return tuple(sorted({point.runnable for point in self.points}))

    def points_of(self, runnable: int) -> tuple[Point, ...]:
        """The points of a number of vCPUs, by slice, the default's first."""
        return tuple(sorted(
            (point for point in self.points if point.runnable == runnable),
            key=lambda point: point.slice_us or 0))

    def normalised(self, point: Point) -> float:
        """The cost of a point, relative to the kernel's default."""
        return point.value_ns / self.points_of(point.runnable)[0].value_ns


@dataclasses.dataclass(frozen=True, slots=True)
class QuantumProfile:
    """The measured slices of a host.

    :ivar created_at: ISO 8601, UTC
    :ivar curves: one of each measured kind
    :ivar unmeasured: reasons by kind that was not measured, for people to read
    :ivar provenance: notes on the measurement, for people to read
    """

    created_at: str
    curves: tuple[Curve, ...]
    unmeasured: Mapping[str, str]
    provenance: Mapping[str, str]

    @property
    def slices_us(self) -> dict[str, int]:
        """The recommended slices, by quantum class.

        Of those alone whose slice is a turn among equals, as measured.
        """
        return {CLASSES[curve.kind]: curve.best_us for curve in self.curves
                if curve.best_us is not None
                and CLASSES[curve.kind] in classes.POOLED}


def relative_costs(points: Iterable[Point]) -> dict[int | None, float]:
    """The costs of points by slice, relative to the kernel's default (None).

    :param points: with the default's for each number of runnable vCPUs
    :returns: geometric means over these numbers
    """
    points = tuple(points)
    defaults_ns = {point.runnable: point.value_ns for point in points
                   if point.slice_us is None}
    relative: dict[int | None, list[float]] = {}
    for point in points:
        relative.setdefault(point.slice_us, []).append(
            point.value_ns / defaults_ns[point.runnable])
    return {slice_us: statistics.geometric_mean(found)
            for slice_us, found in relative.items()}


def from_document(document: object) -> QuantumProfile:
    """Read the field ``quantum`` of a profile.

    :raises files.FileInvalid: when it is invalid
    """
    fields = files.Fields(document, 'quantum')
    found = QuantumProfile(
        created_at=fields.text('created_at'),
        curves=tuple(map(_curve, fields.children('curves', len(CLASSES)))),
        unmeasured=fields.texts('unmeasured'),
        provenance=fields.texts('provenance'))
    if len({curve.kind for curve in found.curves}) < len(found.curves):
        raise files.FileInvalid('quantum has the same kind twice')
    return found


def document(held: QuantumProfile) -> dict[str, ty.Any]:
    """The inverse of :func:`from_document`."""
    return {
        'created_at': held.created_at,
        'unmeasured': dict(held.unmeasured),
        'provenance': dict(held.provenance),
        'curves': [
            {'kind': curve.kind, 'verdict': curve.verdict,
             'margin': float(curve.margin),
             **({} if curve.best_us is None else {'best_us': curve.best_us}),
             'points': list(map(_point_document, curve.points))}
            for curve in held.curves]}


def _curve(fields: files.Fields) -> Curve:
    kind = fields.choice('kind', CLASSES)
    verdict = fields.choice('verdict', VERDICTS)
    best_us = _slice(fields, 'best_us')
    if best_us is not None and CLASSES[kind] not in classes.SPECIAL:
        raise fields.error('best_us', f'absent: any slice suits class '
                           f'{CLASSES[kind]}')
    points = tuple(map(_point, fields.children('points', _MOST_POINTS)))
    by_place = {(point.runnable, point.slice_us) for point in points}
    if len(by_place) < len(points):
        raise fields.error('points', 'each of another slice or number of '
                           'runnable vCPUs')
    if any((runnable, None) not in by_place for runnable, _slice in by_place):
        raise fields.error('points', "with one of the kernel's default for "
                           'each number of runnable vCPUs')
    slices = {slice_us for _runnable, slice_us in by_place}
    if len(points) != len(slices) * len({one.runnable for one in points}):
        raise fields.error('points', 'of the same slices with each number of '
                           'runnable vCPUs')
    if best_us is not None and best_us not in slices:
        raise fields.error('best_us', 'the slice of one of its points')
    return Curve(kind, best_us, verdict,
                 fields.number('margin', 0, MAX_MARGIN), points)


def _point(fields: files.Fields) -> Point:
    return Point(
        _slice(fields, 'slice_us'),
        _whole(fields, 'runnable', 1, MAX_RUNNABLE),
        _times(fields, 'values_ns'),
        _times(fields, 'medians_ns') if fields.has('medians_ns') else (),
        (fields.number('mean_run_us', 0, _MOST_RUN_US)
         if fields.has('mean_run_us') else None),
        _whole(fields, 'disturbed', 0, MAX_ROUNDS))


def _times(fields: files.Fields, key: str) -> tuple[float, ...]:
    found = fields.numbers(key, 1, MAX_ROUNDS)
    if max(found) > _MOST_NS:
        raise fields.error(key, f'a list of numbers up to {_MOST_NS:g}')
    return found


def _slice(fields: files.Fields, key: str) -> int | None:
    if not fields.has(key):
        return None
    return _whole(fields, key, classes.MIN_SLICE_US, classes.MAX_SLICE_US)


def _whole(fields: files.Fields, key: str, low: int, high: int) -> int:
    found = fields.number(key, low, high)
    if not found.is_integer():
        raise fields.error(key, f'a whole number from {low} to {high}')
    return int(found)


def _point_document(point: Point) -> dict[str, ty.Any]:
    return {
        **({} if point.slice_us is None else {'slice_us': point.slice_us}),
        'runnable': point.runnable,
        'values_ns': list(map(float, point.values_ns)),
        **({'medians_ns': list(map(float, point.medians_ns))}
           if point.medians_ns else {}),
        **({} if point.mean_run_us is None
           else {'mean_run_us': float(point.mean_run_us)}),
        'disturbed': point.disturbed}
