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


"""What was measured becomes coefficients, and a reference."""

from collections.abc import Mapping, Sequence
import math

from nova_vqos import profile
from nova_vqos.calibration import combine
from nova_vqos.calibration import estimate
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.steps import BUSY
from nova_vqos.calibration.steps import Taken


def benchmarks_of(members: Sequence[Member], hashes: Mapping[str, str],
                  taken: Taken,
                  pcpus: frozenset[int]) -> tuple[profile.Benchmark, ...]:
    """What makes this host the reference: the busy scores of some pCPUs.

    So that 100 CU are what it can promise on each of these at once.

    :param hashes: of the benchmarks' programs, by the name of the benchmark
    """
    benchmarks = []
    for member in members:
        (rounds,) = taken[member.name, BUSY]
        own = estimate.estimate(rounds.of(pcpus))
        benchmarks.append(profile.Benchmark(
            name=member.name, kind=member.benchmark.kind,
            identity=member.benchmark.identity,
            unit=member.benchmark.unit,
            program_sha256=hashes[member.name],
            weight=member.weight, score=own.mean,
            half_width=own.width / 2, round_events=rounds.round_events))
    return tuple(benchmarks)


def combined(members: Sequence[Member], taken: Taken, state: str,
             pcpus: frozenset[int], reference: profile.Reference, *,
             with_reference: bool) -> profile.Measurement:
    """The coefficient of a class of pCPUs in a state.

    :param with_reference: whether the reference's uncertainty is part of the
        interval
    """
    scores = []
    for member in members:
        found = estimate.estimate(
            [score for rounds in taken[member.name, state]
             for score in rounds.of(pcpus)])
        known = reference.benchmark(member.name)
        scores.append(coefficient(
            found, known, known.half_width if with_reference else 0.0))
    return combine.measurement(scores, reference)


def coefficient(found: estimate.Estimate, known: profile.Benchmark,
                reference_half_width: float) -> profile.Score:
    """A score as a coefficient.

    Its interval is that of a quotient: relative half widths of independent
    scores add as squares.
    """
    ratio = found.mean / known.score
    half = ratio * math.hypot(found.width / 2, reference_half_width)
    return profile.Score(
        known.name, ratio, *profile.interval(ratio, half),
        found.outliers, found.samples)
