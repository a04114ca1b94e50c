# SPDX-License-Identifier: Apache-2.0
"""Recognise the kind of work of each vCPU: vTRS of the research (3.3.1.3).

Each sample of a vCPU gives five cursors from 0 to 100, one of each kind. The
kind of a vCPU is the one with the highest mean over the last four samples.
Six things are ours:

* The research counts in periods of 30 ms. Here samples and limits are rates
  per second, so that a sample may cover any time; and per second of CPU time,
  since a cap changes how much work a vCPU does, and not its kind. One that
  hardly runs shows none.
* A source may be missing. The cursors that need it are then unknown, and never
  guessed; the highest of the others counts only above 50, since an unknown one
  may be as high.
* A vCPU changes its kind only after another was ahead by ten points in four
  samples in a row, so that kinds do not flap.
* One that changed its kind twice within ten samples has none, nor has one that
  looked like another in many of these: a kind that is recognised later than it
  changes would be that of the time before.
* ORDER decides between equal cursors.
* NEUTRAL and POLLUTER vCPUs suit any slice in the research, whose hypervisor
  lets what wakes up go first. Linux may let it wait for the slices of others.
  So one of these, or of CACHE, that rests, or does some I/O or waits for
  another now and then, is sensitive: it suits no long slice.

Pure.
"""

import collections
from collections.abc import Collection, Hashable, Mapping
import dataclasses
import math
import re
import typing as ty

from nova_vqos.quantum import classes
from nova_vqos.quantum import model

#: Samples that decide on a kind: n of the research.
WINDOW = 4

# The mean of a cursor needs this many of the window: a source that fails for
# a moment is not missing.
_MIN_KNOWN = WINDOW // 2

# Where cursors are unknown the highest of the others counts above this. An IO
# or SPIN vCPU pollutes the cache above it (IOInt+ and ConSpin+ of the
# research).
_HALF = 50.0

# A change of kind needs this margin, in this many samples in a row.
_MARGIN = 10.0
_CONFIRMATIONS = 4

# A vCPU that ran for less of the time shows no kind of work: the rates of its
# few moments are those of waking up.
_LEAST_RAN = 0.01
# Nor does what comes from outside make a server busy that hardly runs: packets
# to all, and waits for an answer, count as if it ran this part at least.
_LEAST_RAN_OF_EVENTS = 0.1

# A vCPU has no kind that changed it twice within so many samples, or that
# looked like another one in many of them, until it does so in few.
_RESTLESS_SAMPLES = 10
_MANY_DOUBTS = 0.5
_FEW_DOUBTS = 0.2

# Above these it is sensitive: a cursor of IO or SPIN, and the part of the time
# in which it did not want to run. It ceases to be below a half of these.
_SOME_CURSOR = 5.0
_SOME_REST = 0.1
_CEASES = 0.5

#: The order between equal cursors. Kinds that suffer from long slices are
#: first: both cursors of a server that does I/O and leaves the cache alone are
#: 100.
ORDER = (model.Kind.IO, model.Kind.SPIN, model.Kind.CACHE, model.Kind.NEUTRAL,
         model.Kind.POLLUTER)

_RESEARCH_PERIOD_S = 0.030


