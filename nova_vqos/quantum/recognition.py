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

"""What kind of work each vCPU does: vTRS of the research (thesis 3.3.1.3).

Each look at a vCPU gives five cursors from 0 to 100, one of each kind; its
kind is that whose cursor was highest on average over the last four looks. Four
things are ours:

* What the research counts in a period of 30 ms is a rate per second here, and
  so are the limits: a look may come at any time.
* A source may be missing. Then the cursors that need it are unknown, and never
  guessed; of the others the highest counts only if it is over 50, since one
  that is unknown may be as high.
* A vCPU changes its kind only if another was ahead of it by ten points at four
  looks in a row, so that it does not flap.
* Equal cursors are told apart: see ORDER.

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

#: Looks that a kind is told from: n of the research.
WINDOW = 4

# What of the window must be known of a cursor: a source that fails for a
# moment is not one that is missing.
_LEAST_KNOWN = WINDOW // 2

# Where cursors are unknown, the highest of the others counts above this; and
# who is taken for I/O or locks pollutes the cache beyond it (as in the
# research, where the kind is then called IOInt+ or ConSpin+).
_HALF = 50.0

# What another kind must be ahead by, and at how many looks in a row.
_MARGIN = 10.0
_CONFIRMATIONS = 4

#: The order in which equal cursors count. First those that suffer from long
#: slices, since a server that does I/O may leave the cache alone as well: both
#: cursors are 100 then.
ORDER = (model.Kind.IO, model.Kind.SPIN, model.Kind.CACHE, model.Kind.NEUTRAL,
         model.Kind.POLLUTER)

_RESEARCH_PERIOD_S = 0.030


def _per_second(per_period: int) -> int:
    return round(per_period / _RESEARCH_PERIOD_S)


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """What a vCPU did from one look to the next, per second.

    None: no source knows.

    :ivar io_requests: packets and disk requests of the server, its part
    :ivar spin_events: how often it was seen to wait for another vCPU
    :ivar references: of the last-level cache
    :ivar misses: of the last-level cache
    """

    io_requests: float | None = None
    spin_events: float | None = None
    references: float | None = None
    misses: float | None = None

    @property
    def says_nothing(self) -> bool:
        return (self.io_requests is None and self.spin_events is None
                and self.references is None and self.misses is None)


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Where cursors end, per second of each :class:`Sample`'s rates.

    The research prints none of its values. These are, in its periods of 30 ms:
    30 requests; 10 waits; 100 000 references and 150 000 misses. The latter
    two lie between what walks a list: one that fits the last-level cache, some
    10 ns a step, refers to it 3 000 000 times and misses it 65 000 times even
    if it finds the half of 8 MB cold in each period; one that does not, some
    80 ns a step, refers to it and misses it 375 000 times. Where four vCPUs
    share a pCPU both have a quarter of it on average.
    """

    io_requests: int = _per_second(30)
    spin_events: int = _per_second(10)
    references: int = _per_second(100_000)
    misses: int = _per_second(150_000)


# By what an operator calls them.
_LIMIT_NAMES: ty.Final[Mapping[str, str]] = {
    'io': 'io_requests', 'spin': 'spin_events', 'references': 'references',
    'misses': 'misses'}
# NOTE: not int() alone: see quantum/classes.py.
_LIMIT_PATTERN = re.compile(r'[1-9][0-9]{0,11}')


class LimitInvalid(ValueError):
    """A limit that cannot be.

    :ivar name: of the limit
    :ivar value: what was given
    """

    def __init__(self, name: str, value: str, expected: str) -> None:
        self.name = name
        self.value = value
        super().__init__(f'the limit {_shown(name)} is {_shown(value)}, it '
                         f'must be {expected}')


def limits(given: Mapping[str, str]) -> Limits:
    """The limits that an operator sets, and of the others the default.

    :param given: per second, by ``io``, ``spin``, ``references``, ``misses``
    :raises LimitInvalid: when there is no such limit, or it is no such number
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
    """How much a vCPU was of each kind, 0 to 100; None: cannot be told.

    Those of the three kinds that differ in their use of the cache are 100
    together.
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


def evident(means: Cursors) -> model.Kind | None:
    """The kind that cursors tell; None: they do not."""
    kind = highest(means)
    if kind is None:
        return None
    if None in means.values() and _level(means, kind) <= _HALF:
        return None
    return kind


def highest(means: Cursors) -> model.Kind | None:
    """The kind whose cursor is highest of those known, the first in ORDER."""
    known = [kind for kind in ORDER if means[kind] is not None]
    return max(known, key=lambda kind: _level(means, kind), default=None)


def _level(means: Cursors, kind: model.Kind | None) -> float:
    """-inf where it is not known."""
    level = None if kind is None else means[kind]
    return -math.inf if level is None else level


