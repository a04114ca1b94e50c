# SPDX-License-Identifier: Apache-2.0
"""What the agents of many hosts hold of pushes.

Nearly all of them hold the same, which may be a hundred kilobytes: each agent
is asked for a digest, and one agent of each digest for the flavors.
"""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
import typing as ty

from nova_vqos import policy_override
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import store

# Half of what agents accept, whose clocks are not all alike: a push is newer
# than what hosts report, and must not be too far ahead for any.
_MOST_AHEAD_US = policy_override.MOST_AHEAD_US // 2

_Reply = ty.TypeVar('_Reply')
_Held = ty.TypeVar('_Held', pushes.PushResult, pushes.PushState,
                   pushes.Pushed, pushes.PushedDigest)


class _Ask(ty.Protocol):
    """Asks hosts, cell by host: see :meth:`fanout.Fleet.ask`."""

    def __call__(self, hosts: Mapping[str, str],
                 method: rpcapi.Method[_Reply]
                 ) -> Sequence[fanout.Answer[_Reply]]:
        """Ask them all at once."""
        ...


def generations(ask: _Ask,
                hosts: Mapping[str, str]) -> list[fanout.Answer[int]]:
    """The newest generation of each host.

    :returns: one for each host, sorted by host
    """
    found = ask(hosts, rpcapi.GET_PUSHED_DIGEST)
    older = {one.host: _generation(one) for one in _of_older(ask, found)}
    return [older.get(one.host) or _generation(one) for one in found]


def _generation(answer: fanout.Answer[_Held]) -> fanout.Answer[int]:
    checked = plausible(answer)
    return fanout.Answer(
        answer.host, answer.cell, None if checked.value is None
        else checked.value.generation, checked.error)


def plausible(answer: fanout.Answer[_Held]) -> fanout.Answer[_Held]:
    """The answer, or that of a host with an error where it cannot be true.

    A host that reports any generation would else choose that of the next
    push, which other hosts then refuse.
    """
    value = answer.value
    try:
        # 0: there was no push.
        if value is not None and value.generation:
            _check(value.generation)
        if isinstance(value, pushes.PushState) and value.full_generation:
            _check(value.full_generation)
        if isinstance(value, pushes.Pushed):
            policy_override.from_dict(policy_override.to_dict(value.flavors))
            for override in value.flavors.values():
                _check(override.generation)
    except policy_override.PushInvalid as error:
        return answer._replace(
            value=None, error=f'its answer is ignored: {error}')
    return answer


def _check(generation: int) -> None:
    policy_override.check_generation(
        generation, store.now_us(), _MOST_AHEAD_US)


def of_hosts(ask: _Ask, hosts: Mapping[str, str]
             ) -> list[fanout.Answer[pushes.Pushed]]:
    """The pushes of each host.

    :returns: one for each host, sorted by host
    """
    digests = [plausible(one) for one in ask(hosts, rpcapi.GET_PUSHED_DIGEST)]
    holders = {one.value.digest: one for one in digests
               if one.value is not None}
    flavors = {
        policy_override.digest_of(one.value.flavors): one.value.flavors
        for one in map(plausible, ask(_cells(holders.values()),
                                      rpcapi.GET_PUSHED))
        if one.value is not None}
    found = {one.host: plausible(one) for one in _of_older(ask, digests)}
    # The agent of that digest may have ended, or followed a push meanwhile.
    found |= {one.host: plausible(one) for one in ask(_cells(
        one for one in digests
        if one.value is not None and one.value.digest not in flavors),
        rpcapi.GET_PUSHED)}
    return [found[one.host] if one.host in found
            else _with_flavors(one, flavors) for one in digests]


def _of_older(ask: _Ask,
              digests: Sequence[fanout.Answer[pushes.PushedDigest]]
              ) -> Sequence[fanout.Answer[pushes.Pushed]]:
    """Agents before 1.5 have no digest."""
    return ask(_cells(one for one in digests if one.error == fanout.TOO_OLD),
               rpcapi.GET_PUSHED)


def _cells(answers: Iterable[fanout.Answer[pushes.PushedDigest]]
           ) -> dict[str, str]:
    return {one.host: one.cell for one in answers}


def _with_flavors(answer: fanout.Answer[pushes.PushedDigest],
                  flavors: Mapping[str, policy_override.Overrides]
                  ) -> fanout.Answer[pushes.Pushed]:
    held = answer.value
    if held is None:
        return fanout.Answer(answer.host, answer.cell, None, answer.error)
    state = {field.name: getattr(held, field.name)
             for field in dataclasses.fields(pushes.PushState)}
    return fanout.Answer(
        answer.host, answer.cell,
        pushes.Pushed(**state, flavors=flavors[held.digest]), '')
