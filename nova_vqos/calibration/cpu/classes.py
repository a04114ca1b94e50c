# SPDX-License-Identifier: Apache-2.0
"""Which of the pCPUs that look equal are equally fast.

The features of a pCPU that the kernel knows make its class; it does not know
all of them. So measurements count, too: a class whose pCPUs differ is divided,
but two are never made one. pCPUs that look unlike may well become unlike some
day, by their clock for instance.

Two pCPUs differ when the means of their scores do, by all benchmarks together
(with their weights, as in the coefficient), by more than chance leaves open
and a tolerance besides, and no benchmark has it the other way round. What
chance leaves open follows from Welch's t-test at 5 %, for all comparisons
together (Bonferroni).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
import dataclasses
import math
import statistics
import typing as ty

from nova_vqos.calibration import estimate

#: By how much pCPUs that look equal may differ, beyond what chance leaves
#: open, relative to the slower one. Cores of two kinds differ by more; other
#: work on the host, and the order in which its caches fill, make for less.
TOLERANCE = 0.1

Item = ty.TypeVar('Item')


@dataclasses.dataclass(frozen=True, slots=True)
class Speed:
    """How fast a pCPU is, or several that are taken for one.

    :ivar logarithms: of the mean score by each benchmark that counts, times
        its share of the weights
    :ivar variances: of these
    :ivar degrees: of freedom, of these
    """

    logarithms: tuple[float, ...]
    variances: tuple[float, ...]
    degrees: tuple[int, ...]

    @property
    def logarithm(self) -> float:
        """Of the weighted geometric mean."""
        return math.fsum(self.logarithms)

    def differs(self, other: 'Speed', *, tolerance: float,
                comparisons: int = 1) -> bool:
        """Whether one is faster than the other, beyond chance.

        :param tolerance: beyond what that leaves open, relative to the slower
        :param comparisons: how many are made in all, of which all together
            are to be right with the confidence of one
        """
        apart = [mine - theirs for mine, theirs in zip(
            self.logarithms, other.logarithms, strict=True)]
        if min(apart) < 0 < max(apart):
            return False
        variances = (*self.variances, *other.variances)
        variance = math.fsum(variances)
        left_open = 0.0
        if variance:
            # Welch and Satterthwaite.
            degrees = variance ** 2 / math.fsum(
                one ** 2 / freedom for one, freedom in zip(
                    variances, (*self.degrees, *other.degrees), strict=True))
            left_open = (estimate.student_t(degrees, comparisons)
                         * math.sqrt(variance))
        return abs(math.fsum(apart)) > left_open + math.log1p(tolerance)


def speed(scores: Iterable[tuple[float, Sequence[float]]]) -> Speed | None:
    """How fast a pCPU is.

    :param scores: weight and samples of each benchmark, with a weight above 0
    :returns: None where one has too few samples
    """
    scores = list(scores)
    total = math.fsum(weight for weight, _samples in scores)
    logarithms, variances, degrees = [], [], []
    for weight, samples in scores:
        if len(samples) < estimate.LEAST_SAMPLES:
            return None
        # Outliers count here: leaving them out makes scores look more certain
        # than they are, and then equal pCPUs differ three times too often.
        mean = statistics.fmean(samples)
        share = weight / total
        logarithms.append(share * math.log(mean))
        variances.append((share / mean) ** 2 * statistics.variance(samples)
                         / len(samples))
        degrees.append(len(samples) - 1)
    return Speed(tuple(logarithms), tuple(variances), tuple(degrees))


def split(classes: Sequence[frozenset[int]], speeds: Mapping[int, Speed], *,
          tolerance: float) -> tuple[frozenset[int], ...]:
    """Divide classes whose pCPUs differ.

    Each pCPU of a class that comes out is as fast as each other one. One that
    is as fast as members of two classes, which differ, goes to the slower.

    :param speeds: by pCPU; a class is left as it is where one is missing
    :param tolerance: see :meth:`Speed.differs`
    :returns: the one with the lowest numbered pCPU first
    """
    comparisons = sum(math.comb(len(members), 2) for members in classes)
    found: list[frozenset[int]] = []
    for members in classes:
        if not members <= speeds.keys():
            found.append(members)
            continue
        found += map(frozenset, groups(
            sorted(members, key=lambda pcpu: speeds[pcpu].logarithm),
            lambda one, other: not speeds[one].differs(
                speeds[other], tolerance=tolerance, comparisons=comparisons)))
    return tuple(sorted(found, key=min))


def groups(items: Iterable[Item],
           are_equal: Callable[[Item, Item], bool]) -> list[list[Item]]:
    """Groups in which each item is equal to each other one.

    :param items: in the order in which they choose a group, the first that
        there is
    """
    found: list[list[Item]] = []
    for item in items:
        for group in found:
            if all(are_equal(item, other) for other in group):
                group.append(item)
                break
        else:
            found.append([item])
    return found
