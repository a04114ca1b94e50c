# SPDX-License-Identifier: Apache-2.0
"""Estimates from repeated measurements.

Scores of a benchmark scatter, and now and then a round is disturbed. The
estimate is the mean of the undisturbed ones, with Student's 95 % interval.
"""

from collections.abc import Sequence
import dataclasses
import math
import statistics

#: Fewer rounds do not show their own scatter.
LEAST_SAMPLES = 4

# Iglewicz and Hoaglin, How to Detect and Handle Outliers: a sample is one when
# it is further from the median than this many median absolute deviations,
# scaled to a normal distribution's standard deviation.
_OUTLIER_DEVIATIONS = 3.5
_MAD_TO_SIGMA = 1.4826

_CONFIDENCE = 0.95


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of some samples, with its 95 % confidence interval.

    :ivar samples: all of them, in the order in which they were taken
    :ivar outliers: how many of them were left out of the mean
    """

    mean: float
    low: float
    high: float
    samples: tuple[float, ...]
    outliers: int

    @property
    def width(self) -> float:
        """Of the interval, relative to the mean."""
        return (self.high - self.low) / self.mean


def estimate(samples: Sequence[float]) -> Estimate:
    """The mean of samples, without those that were clearly disturbed.

    :param samples: positive numbers
    :raises ValueError: when there are fewer than :data:`LEAST_SAMPLES`
    """
    if len(samples) < LEAST_SAMPLES:
        raise ValueError(f'{len(samples)} samples are too few for an '
                         f'interval, it needs {LEAST_SAMPLES}')
    kept = without_outliers(samples)
    mean = statistics.fmean(kept)
    half = (student_t(len(kept) - 1) * statistics.stdev(kept)
            / math.sqrt(len(kept)))
    return Estimate(mean, mean - half, mean + half, tuple(samples),
                    len(samples) - len(kept))


def student_t(degrees: float, comparisons: int = 1,
              confidence: float = _CONFIDENCE) -> float:
    """Student's t for a two-sided interval, by default of 95 %.

    Abramowitz and Stegun 26.7.5, within 0.2 % from 3 degrees of freedom on;
    for a hundred intervals, from 12.

    :param comparisons: how many intervals are to hold together (Bonferroni)
    """
    z = normal_quantile(comparisons, confidence)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160)
    return z + math.fsum(term / degrees**power
                         for power, term in enumerate(terms, 1))


def normal_quantile(comparisons: int,
                    confidence: float = _CONFIDENCE) -> float:
    """For so many two-sided intervals that are to hold together.

    :param confidence: that they hold, by default 95 %
    """
    return statistics.NormalDist().inv_cdf(
        1 - (1 - confidence) / (2 * comparisons))


def without_outliers(samples: Sequence[float]) -> list[float]:
    """Those samples that are not clearly disturbed, in their order.

    :param samples: one or more
    """
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    limit = _OUTLIER_DEVIATIONS * _MAD_TO_SIGMA * deviation
    kept = [s for s in samples if abs(s - middle) <= limit]
    # Where most samples are exactly equal, every other one looks far off.
    return kept if deviation and len(kept) >= LEAST_SAMPLES else list(samples)