def server_class(kinds: Collection[model.Kind]) -> str:
    """The quantum class of a server, from the kinds of its vCPUs.

    That which most of its vCPUs need, of those that need one: neither vCPUs
    that are indifferent count against it, nor those that cannot be told. As
    many of two: io before spin before cache, since waiting hurts in this
    order. Is none in need of one, ``neutral`` if all could be told, else
    ``default``.

    :param kinds: DEFAULT: cannot be told
    """
    needed = collections.Counter(model.QUANTUM_CLASS[kind] for kind in kinds)
    choice = max((classes.IO, classes.SPIN, classes.CACHE),
                 key=lambda name: needed[name])
    if needed[choice]:
        return choice
    if kinds and model.Kind.DEFAULT not in kinds:
        return classes.NEUTRAL
    return classes.DEFAULT


Held = ty.TypeVar('Held')


class _Steady(ty.Generic[Held]):
    """A value that changes when another came several times in a row."""

    def __init__(self, value: Held) -> None:
        self.value = value
        self._rival = value
        self._times = 0

    def take(self, proposed: Held) -> None:
        if proposed != self._rival:
            self._rival = proposed
            self._times = 0
        self._times += 1
        if self._times >= _CONFIRMATIONS:
            self.value = proposed


class _Vcpu:
    """What is known of one vCPU."""

    def __init__(self, thread: int) -> None:
        self.thread = thread
        self._kind: _Steady[model.Kind | None] = _Steady(None)
        # Whether its use of the cache is a polluter's, whatever its kind.
        self._spoils = _Steady(False)
        self._window: collections.deque[Cursors] = collections.deque(
            maxlen=WINDOW)

    @property
    def kind(self) -> model.Kind | None:
        return self._kind.value

    @property
    def pollutes(self) -> bool:
        return self.kind is model.Kind.POLLUTER or (
            self.kind in (model.Kind.IO, model.Kind.SPIN)
            and self._spoils.value)

    def means(self) -> Cursors:
        return {kind: _mean([seen[kind] for seen in self._window])
                for kind in ORDER}

    def take(self, seen: Cursors) -> None:
        self._window.append(seen)
        if len(self._window) < WINDOW:
            return
        means = self.means()
        proposed = evident(means)
        spoils = _level(means, model.Kind.POLLUTER) > _HALF
        if self.kind is None and proposed is not None:
            # It has been seen for a whole window already.
            self._kind, self._spoils = _Steady(proposed), _Steady(spoils)
            return
        self._kind.take(self._at_least_ahead(means, proposed))
        self._spoils.take(spoils or (
            self._spoils.value
            and _level(means, model.Kind.POLLUTER) > _HALF - _MARGIN))

    def _at_least_ahead(self, means: Cursors, proposed: model.Kind | None
                        ) -> model.Kind | None:
        """The present kind, unless another one is better by the margin."""
        present_level = _level(means, self.kind)
        if proposed is None:
            # What else is known is behind, and it is just below the half.
            stays = (present_level > _HALF - _MARGIN
                     and highest(means) is self.kind)
        else:
            stays = _level(means, proposed) < present_level + _MARGIN
        return self.kind if stays else proposed


def _mean(levels: Collection[float | None]) -> float | None:
    known = [level for level in levels if level is not None]
    if len(known) < _LEAST_KNOWN:
        return None
    return sum(known) / len(known)


class Recognizer:
    """Follows vCPUs, each under a key of the caller's."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._vcpus: dict[Hashable, _Vcpu] = {}

    def take(self, key: Hashable, sample: Sample, thread: int = 0) -> None:
        """Look at a vCPU.

        :param thread: what it runs in: with another all begins anew
        """
        vcpu = self._vcpus.get(key)
        if vcpu is None or vcpu.thread != thread:
            self._vcpus.pop(key, None)
            if sample.says_nothing:
                return
            vcpu = self._vcpus[key] = _Vcpu(thread)
        vcpu.take(cursors(sample, self._limits))

    def kind(self, key: Hashable) -> model.Kind | None:
        """None: not known yet, or cannot be told."""
        vcpu = self._vcpus.get(key)
        return None if vcpu is None else vcpu.kind

    def pollutes(self, key: Hashable) -> bool:
        """Whether it takes the last-level cache from others."""
        vcpu = self._vcpus.get(key)
        return vcpu is not None and vcpu.pollutes

    def means(self, key: Hashable) -> Cursors:
        """Its cursors on average over the window."""
        vcpu = self._vcpus.get(key)
        return dict.fromkeys(ORDER) if vcpu is None else vcpu.means()

    def keep(self, keys: Collection[Hashable]) -> None:
        """Forget all others."""
        for key in self._vcpus.keys() - set(keys):
            del self._vcpus[key]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f'{text[:76]}...'
