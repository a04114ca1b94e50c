# SPDX-License-Identifier: Apache-2.0
"""Two speeds in the samples of one measurement.

A pCPU whose clock changes, or whose memory is now on one NUMA node and then
on the other, has rounds of two speeds. Their mean is the speed of no round,
and the rounds of the rarer one look like outliers. Rounds that something
disturbed scatter instead: none of them is like another.

Samples, by their logarithms, have two modes where their largest gap

* is larger than chance leaves between samples of one mode: of uniform ones
  five measurements of ten thousand have such a gap (Pyke, Spacings, JRSS B
  27(3), 1965), of normal ones fewer;
* lies between centres that are far apart for the scatter around them (Ashman,
  Bird and Zepf, Detecting bimodality in astronomical datasets, AJ 108, 1994);
* divides clusters of like scatter, as one cause makes it: disturbed rounds
  scatter more than the others.
"""

from collections.abc import Sequence
import math
import statistics
import typing as ty

from nova_vqos.calibration import estimate

#: Fewer of the rounds, by number and by share, are single disturbances.
LEAST_ROUNDS = 4
LEAST_SHARE = 0.07
#: A coefficient that is off by less is as good as others.
LEAST_RATIO = 1.05
#: Of a mean, by a mode that is left out: what the interval of a calibration is
#: to be narrower than.
MOST_SHIFT = 0.02

# Single disturbed rounds at either end count in no range.
_TRIMMED = 2
_GAP_CHANCE = 5e-4
# Ashman's D: two modes are separate from 2 on. Here it is more, so that a few
# disturbed rounds do not look like a mode.
_LEAST_D = 6.0
# Of the rarer mode's scatter to that of the other, or to what rounds of a
# quiet host have.
_MOST_SCATTER = 2.5
_QUIET_SCATTER = 0.01


class Modes(ty.NamedTuple):
    """The two modes of some samples.

    :ivar share: of the samples in the rarer mode, of 1; of the slower one
        where both have as many
    :ivar ratio: of its median to that of the other mode: below 1 it is slower
    :ivar boundary: a score between the two
    """

    share: float
    ratio: float
    boundary: float

    def __str__(self) -> str:
        return (f'{self.share:.0%} of the rounds ran {self.difference} than '
                'the others')

    @property
    def shift(self) -> float:
        """How far the rarer mode moves the mean of all rounds, relatively."""
        return self.share * abs(self.ratio - 1)

    @property
    def difference(self) -> str:
        """Of the rarer mode from the other, for people."""
        return (f'{1 / self.ratio:.2f} times slower' if self.ratio < 1
                else f'{self.ratio:.2f} times faster')


def find(samples: Sequence[float]) -> Modes | None:
    """The two modes of samples.

    :param samples: positive numbers
    :returns: None where they have one mode, or are too few to show two
    """
    logs = sorted(map(math.log, samples))
    least = max(LEAST_ROUNDS, math.ceil(LEAST_SHARE * len(logs)))
    if len(logs) < 2 * least:
        return None
    split = max(range(least, len(logs) - least + 1),
                key=lambda place: logs[place] - logs[place - 1])
    slow, fast = logs[:split], logs[split:]
    rarer, other = sorted((slow, fast), key=len)
    if not (_is_gap(fast[0] - slow[-1], logs) and _are_modes(rarer, other)):
        return None
    return Modes(
        len(rarer) / len(logs),
        math.exp(statistics.median(rarer) - statistics.median(other)),
        math.exp((slow[-1] + fast[0]) / 2))


def _is_gap(gap: float, logs: Sequence[float]) -> bool:
    """Whether no mode has such a gap in it.

    :param logs: sorted
    """
    spacings = len(logs) - 2 * _TRIMMED - 1
    inner = logs[-1 - _TRIMMED] - logs[_TRIMMED]
    # Bonferroni, for any of them: one of n uniform spacings is more than x of
    # their sum with a probability of (1 - x) ** (n - 1).
    return gap > 0 and spacings * max(
        0.0, 1 - gap / inner) ** (spacings - 1) < _GAP_CHANCE


def _are_modes(rarer: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two clusters of logarithms are apart, and alike in scatter."""
    apart = abs(statistics.median(rarer) - statistics.median(other))
    scatters = _scatter(rarer), _scatter(other)
    return (apart >= math.log(LEAST_RATIO)
            and apart >= _LEAST_D * math.hypot(*scatters) / math.sqrt(2)
            and scatters[0] <= _MOST_SCATTER * max(scatters[1],
                                                   _QUIET_SCATTER))


def _scatter(cluster: Sequence[float]) -> float:
    """The standard deviation, without single wild samples."""
    return statistics.stdev(estimate.without_outliers(cluster))
