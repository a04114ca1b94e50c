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

"""Which slice is best for a kind of work on this host.

As in the research, what counts is the cost relative to the kernel's default,
with each number of vCPUs that share a pCPU alike. What is within noise of the
best, and not of the default unless the best is, too, is as good as it: of
these the research's own slice is taken, else the shortest, which makes others
wait least.
"""

from collections.abc import Mapping, Sequence
import math
import statistics

from nova_vqos import quantum_profile
from nova_vqos.quantum import classes

#: Less than that is no difference, however little the rounds scatter.
TOLERANCE = 0.03

# What chance alone exceeds once in twenty times.
_ERRORS = 2
# Turns that differ by less do not differ.
_TURN_TOLERANCE = 0.25
# A median scatters by so much more than a mean.
_OF_MEDIAN = math.sqrt(math.pi / 2)


def curve(kind: str,
          points: Sequence[quantum_profile.Point]) -> quantum_profile.Curve:
    """What was measured of a kind of work, and what follows from it.

    :param points: that of the kernel's default with each number of runnable
        vCPUs among them; the same slices with each
    """
    cost = quantum_profile.costs(points)
    by_another_name = _of_no_effect(points)
    margin = min(quantum_profile.MAX_MARGIN, max(
        TOLERANCE, _ERRORS * _standard_error(points),
        # What is the same work in turns of the same length costs the same.
        *(max(cost[slice_us], 1 / cost[slice_us]) - 1
          for slice_us in by_another_name)))
    best_us, verdict = _choose(
        quantum_profile.CLASSES[kind],
        cost | dict.fromkeys(by_another_name, cost[None]), margin)
    return quantum_profile.Curve(kind, best_us, verdict, round(margin, 4),
                                 tuple(points))


def has_effect(points: Sequence[quantum_profile.Point]) -> bool:
    """Whether any slice made a difference in how long vCPUs ran."""
    return False in _are_turns_alike(points).values()


def _of_no_effect(points: Sequence[quantum_profile.Point]) -> set[int]:
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


def _are_turns_alike(points: Sequence[quantum_profile.Point],
                     ) -> dict[quantum_profile.Point, bool | None]:
    """Whether turns at a slice are as long as at the default.

    :returns: None: that is not known
    """
    default_us = {point.runnable: point.mean_run_us for point in points
                  if point.slice_us is None}
    return {point: (
        abs(point.mean_run_us / by_default_us - 1) <= _TURN_TOLERANCE
        if point.mean_run_us and by_default_us else None)
        for point in points
        for by_default_us in (default_us[point.runnable],)}


def _standard_error(points: Sequence[quantum_profile.Point]) -> float:
    """Of a slice's cost, relative to it.

    That is a mean over numbers of vCPUs of quotients of medians. With few
    rounds of each point, how they scatter is told by all points together: by
    the median, since some are disturbed more than others.
    """
    deviations = [point.deviation for point in points
                  if point.deviation is not None]
    rounds = statistics.median(len(point.values_ns) for point in points)
    numbers = len({point.runnable for point in points})
    return (statistics.median(deviations or [0.0]) * _OF_MEDIAN
            * math.sqrt(2 / numbers / rounds))


def _choose(quantum_class: str, cost: Mapping[int | None, float],
            margin: float) -> tuple[int | None, str]:
    """:returns: what is recommended, and the verdict"""
    limit = min(cost.values()) * (1 + margin)
    if max(cost.values()) <= limit:
        return None, quantum_profile.NO_DIFFERENCE
    good = {slice_us for slice_us, value in cost.items() if value <= limit}
    if good == {None}:
        return None, quantum_profile.DEFAULT_BEST
    verdict = quantum_profile.AS_DEFAULT
    if None not in good:
        verdict = quantum_profile.BETTER
        # Being close to the best is not enough: the best one is that itself.
        good = {slice_us for slice_us in good
                if cost[slice_us] * (1 + margin) <= cost[None]}
    researched = classes.DEFAULT_SLICES_US.get(quantum_class)
    if researched is None:
        # Its class has no slice of its own that could be set.
        return None, verdict
    return (researched if researched in good
            else min(filter(None, good))), verdict
