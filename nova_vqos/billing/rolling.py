# SPDX-License-Identifier: Apache-2.0
"""The mean use of servers in a window that moves on with time. Pure.

Its peak in a billing period is what capacity has to be there for, and what
some contracts pay for: as with the rolling four-hour average of mainframes, a
short burst weighs little, and a sum says nothing of when it was.
"""

from collections.abc import Iterator
import dataclasses
import math

from nova_vqos.billing import account

#: The length of the window.
WINDOW_S = 4 * 3600.0
# What is remembered of the window: the use of each part of this length.
_PART_S = 300.0
_PARTS = round(WINDOW_S / _PART_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Mean:
    """The mean use in a window.

    :ivar cu: use in the window divided by its whole length, so that it is
        never too high: what was before the first bill counts as nothing
    :ivar covered_s: how much of the window was billed here
    """

    cu: float
    covered_s: float


class RollingUse:
    """The use of one server, in 49 numbers at most.

    A bill is spread evenly over its time, and a part that is only partly in
    the window counts in proportion. So the mean is exact for steady use, and
    else right to within what can be used in one part: 2.1 % of the highest
    use.
    """

    def __init__(self) -> None:
        self.until_s = float('-inf')
        self._began_s = float('inf')
        self._used_cu_us: dict[int, float] = {}

    def add(self, until_s: float, length_s: float,
            used_cu_us: float) -> Mean:
        """Add a bill, and move the window on.

        :param until_s: end of the bill on the monotonic clock, later than
            that of the one before
        :param length_s: time that the bill is for
        :returns: of the window that ends with the bill
        """
        self.until_s = until_s
        length_s = max(0.0, length_s)
        self._began_s = min(self._began_s, until_s - length_s)
        for part, share in _parts(until_s - length_s, until_s):
            self._used_cu_us[part] = (self._used_cu_us.get(part, 0.0)
                                      + used_cu_us * share)
        begin = (until_s - WINDOW_S) / _PART_S
        for part in [part for part in self._used_cu_us
                     if part + 1 <= begin]:
            del self._used_cu_us[part]
        used = sum(used * min(1.0, part + 1 - begin)
                   for part, used in self._used_cu_us.items())
        return Mean(account.cu_s(round(used)) / WINDOW_S,
                    min(WINDOW_S, until_s - self._began_s))


class RollingUses:
    """The same of all servers of a host.

    One that stops is remembered as long as it is in the window, so that a new
    start does not lower its mean.
    """

    def __init__(self) -> None:
        self._uses: dict[str, RollingUse] = {}

    def add(self, uuid: str, until_s: float, length_s: float,
            used_cu_us: float) -> Mean:
        """Add a bill of a server, as :meth:`RollingUse.add`."""
        use = self._uses.get(uuid)
        if use is None:
            self._uses = {
                other: known for other, known in self._uses.items()
                if known.until_s > until_s - WINDOW_S}
            use = self._uses[uuid] = RollingUse()
        return use.add(until_s, length_s, used_cu_us)


def _parts(begin_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    """Parts of the time, and which share of the time is in each.

    Only those that can be in the window of the end.
    """
    last = math.floor(end_s / _PART_S)
    length_s = end_s - begin_s
    if length_s <= 0:
        yield last, 1.0
        return
    first = max(math.floor(begin_s / _PART_S), last - _PARTS)
    for part in range(first, last + 1):
        inside_s = (min(end_s, (part + 1) * _PART_S)
                    - max(begin_s, part * _PART_S))
        if inside_s > 0:
            yield part, inside_s / length_s
