# SPDX-License-Identifier: Apache-2.0
"""Whether servers get on as well in their pools as without.

A plan cannot know that: others may leave idle what it counts as busy. So each
server whose vCPUs wait in their pool is tried without it, once in a while: it
floats, with the kernel's own slice, as where there are no pools. If it gets on
better so, it goes back once more, since others may have ended their work at
that time. One that then is worse again stays out of that pool for a while.

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
# Looks without it, and once more in it: before it is found worse, before it is
# found as good, and at most; and those, with the ones at which the server
# hardly wanted to run.
_LEAST_WORSE, _LEAST_AS_GOOD, _MOST = 6, 12, 24
_MOST_OBSERVATIONS = 36
# Looks at which it hardly wanted to run: earlier ones do not count any more.
_MOST_IDLE = 3
# Of the difference of two means, that it has to be beyond the tolerance: each
# look may be the one that decides, so more than the usual two.
_DEVIATIONS = 3.0
# Of the servers that wait in their pools, that are tried at a time; one at
# least.
_TRIED_PART = 10
# Until a server is tried again. Twice as long as the last time, if what was
# found is the same.
_HOLD_S, _LONGEST_HOLD_S = 3600.0, 86400.0
# Until one whose trial showed nothing is.
_RETRY_S = 600.0


class Phase(enum.Enum):
    """Where a server is to be."""

    POOL = 'pool'
    TRIAL = 'trial'
    AGAIN = 'again'
    OUT = 'out'

    @property
    def floats(self) -> bool:
        """Whether the server is without its pool."""
        return self in {Phase.TRIAL, Phase.OUT}


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

    :ivar threads: of its vCPUs: if all are others, it is another run of it
    :ivar pool: that it is planned to be in; None: none
    :ivar is_there: whether it is where it is to be
    :ivar is_new: whether the next look has some of the time before
    :ivar before: its progress in its pool, at each look
    :ivar without: likewise without it
    :ivar again: likewise in it once more
    :ivar observations: of this phase
    :ivar idle: looks in a row at which it hardly wanted to run
    :ivar verdict: None: there was none on this pool
    :ivar until_s: until when that holds
    :ivar hold_s: for how long it does
    """

    threads: frozenset[int]
    pool: Hashable = None
    is_there: bool = False
    is_new: bool = True
    phase: Phase = Phase.POOL
    before: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST_BEFORE))
    without: collections.deque[float] = dataclasses.field(
        default_factory=lambda: collections.deque(maxlen=_MOST))
    again: list[float] = dataclasses.field(default_factory=list)
    observations: int = 0
    idle: int = 0
    verdict: Verdict | None = None
    until_s: float = float('-inf')
    hold_s: float = _HOLD_S

    def place(self, pool: Hashable, *, is_there: bool) -> None:
        if pool != self.pool:
            # What was found is about another pool.
            self.pool, self.verdict = pool, None
            self.until_s, self.hold_s = float('-inf'), _HOLD_S
            self.go(Phase.POOL)
        if is_there != self.is_there:
            self.is_there, self.is_new = is_there, True

    def look(self, progress: float | None, now_s: float) -> None:
        """One more look; None: it hardly wanted to run, or is not known."""
        self.observations += 1
        self.idle = self.idle + 1 if progress is None else 0
        if self.idle > _MOST_IDLE:
            self.before.clear()
        if self.is_there and progress is not None:
            if self.is_new:
                self.is_new = False
            else:
                self._looks().append(progress)
        if self.phase is Phase.TRIAL:
            self._judge(self.before, self.without, now_s)
        elif self.phase is Phase.AGAIN:
            self._judge(self.again, self.without, now_s)
        elif self.phase is Phase.OUT and (
                now_s >= self.until_s or self._is_out_in_vain()):
            self.until_s = now_s
            self.go(Phase.POOL)

    def wants_trial(self, now_s: float) -> bool:
        """Whether it waits in its pool, for all that is known of that."""
        return (self.phase is Phase.POOL and now_s >= self.until_s
                and self.pool is not None and self.is_there and not self.idle
                and len(self.before) >= _LEAST_BEFORE
                and statistics.fmean(self.before) < 1 - TOLERANCE)

    def go(self, phase: Phase) -> None:
        """Begin a phase: the server is not there yet."""
        self.phase, self.observations = phase, 0
        self.is_there, self.is_new = False, True
        # A trial needs those before, what follows those of the trial.
        if phase is Phase.POOL:
            self.before.clear()
        elif phase is Phase.TRIAL:
            self.without.clear()
            self.again.clear()

    def _looks(self) -> collections.deque[float] | list[float]:
        if self.phase is Phase.POOL:
            return self.before
        return self.again if self.phase is Phase.AGAIN else self.without

    def _is_out_in_vain(self) -> bool:
        """Whether it gets on no better than in its pool by now."""
        return (self.verdict is not None and len(self.without) == _MOST
                and statistics.fmean(self.without) <= self.verdict.pool)

    def _judge(self, pool: Collection[float], without: Sequence[float],
               now_s: float) -> None:
        """Whether it is worse in its pool, if that is known by now."""
        looks = self._looks()
        if min(len(pool), len(without)) < _LEAST_WORSE:
            if self.observations >= _MOST_OBSERVATIONS:
                self.until_s = now_s + _RETRY_S
                self.go(Phase.POOL)
        elif _is_worse(pool, without):
            if self.phase is Phase.TRIAL:
                self.go(Phase.AGAIN)
            else:
                self._end(pool, without, now_s, is_worse=True)
        elif (len(looks) >= _MOST or self.observations >= _MOST_OBSERVATIONS
                or len(looks) >= _LEAST_AS_GOOD and statistics.fmean(pool)
                >= (1 - TOLERANCE) * statistics.fmean(without)):
            self._end(pool, without, now_s, is_worse=False)

    def _end(self, pool: Collection[float], without: Collection[float],
             now_s: float, *, is_worse: bool) -> None:
        last = self.verdict
        self.hold_s = (min(2 * self.hold_s, _LONGEST_HOLD_S)
                       if last is not None and last.is_worse == is_worse
                       else _HOLD_S)
        self.verdict = Verdict(statistics.fmean(pool),
                               statistics.fmean(without), is_worse)
        self.until_s = now_s + self.hold_s
        self.go(Phase.OUT if is_worse else Phase.POOL)


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

    def suspend(self, uuid: str) -> None:
        """Leave a server in its pool for now; what was found of it holds."""
        state = self._states.get(uuid)
        if state is not None:
            state.go(Phase.POOL)

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

    def place(self, uuid: str, threads: Collection[int], pool: Hashable, *,
              is_there: bool) -> None:
        """Note where a server is from now on.

        :param threads: of its vCPUs
        :param pool: that it is planned to be in; None: none
        :param is_there: whether it is where it is to be
        """
        state = self._states.get(uuid)
        if state is None or state.threads.isdisjoint(threads):
            state = self._states[uuid] = _State(frozenset(threads))
        state.threads = frozenset(threads)
        state.place(pool, is_there=is_there)

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
            key=lambda state: statistics.fmean(state.before))
        tried = sum(state.phase in {Phase.TRIAL, Phase.AGAIN}
                    for state in self._states.values())
        room = max(1, (len(waiting) + tried) // _TRIED_PART) - tried
        for state in waiting[:max(0, room)]:
            state.go(Phase.TRIAL)
        changed = [uuid for uuid, state in self._states.items()
                   if state.phase is not before[uuid]]
        if changed:
            # For the others, too, their pools are not what they were.
            for state in self._states.values():
                if state.phase is Phase.POOL:
                    state.before.clear()
        self.undone += sum(self.phase(uuid) is Phase.OUT for uuid in changed)
        return changed


def _is_worse(ones: Collection[float], others: Sequence[float]) -> bool:
    """Whether the first progress is below the second, beyond the tolerance."""
    deviation = math.sqrt(sum(statistics.variance(looks) / len(looks)
                              for looks in (ones, others)))
    return (statistics.fmean(ones) + _DEVIATIONS * deviation
            < (1 - TOLERANCE) * statistics.fmean(others))
