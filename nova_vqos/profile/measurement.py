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


"""How fast pCPUs were measured to be."""

import typing as ty

from nova_vqos.profile import fields as checked
from nova_vqos.profile import pcpus as lists
from nova_vqos.profile import reference as references

#: An interval's lower end must be positive, however wide it is: this much of
#: the coefficient.
LEAST_LOW = 0.001

_MAX_SAMPLES = 10_000
_COEFFICIENTS = (0.001, 1000.0)


class Score(ty.NamedTuple):
    """A coefficient by one benchmark, with its 95 % confidence interval.

    :ivar benchmark: its name
    :ivar outliers: how many of the samples are left out of the coefficient
    :ivar samples: scores that it was computed from, work per CPU second
    """

    benchmark: str
    coefficient: float
    interval_low: float
    interval_high: float
    outliers: int
    samples: tuple[float, ...]

    @property
    def interval_width(self) -> float:
        """Relative to the coefficient."""
        return (self.interval_high - self.interval_low) / self.coefficient


class Measurement(ty.NamedTuple):
    """A coefficient, with its 95 % confidence interval.

    :ivar scores: those that it was combined from, and those reported only
    """

    coefficient: float
    interval_low: float
    interval_high: float
    scores: tuple[Score, ...]

    @property
    def interval_width(self) -> float:
        """Relative to the coefficient."""
        return (self.interval_high - self.interval_low) / self.coefficient


class CpuClass(ty.NamedTuple):
    """Equal pCPUs, measured one alone and all pCPUs of the host busy."""

    pcpus: frozenset[int]
    alone: Measurement
    busy: Measurement


def interval(coefficient: float, half_width: float) -> tuple[float, float]:
    """The ends of an interval, of which the lower one must be positive.

    :param half_width: in units of the coefficient
    """
    return (max(coefficient - half_width, coefficient * LEAST_LOW),
            coefficient + half_width)


def class_of(fields: checked.Fields,
             reference: references.Reference) -> CpuClass:
    """A class of pCPUs from its fields in a document.

    :raises ProfileInvalid: when they are none of one
    """
    return CpuClass(pcpus=fields.pcpus('pcpus'),
                    alone=_measurement(fields.child('alone'), reference),
                    busy=_measurement(fields.child('busy'), reference))


def class_document(cpu_class: CpuClass) -> dict[str, ty.Any]:
    """The inverse of :func:`class_of`."""
    return {'pcpus': lists.format_pcpus(cpu_class.pcpus),
            'alone': _document(cpu_class.alone),
            'busy': _document(cpu_class.busy)}


def _measurement(fields: checked.Fields,
                 reference: references.Reference) -> Measurement:
    scores = tuple(
        Score(child.text('benchmark'), *_interval(child),
              int(child.number('outliers', 0, _MAX_SAMPLES)),
              child.numbers('samples', 1, _MAX_SAMPLES))
        for child in fields.children('scores', references.MAX_BENCHMARKS))
    if ([s.benchmark for s in scores]
            != [b.name for b in reference.benchmarks]):
        raise fields.error('scores', 'one of each benchmark of the reference, '
                           'in its order')
    return Measurement(*_interval(fields), scores)


def _interval(fields: checked.Fields) -> tuple[float, float, float]:
    """:returns: a coefficient, and the interval that it must be in"""
    low, high = fields.numbers('interval', 2, 2)
    coefficient = fields.number('coefficient', *_COEFFICIENTS)
    if not low <= coefficient <= high:
        raise fields.error('interval', 'around the coefficient')
    return coefficient, low, high


def _document(measurement: Measurement) -> dict[str, ty.Any]:
    return _interval_document(measurement) | {'scores': [
        {'benchmark': score.benchmark, **_interval_document(score),
         'outliers': score.outliers,
         'samples': list(map(float, score.samples))}
        for score in measurement.scores]}


def _interval_document(found: Measurement | Score) -> dict[str, ty.Any]:
    return {'coefficient': float(found.coefficient),
            'interval': [float(found.interval_low),
                         float(found.interval_high)]}
