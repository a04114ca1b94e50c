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


"""Where, how, and for how long CPUs are measured."""

from collections.abc import Callable, Collection, Iterable
import dataclasses
import itertools

from nova_vqos.calibration import estimate
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.runner import Runner

# A promise of speed should not rest on fewer.
MIN_ROUNDS = 8
# No profile holds more of one class, see nova_vqos.profile.
_MAX_SAMPLES = 10_000


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    :ivar max_rounds: of each pCPU in each measurement
    :ivar max_interval: good enough, relative to the score
    :ivar max_s: wall time of all measurements together; each one has the
        least rounds that an interval needs, however long they take
    """

    max_rounds: int = 40
    max_interval: float = 0.02
    max_s: float = 240

    def is_enough(self, groups: Collection[list[list[float]]],
                  spent_s: float, limit_s: float) -> bool:
        """Whether each group of equal pCPUs is known well enough.

        :param groups: the scores of each pCPU of each group
        :param spent_s: wall time since the measurement began
        :param limit_s: of this measurement
        """
        rounds = min(len(scores) for group in groups for scores in group)
        if rounds >= self.max_rounds or any(
                sum(map(len, group)) >= _MAX_SAMPLES for group in groups):
            return True
        if rounds >= estimate.LEAST_SAMPLES and spent_s > limit_s:
            return True
        return rounds >= MIN_ROUNDS and all(
            estimate.estimate(pooled(group)).width <= self.max_interval
            for group in groups)


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """Where and how the benchmarks are run.

    :ivar pcpus: to measure
    :ivar measured_in: ``host``, or ``guest`` of an emulator
    :ivar open_runner: of a benchmark, for rounds of so many events (None: it
        finds how many)
    :ivar emulator: whose guests are measured, None: none
    :ivar virt_type: of the guests
    :ivar guest_kernel: path of what they boot
    :ivar beside_guests: measure even where guests are at work
    :ivar sysroot: where /proc and /sys are looked for, for tests
    """

    pcpus: frozenset[int]
    measured_in: str
    open_runner: Callable[[Member, int | None], Runner]
    emulator: str | None = None
    virt_type: str | None = None
    guest_kernel: str | None = None
    beside_guests: bool = False
    sysroot: str = '/'


def pooled(group: Iterable[list[float]]) -> list[float]:
    """All scores of a group of equal pCPUs."""
    return list(itertools.chain.from_iterable(group))
