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

"""The numbers of a profile, as people read them."""

from collections.abc import Iterator

from nova_vqos import profile
from nova_vqos import units
from nova_vqos.calibration import combine

COLUMNS = ('pcpus', 'state', 'benchmark', 'weight', 'coefficient', 'low',
           'high', 'interval', 'rounds', 'cu_per_pcpu', 'off_by')
#: In the place of a benchmark's name.
COMBINED = 'combined'


def rows(shown: profile.Profile) -> Iterator[tuple[object, ...]]:
    """What was measured of each class of pCPUs in each state.

    :returns: for each the coefficient, then that by each benchmark, with
        :data:`COLUMNS`
    """
    for cpu_class in shown.cpu_classes:
        for state, measured in (('alone', cpu_class.alone),
                                ('busy', cpu_class.busy)):
            pcpus = profile.format_pcpus(cpu_class.pcpus)
            yield (pcpus, state, COMBINED, '', *_numbers(
                measured, sum(len(s.samples) for s in measured.scores)), '')
            for score in measured.scores:
                error = combine.error(score, measured, shown.reference)
                known = shown.reference.benchmark(score.benchmark)
                yield (pcpus, state, known.name, f'{known.weight:g}',
                       *_numbers(score, len(score.samples)),
                       '' if error is None else f'{error:+.1%}')


def capacity_cu(shown: profile.Profile) -> int:
    """What all pCPUs of a profile can promise together."""
    return units.capacity_cu(shown.coefficient(pcpu) for pcpu in shown.pcpus)


def _numbers(found: profile.Measurement | profile.Score,
             rounds: int) -> tuple[object, ...]:
    return (round(found.coefficient, 5), round(found.interval_low, 5),
            round(found.interval_high, 5), f'{found.interval_width:.2%}',
            rounds, round(
                found.coefficient * units.CU_PER_REFERENCE_PCPU, 2))
