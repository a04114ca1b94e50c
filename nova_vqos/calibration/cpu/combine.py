# SPDX-License-Identifier: Apache-2.0
"""One coefficient from the scores of several benchmarks.

The coefficient is the geometric mean of those by each benchmark, with their
weights: see :func:`nova_vqos.units.mean_coefficient`. What a server of one
kind of work gets is off by as much as that kind's own coefficient is from the
mean, unless its flavor has ``vqos:work``.
"""

from collections.abc import Iterable, Sequence
import math

from nova_vqos import units
from nova_vqos.calibration import estimate
from nova_vqos.profile import cpu

#: Of work that is none of the benchmarks, so much is within :func:`off_by`.
COVERED = 0.9
#: Fewer kinds of work do not show how much kinds differ.
LEAST_KINDS = 4

# Kinds of work differ with heavier tails than a normal distribution's: so much
# makes sets of 4 to 13 kinds cover what they shall. By
# tools/bench/kinds_matrix.py; see the guide to calibration.
_TAILS = 1.2


def measurement(scores: Iterable[cpu.Score],
                reference: cpu.Reference) -> cpu.Measurement:
    """Combine the scores of a class of pCPUs in one state.

    The interval is that of a product of powers: relative half widths,
    weighted, add as squares. It says how certain the mean is, not how far one
    kind of work is from it: that are :func:`error` and :func:`off_by`.

    :param scores: one of each benchmark of the reference, in its order
    """
    scores = tuple(scores)
    coefficient = _mean(scores, reference)
    total = math.fsum(_weight(score, reference) for score in scores)
    half = coefficient * math.hypot(*(
        _weight(score, reference) / total * score.interval_width / 2
        for score in scores))
    return cpu.Measurement(
        coefficient, *cpu.interval(coefficient, half), scores)


def error(score: cpu.Score, measured: cpu.Measurement,
          reference: cpu.Reference) -> float | None:
    """How far from its promise a server of this kind of work is.

    Leave one out: as if the benchmark were no part of the coefficient, since
    a server's own work is none of the set either.

    :param score: of the measurement
    :returns: speed delivered over that promised, less 1; None where no other
        benchmark has a weight
    """
    others = [other for other in measured.scores
              if other.benchmark != score.benchmark
              and _weight(other, reference)]
    return (score.coefficient / _mean(others, reference) - 1
            if others else None)


def error_bound(measured: cpu.Measurement,
                reference: cpu.Reference) -> float | None:
    """:func:`off_by` of a measurement, by the benchmarks that count."""
    counting = [score for score in measured.scores
                if _weight(score, reference)]
    return off_by([score.coefficient for score in counting],
                  [_weight(score, reference) for score in counting])


def off_by(coefficients: Sequence[float],
           weights: Sequence[float]) -> float | None:
    """How far 90 % of other work is from the geometric mean.

    The root mean square of what leaving one out finds, as logarithms, times
    Student's t, as for the next one of a normal sample, times what their
    heavier tails make more of it.

    :param coefficients: of kinds of work, above 0
    :param weights: of these, above 0
    :returns: x: the work's own coefficient is between the mean divided by
        1 + x and the mean times 1 + x. None where there are too few kinds,
        counted by their weights (Kish's effective size)
    """
    total = math.fsum(weights)
    shares = [weight / total for weight in weights]
    kinds = 1 / math.fsum(share ** 2 for share in shares)
    # But for rounding.
    if kinds < LEAST_KINDS * (1 - 1e-9):
        return None
    mean = units.mean_coefficient(zip(shares, coefficients, strict=True))
    square = math.fsum(
        share * (math.log(coefficient / mean) / (1 - share)) ** 2
        for coefficient, share in zip(coefficients, shares, strict=True))
    return math.expm1(_TAILS * math.sqrt(square)
                      * estimate.student_t(kinds - 1, confidence=COVERED))


def _mean(scores: Iterable[cpu.Score],
          reference: cpu.Reference) -> float:
    return units.mean_coefficient(
        (_weight(score, reference), score.coefficient) for score in scores)


def _weight(score: cpu.Score, reference: cpu.Reference) -> float:
    return reference.benchmark(score.benchmark).weight
