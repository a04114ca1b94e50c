# SPDX-License-Identifier: Apache-2.0
"""Receives policy pushes, of operators and of other agents."""

from collections.abc import Callable, Iterable

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import primitives
from nova_vqos import utc
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import store as override_store


class Receiver:
    """Receives pushes; may be called from any thread but the loop's."""

    def __init__(self, store: override_store.OverrideStore,
                 follow: Callable[[], tuple[int, pushes.Following]],
                 report: Callable[[], pushes.Following], host: str, *,
                 now_us: Callable[[], int] = override_store.now_us) -> None:
        """
        :param store: stores the pushes
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

    def push(self, push: object) -> pushes.PushResult:
        """Receive a push of an operator.

        :param push: as :meth:`nova_vqos.policy_push.Push.to_dict`
        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        return self._receive(policy_push.from_dict(push))

    def push_partial(self, generation: object,
                     flavors: object) -> pushes.PushResult:
        """The same of a caller before 1.6.

        :param generation: of all flavors
        :param flavors: by id, as
            :meth:`nova_vqos.policy_override.Override.to_dict` without the
            generation
        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        checked = policy_override.check_generation(generation)
        return self._receive(policy_push.Push(
            checked, full=False,
            overrides=policy_override.from_dict(flavors, checked)))

    def _receive(self, push: policy_push.Push) -> pushes.PushResult:
        policy_override.check_generation(push.generation, self._now_us())
        self._store.verifier.check(push)
        newer, refused = self._store.merge([push])
        if refused is not None:
            raise refused
        held = self._store.overrides
        state, problem = _state(newer, push, held), self._store.problem
        changed, following = self._follow()
        return primitives.extended(
            pushes.PushResult, following, host=self._host,
            generation=policy_push.generation_of(self._store.pushes),
            state=state, stored=not problem, problem=problem,
            servers=changed)

    def merge(self, found: object) -> tuple[bool, str]:
        """Merge the pushes of another agent.

        :param found: a list, as :meth:`nova_vqos.policy_push.Push.to_dict`
        :returns: whether any of them is newer; and why some are ignored, ''
            where none is
        :raises nova_vqos.policy_override.PushInvalid: when one is invalid
        """
        return self._merge(policy_push.from_list(found))

    def merge_overrides(self, flavors: object) -> tuple[bool, str]:
        """Merge the overrides of an agent before 1.6.

        :param flavors: by id, as
            :meth:`nova_vqos.policy_override.Override.to_dict`
        :returns: as :meth:`merge`
        :raises nova_vqos.policy_override.PushInvalid: when one is invalid
        """
        return self._merge(policy_push.of_overrides(
            policy_override.from_dict(flavors)))

    def _merge(self, found: Iterable[policy_push.Push]) -> tuple[bool, str]:
        accepted, now_us = [], self._now_us()
        known = {push.order for push in self._store.pushes}
        problem: object = ''
        for push in found:
            if push.order in known:
                continue
            try:
                policy_override.check_generation(push.generation, now_us)
                self._store.verifier.check(push)
            except policy_override.PushInvalid as error:
                problem = error
            else:
                accepted.append(push)
        newer, refused = self._store.merge(accepted)
        if newer:
            self._follow()
        return newer, str(refused or problem)

    def compare(self, digest: object) -> pushes.PushesDifference:
        """Compare this agent's pushes with another's.

        :param digest: of the other's pushes
        :returns: this agent's pushes, where they differ
        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        differ = _checked_digest(digest) != self.digest()
        return pushes.PushesDifference(self._host, [
            push.to_dict() for push in self._store.pushes] if differ else None)

    def compare_overrides(self, digest: object
                          ) -> pushes.OverridesDifference:
        """The same for an agent before 1.6, which keeps overrides alone.

        :raises nova_vqos.policy_override.PushInvalid: when it is invalid
        """
        differ = _checked_digest(digest) != self.overrides_digest()
        return pushes.OverridesDifference(self._host, (
            policy_override.to_dict(self._store.overrides) if differ
            else None))

    @property
    def requires_signature(self) -> bool:
        """Whether pushes must be signed."""
        return self._store.verifier.required

    def digest(self) -> str:
        """The digest of the pushes of this agent."""
        return policy_push.digest_of(self._store.pushes)

    def overrides_digest(self) -> str:
        """The digest of the overrides of this agent."""
        return policy_override.digest_of(self._store.overrides)

    def report(self) -> pushes.Pushed:
        """The overrides of this agent, and how its servers follow them."""
        return primitives.extended(pushes.Pushed, self._push_state(),
                                   flavors=self._store.overrides)

    def short_report(self) -> pushes.PushedDigest:
        """The same with a digest in place of the overrides."""
        return primitives.extended(pushes.PushedDigest, self._push_state(),
                                   digest=self.overrides_digest())

    def _push_state(self) -> pushes.PushState:
        held = self._store.pushes
        generation = policy_push.generation_of(held)
        return primitives.extended(
            pushes.PushState, self._report(), host=self._host,
            generation=generation,
            full_generation=policy_push.full_generation_of(held),
            requires_signature=self.requires_signature,
            problem=self._store.problem or self._store.refused,
            pushed_at=utc.text(generation / 1e6) if generation else '')


def _state(newer: bool, push: policy_push.Push,
           held: policy_override.Overrides) -> str:
    if newer:
        return 'applied'
    return ('same' if all(held.get(flavor_id) == override
                          for flavor_id, override in push.overrides.items())
            else 'older')


def _checked_digest(digest: object) -> str:
    if not isinstance(digest, str) or len(digest) > 64:
        raise policy_override.PushInvalid(
            'digest must be a text of 64 characters')
    return digest
