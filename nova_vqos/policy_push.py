# SPDX-License-Identifier: Apache-2.0
"""Policy pushes: what an operator sent, and what of it holds.

A push is full or partial. The newest full push is a set: flavors that it lacks
have no override any more. A partial push changes its own flavors alone. An
agent keeps pushes whole, as they were signed, and hands them to other agents
so. Of all pushes it keeps the newest full one, and newer partial ones of which
a flavor still holds; what is older than the full one cannot come back. So all
agents that received the same pushes keep the same, in whatever order, how
often and from which agent they came. Pure: standard library only.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import functools
import hashlib
import itertools
import json
import re
import typing as ty

from nova_vqos import policy_override

# What a signature is of: no key signs anything else that begins so.
_CONTEXT = b'nova_vqos policy push 1\n'
# 64 bytes in base64, or none.
_SIGNATURE = re.compile('([A-Za-z0-9+/]{86}==)?')


class TooManyFlavors(policy_override.PushInvalid):
    """With this push there would be more flavors than an agent keeps."""


@dataclasses.dataclass(frozen=True)
class Push:
    """One push.

    :ivar generation: a larger one is newer
    :ivar full: whether all flavors that it lacks are without override
    :ivar overrides: of that generation
    :ivar signature: of :attr:`content`, in base64; '': it is not signed
    """

    generation: int
    full: bool
    overrides: policy_override.Overrides
    signature: str = ''

    @functools.cached_property
    def content(self) -> bytes:
        """All but the signature, the same of equal pushes."""
        return _CONTEXT + json.dumps(
            dict(sorted(self._fields().items())), sort_keys=True,
            separators=(',', ':')).encode()

    @functools.cached_property
    def order(self) -> tuple[int, bool, str, str]:
        """By which of two pushes the newer one is known, and equal ones.

        NOTE: of two pushes of the same microsecond all agents choose the same,
        and of a push with and without its signature the former.
        """
        return (self.generation, self.full,
                hashlib.sha256(self.content).hexdigest(), self.signature)

    def to_dict(self) -> dict[str, ty.Any]:
        """Primitives only, fit for a message and for a file."""
        return {**self._fields(), 'signature': self.signature}

    def _fields(self) -> dict[str, ty.Any]:
        return {'generation': self.generation, 'full': self.full,
                'flavors': without_generation(self.overrides)}


#: From the oldest to the newest, as :func:`merged` returns them.
Pushes = tuple[Push, ...]


def merged(ours: Pushes, theirs: Iterable[Push]) -> Pushes:
    """What holds of all these pushes.

    :raises TooManyFlavors: when they have too many flavors altogether
    """
    found = {push.order: push for push in (*ours, *theirs)}
    newest_full = max((order for order, push in found.items() if push.full),
                      default=None)
    kept: list[Push] = []
    known: set[str] = set()
    for order in sorted(found, reverse=True):
        push = found[order]
        if order == newest_full or not known.issuperset(push.overrides):
            kept.append(push)
            known |= push.overrides.keys()
        if order == newest_full:
            break
    flavors = count(kept)
    if flavors > policy_override.MOST_FLAVORS:
        raise TooManyFlavors(
            f'with this push there would be {flavors} flavors, and agents '
            f'keep {policy_override.MOST_FLAVORS}: push without --flavor, '
            'which replaces all earlier pushes')
    return tuple(reversed(kept))


def count(pushes: Iterable[Push]) -> int:
    """How many flavors these pushes have, those of several ones repeatedly."""
    return sum(len(push.overrides) for push in pushes)


def overrides_of(pushes: Pushes) -> policy_override.Overrides:
    """The newest override of each flavor."""
    return {flavor_id: override for push in pushes
            for flavor_id, override in push.overrides.items()}


def generation_of(pushes: Pushes) -> int:
    """The generation of the newest push; 0: there was none."""
    return max((push.generation for push in pushes), default=0)


def full_generation_of(pushes: Pushes) -> int:
    """The generation of the newest full push; 0: there was none."""
    return max((push.generation for push in pushes if push.full), default=0)


def digest_of(pushes: Pushes) -> str:
    """A hash, the same of equal pushes."""
    return hashlib.sha256(json.dumps(
        [push.order for push in pushes]).encode()).hexdigest()


def without_generation(overrides: policy_override.Overrides
                       ) -> dict[str, dict[str, ty.Any]]:
    """Primitives of overrides that share their generation."""
    found = policy_override.to_dict(overrides)
    for fields in found.values():
        del fields['generation']
    return found


def of_overrides(overrides: policy_override.Overrides) -> Pushes:
    """Overrides of agents before 1.6, which kept no pushes.

    Whether a push was full is not known: each counts as partial.
    """
    def generation(item: tuple[str, policy_override.Override]) -> int:
        return item[1].generation
    return tuple(
        Push(number, full=False, overrides=dict(found))
        for number, found in itertools.groupby(
            sorted(overrides.items(), key=generation), generation))


def from_dict(data: object) -> Push:
    """The inverse of :meth:`Push.to_dict`, for untrusted input.

    :raises nova_vqos.policy_override.PushInvalid: when the input is invalid
    """
    wanted = {'generation', 'full', 'flavors', 'signature'}
    if not isinstance(data, Mapping) or set(data) != wanted:
        raise policy_override.PushInvalid(
            f'the fields of a push must be {", ".join(sorted(wanted))}')
    # NOTE: without this, one wrong message would drop all overrides.
    if not isinstance(data['full'], bool) or (
            data['full'] and not data['flavors']):
        raise policy_override.PushInvalid(
            'full must be True or False, and False without flavors')
    signature = data['signature']
    if not isinstance(signature, str) or not _SIGNATURE.fullmatch(signature):
        raise policy_override.PushInvalid(
            'signature must be 64 bytes in base64, or empty')
    generation = policy_override.check_generation(data['generation'])
    return Push(generation, data['full'],
                policy_override.from_dict(data['flavors'], generation),
                signature)


def from_list(data: object) -> list[Push]:
    """All pushes of another agent, or of a file.

    :raises nova_vqos.policy_override.PushInvalid: when the input is invalid
    """
    most = policy_override.MOST_FLAVORS
    # Each partial push has a flavor, beside one full push.
    if not isinstance(data, list | tuple) or len(data) > most + 1:
        raise policy_override.PushInvalid(
            f'pushes must be a list of {most + 1} at most')
    found = []
    left = most
    for one in data:
        found.append(from_dict(one))
        left -= len(found[-1].overrides)
        if left < 0:
            raise TooManyFlavors(f'pushes have more than {most} flavors')
    return found