def _per_second(per_period: int) -> int:
    return round(per_period / _RESEARCH_PERIOD_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Activity:
    """Counters that a hypervisor read of a server at one moment.

    :ivar run: changes with each start of the server: counters of two runs are
        never compared
    :ivar requests: packets in both directions and disk requests, by device;
        None: unknown this time
    :ivar runs: how often each vCPU began to run, by its number; without vCPUs
        whose count is unknown
    :ivar waits: how often each vCPU waited for another, by its number; empty
        where the hypervisor does not count it
    :ivar ran_ns: how long each vCPU ran, by its number, as ``runs``
    :ivar ready_ns: likewise, how long it ran or wanted to
    """

    run: int
    requests: Mapping[str, int] | None
    runs: Mapping[int, int]
    waits: Mapping[int, int]
    ran_ns: Mapping[int, int] = dataclasses.field(default_factory=dict)
    ready_ns: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The work of a vCPU since the sample before, per second of time.

    None: no source provides it.

    :ivar io_requests: its part of the server's packets and disk requests
    :ivar spin_events: how often it waited for another vCPU
    :ivar references: of the last-level cache
    :ivar misses: of the last-level cache
    :ivar ran: in which part of the time it ran, 0 to 1; None: its rates count
        as if it had run all the time
    :ivar ready: likewise, ran or wanted to
    """

    io_requests: float | None = None
    spin_events: float | None = None
    references: float | None = None
    misses: float | None = None
    ran: float | None = None
    ready: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The ends of the cursors, per second of CPU time, for each rate of a
    :class:`Sample`.

    The research prints no values. These are, per 30 ms: 30 requests, 10 waits,
    100 000 references, 150 000 misses. The last two lie between two programs
    that walk a list. One that fits into the last-level cache, at some 10 ns a
    step, makes 3 000 000 references, and 65 000 misses even if each period
    begins with half of 8 MB cold. One that does not fit, at some 80 ns a step,
    makes 375 000 references and as many misses.
    """

    io_requests: int = _per_second(30)
    spin_events: int = _per_second(10)
    references: int = _per_second(100_000)
    misses: int = _per_second(150_000)


# By the names of the option.
_LIMIT_NAMES: ty.Final[Mapping[str, str]] = {
    'io': 'io_requests', 'spin': 'spin_events', 'references': 'references',
    'misses': 'misses'}
# NOTE: not int() alone: see quantum/classes.py.
_LIMIT_PATTERN = re.compile(r'[1-9][0-9]{0,11}')


class LimitInvalid(ValueError):
    """An unknown limit, or one with an invalid value."""

    def __init__(self, name: str, value: str, expected: str) -> None:
        super().__init__(f'the limit {classes.quoted(name)} is '
                         f'{classes.quoted(value)}, it must be {expected}')


def limits(given: Mapping[str, str]) -> Limits:
    """Limits from an operator's values; the others have the default.

    :param given: per second, by ``io``, ``spin``, ``references``, ``misses``
    :raises LimitInvalid: when a name is unknown, or a value no such number
    """
    found = {}
    for name, value in given.items():
        if name not in _LIMIT_NAMES:
            raise LimitInvalid(name, value, 'one of '
                               f'{", ".join(_LIMIT_NAMES)}')
        if not _LIMIT_PATTERN.fullmatch(value):
            raise LimitInvalid(
                name, value, 'a whole number per second from 1 to '
                '999999999999')
        found[_LIMIT_NAMES[name]] = int(value)
    return Limits(**found)


Cursors = Mapping[model.Kind, float | None]


def cursors(sample: Sample, limits: Limits) -> Cursors:
    """How much of each kind the work of a vCPU was, 0 to 100; None: unknown.

    The cursors of the three kinds of cache use add up to 100.
    """
    ran = 1.0 if sample.ran is None else sample.ran
    if ran < _LEAST_RAN:
        return dict.fromkeys(ORDER)
    of_events = max(ran, _LEAST_RAN_OF_EVENTS)
    neutral = cache = polluter = None
    if sample.references is not None and sample.misses is not None:
        neutral = _below(sample.references / ran, limits.references)
        cache = min(100 - neutral, _below(sample.misses / ran, limits.misses))
        polluter = 100 - neutral - cache
    return {
        model.Kind.IO: _towards(sample.io_requests,
                                of_events * limits.io_requests),
        model.Kind.SPIN: _towards(sample.spin_events,
                                  of_events * limits.spin_events),
        model.Kind.CACHE: cache,
        model.Kind.NEUTRAL: neutral,
        model.Kind.POLLUTER: polluter}


def _towards(level: float | None, limit: float) -> float | None:
    return None if level is None else min(100.0, level * 100 / limit)


def _below(level: float, limit: int) -> float:
    return max(0.0, (limit - level) * 100 / limit)


def highest_kind(means: Cursors) -> model.Kind | None:
    """The kind with the highest known cursor, the first one in ORDER."""
    known = [kind for kind in ORDER if means[kind] is not None]
    return max(known, key=lambda kind: _level(means, kind), default=None)


def _evident_kind(means: Cursors) -> model.Kind | None:
    """The kind that cursors prove; None: they prove none."""
    kind = highest_kind(means)
    if None in means.values() and _level(means, kind) <= _HALF:
        return None
    return kind


def _level(means: Cursors, kind: model.Kind | None) -> float:
    """A cursor; -inf where it is unknown."""
    level = None if kind is None else means[kind]
    return -math.inf if level is None else level


def server_class(kinds: Collection[model.Kind]) -> str:
    """The quantum class of a server, from the kinds of its vCPUs.

    The class that most of its vCPUs need. vCPUs that need none, and vCPUs
    that have not been recognised, do not count against it. Of equal numbers
    io is before spin before cache, since waiting hurts in this order. Where
    no vCPU needs a class it is ``neutral`` if all are recognised, else
    ``default``.

    :param kinds: DEFAULT: not recognised
    """
    needed = collections.Counter(model.QUANTUM_CLASS[kind] for kind in kinds)
    choice = max(classes.SPECIAL, key=lambda name: needed[name])
    if needed[choice]:
        return choice
    if kinds and model.Kind.DEFAULT not in kinds:
        return classes.NEUTRAL
    return classes.DEFAULT


_T = ty.TypeVar('_T')


class _Steady(ty.Generic[_T]):
    """A value that changes after several equal proposals in a row."""

    def __init__(self, value: _T) -> None:
        self.value = value
        self._rival = value
        self._times = 0

    def propose(self, value: _T) -> None:
        if value != self._rival:
            self._rival = value
            self._times = 0
        self._times += 1
        if self._times >= _CONFIRMATIONS:
            self.value = value


class _Vcpu:
    """One vCPU: its last samples, and its kind so far.

    :ivar is_restless: whether it changes its kind too often to have one
    :ivar recognised_after_s: for how long its work was of a kind before that
        was recognised, the last time; None: none ever was
    """

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self.is_restless = False
        self.recognised_after_s: float | None = None
        # For how long its work has been of another kind than recognised, and
        # how many of the last samples had none such.
        self._unrecognised_s = 0.0
        self._plain_samples = 0
        self._kind: _Steady[model.Kind | None] = _Steady(None)
        # Whether it uses the cache as a polluter does, whatever its kind.
        self._evicts = _Steady(False)
        # Until the opposite is known.
        self._sensitive = _Steady(True)
        self._polluted_ago = _RESTLESS_SAMPLES
        self._window: collections.deque[Cursors] = collections.deque(
            maxlen=WINDOW)
        self._rest: collections.deque[float | None] = collections.deque(
            maxlen=WINDOW)
        # How many samples ago the last changes of kind were, the last first.
        self._changes: collections.deque[int] = collections.deque(maxlen=2)
        # Whether it looked like another kind, in the last samples.
        self._doubts: collections.deque[bool] = collections.deque(
            maxlen=_RESTLESS_SAMPLES)
        self._is_doubtful = False

    @property
    def kind(self) -> model.Kind | None:
        return None if self.is_restless else self._kind.value

    @property
    def pollutes(self) -> bool:
        # One that is restless does so time and again.
        return self._polluted_ago == 0 or (
            self.is_restless and self._polluted_ago < _RESTLESS_SAMPLES)

    @property
    def is_sensitive(self) -> bool:
        return self._sensitive.value

    def means(self) -> Cursors:
        return {kind: _mean([sampled[kind] for sampled in self._window])
                for kind in ORDER}

    def add(self, sampled: Cursors, rest: float | None,
            elapsed_s: float) -> None:
        """:param rest: the part of the time in which it did not want to run
        :param elapsed_s: that the sample covers
        """
        before = self.kind
        self._wait(sampled, elapsed_s)
        self._decide(sampled, rest)
        if self.kind is not None and self.kind is not before:
            self.recognised_after_s = self._unrecognised_s
            self._unrecognised_s, self._plain_samples = 0.0, WINDOW

    def _wait(self, sampled: Cursors, elapsed_s: float) -> None:
        """Count for how long there has been something to recognise.

        From the first sample of which no later ones, a window of them, were
        all of the present kind, or of none.
        """
        evident = _evident_kind(sampled)
        is_plain = evident is None or (
            self.kind is not None and _level(sampled, evident)
            < _level(sampled, self.kind) + _MARGIN)
        self._plain_samples = self._plain_samples + 1 if is_plain else 0
        self._unrecognised_s = (
            0.0 if self._plain_samples >= WINDOW
            else self._unrecognised_s + elapsed_s)

    def _decide(self, sampled: Cursors, rest: float | None) -> None:
        self._window.append(sampled)
        self._rest.append(rest)
        if len(self._window) < WINDOW:
            return
        means = self.means()
        self._propose_rest(means, _mean(self._rest))
        before = self._kind.value
        self._propose(means)
        self._note_change(before is not None
                          and self._kind.value is not before)
        kind = self._kind.value
        self._polluted_ago = 0 if kind is model.Kind.POLLUTER or (
            kind in (model.Kind.IO, model.Kind.SPIN) and self._evicts.value
        ) else self._polluted_ago + 1

    def _propose_rest(self, means: Cursors, rest: float | None) -> None:
        """:param rest: None: unknown, and so is what long slices do to it"""
        part = _CEASES if self.is_sensitive else 1.0
        self._sensitive.propose(
            rest is None or rest > part * _SOME_REST
            or means[model.Kind.IO] is None
            or any(_level(means, kind) > part * _SOME_CURSOR
                   for kind in (model.Kind.IO, model.Kind.SPIN)))

    def _propose(self, means: Cursors) -> None:
        evident = _evident_kind(means)
        evicts = _level(means, model.Kind.POLLUTER) > _HALF
        if self._kind.value is None and evident is not None:
            # The window has confirmed it already.
            self._kind, self._evicts = _Steady(evident), _Steady(evicts)
            self._doubts.clear()
            return
        is_close = self._is_close(means, evident)
        self._doubts.append(evident is not None and not is_close)
        self._kind.propose(self._kind.value if is_close else evident)
        self._evicts.propose(evicts or (
            self._evicts.value
            and _level(means, model.Kind.POLLUTER) > _HALF - _MARGIN))

    def _note_change(self, changed: bool) -> None:
        self._changes = collections.deque(
            (ago + 1 for ago in self._changes), maxlen=2)
        if changed:
            self._changes.appendleft(0)
            if not self._is_doubtful:
                self._doubts.clear()
        self._is_doubtful = sum(self._doubts) > _RESTLESS_SAMPLES * (
            _FEW_DOUBTS if self._is_doubtful else _MANY_DOUBTS)
        self.is_restless = self._is_doubtful or (
            len(self._changes) == 2
            and self._changes[0] < _RESTLESS_SAMPLES
            and self._changes[1] - self._changes[0] <= _RESTLESS_SAMPLES)

    def _is_close(self, means: Cursors, evident: model.Kind | None) -> bool:
        """Whether the present kind is less than the margin behind."""
        present_level = _level(means, self._kind.value)
        if evident is not None:
            return _level(means, evident) < present_level + _MARGIN
        # The other known cursors are behind, and it is just below the half.
        return (present_level > _HALF - _MARGIN
                and highest_kind(means) is self._kind.value)


def _mean(levels: Collection[float | None]) -> float | None:
    known = [level for level in levels if level is not None]
    if len(known) < _MIN_KNOWN:
        return None
    return sum(known) / len(known)


class Recognizer:
    """Recognises vCPUs, each under a key of the caller's."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._vcpus: dict[Hashable, _Vcpu] = {}

    def add(self, key: Hashable, sample: Sample, thread: int = 0,
            elapsed_s: float = 0.0) -> None:
        """Add a sample of a vCPU.

        :param thread: of the vCPU: another one starts over
        :param elapsed_s: since the sample before
        """
        vcpu = self._vcpus.get(key)
        if vcpu is None or vcpu.thread != thread:
            self._vcpus.pop(key, None)
            if sample == Sample():
                return
            vcpu = self._vcpus[key] = _Vcpu(thread)
        vcpu.add(cursors(sample, self._limits), None if sample.ready is None
                 else max(0.0, 1 - sample.ready), elapsed_s)

    def kind(self, key: Hashable) -> model.Kind | None:
        """The kind of a vCPU; None: not recognised."""
        vcpu = self._vcpus.get(key)
        return None if vcpu is None else vcpu.kind

    def recognised_after_s(self, key: Hashable) -> float | None:
        """For how long the work of a vCPU was of its kind before that was
        recognised; None: it has none.
        """
        vcpu = self._vcpus.get(key)
        return (None if vcpu is None or vcpu.kind is None
                else vcpu.recognised_after_s)

    def pollutes(self, key: Hashable) -> bool:
        """Whether a vCPU evicts the cache lines of others."""
        vcpu = self._vcpus.get(key)
        return vcpu is not None and vcpu.pollutes

    def is_sensitive(self, key: Hashable) -> bool:
        """Whether long slices of others would hurt a vCPU, whatever its kind:
        it rests, or does some I/O or waits for another now and then.
        """
        vcpu = self._vcpus.get(key)
        return vcpu is None or vcpu.is_sensitive

    def means(self, key: Hashable) -> Cursors:
        """The mean cursors of a vCPU over the window."""
        vcpu = self._vcpus.get(key)
        return dict.fromkeys(ORDER) if vcpu is None else vcpu.means()

    def retain(self, keys: Collection[Hashable]) -> None:
        """Drop all other vCPUs."""
        for key in self._vcpus.keys() - set(keys):
            del self._vcpus[key]
