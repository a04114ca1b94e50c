# SPDX-License-Identifier: Apache-2.0
"""Receives policy pushes, of operators and of other agents."""

from collections.abc import Callable

from nova_vqos import policy_override
from nova_vqos import primitives
from nova_vqos import utc
from nova_vqos.agent import messages
from nova_vqos.agent.overrides import store as override_store


class Receiver:
    """Receives pushes; may be called from any thread but the loop's."""

    def __init__(self, store: override_store.OverrideStore,
                 follow: Callable[[], tuple[int, messages.Following]],
                 report: Callable[[], messages.Following], host: str, *,
                 now_us: Callable[[], int] = override_store.now_us) -> None:
        """
        :param store: stores the overrides
        :param follow: makes the servers follow them
        :param report: how they do
        :param host: name of this host
        :param now_us: in microseconds since 1970
        """
        self._store = store
        self._follow = follow
        self._report = report
        self._host = host
        self._now_us = now_us

    def push(self, generation: object,
             flavors: object) -> messages.PushResult:
        """Receive a push of an operator.

        :param generation: of all flavors
        :param flavors: by id, as
            :meth:`nova_vqos.policy_override.Override.to_dict` without the
            generation
        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        pushed = policy_override.from_dict(
            flavors,
            policy_override.check_generation(generation, self._now_us()))
        newer = self._store.merge(pushed)
        held = self._store.overrides
        state, problem = _state(newer, pushed, held), self._store.problem
        changed, following = self._follow()
        return primitives.extended(
            messages.PushResult, following, host=self._host,
            generation=policy_override.generation_of(held), state=state,
            stored=not problem, problem=problem, servers=changed)

    def merge(self, flavors: object) -> tuple[bool, str]:
        """Merge the overrides of another agent.

        :param flavors: by id, as
            :meth:`nova_vqos.policy_override.Override.to_dict`
        :returns: whether any of them is newer; and why some are ignored, ''
            where none is
        :raises nova_vqos.policy_override.PushInvalid: when one is invalid
        """
        accepted, now_us, refused = {}, self._now_us(), ''
        for flavor_id, override in policy_override.from_dict(flavors).items():
            try:
                policy_override.check_generation(override.generation, now_us)
            except policy_override.PushInvalid as error:
                refused = f'flavor {flavor_id}: {error}'
            else:
                accepted[flavor_id] = override
        newer = self._store.merge(accepted)
        if newer:
            self._follow()
        return newer, refused

    def compare(self, digest: object) -> messages.PushedDifference:
        """Compare this agent's overrides with another's.

        :param digest: of the other's overrides
        :returns: this agent's overrides, where they differ
        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        if not isinstance(digest, str) or len(digest) > 64:
            raise policy_override.PushInvalid(
                'digest must be a text of 64 characters')
        overrides = self._store.overrides
        return messages.PushedDifference(self._host, (
            None if digest == policy_override.digest_of(overrides)
            else policy_override.to_dict(overrides)))

    def digest(self) -> str:
        """The digest of the overrides of this agent."""
        return policy_override.digest_of(self._store.overrides)

    def report(self) -> messages.Pushed:
        """The overrides of this agent, and how its servers follow them."""
        overrides = self._store.overrides
        return primitives.extended(
            messages.Pushed, self._push_state(overrides), flavors=overrides)

    def short_report(self) -> messages.PushedDigest:
        """The same with a digest in place of the overrides."""
        overrides = self._store.overrides
        return primitives.extended(
            messages.PushedDigest, self._push_state(overrides),
            digest=policy_override.digest_of(overrides))

    def _push_state(self, overrides: policy_override.Overrides
                    ) -> messages.PushState:
        generation = policy_override.generation_of(overrides)
        return primitives.extended(
            messages.PushState, self._report(), host=self._host,
            generation=generation, problem=self._store.problem,
            pushed_at=utc.text(generation / 1e6) if generation else '')


def _state(newer: bool, pushed: policy_override.Overrides,
           held: policy_override.Overrides) -> str:
    if newer:
        return 'applied'
    return ('same' if all(held.get(flavor_id) == override
                          for flavor_id, override in pushed.items())
            else 'older')
