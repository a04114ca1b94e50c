# SPDX-License-Identifier: Apache-2.0
"""Whether servers get on as well in their pools as without.

A plan cannot know that: others may leave idle what it counts as busy. So each
server whose vCPUs wait in their pool is tried without it, once in a while: it
floats, with the kernel's own slice, as where there are no pools. One that gets
on better so stays out of pools for a while.

The progress of a server is what its vCPUs ran, of the time that they wanted to
run. What caches do to the work of a CPU second does not show in it, nor that a
vCPU spins in vain. Pure.
"""

import collections
from collections.abc import Collection, Hashable, Mapping, Sequence
import dataclasses
import enum
import math
import statistics

#: What a server may lose in its pool.
TOLERANCE = 0.03

# Looks in a pool before a trial, at least and at most those that count.
_LEAST_BEFORE, _MOST_BEFORE = 12, 24
# Looks without it: before it is found worse, before it is found as good, and
# at most; and those, with the ones at which the server hardly wanted to run.
_LEAST_WORSE, _LEAST_AS_GOOD, _MOST = 6, 12, 24
_MOST_OBSERVATIONS = 36
# Of the difference of two means, that it has to be beyond the tolerance: each
# look may be the one that decides, so more than the usual two.
_DEVIATIONS = 3.0
# Of the servers that wait in their pools, that are tried at a time; one at
# least.
_TRIED_PART = 10
# Until a server is tried again. Twice as long as the last time, if what was
# found is the same.
_HOLD_S, _LONGEST_HOLD_S = 3600.0, 86400.0


