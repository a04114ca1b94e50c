# SPDX-License-Identifier: Apache-2.0
"""What was measured of one server, on all hosts that it ran on. Pure."""

from collections.abc import Mapping
import dataclasses
import math
import typing as ty

from nova_vqos import learning
from nova_vqos import primitives
from nova_vqos.profile import cpu

_MOST_REFERENCE = 400

# Of other work are measurements on equal hosts that differ by so many standard
# deviations, and by so much at least. What else a host does moves the speed of
# the same work by as much as 12 % for minutes, and to forget what other hosts
# measured costs what a unit of the mean is off: as much.
APART_DEVIATIONS = 4.0
APART = 0.15
# Differences that a cap need not follow.
_ALIKE = 0.002


class Speed(ty.NamedTuple):
    """Instructions for each CPU second.

    :ivar log: natural logarithm
    :ivar variance: of that logarithm
    """

    log: float
    variance: float

    @property
    def per_cpu_s(self) -> float:
        """Instructions for each CPU second."""
        return math.exp(self.log)

    def is_apart(self, other: 'Speed') -> bool:
        """Whether another measurement on an equal host is of other work."""
        return abs(self.log - other.log) > max(
            APART, APART_DEVIATIONS * math.sqrt(
                self.variance + other.variance))

    def is_alike(self, other: 'Speed') -> bool:
        """Whether another measurement differs by nothing that counts."""
        return (abs(self.log - other.log) < _ALIKE
                and 0.5 < self.variance / other.variance < 2.0)


class Prediction(ty.NamedTuple):
    """How fast a host is for a server, over the mean of all kinds of work.

    :ivar factor: such that the server does the same work as on its first host
    :ivar low: of the interval that has the real factor with 90 %
    :ivar high: likewise
    """

    factor: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class Speeds:
    """The speeds of a server, in instructions per CPU second.

    :ivar at_s: when the last of them was measured, in seconds since 1970
    :ivar reference: that all coefficients are relative to, see
        :func:`reference_of`
    :ivar first: coefficients of the host on which it was measured first, by
        kind of work: there its units were those of the mean of all kinds
    :ivar history: one observation for each unlike host
    :raises nova_vqos.primitives.MessageInvalid: when it is out of its limits
    """

    at_s: float
    reference: str
    first: Mapping[str, float]
    history: learning.History

    def __post_init__(self) -> None:
        if len(self.reference) > _MOST_REFERENCE:
            raise primitives.MessageInvalid(
                f'reference has more than {_MOST_REFERENCE} characters')
        learning.check_kinds(self.first)

    @property
    def hosts(self) -> int:
        """How many unlike hosts it was measured on."""
        return len(self.history.observations)

    def speed_on(self, kinds: Mapping[str, float]
                 ) -> Speed | None:
        """What was measured on hosts with these coefficients; None: none."""
        for one in self.history.observations:
            if one.kinds == kinds:
                return Speed(one.log_speed, one.variance)
        return None

    def lacks_kinds(self, reference: cpu.Reference) -> bool:
        """Whether its first host lacks kinds that its own reference has.

        Then it says nothing of any host.
        """
        return self.reference == reference_of(reference) and any(
            weight and kind not in self.first
            for kind, weight in weights_of(reference).items())

    def predict(self, here: Mapping[str, float],
                weights: Mapping[str, float]) -> Prediction:
        """How fast a host is for the server.

        :param here: coefficients of the host, by kind of work
        :param weights: of these kinds in the mean of all
        :raises nova_vqos.learning.HistoryInvalid: when here is out of limits
        :raises nova_vqos.work.KindMissing: when it lacks a kind of the mean,
            or the first host does, see :meth:`lacks_kinds`
        """
        found = learning.predict(self.history, here, weights)
        first = learning.predict(self.history, self.first, weights)
        # Both are relative to all hosts of the history, on average.
        return Prediction(*(one / first.factor for one in found[:3]))


def measured(speeds: Speeds | None, reference: str,
             kinds: Mapping[str, float], speed: Speed,
             at_s: float) -> Speeds:
    """With the speed on a host in the place of an earlier one there.

    :param speeds: before; None: it was not measured yet
    :param kinds: coefficients of the host, by kind of work
    """
    seen = learning.Observation(kinds, speed.log, min(max(
        speed.variance, learning.VARIANCES[0]), learning.VARIANCES[1]))
    if speeds is None or speeds.reference != reference:
        return Speeds(at_s, reference, kinds, learning.History((seen,)))
    others = tuple(one for one in speeds.history.observations
                   if one.kinds != kinds)
    return dataclasses.replace(
        speeds, at_s=at_s, history=learning.History(others).extended(seen))


def merged(first: Speeds, second: Speeds | None) -> Speeds:
    """What two hosts have of a server.

    Of hosts with the same coefficients what was measured last counts.
    """
    if second is None:
        return first
    early, late = sorted((first, second), key=lambda one: one.at_s)
    if early.reference != late.reference:
        return late
    history = late.history
    known = [one.kinds for one in history.observations]
    for one in early.history.observations:
        if one.kinds not in known:
            history = history.extended(one)
    return dataclasses.replace(late, history=history)


def parse(data: object) -> Speeds:
    """From untrusted input.

    :raises nova_vqos.primitives.MessageInvalid: when it is invalid
    """
    return primitives.parse(Speeds, data)


def reference_of(reference: cpu.Reference) -> str:
    """What two hosts have in common whose coefficients can be compared."""
    return f'{reference.name} {reference.created_at}'


def weights_of(reference: cpu.Reference) -> dict[str, float]:
    """The weight of each kind of work in the mean."""
    return {one.name: one.weight for one in reference.benchmarks}
