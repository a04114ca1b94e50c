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

"""How often the agent writes to a server."""

# Each write gives CPU time away, so a fight with another writer must not go
# on at every tick: five at once, then one in ten seconds.
_WRITES_AT_ONCE = 5
_WRITE_INTERVAL_S = 10.0


class WriteAllowance:
    """How often a server may be written to."""

    def __init__(self) -> None:
        self._left = float(_WRITES_AT_ONCE)
        self._seen_at_s: float | None = None

    def take(self, now_s: float) -> bool:
        """Whether a write is allowed now; counts it if so."""
        if self._seen_at_s is not None:
            self._left = min(
                float(_WRITES_AT_ONCE), self._left
                + (now_s - self._seen_at_s) / _WRITE_INTERVAL_S)
        self._seen_at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True
