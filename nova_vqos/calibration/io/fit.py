# SPDX-License-Identifier: Apache-2.0
"""The cost of a request, and of each byte of it, by least squares.

Of each size there are many samples, some of them disturbed. Their means make a
line, weighted by how certain each one is. A part of it that may be zero is
zero: noise is not billed.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import math
import statistics

from nova_vqos.calibration import estimate
from nova_vqos.profile.io import Part

#: Fewer sizes do not show how well a line fits.
LEAST_SIZES = 5

# A mean is never taken to be more certain than this share of the largest one.
_LEAST_ERROR = 1e-6


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """The cost of requests of all sizes.

    :ivar request: per request
    :ivar byte: per byte, on top
    :ivar means: in ns, by size in bytes: what was measured
    :ivar samples: how many there were in all
    :ivar outliers: how many of them were left out
    """

    request: Part
    byte: Part
    means: Mapping[int, float]
    samples: int
    outliers: int


def fit(samples: Mapping[int, Sequence[float]]) -> Line:
    """The line through what was measured.

    :param samples: in ns, by size in bytes; estimate.LEAST_SAMPLES or more
        of LEAST_SIZES sizes or more
    :raises ValueError: when there are fewer
    """
    if len(samples) < LEAST_SIZES:
        raise ValueError(f'{len(samples)} sizes are too few for a line, it '
                         f'needs {LEAST_SIZES}')
    points = [_point(size, samples[size]) for size in sorted(samples)]
    request, byte = _line(points)
    if byte.low <= 0:
        flat = _constant(points)
        request = flat if flat.low > 0 else dataclasses.replace(flat, value=0)
        byte = dataclasses.replace(byte, value=0)
    elif request.low <= 0:
        request = dataclasses.replace(request, value=0)
        byte = _proportional(points)
    return Line(request, byte, {point.size: point.mean for point in points},
                sum(map(len, samples.values())),
                sum(point.outliers for point in points))


@dataclasses.dataclass(frozen=True, slots=True)
class _Point:
    size: int
    mean: float
    error: float
    outliers: int

    def weight(self, least_error: float) -> float:
        return max(self.error, least_error) ** -2


def _point(size: int, samples: Sequence[float]) -> _Point:
    if len(samples) < estimate.LEAST_SAMPLES:
        raise ValueError(f'{len(samples)} samples of size {size} are too '
                         f'few, it needs {estimate.LEAST_SAMPLES}')
    kept = estimate.without_outliers(samples)
    return _Point(size, statistics.fmean(kept),
                  statistics.stdev(kept) / math.sqrt(len(kept)),
                  len(samples) - len(kept))


def _weights(points: Sequence[_Point]) -> list[float]:
    least = _LEAST_ERROR * max(max(abs(p.mean) for p in points), 1e-3)
    return [point.weight(least) for point in points]


def _line(points: Sequence[_Point]) -> tuple[Part, Part]:
    """:returns: cost per request, and per byte"""
    weights = _weights(points)
    total = math.fsum(weights)
    middle = _sum(weights, (p.size for p in points)) / total
    mean = _sum(weights, (p.mean for p in points)) / total
    spread = _sum(weights, ((p.size - middle) ** 2 for p in points))
    slope = _sum(weights, ((p.size - middle) * p.mean
                           for p in points)) / spread
    start = mean - slope * middle
    scale = _scale(points, weights, start, slope, 2)
    return (_part(start, scale * math.sqrt(1 / total + middle**2 / spread)),
            _part(slope, scale / math.sqrt(spread)))


def _constant(points: Sequence[_Point]) -> Part:
    weights = _weights(points)
    total = math.fsum(weights)
    mean = _sum(weights, (p.mean for p in points)) / total
    scale = _scale(points, weights, mean, 0, 1)
    return _part(mean, scale / math.sqrt(total))


def _proportional(points: Sequence[_Point]) -> Part:
    weights = _weights(points)
    spread = _sum(weights, (p.size ** 2 for p in points))
    slope = _sum(weights, (p.size * p.mean for p in points)) / spread
    scale = _scale(points, weights, 0, slope, 1)
    return _part(slope, scale / math.sqrt(spread))


def _scale(points: Sequence[_Point], weights: Sequence[float], start: float,
           slope: float, parameters: int) -> float:
    """Half width of an interval of 95 %, in standard errors.

    Where the points are further from the line than their own errors explain,
    that much wider (Birge's ratio).
    """
    degrees = len(points) - parameters
    square = _sum(weights, ((p.mean - start - slope * p.size) ** 2
                            for p in points)) / degrees
    return estimate.student_t(degrees) * max(1.0, math.sqrt(square))


def _part(value: float, half: float) -> Part:
    return Part(value, value - half, value + half)


def _sum(weights: Iterable[float], values: Iterable[float]) -> float:
    return math.fsum(w * v for w, v in zip(weights, values, strict=True))
