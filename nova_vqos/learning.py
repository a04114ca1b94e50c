# SPDX-License-Identifier: Apache-2.0
"""How fast a server is on a host, by its own speed on other hosts.

A server's speed is counted in its own instructions per second of CPU time, so
that only ratios between hosts count. Without any, its units are worth what the
prior says: the mean of the kinds of work of a profile, or that of a mix of
them. :func:`predict` corrects that by the hosts on which the server ran: how
the known kinds of work differ between these hosts and this one, and which of
them the server was like. See doc/source/contributor/work.rst for the formula,
its source, and what it is worth. Pure: standard library only.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import itertools
import math
import operator
import re
import statistics
import typing as ty

from nova_vqos import primitives
from nova_vqos import units
from nova_vqos import work

#: Of a history.
MOST_HOSTS = 16
#: Of a host.
MOST_KINDS = 64
#: Of a kind of work, as of a profile.
COEFFICIENTS = (0.001, 1000.0)
#: Logarithms: 1e-26 to 1e26, whatever the unit of the speed is.
MOST_LOG_SPEED = 60.0
#: Of a logarithm: the standard deviation is from 0.1 % to a factor of 20.
VARIANCES = (1e-6, 9.0)
#: Of an interval: how many real factors are in it.
COVERED = 0.9

# Chosen on whole kinds of work and whole CPUs that were held out, by
# tools/bench/kinds_matrix.py; half and twice as much of each is as good.
#
# Variance between two hosts of a work that is exactly one of the known kinds,
# per mean difference of the logarithms of all kinds.
_UNLIKE_VARIANCE = 0.1
# That between two hosts with the same profile: servers of one CPU model
# differ.
_SAME_VARIANCE = 0.03 ** 2
# Prior probability that the work is not one kind, but a mix of all.
_MIXED = 0.25
# A kind that differs less than so much is no better known for that.
_LEAST_DIFFERENCE = 0.01
# Works differ with heavier tails than a normal distribution's.
_TAILS = 1.2

_KIND_PATTERN = re.compile(work.KIND)
_Vector = list[float]
_Rows = list[_Vector]


class HistoryInvalid(primitives.MessageInvalid):
    """A history is not what it may be; the text says in which."""


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
    """The speed of a server on one host.

    :ivar kinds: coefficient of each kind of work on that host, by name
    :ivar log_speed: natural logarithm of the server's speed there, in any
        unit that is the same for all of its hosts
    :ivar variance: of log_speed, as measured
    :raises HistoryInvalid: when it is out of its limits
    """

    kinds: Mapping[str, float]
    log_speed: float
    variance: float

    def __post_init__(self) -> None:
        check_kinds(self.kinds)
        _check('log_speed', self.log_speed, -MOST_LOG_SPEED, MOST_LOG_SPEED)
        _check('variance', self.variance, *VARIANCES)


@dataclasses.dataclass(frozen=True, slots=True)
class History:
    """The speeds of a server, one for each unlike host that it was seen on.

    :raises HistoryInvalid: when there are more than :data:`MOST_HOSTS`
    """

    observations: tuple[Observation, ...] = ()

    def __post_init__(self) -> None:
        if len(self.observations) > MOST_HOSTS:
            raise HistoryInvalid(
                f'observations has {len(self.observations)} hosts, it may '
                f'have up to {MOST_HOSTS}')

    def extended(self, observation: Observation) -> 'History':
        """With one more measurement, never more than :data:`MOST_HOSTS`.

        Hosts with the same coefficients are one: their speeds are averaged,
        by their certainty. Where there are too many, of the two that are most
        alike the less certain one is left out.
        """
        merged = _merge((*self.observations, observation))
        if len(merged) > MOST_HOSTS:
            alike = min(itertools.combinations(merged, 2),
                        key=lambda pair: _difference(*pair))
            merged.remove(max(alike, key=lambda one: one.variance))
        return History(tuple(merged))


class Prediction(ty.NamedTuple):
    """Of a server's own coefficient on a host.

    :ivar factor: of the coefficient by the prior. 1 is as fast as the prior
        promises after the hosts that the server was seen on, on average
    :ivar low: of the interval that has the real factor with :data:`COVERED`
    :ivar high: its other end
    :ivar hosts: how many counted
    """

    factor: float
    low: float
    high: float
    hosts: int


class _Seen(ty.NamedTuple):
    """Hosts, as they look from the one that is predicted for.

    :ivar apart: logarithms of how much faster than the mean kind each kind
        is there, relative to here: hosts by kinds
    :ivar residuals: of the server's speeds there, over what the prior says,
        relative to their own mean
    :ivar variances: of these
    :ivar shares: prior probability of each kind
    """

    apart: _Rows
    residuals: _Vector
    variances: _Vector
    shares: _Vector


class _Estimate(ty.NamedTuple):
    """What one hypothesis makes of the server.

    :ivar log_odds: of the hypothesis, after what was seen
    :ivar mean: of the residual here
    """

    log_odds: float
    mean: float
    variance: float


def check_kinds(kinds: Mapping[str, float]) -> None:
    """Whether these can be the kinds of work of a host.

    :raises HistoryInvalid: when they cannot
    """
    if not 1 <= len(kinds) <= MOST_KINDS:
        raise HistoryInvalid(f'kinds has {len(kinds)} kinds of work, it may '
                             f'have from 1 to {MOST_KINDS}')
    for name, coefficient in kinds.items():
        if not _KIND_PATTERN.fullmatch(name):
            raise HistoryInvalid(f'kinds has {ascii(name)[:80]}, it may have '
                                 f'names such as integer ({work.KIND})')
        _check(f'coefficient of {name}', coefficient, *COEFFICIENTS)


def predict(history: History, here: Mapping[str, float],
            weights: Mapping[str, float]) -> Prediction:
    """What a server's coefficient is on a host, relative to the prior.

    The unit is that of the prior on the hosts of the history, on average:
    with none or one of them the factor is exactly 1. It is never outside what
    the kinds of this host would have, had the server been one of them.

    Kinds in common count. A host that shares less than half of the weight, or
    none but one kind, is left out.

    :param here: coefficient of each kind on this host
    :param weights: of the kinds in the prior; 0, or none: known, but no part
        of it
    :raises HistoryInvalid: when ``here`` is out of its limits
    :raises work.KindMissing: when this host lacks a kind of the prior
    :raises ValueError: when no kind has a weight above 0, or one is below
    """
    check_kinds(here)
    counting = _counting(weights, here)
    observations, names = _in_common(history.observations, here, counting)
    if not observations:
        mean = math.log(units.mean_coefficient(
            (weight, here[kind]) for kind, weight in counting.items()))
        logs = [math.log(coefficient) - mean for coefficient in here.values()]
        return Prediction(1.0, math.exp(min(logs)), math.exp(max(logs)), 0)
    seen = _look(observations, here, names, counting)
    estimates = _estimates(seen)
    mean, variance = _mixture(estimates)
    variance += _SAME_VARIANCE
    if len(observations) == 1:
        # But for rounding.
        mean = 0.0
    slowest, fastest = _range(seen)
    mean = min(max(mean, slowest), fastest)
    half = _quantile(len(names)) * math.sqrt(variance)
    return Prediction(math.exp(mean), math.exp(mean - half),
                      math.exp(mean + half), len(observations))


def _check(name: str, value: float, least: float, most: float) -> None:
    # NOTE: NaN is not above anything.
    if not least <= value <= most:
        raise HistoryInvalid(f'{name} is {value!r}, it may be from {least:g} '
                             f'to {most:g}')


def _merge(observations: Iterable[Observation]) -> list[Observation]:
    """One of each host, in an order of their own."""
    by_kinds: dict[tuple[tuple[str, float], ...], list[Observation]] = {}
    for one in observations:
        by_kinds.setdefault(tuple(sorted(one.kinds.items())), []).append(one)
    return [_average(by_kinds[kinds]) for kinds in sorted(by_kinds)]


def _average(same: Sequence[Observation]) -> Observation:
    """Of measurements on hosts with the same coefficients."""
    if len(same) == 1:
        return same[0]
    total = math.fsum(1 / one.variance for one in same)
    speed = math.fsum(one.log_speed / one.variance for one in same) / total
    return Observation(same[0].kinds, speed, max(1 / total, VARIANCES[0]))


def _difference(one: Observation, other: Observation) -> float:
    """Mean difference of the kinds that both have, as logarithms."""
    common = one.kinds.keys() & other.kinds.keys()
    if not common:
        return math.inf
    return math.fsum(abs(math.log(one.kinds[kind] / other.kinds[kind]))
                     for kind in common) / len(common)


def _counting(weights: Mapping[str, float],
              here: Mapping[str, float]) -> dict[str, float]:
    """Weights above 0."""
    counting = {kind: weight for kind, weight in weights.items() if weight}
    if not counting or not all(0 < weight < math.inf
                               for weight in counting.values()):
        raise ValueError(f'weights are {dict(weights)}, they may be numbers '
                         'from 0, at least one above 0')
    for kind in counting:
        if kind not in here:
            raise work.KindMissing(kind, here)
    return counting


def _in_common(observations: Iterable[Observation],
               here: Mapping[str, float], counting: Mapping[str, float],
               ) -> tuple[list[Observation], list[str]]:
    """Hosts that can be compared, and the kinds that all of them have.

    Those with most kinds in common come first, so that one that has few
    cannot take the place of the others.
    """
    kept, names = [], set(here)
    total = math.fsum(counting.values())
    for one in sorted(_merge(observations), reverse=True,
                      key=lambda one: len(here.keys() & one.kinds.keys())):
        common = names & one.kinds.keys()
        shared = math.fsum(weight for kind, weight in counting.items()
                           if kind in common)
        if shared >= total / 2 and len(common) > 1:
            kept.append(one)
            names = common
    return kept, sorted(names)


def _look(observations: Sequence[Observation], here: Mapping[str, float],
          names: Sequence[str], counting: Mapping[str, float]) -> _Seen:
    shares = _normal([counting.get(kind, 0.0) for kind in names])
    apart, speeds = [], []
    for one in observations:
        logs = [math.log(one.kinds[kind] / here[kind]) for kind in names]
        mean = _dot(shares, logs)
        apart.append([log - mean for log in logs])
        speeds.append(one.log_speed - mean)
    variances = [one.variance + _SAME_VARIANCE for one in observations]
    certainties = _normal([1 / variance for variance in variances])
    middle = _dot(certainties, speeds)
    return _Seen(apart, [speed - middle for speed in speeds], variances,
                 shares)


def _estimates(seen: _Seen) -> list[_Estimate]:
    """By each hypothesis: that the work is one of the kinds, or a mix."""
    scaled = _scaled(seen.apart)
    covariance = _covariance(scaled, seen.variances)
    one_kind = _Regression(covariance)
    found = [
        one_kind.estimate([residual - apart[kind] for residual, apart
                           in zip(seen.residuals, seen.apart, strict=True)],
                          (1 - _MIXED) * share)
        for kind, share in enumerate(seen.shares) if share]
    kinds = len(seen.shares)
    mixed = _Regression([
        [known + _dot(one, other) / kinds
         for known, other in zip(row, scaled, strict=True)]
        for row, one in zip(covariance, scaled, strict=True)])
    return [*found, mixed.estimate(seen.residuals, _MIXED)]


def _scaled(apart: _Rows) -> _Rows:
    """Kinds that differ equally much between hosts.

    As much as their geometric mean does: one kind that varies much more than
    the others says nothing of work that is not this kind.
    """
    sizes = [math.sqrt(math.fsum(gap ** 2 for gap in kind) / len(kind)
                       + _LEAST_DIFFERENCE ** 2)
             for kind in zip(*apart, strict=True)]
    mean = statistics.geometric_mean(sizes)
    return [[gap / size * mean for gap, size in zip(row, sizes, strict=True)]
            for row in apart]


def _covariance(scaled: _Rows, variances: _Vector) -> _Rows:
    """Of the residuals of a work that is one of the kinds.

    The variance of what it differs by between two hosts grows with the mean
    difference of all kinds between them (a linear variogram). Seen from here,
    hosts that are like each other then differ from here alike.
    """
    kinds = len(scaled[0])
    from_here = [_size(row) / kinds for row in scaled]
    return [[_UNLIKE_VARIANCE * (
        from_here[i] + from_here[j] - _size(
            [a - b for a, b in zip(scaled[i], scaled[j], strict=True)])
        / kinds) + (variances[i] if i == j else 0.0)
        for j in range(len(scaled))] for i in range(len(scaled))]


class _Regression:
    """Generalized least squares of a constant: the residual here."""

    def __init__(self, covariance: _Rows) -> None:
        self._factor = _cholesky(covariance)
        self._ones = _solve(self._factor, [1.0] * len(covariance))
        self._certainty = _dot(self._ones, self._ones)
        # Of the likelihood of what was seen, whatever the constant is.
        self._size = (2 * math.fsum(math.log(row[-1]) for row in self._factor)
                      + math.log(self._certainty))

    def estimate(self, residuals: _Vector, prior: float) -> _Estimate:
        """:param prior: probability of the hypothesis, above 0"""
        white = _solve(self._factor, residuals)
        mean = _dot(self._ones, white) / self._certainty
        square = _dot(white, white) - mean ** 2 * self._certainty
        return _Estimate(math.log(prior) - (self._size + square) / 2, mean,
                         1 / self._certainty)


def _cholesky(matrix: _Rows) -> _Rows:
    """:returns: the lower triangle, rows without the zeros"""
    lower: _Rows = []
    for row, values in enumerate(matrix):
        line: _Vector = []
        for column in range(row):
            above = lower[column]
            line.append((values[column] - _dot(line, above[:-1]))
                        / above[-1])
        line.append(math.sqrt(values[row] - _dot(line, line)))
        lower.append(line)
    return lower


def _solve(lower: _Rows, values: _Vector) -> _Vector:
    found: _Vector = []
    for row, value in zip(lower, values, strict=True):
        found.append((value - _dot(row[:-1], found)) / row[-1])
    return found


def _mixture(estimates: Sequence[_Estimate]) -> tuple[float, float]:
    """:returns: mean and variance"""
    most = max(one.log_odds for one in estimates)
    odds = _normal([math.exp(one.log_odds - most) for one in estimates])
    mean = math.fsum(share * one.mean
                     for share, one in zip(odds, estimates, strict=True))
    return mean, math.fsum(
        share * (one.variance + (one.mean - mean) ** 2)
        for share, one in zip(odds, estimates, strict=True))


def _range(seen: _Seen) -> tuple[float, float]:
    """Residuals here of the slowest and the fastest kind."""
    certainties = _normal([1 / variance for variance in seen.variances])
    means = [-_dot(certainties, kind)
             for kind in zip(*seen.apart, strict=True)]
    return min(0.0, *means), max(0.0, *means)


def _quantile(kinds: int) -> float:
    """Of an interval, by how many kinds of work there are to compare with."""
    return (_TAILS * statistics.NormalDist().inv_cdf((1 + COVERED) / 2)
            * math.sqrt((kinds + 1) / (kinds - 1)))


def _normal(weights: _Vector) -> _Vector:
    """With a sum of 1."""
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _size(values: _Vector) -> float:
    return sum(map(abs, values))


def _dot(values: Iterable[float], others: Iterable[float]) -> float:
    # NOTE: math.sumprod is there from Python 3.12 on.
    found: float = sum(map(operator.mul, values, others))
    return found