class Phase(enum.Enum):
    """Where a server is to be."""

    POOL = 'pool'
    TRIAL = 'trial'
    OUT = 'out'


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What came of the last trial of a server.

    :ivar pool: its progress in its pool
    :ivar without: its progress without it
    :ivar is_worse: whether it got on worse in its pool
    """

    pool: float
    without: float
    is_worse: bool


@dataclasses.dataclass(slots=True)
class _State:
    """One server.

    :ivar threads: of its vCPUs: others are another run of it
    :ivar placement: where it is, and with which slices; None: not known, or
        not as planned yet
    :ivar is_pool: whether that is a pool, or a slice of its own
    :ivar is_new: whether the next look has some of the time before
    :ivar pool: its progress in its pool, at each look
    :ivar without: its progress in the trial
    :ivar observations: of the trial
    :ivar verdict: None: it was not tried yet
    :ivar until_s: until when that holds
    :ivar hold_s: for how long it does
    """

    threads: Hashable
    placement: Hashable = None
    is_pool: bool = False
    is_new: bool = True
    phase: Phase = Phase.POOL
    pool: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST_BEFORE))
    without: list[float] = dataclasses.field(default_factory=list)
    observations: int = 0
    verdict: Verdict | None = None
    until_s: float = float('-inf')
    hold_s: float = _HOLD_S

    def look(self, progress: float | None, now_s: float) -> None:
        """One more look; None: it hardly wanted to run, or is not known."""
        if self.phase is Phase.TRIAL:
            self.observations += 1
        if self.placement is not None and progress is not None:
            if self.is_new:
                self.is_new = False
            elif self.phase is Phase.POOL:
                self.pool.append(progress)
            elif self.phase is Phase.TRIAL:
                self.without.append(progress)
        if self.phase is Phase.TRIAL:
            self._judge(now_s)
        elif self.phase is Phase.OUT and now_s >= self.until_s:
            self._go(Phase.POOL)

    def wants_trial(self, now_s: float) -> bool:
        """Whether it waits in its pool, for all that is known of that."""
        return (self.phase is Phase.POOL and now_s >= self.until_s
                and self.placement is not None and self.is_pool
                and len(self.pool) >= _LEAST_BEFORE
                and statistics.fmean(self.pool) < 1 - TOLERANCE)

    def begin_trial(self) -> None:
        self.without, self.observations = [], 0
        self._go(Phase.TRIAL)

    def _go(self, phase: Phase) -> None:
        self.phase = phase
        # Until it is there.
        self.placement = None
        if phase is Phase.POOL:
            self.pool.clear()

    def _judge(self, now_s: float) -> None:
        count = len(self.without)
        is_worse = count >= _LEAST_WORSE and _is_worse(self.pool, self.without)
        if not (is_worse or count >= _MOST
                or self.observations >= _MOST_OBSERVATIONS
                or count >= _LEAST_AS_GOOD and statistics.fmean(self.pool)
                >= (1 - TOLERANCE) * statistics.fmean(self.without)):
            return
        last = self.verdict
        self.hold_s = (min(2 * self.hold_s, _LONGEST_HOLD_S)
                       if last is not None and last.is_worse == is_worse
                       else _HOLD_S)
        self.verdict = Verdict(
            statistics.fmean(self.pool),
            statistics.fmean(self.without or self.pool), is_worse)
        self.until_s = now_s + self.hold_s
        self._go(Phase.OUT if is_worse else Phase.POOL)


class Judge:
    """Tries servers without their pools, and judges by what comes of it.

    :ivar undone: how many pools were found to make a server slower
    """

    def __init__(self) -> None:
        self.undone = 0
        self._states: dict[str, _State] = {}

    def retain(self, uuids: Collection[str]) -> None:
        """Forget all other servers."""
        for uuid in self._states.keys() - set(uuids):
            del self._states[uuid]

    def forget(self, uuid: str) -> None:
        """Forget a server: it may be in a pool."""
        self._states.pop(uuid, None)

    def phase(self, uuid: str) -> Phase:
        """Where a server is to be."""
        state = self._states.get(uuid)
        return Phase.POOL if state is None else state.phase

    def verdict(self, uuid: str) -> Verdict | None:
        """What came of the last trial of a server; None: there was none."""
        state = self._states.get(uuid)
        return None if state is None else state.verdict

    def hold_s(self, uuid: str) -> float:
        """For how long the last verdict on a server holds."""
        return self._states[uuid].hold_s

    def place(self, uuid: str, threads: Hashable, placement: Hashable, *,
              is_pool: bool) -> None:
        """Note where a server is, and with which slices, from now on.

        :param threads: of its vCPUs
        :param placement: None: not where it is to be, or not known
        :param is_pool: whether that is a pool, or a slice of its own
        """
        state = self._states.get(uuid)
        if state is None or state.threads != threads:
            state = self._states[uuid] = _State(threads)
        state.is_pool = is_pool
        if placement != state.placement:
            state.placement, state.is_new = placement, True
            if state.phase is Phase.POOL:
                state.pool.clear()
            else:
                state.without.clear()

    def look(self, progress: Mapping[str, float], now_s: float) -> list[str]:
        """Judge by one more look at all servers.

        :param progress: since the last look, 0 to 1, by UUID, of those that
            wanted to run
        :param now_s: on the monotonic clock
        :returns: the servers that are to be elsewhere from now on
        """
        before = {uuid: state.phase for uuid, state in self._states.items()}
        for uuid, state in self._states.items():
            state.look(progress.get(uuid), now_s)
        # Those that wait most first.
        waiting = sorted(
            (state for state in self._states.values()
             if state.wants_trial(now_s)),
            key=lambda state: statistics.fmean(state.pool))
        tried = sum(state.phase is Phase.TRIAL
                    for state in self._states.values())
        room = max(1, (len(waiting) + tried) // _TRIED_PART) - tried
        for state in waiting[:max(0, room)]:
            state.begin_trial()
        changed = [uuid for uuid, state in self._states.items()
                   if state.phase is not before[uuid]]
        self.undone += sum(self.phase(uuid) is Phase.OUT for uuid in changed)
        return changed


def _is_worse(ones: Collection[float], others: Sequence[float]) -> bool:
    """Whether the first progress is below the second, beyond the tolerance."""
    deviation = math.sqrt(sum(statistics.variance(looks) / len(looks)
                              for looks in (ones, others)))
    return (statistics.fmean(ones) + _DEVIATIONS * deviation
            < (1 - TOLERANCE) * statistics.fmean(others))
