# SPDX-License-Identifier: Apache-2.0
"""Which hosts are equal, by their profiles.

Hosts of one make come out a little different in each measurement. Those that
differ by no more than the uncertainty of the difference are one group, and may
share one profile: then a server has the same figures on each of them, too.
"""

from collections.abc import Mapping
import dataclasses
import math

from nova_vqos.calibration import estimate
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.cpu import classes
from nova_vqos.calibration.cpu import reference
from nova_vqos.profile import model

#: How much two measurements of a host differ beyond their intervals; relative.
TOLERANCE = 0.01
#: Wider intervals are no basis for a comparison.
MAX_INTERVAL = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A host among those that are compared.

    :ivar group: counted from 1, the slowest first; members of one are equal
    :ivar difference: of its coefficient from the group's mean, relative to
        that; of its classes the one that is furthest off
    :ivar shared: whether its profile is the one that others of its group can
        use as well: the most, and of those the most certain one
    :ivar obstacles: why it cannot use that profile, if there is one
    """

    path: str
    profile: model.Profile
    group: int
    difference: float
    shared: bool
    obstacles: tuple[str, ...]


def compare(found: Mapping[str, model.Profile], *,
            tolerance: float = TOLERANCE,
            max_interval: float = MAX_INTERVAL) -> list[Member]:
    """Divide hosts into groups of equal ones.

    Each member of a group is equal to each other one. A host that is equal to
    members of two groups, which differ, goes to the slower one.

    Equal hosts stay together in 95 % of all comparisons, however many are
    compared: the intervals are widened as by Bonferroni, for the number of
    pairs of coefficients.

    :param found: two profiles or more, by path
    :param tolerance: beyond what the intervals leave open, relative
    :param max_interval: of a coefficient, relative; a wider one would be
        equal to anything
    :returns: in order of their coefficients
    :raises CalibrationError: when they were not measured alike, or one not
        well enough
    """
    if len(found) < 2:
        raise CalibrationError('a profile can only be compared with others: '
                               'give two or more')
    reference.check_comparable(found)
    for path, profile in found.items():
        width = max(c.busy.interval_width for c in profile.cpu_classes)
        if width > max_interval:
            raise CalibrationError(
                f'the interval of {path} is {width:.1%} wide, more than '
                f'{max_interval:.1%}, and would be equal to too much: measure '
                'that host again')
    most = max(len(profile.cpu_classes) for profile in found.values())
    # Alone and busy.
    comparisons = math.comb(len(found), 2) * most * 2
    groups = classes.groups(
        sorted(found, key=lambda path: _coefficients(found[path])),
        lambda path, other: are_equal(
            found[path], found[other], tolerance=tolerance,
            comparisons=comparisons))
    return [member for number, group in enumerate(groups, 1)
            for member in _members(number, {p: found[p] for p in group})]


def are_equal(one: model.Profile, other: model.Profile, *,
              tolerance: float = 0.0, comparisons: int = 1) -> bool:
    """Whether two hosts differ by no more than is not known about them.

    Alone and busy, class by class: the difference of two coefficients is
    within its interval, whose half width is the root of the sum of the
    squares of theirs. The uncertainty of the reference is in both alike, and
    so no part of their difference.

    :param tolerance: beyond that, relative to their mean
    :param comparisons: how many are made in all, of which all together are to
        be right with the confidence of one
    """
    if len(one.cpu_classes) != len(other.cpu_classes):
        return False
    widened = (estimate.normal_quantile(comparisons)
               / estimate.normal_quantile(1))
    return all(
        abs(mine.coefficient - theirs.coefficient)
        <= widened * math.hypot(reference.own_half_width(one, mine),
                                reference.own_half_width(other, theirs))
        + tolerance * (mine.coefficient + theirs.coefficient) / 2
        for my_class, their_class in zip(one.cpu_classes, other.cpu_classes,
                                         strict=True)
        for mine, theirs in ((my_class.alone, their_class.alone),
                             (my_class.busy, their_class.busy)))


def _members(number: int, group: Mapping[str, model.Profile],
             ) -> list[Member]:
    means = [math.fsum(column) / len(group)
             for column in zip(*map(_coefficients, group.values()),
                               strict=True)]
    users = {path: sum(not _obstacles(profile, other)
                       for other in group.values())
             for path, profile in group.items()}
    best = min(group, key=lambda path: (
        -users[path],
        max(c.busy.interval_width for c in group[path].cpu_classes), path))
    # Each can use its own.
    is_shared = users[best] > 1
    return [Member(
        path, profile, number,
        max((coefficient / mean - 1 for coefficient, mean in zip(
            _coefficients(profile), means, strict=True)), key=abs),
        is_shared and path == best,
        tuple(_obstacles(group[best], profile)) if is_shared else ())
        for path, profile in group.items()]


def _obstacles(shared: model.Profile,
               profile: model.Profile) -> list[str]:
    """Why a host cannot use another one's profile, though it is equal."""
    differing = [key for key in sorted(
        shared.fingerprint.keys() | profile.fingerprint.keys())
        if shared.fingerprint.get(key) != profile.fingerprint.get(key)]
    if shared.pcpus != profile.pcpus:
        differing.append('pcpus')
    return differing


def _coefficients(profile: model.Profile) -> list[float]:
    return [c.busy.coefficient for c in profile.cpu_classes]
