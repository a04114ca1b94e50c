# SPDX-License-Identifier: Apache-2.0
"""Whether two hosts are equally fast: shown, or not shown.

A difference that is not significant proves nothing: a poor measurement has
none. So equality is what has to be shown, by two one-sided tests (TOST:
Schuirmann, Journal of Pharmacokinetics and Biopharmaceutics 15, 1987): the
whole interval of the difference must lie within a margin that was chosen
before anything was measured.

Visits to the hosts A and B come in cycles of A B B A, in which a drift that is
linear in time cancels. What is left varies from cycle to cycle, and that is
what the interval is of: blocks within a visit are not independent.
"""

from collections.abc import Sequence
import dataclasses
import math
import statistics

from nova_vqos.calibration import estimate

#: How far A and B may be apart.
MARGIN = 0.01
#: Student's t is not known well enough for fewer.
LEAST_CYCLES = 4


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
    """How much more A has than B.

    :ivar mean: of the cycles; 0.01 is one percent
    :ivar low: of the interval of 95 %
    :ivar high: of the interval of 95 %
    """

    mean: float
    low: float
    high: float

    @property
    def is_shown_equal(self) -> bool:
        """Whether all of the interval is within the margin.

        Two one-sided tests at 2.5 %, stricter than the usual 5 %.
        """
        return max(-self.low, self.high) < MARGIN

    @property
    def is_shown_unequal(self) -> bool:
        """Whether none of the interval is within the margin."""
        return self.high < -MARGIN or self.low > MARGIN

    @property
    def verdict(self) -> str:
        """What is shown: equal, unequal, or neither: undecided."""
        return ('equal' if self.is_shown_equal else
                'unequal' if self.is_shown_unequal else 'undecided')

    def __str__(self) -> str:
        return (f'{self.mean:+.2%} (95 %: {self.low:+.2%} to '
                f'{self.high:+.2%}), {self.verdict}')


def compare(cycles: Sequence[tuple[float, float, float, float]]
            ) -> Difference:
    """Compare A with B.

    :param cycles: a positive number of each visit, in the order A B B A
    :raises ValueError: when there are fewer than LEAST_CYCLES
    """
    if len(cycles) < LEAST_CYCLES:
        raise ValueError(f'{len(cycles)} cycles are too few for an interval, '
                         f'it needs {LEAST_CYCLES}')
    found = []
    for cycle in cycles:
        a_1, b_1, b_2, a_2 = map(math.log, cycle)
        found.append((a_1 + a_2 - b_1 - b_2) / 2)
    mean = statistics.fmean(found)
    half = (estimate.student_t(len(found) - 1) * statistics.stdev(found)
            / math.sqrt(len(found)))
    return Difference(*map(math.expm1, (mean, mean - half, mean + half)))
