# SPDX-License-Identifier: Apache-2.0
"""A reserve for the host that follows its load: pure control.

It is raised at once, so that no server is placed on what the host's I/O takes
already. It is lowered slowly, and not below what the host usually needs, so
that a quiet hour does not sell what a busy one needs. It moves in steps, so
that Placement is written to seldom. It only bounds what is sold from then on:
servers that are there stay.
"""

import collections
import itertools
import math

# Of a pCPU.
_STEP = 0.1
# Minutes in a row that have to be above the reserve: one alone is a moment's,
# such as that of a package's installation.
_RAISED_AFTER = 2
# Minutes that have to be below it by a step, for each step down.
_LOWERED_AFTER = 60


class Reserve:
    """The reserve of a host.

    :ivar cu: in CU, the load of the host that no server's units pay for
    """

    def __init__(self, cu: int = 0) -> None:
        """:param cu: that of the agent before, so that a restart lowers none
        """
        self.cu = cu
        self._minutes_cu: collections.deque[float] = collections.deque(
            maxlen=_LOWERED_AFTER)

    def add_minute(self, load_cu: float, usual_cu: float,
                   pcpu_cu: float) -> None:
        """Take in the load of another minute.

        :param load_cu: its mean
        :param usual_cu: what nearly all minutes of the last day needed
        :param pcpu_cu: mean speed of the host's pCPUs
        """
        minutes_cu = self._minutes_cu
        minutes_cu.append(load_cu)
        step_cu = _STEP * pcpu_cu
        needed_cu = usual_cu
        if len(minutes_cu) >= _RAISED_AFTER:
            needed_cu = max(needed_cu, min(
                itertools.islice(reversed(minutes_cu), _RAISED_AFTER)))
        if needed_cu > self.cu:
            self.cu = math.ceil(max(
                needed_cu, math.ceil(needed_cu / step_cu) * step_cu))
        elif (len(minutes_cu) == _LOWERED_AFTER
              and max(usual_cu, *minutes_cu) <= self.cu - step_cu):
            self.cu = max(0, math.floor(self.cu - step_cu))
            minutes_cu.clear()
