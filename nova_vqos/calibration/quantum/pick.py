# SPDX-License-Identifier: Apache-2.0
"""Which slice is best for a kind of work on this host.

As in the research, the cost relative to the kernel's default counts, with each
number of vCPUs that share a pCPU alike. A slice within noise of the best is as
good as that, unless it is within noise of the default and the best is not. Of
these the research's own slice is chosen, else the shortest, which makes others
wait least.
"""

from collections.abc import Mapping, Sequence
import math
import statistics

from nova_vqos.profile import quantum
from nova_vqos.quantum import classes

#: Less than that is no difference, however little the rounds scatter.
TOLERANCE = 0.03

# Chance alone exceeds this once in twenty times.
_ERRORS = 2
# Turns that differ by less do not differ.
_TURN_TOLERANCE = 0.25
# A median scatters by so much more than a mean.
_OF_MEDIAN = math.sqrt(math.pi / 2)


def curve(kind: str,
          points: Sequence[quantum.Point]) -> quantum.Curve:
    """The points of a kind of work, with a verdict.

    :param points: that of the kernel's default with each number of runnable
        vCPUs among them; the same slices with each
    """
    cost = quantum.relative_costs(points)
    by_another_name = _of_no_effect(points)
    margin = min(quantum.MAX_MARGIN, max(
        TOLERANCE, _ERRORS * _standard_error(points),
        # The same work in turns of the same length costs the same.
        *(max(cost[slice_us], 1 / cost[slice_us]) - 1
          for slice_us in by_another_name)))
    best_us, verdict = _choose(
        quantum.CLASSES[kind],
        cost | dict.fromkeys(by_another_name, cost[None]), margin)
    return quantum.Curve(kind, best_us, verdict, round(margin, 4),
                         tuple(points))


def has_effect(points: Sequence[quantum.Point]) -> bool:
    """Whether any slice made a difference in how long vCPUs ran."""
    return False in _are_turns_alike(points).values()


def _of_no_effect(points: Sequence[quantum.Point]) -> set[int]:
    """Slices that are the default by another name, as below the tick.

    Turns are as long as by default, and the slice is no longer than these:
    where others cut the turns, a longer slice is still none of these.
    """
    default_us = min(point.mean_run_us or 0.0 for point in points
                     if point.slice_us is None)
    alike = _are_turns_alike(points)
    return {point.slice_us for point in points
            if point.slice_us and point.slice_us <= default_us} - {
        point.slice_us for point, answer in alike.items()
        if point.slice_us and answer is not True}


def _are_turns_alike(points: Sequence[quantum.Point],
                     ) -> dict[quantum.Point, bool | None]:
    """Whether turns at a slice are as long as at the default.

    :returns: None: unknown
    """
    default_us = {point.runnable: point.mean_run_us for point in points
                  if point.slice_us is None}
    return {point: (
        abs(point.mean_run_us / by_default_us - 1) <= _TURN_TOLERANCE
        if point.mean_run_us and by_default_us else None)
        for point in points
        for by_default_us in (default_us[point.runnable],)}


def _standard_error(points: Sequence[quantum.Point]) -> float:
    """Of a slice's cost, relative to it.

    That is a mean over numbers of vCPUs of quotients of medians. As each point
    has few rounds, the scatter is that of all points together: their median,
    since some are disturbed more than others.
    """
    deviations = [point.deviation for point in points
                  if point.deviation is not None]
    rounds = statistics.median(len(point.values_ns) for point in points)
    numbers = len({point.runnable for point in points})
    return (statistics.median(deviations or [0.0]) * _OF_MEDIAN
            * math.sqrt(2 / numbers / rounds))


def _choose(quantum_class: str, cost: Mapping[int | None, float],
            margin: float) -> tuple[int | None, str]:
    """:returns: the best slice, and the verdict"""
    limit = min(cost.values()) * (1 + margin)
    if max(cost.values()) <= limit:
        return None, quantum.NO_DIFFERENCE
    good = {slice_us for slice_us, value in cost.items() if value <= limit}
    if good == {None}:
        return None, quantum.DEFAULT_BEST
    verdict = quantum.AS_DEFAULT
    if None not in good:
        verdict = quantum.BETTER
        # Being close to the best is not enough: the best one is that itself.
        good = {slice_us for slice_us in good
                if cost[slice_us] * (1 + margin) <= cost[None]}
    researched = classes.RESEARCHED_US.get(quantum_class)
    if researched is None:
        # Any slice suits its class.
        return None, verdict
    return (researched if researched in good
            else min(filter(None, good))), verdict
