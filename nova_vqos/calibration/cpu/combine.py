# SPDX-License-Identifier: Apache-2.0
"""One coefficient from the scores of several benchmarks.

The coefficient is the geometric mean of those by each benchmark, with their
weights: the only mean that comes out the same whichever host is the reference
(Fleming and Wallace, How Not to Lie With Statistics, CACM 29(3), 1986). What
a server of one kind of work gets is off by as much as that kind's own
coefficient is from the mean.
"""

from collections.abc import Iterable
import math

from nova_vqos.profile import cpu


def measurement(scores: Iterable[cpu.Score],
                reference: cpu.Reference) -> cpu.Measurement:
    """Combine the scores of a class of pCPUs in one state.

    The interval is that of a product of powers: relative half widths,
    weighted, add as squares. It says how certain the mean is, not how far one
    kind of work is from it: that is :func:`error`.

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


def _mean(scores: Iterable[cpu.Score],
          reference: cpu.Reference) -> float:
    weighted = [(_weight(score, reference), math.log(score.coefficient))
                for score in scores]
    return math.exp(math.fsum(weight * logarithm
                              for weight, logarithm in weighted)
                    / math.fsum(weight for weight, _ in weighted))


def _weight(score: cpu.Score, reference: cpu.Reference) -> float:
    return reference.benchmark(score.benchmark).weight
