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
from nova_vqos.agent import messages
from nova_vqos.agent import rpcapi

_Reply = ty.TypeVar('_Reply')


class _Ask(ty.Protocol):
    """Asks hosts, cell by host: see :meth:`fanout.Fleet.ask`."""

    def __call__(self, hosts: Mapping[str, str],
                 method: rpcapi.Method[_Reply]
                 ) -> Sequence[fanout.Answer[_Reply]]:
        """Ask them all at once."""
        ...


def generations(ask: _Ask, hosts: Mapping[str, str]) -> list[int]:
    """The largest generation of each host that answers."""
    digests = ask(hosts, rpcapi.GET_PUSHED_DIGEST)
    return [one.value.generation
            for answers in (digests, _of_older(ask, digests))
            for one in answers if one.value is not None]


def of_hosts(ask: _Ask, hosts: Mapping[str, str]
             ) -> list[fanout.Answer[messages.Pushed]]:
    """The pushes of each host.

    :returns: one for each host, sorted by host
    """
    digests = ask(hosts, rpcapi.GET_PUSHED_DIGEST)
    holders = {one.value.digest: one for one in digests
               if one.value is not None}
    flavors = {
        policy_override.digest_of(one.value.flavors): one.value.flavors
        for one in ask(_cells(holders.values()), rpcapi.GET_PUSHED)
        if one.value is not None}
    found = {one.host: one for one in _of_older(ask, digests)}
    # The agent of that digest may have ended, or followed a push meanwhile.
    found |= {one.host: one for one in ask(_cells(
        one for one in digests
        if one.value is not None and one.value.digest not in flavors),
        rpcapi.GET_PUSHED)}
    return [found[one.host] if one.host in found
            else _with_flavors(one, flavors) for one in digests]


def _of_older(ask: _Ask,
              digests: Sequence[fanout.Answer[messages.PushedDigest]]
              ) -> Sequence[fanout.Answer[messages.Pushed]]:
    """Agents before 1.5 have no digest."""
    return ask(_cells(one for one in digests if one.error == fanout.TOO_OLD),
               rpcapi.GET_PUSHED)


def _cells(answers: Iterable[fanout.Answer[messages.PushedDigest]]
           ) -> dict[str, str]:
    return {one.host: one.cell for one in answers}


def _with_flavors(answer: fanout.Answer[messages.PushedDigest],
                  flavors: Mapping[str, policy_override.Overrides]
                  ) -> fanout.Answer[messages.Pushed]:
    held = answer.value
    if held is None:
        return fanout.Answer(answer.host, answer.cell, None, answer.error)
    state = {field.name: getattr(held, field.name)
             for field in dataclasses.fields(messages.PushState)}
    return fanout.Answer(
        answer.host, answer.cell,
        messages.Pushed(**state, flavors=flavors[held.digest]), '')
