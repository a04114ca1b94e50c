# SPDX-License-Identifier: Apache-2.0
"""Whether a server gets on in its pool as it did before.

Its progress is what its vCPUs ran, of the time that they wanted to run. That
is compared before and after each change of its pCPUs and slices. A server that
gets on worse floats for a while, with the kernel's own slice, as where there
are no pools. If it gets on better so, the pool was the cause, and it goes on
to float; if not, others want more, and it goes back to its pool.

It is compared with what it had just before, so that slow changes of the load
do not count. What caches do to the work of a CPU second does not show. Pure.
"""

import collections
from collections.abc import Collection, Hashable, Sequence
import dataclasses
import math
import statistics

#: What a server may lose: less is no reason to undo anything.
TOLERANCE = 0.03

# Looks that a judgement takes, and those after which there is none any more.
_LEAST_LOOKS = 6
_MOST_LOOKS = 24
# Of the difference of two means, that it has to be beyond the tolerance: each
# look may be the one that decides, so more than the usual two.
_DEVIATIONS = 3.0
# For how long a judgement holds; doubled each time.
_HOLD_S = 3600.0
_LONGEST_HOLD_S = 86400.0


@dataclasses.dataclass(frozen=True, slots=True)
class Undone:
    """A pool that was undone for a server.

    :ivar before: its progress before it came there
    :ivar there: its progress there
    """

    before: float
    there: float


@dataclasses.dataclass(slots=True)
class _State:
    """One server.

    :ivar placement: where it is, and with which slices; None: it floats
    :ivar looks: its progress since then, at each look
    :ivar count: of them
    :ivar is_new: whether the next look has some of the time before
    :ivar before: its progress where it was before
    :ivar undone: None: it may be in a pool
    :ivar is_confirmed: whether it gets on better without that
    :ivar until_s: until when that holds, or it is not judged
    :ivar hold_s: for how long the next judgement holds
    """

    placement: Hashable = None
    looks: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST_LOOKS))
    count: int = 0
    is_new: bool = True
    before: tuple[float, ...] = ()
    undone: Undone | None = None
    is_confirmed: bool = False
    until_s: float = float('-inf')
    hold_s: float = _HOLD_S

    def hold(self, now_s: float) -> None:
        self.until_s = now_s + self.hold_s
        self.hold_s = min(2 * self.hold_s, _LONGEST_HOLD_S)


class Judge:
    """Judges the pools of servers.

    :ivar undone_count: how many pools were undone
    """

    def __init__(self) -> None:
        self.undone_count = 0
        self._states: dict[str, _State] = {}

    def retain(self, uuids: Collection[str]) -> None:
        """Forget all other servers."""
        for uuid in self._states.keys() - set(uuids):
            del self._states[uuid]

    def undone(self, uuid: str) -> Undone | None:
        """Why a server is to float; None: it may be in a pool."""
        state = self._states.get(uuid)
        return None if state is None else state.undone

    def place(self, uuid: str, placement: Hashable) -> None:
        """Note where a server is, and with which slices, from now on.

        :param placement: None: it floats, with the kernel's own slice
        """
        state = self._states.setdefault(uuid, _State())
        if placement == state.placement:
            return
        if len(state.looks) >= _LEAST_LOOKS:
            state.before = tuple(state.looks)
        state.placement = placement
        state.looks.clear()
        state.count, state.is_new = 0, True

    def look(self, uuid: str, progress: float, now_s: float) -> None:
        """Judge by one more look.

        :param progress: since the last one, 0 to 1
        :param now_s: on the monotonic clock
        """
        state = self._states.setdefault(uuid, _State())
        if state.is_new:
            state.is_new = False
            return
        state.looks.append(progress)
        state.count += 1
        if state.undone is None:
            self._judge_pool(state, now_s)
        elif state.is_confirmed:
            if now_s >= state.until_s:
                # Others are there by now.
                state.undone, state.is_confirmed = None, False
        elif state.placement is None:
            _judge_undoing(state, now_s)

    def _judge_pool(self, state: _State, now_s: float) -> None:
        if (state.placement is not None and now_s >= state.until_s
                and state.count <= _MOST_LOOKS
                and _is_worse(state.looks, state.before)):
            state.undone = Undone(statistics.fmean(state.before),
                                  statistics.fmean(state.looks))
            self.undone_count += 1


def _judge_undoing(state: _State, now_s: float) -> None:
    if _is_worse(state.before, state.looks):
        state.is_confirmed = True
        state.hold(now_s)
    elif state.count >= _MOST_LOOKS:
        state.undone = None
        state.hold(now_s)


def _is_worse(ones: Sequence[float] | collections.deque[float],
              others: Sequence[float] | collections.deque[float]) -> bool:
    """Whether the first progress is below the second, beyond the tolerance."""
    if min(len(ones), len(others)) < _LEAST_LOOKS:
        return False
    deviation = math.sqrt(sum(statistics.variance(looks) / len(looks)
                              for looks in (ones, others)))
    return (statistics.fmean(ones) + _DEVIATIONS * deviation
            < (1 - TOLERANCE) * statistics.fmean(others))
