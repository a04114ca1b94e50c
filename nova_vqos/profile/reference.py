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


"""The CPU that all others are compared with."""

import math
import typing as ty

from nova_vqos.profile import errors
from nova_vqos.profile import fields as checked

#: Of a benchmark in the coefficient.
MAX_WEIGHT = 1000.0
MAX_BENCHMARKS = 20

_TEXTS = ('name', 'kind', 'identity', 'unit', 'program_sha256')


class Benchmark(ty.NamedTuple):
    """A kind of work that hosts are compared by, and the reference's score.

    :ivar name: of the plugin, or what the operator called a command
    :ivar kind: of work, for people
    :ivar identity: program, version and parameters: scores of different ones
        are never compared
    :ivar unit: of the score
    :ivar program_sha256: which build it was, on the reference
    :ivar weight: in the coefficient, relative to that of others; 0: reported
        only
    :ivar score: of the reference: its work per CPU second
    :ivar half_width: of the score's 95 % confidence interval, relative to it
    :ivar round_events: of a round in the reference's guests; None: it was
        measured in none
    """

    name: str
    kind: str
    identity: str
    unit: str
    program_sha256: str
    weight: float
    score: float
    half_width: float
    round_events: int | None = None


class Reference(ty.NamedTuple):
    """The CPU that 100 CU are the speed of.

    :ivar created_at: when it was measured, ISO 8601, UTC
    """

    name: str
    created_at: str
    benchmarks: tuple[Benchmark, ...]

    @property
    def half_width(self) -> float:
        """Its part of the interval of a combined coefficient, relative."""
        total = math.fsum(b.weight for b in self.benchmarks)
        return math.hypot(*(b.weight / total * b.half_width
                            for b in self.benchmarks))

    def benchmark(self, name: str) -> Benchmark:
        """One by its name.

        :raises ProfileInvalid: when there is none
        """
        for found in self.benchmarks:
            if found.name == name:
                return found
        raise errors.ProfileInvalid(
            f'benchmark {name!r} is none of the reference: '
            f'{", ".join(b.name for b in self.benchmarks)}')


def reference_of(fields: checked.Fields) -> Reference:
    """A reference from its fields in a document.

    :raises ProfileInvalid: when they are none of a reference
    """
    reference = Reference(
        name=fields.text('name'), created_at=fields.text('created_at'),
        benchmarks=tuple(
            Benchmark(
                **{key: child.text(key) for key in _TEXTS},
                weight=child.number('weight', 0, MAX_WEIGHT),
                score=child.number('score', 1e-9, 1e15),
                half_width=child.number('half_width', 0, 1),
                round_events=(int(child.number('round_events', 1, 1e12))
                              if child.has('round_events') else None))
            for child in fields.children('benchmarks', MAX_BENCHMARKS)))
    names = [b.name for b in reference.benchmarks]
    if len(set(names)) < len(names):
        raise fields.error('benchmarks', 'each of another name')
    if not any(b.weight for b in reference.benchmarks):
        raise fields.error('benchmarks', 'at least one with a weight above 0')
    return reference


def reference_document(reference: Reference) -> dict[str, ty.Any]:
    """The inverse of :func:`reference_of`."""
    return {
        'name': reference.name, 'created_at': reference.created_at,
        'benchmarks': [
            {key: getattr(b, key) for key in _TEXTS}
            | {key: float(getattr(b, key))
               for key in ('weight', 'score', 'half_width')}
            | ({} if b.round_events is None
               else {'round_events': b.round_events})
            for b in reference.benchmarks]}
