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

"""When the cap of a server was last set, and why."""

import typing as ty

from nova_vqos import policy as policies
from nova_vqos.agent import state

#: Why a cap is set that was right before, besides :meth:`Grounds.change`.
TAMPERED = 'tampered'
RELEASED = 'released'
_OTHER = 'other'


class Grounds(ty.NamedTuple):
    """What the cap of a server follows from, the weightiest first.

    :ivar flavor: its policy
    :ivar profile: id of the host's
    :ivar pcpus: those that it may run on; None: all
    :ivar vcpus: how many are online
    :ivar lifted: whether the limit on its I/O is lifted, for a migration
    :ivar debt: what its I/O leaves it; None: it does not pay for it
    """

    flavor: policies.ServerPolicy
    profile: str
    pcpus: frozenset[int] | None
    vcpus: int
    lifted: bool
    debt: float | None

    def change(self, before: 'Grounds | None') -> str:
        """The name of the first that is another one than before."""
        if before is None:
            return _OTHER
        for name, now, then in zip(self._fields, self, before, strict=True):
            if now != then and not (name == 'lifted' and not self.lifted):
                return name
        # The limit on its I/O is in force again after a migration.
        return 'debt' if self.lifted != before.lifted else _OTHER


class Recap(ty.NamedTuple):
    """The last time that a cap was set.

    :ivar at: when, ISO 8601, UTC
    :ivar reason: how the server came to run here, for its first cap; else a
        field of Grounds, TAMPERED, RELEASED or ``other``
    :ivar wrong_ms: for how long another one was in force before, at the
        most: who changed it may have done so after it was last looked at;
        None: unknown
    """

    at: str
    reason: str
    wrong_ms: float | None


class RecapWatch:
    """Remembers it for one server.

    :ivar last: None: its cap was not set since the agent knows it
    """

    def __init__(self) -> None:
        self.last: Recap | None = None
        self._right: Grounds | None = None
        self._wrong: _Wrong | None = None

    def note_wrong(self, grounds: Grounds | None, since_s: float,
                   writes: int, *, tampered: bool) -> None:
        """Another cap is in force than the wanted one; again is harmless.

        :param grounds: of the wanted one
        :param since_s: on the monotonic clock
        :param writes: how often the server was written to so far
        :param tampered: whether somebody else changed it
        """
        if self._wrong is None:
            self._wrong = _Wrong(
                TAMPERED if tampered or grounds is None
                else grounds.change(self._right), since_s, writes)

    def note_right(self, grounds: Grounds | None, now_s: float,
                   writes: int) -> None:
        """The wanted one is in force; whoever wrote it."""
        wrong, self._wrong = self._wrong, None
        self._right = grounds
        if wrong is not None and writes > wrong.writes:
            self.last = Recap(state.utc(), wrong.reason,
                              (now_s - wrong.since_s) * 1000)

    def note_first(self, origin: str, wrong_ms: float | None,
                   writes: int) -> None:
        """It is, for the first time.

        :param origin: how the server came to run here; ``found``: long ago
        """
        if writes or origin != 'found':
            self.last = Recap(state.utc(), origin, wrong_ms)

    def note_released(self) -> None:
        """The limit on a server's I/O was ended, and no more."""
        self.last = Recap(state.utc(), RELEASED, None)


class _Wrong(ty.NamedTuple):
    """That another cap than the wanted one is in force."""

    reason: str
    since_s: float
    writes: int
