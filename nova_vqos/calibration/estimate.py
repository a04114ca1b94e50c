# SPDX-License-Identifier: Apache-2.0
"""Estimates from repeated measurements.

Scores of a benchmark scatter, and now and then a round is disturbed. The
estimate is the mean of the undisturbed ones, with a 95 % interval.

Speeds drift, too: rounds that follow each other are alike, and many of them
say little more than a few. So the interval is not that of independent rounds.
They are merged to the means of at most twelve batches, one after the other in
time (Law, Simulation Modeling and Analysis, on batch means). What is alike in
neighbouring batches, their autocorrelation r, leaves n (1 - r) / (1 + r) of n
batches independent, which is what Student's t is taken for. Few samples show
less autocorrelation than there is: r is corrected (Kendall, Note on bias in
the estimation of autocorrelation, Biometrika 41, 1954). The guide to
calibration has how often such an interval is right.
"""

from collections.abc import Iterable, Sequence
import dataclasses
import itertools
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

# More of them leave slow drift beside much noise unseen, fewer make intervals
# of mere noise wide.
_MOST_BATCHES = 12
# Kendall's correction divides by three less than there are.
_LEAST_CORRECTED = 4
# However much alike batches are: half an interval is then 3.7 standard
# deviations. So far the mean of as long a time is from that of the next where
# speed is a random walk, with four of five.
_LEAST_INDEPENDENT = 2.5
# Rounds that count as fewer than this part of them drift.
_DRIFT = 1 / 3


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of some samples, with its 95 % confidence interval.

    :ivar samples: all of them, in the order in which they were taken, those
        of one pCPU after those of the other
    :ivar outliers: how many of them were left out of the mean
    :ivar effective: how many independent samples would leave the mean as
        uncertain; of those that count
    """

    mean: float
    low: float
    high: float
    samples: tuple[float, ...]
    outliers: int
    effective: float

    @property
    def width(self) -> float:
        """Of the interval, relative to the mean."""
        return (self.high - self.low) / self.mean

    @property
    def cause(self) -> str:
        """Of the interval's width, for people: what the rounds show."""
        kept = without_outliers(self.samples)
        if self.effective < _DRIFT * len(kept):
            return (f'its speed drifts, {len(kept)} rounds count as '
                    f'{self.effective:.1f}')
        return (f'its {len(kept)} rounds scatter by '
                f'{statistics.stdev(kept) / self.mean:.1%}')


def estimate(samples: Sequence[float]) -> Estimate:
    """The mean of samples, without those that were clearly disturbed.

    :param samples: positive numbers, in the order in which they were taken
    :raises ValueError: when there are fewer than :data:`LEAST_SAMPLES`
    """
    return estimate_together([samples])


def estimate_together(series: Sequence[Sequence[float]]) -> Estimate:
    """The mean of samples that several pCPUs had at the same time.

    What all of them have at a time is no chance of one: twice as many pCPUs
    that drift together are no more certain. How unlike they are is no part of
    the interval.

    :param series: of each pCPU, over the same time; see :func:`estimate`
    :raises ValueError: when one has fewer than :data:`LEAST_SAMPLES`
    """
    shortest = min(map(len, series))
    if shortest < LEAST_SAMPLES:
        raise ValueError(f'{shortest} samples are too few for an interval, '
                         f'it needs {LEAST_SAMPLES}')
    samples = tuple(itertools.chain.from_iterable(series))
    kept = without_outliers(samples)
    mean = statistics.fmean(kept)
    batches = _batches(series, _undisturbed(samples))
    independent = _independent(batches)
    # Of the mean.
    variance = statistics.variance(batches) / independent
    half = student_t(independent - 1) * math.sqrt(variance)
    effective = float(len(kept))
    if variance:
        effective = min(effective, statistics.variance(kept) / variance)
    return Estimate(mean, mean - half, mean + half, samples,
                    len(samples) - len(kept), effective)


def _batches(series: Iterable[Sequence[float]],
             undisturbed: tuple[float, float]) -> list[float]:
    """Means of samples by time, the first ones first.

    :param undisturbed: the least and the most that count
    :returns: two or more: half of the samples count, at least, and no batch
        has as many
    """
    low, high = undisturbed
    number = min(_MOST_BATCHES, *map(len, series))
    batches: list[list[float]] = [[] for _ in range(number)]
    for samples in series:
        for place, sample in enumerate(samples):
            if low <= sample <= high:
                batches[place * number // len(samples)].append(sample)
    return [statistics.fmean(batch) for batch in batches if batch]


def _independent(batches: Sequence[float]) -> float:
    """How many independent ones leave their mean as uncertain."""
    number = len(batches)
    mean = statistics.fmean(batches)
    off = [batch - mean for batch in batches]
    square = math.fsum(one ** 2 for one in off)
    if not square:
        return number
    if number < _LEAST_CORRECTED:
        return min(number, _LEAST_INDEPENDENT)
    alike = math.fsum(one * following for one, following
                      in itertools.pairwise(off)) / square
    alike = min(1.0, max(0.0, (number * alike + 1) / (number - 3)))
    return max(_LEAST_INDEPENDENT, number * (1 - alike) / (1 + alike))


def student_t(degrees: float, comparisons: int = 1,
              confidence: float = _CONFIDENCE) -> float:
    """Student's t for a two-sided interval, by default of 95 %.

    Abramowitz and Stegun 26.7.5, within 0.2 % from 3 degrees of freedom on;
    for a hundred intervals, from 12; 3 % too low at 1.5.

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
    low, high = _undisturbed(samples)
    return [s for s in samples if low <= s <= high]


def _undisturbed(samples: Sequence[float]) -> tuple[float, float]:
    """The least and the most that is not clearly disturbed."""
    middle = statistics.median(samples)
    deviation = statistics.median(abs(s - middle) for s in samples)
    limit = _OUTLIER_DEVIATIONS * _MAD_TO_SIGMA * deviation
    kept = sum(abs(s - middle) <= limit for s in samples)
    # Where most samples are exactly equal, every other one looks far off.
    if not deviation or kept < LEAST_SAMPLES:
        return -math.inf, math.inf
    return middle - limit, middle + limit
