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

"""One coefficient from the scores of several benchmarks.

The coefficient is the geometric mean of those by each benchmark, with their
weights: the only mean that comes out the same whichever host is the reference
(Fleming and Wallace, How Not to Lie With Statistics, CACM 29(3), 1986). What
a server of one kind of work gets is off by as much as that kind's own
coefficient is from the mean.
"""

from collections.abc import Iterable
import math

from nova_vqos import profile as profiles


def measurement(scores: Iterable[profiles.Score],
                reference: profiles.Reference) -> profiles.Measurement:
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
    return profiles.Measurement(
        coefficient, *profiles.interval(coefficient, half), scores)


def error(score: profiles.Score, measured: profiles.Measurement,
          reference: profiles.Reference) -> float | None:
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


def _mean(scores: Iterable[profiles.Score],
          reference: profiles.Reference) -> float:
    weighted = [(_weight(score, reference), math.log(score.coefficient))
                for score in scores]
    return math.exp(math.fsum(weight * logarithm
                              for weight, logarithm in weighted)
                    / math.fsum(weight for weight, _ in weighted))


def _weight(score: profiles.Score, reference: profiles.Reference) -> float:
    return reference.benchmark(score.benchmark).weight
