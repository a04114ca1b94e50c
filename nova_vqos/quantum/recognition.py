# SPDX-License-Identifier: Apache-2.0
"""Recognise the kind of work of each vCPU: vTRS of the research (3.3.1.3).

Each sample of a vCPU gives five cursors from 0 to 100, one of each kind. The
kind of a vCPU is the one with the highest mean over the last four samples.
Four things are ours:

* The research counts in periods of 30 ms. Here samples and limits are rates
  per second, so that a sample may cover any time.
* A source may be missing. The cursors that need it are then unknown, and never
  guessed; the highest of the others counts only above 50, since an unknown one
  may be as high.
* A vCPU changes its kind only after another was ahead by ten points in four
  samples in a row, so that kinds do not flap.
* ORDER decides between equal cursors.

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
    """

    run: int
    requests: Mapping[str, int] | None
    runs: Mapping[int, int]
    waits: Mapping[int, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """The work of a vCPU since the sample before, per second.

    None: no source provides it.

    :ivar io_requests: its part of the server's packets and disk requests
    :ivar spin_events: how often it waited for another vCPU
    :ivar references: of the last-level cache
    :ivar misses: of the last-level cache
    """

    io_requests: float | None = None
    spin_events: float | None = None
    references: float | None = None
    misses: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """The ends of the cursors, per second, for each rate of a :class:`Sample`.

    The research prints no values. These are, per period of 30 ms: 30 requests,
    10 waits, 100 000 references, 150 000 misses. The last two lie between two
    programs that walk a list. One that fits into the last-level cache, at some
    10 ns a step, makes 3 000 000 references, and 65 000 misses even if each
    period begins with half of 8 MB cold. One that does not fit, at some 80 ns
    a step, makes 375 000 references and as many misses. Where four vCPUs share
    a pCPU both have a quarter on average.
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
    neutral = cache = polluter = None
    if sample.references is not None and sample.misses is not None:
        neutral = _below(sample.references, limits.references)
        cache = min(100 - neutral, _below(sample.misses, limits.misses))
        polluter = 100 - neutral - cache
    return {
        model.Kind.IO: _towards(sample.io_requests, limits.io_requests),
        model.Kind.SPIN: _towards(sample.spin_events, limits.spin_events),
        model.Kind.CACHE: cache,
        model.Kind.NEUTRAL: neutral,
        model.Kind.POLLUTER: polluter}


def _towards(level: float | None, limit: int) -> float | None:
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
    choice = max((classes.IO, classes.SPIN, classes.CACHE),
                 key=lambda name: needed[name])
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
    """One vCPU: its last samples, and its kind so far."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self._kind: _Steady[model.Kind | None] = _Steady(None)
        # Whether it uses the cache as a polluter does, whatever its kind.
        self._evicts = _Steady(False)
        self._window: collections.deque[Cursors] = collections.deque(
            maxlen=WINDOW)

    @property
    def kind(self) -> model.Kind | None:
        return self._kind.value

    @property
    def pollutes(self) -> bool:
        return self.kind is model.Kind.POLLUTER or (
            self.kind in (model.Kind.IO, model.Kind.SPIN)
            and self._evicts.value)

    def means(self) -> Cursors:
        return {kind: _mean([sampled[kind] for sampled in self._window])
                for kind in ORDER}

    def add(self, sampled: Cursors) -> None:
        self._window.append(sampled)
        if len(self._window) < WINDOW:
            return
        means = self.means()
        evident = _evident_kind(means)
        evicts = _level(means, model.Kind.POLLUTER) > _HALF
        if self.kind is None and evident is not None:
            # The window has confirmed it already.
            self._kind, self._evicts = _Steady(evident), _Steady(evicts)
            return
        self._kind.propose(
            self.kind if self._is_close(means, evident) else evident)
        self._evicts.propose(evicts or (
            self._evicts.value
            and _level(means, model.Kind.POLLUTER) > _HALF - _MARGIN))

    def _is_close(self, means: Cursors, evident: model.Kind | None) -> bool:
        """Whether the present kind is less than the margin behind."""
        present_level = _level(means, self.kind)
        if evident is not None:
            return _level(means, evident) < present_level + _MARGIN
        # The other known cursors are behind, and it is just below the half.
        return (present_level > _HALF - _MARGIN
                and highest_kind(means) is self.kind)


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

    def add(self, key: Hashable, sample: Sample, thread: int = 0) -> None:
        """Add a sample of a vCPU.

        :param thread: of the vCPU: another one starts over
        """
        vcpu = self._vcpus.get(key)
        if vcpu is None or vcpu.thread != thread:
            self._vcpus.pop(key, None)
            if sample == Sample():
                return
            vcpu = self._vcpus[key] = _Vcpu(thread)
        vcpu.add(cursors(sample, self._limits))

    def kind(self, key: Hashable) -> model.Kind | None:
        """The kind of a vCPU; None: not recognised."""
        vcpu = self._vcpus.get(key)
        return None if vcpu is None else vcpu.kind

    def pollutes(self, key: Hashable) -> bool:
        """Whether a vCPU evicts the cache lines of others."""
        vcpu = self._vcpus.get(key)
        return vcpu is not None and vcpu.pollutes

    def means(self, key: Hashable) -> Cursors:
        """The mean cursors of a vCPU over the window."""
        vcpu = self._vcpus.get(key)
        return dict.fromkeys(ORDER) if vcpu is None else vcpu.means()

    def retain(self, keys: Collection[Hashable]) -> None:
        """Drop all other vCPUs."""
        for key in self._vcpus.keys() - set(keys):
            del self._vcpus[key]
