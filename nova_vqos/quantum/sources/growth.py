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

"""How fast counters grow. Pure."""

from collections.abc import Container, Hashable

# A growth over longer than this says little of what goes on now.
_MOST_S = 300.0


def passed_s(before_s: float, now_s: float) -> float | None:
    """The time from one reading to the next.

    :returns: None where two readings cannot be compared, since the clock
        stands still, goes back, or has made a leap
    """
    passed = now_s - before_s
    return passed if 0 < passed <= _MOST_S else None


class Growth:
    """How fast counters grow, each under a key of the caller's.

    A counter that was not seen before, or that fell, begins anew: how fast it
    grows is known from the next time on.
    """

    def __init__(self) -> None:
        self._last: dict[Hashable, tuple[int, float]] = {}

    def per_second(self, key: Hashable, count: int, now_s: float
                   ) -> float | None:
        """Take a reading.

        :returns: how much it grew per second since the last; None: not known
        """
        last_count, last_s = self._last.get(key, (count, now_s))
        self._last[key] = count, now_s
        passed = passed_s(last_s, now_s)
        if passed is None or count < last_count:
            return None
        return (count - last_count) / passed

    def keep(self, keys: Container[Hashable]) -> None:
        """Forget all other counters."""
        for key in [key for key in self._last if key not in keys]:
            del self._last[key]
