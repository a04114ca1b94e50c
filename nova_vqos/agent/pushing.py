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


"""What is pushed to the agent, by people and by other agents."""

from collections.abc import Callable
import typing as ty

from nova_vqos import pushed
from nova_vqos.agent import pushed_store
from nova_vqos.agent import state


class Loop(ty.Protocol):
    """Those calls of :class:`nova_vqos.agent.reconciler.Reconciler`."""

    def follow_pushed(self) -> dict[str, ty.Any]: ...

    def pushed_report(self) -> dict[str, ty.Any]: ...


class Pushing:
    """Takes what is pushed; may be called from any thread but the loop's."""

    def __init__(self, store: pushed_store.PushedStore, loop: Loop, *,
                 now_us: Callable[[], int] = pushed_store.now_us) -> None:
        """
        :param store: keeps it
        :param loop: has servers follow it
        :param now_us: in microseconds since 1970
        """
        self._store = store
        self._loop = loop
        self._now_us = now_us

    def push(self, generation: object, flavors: object) -> dict[str, ty.Any]:
        """Take a push.

        :param generation: of all flavors
        :param flavors: by id, as :meth:`pushed.Override.to_dict` without the
            generation
        :returns: see AgentManager.push_policies
        :raises nova_vqos.pushed.PushInvalid: when it is none
        """
        heard = pushed.from_dict(
            flavors, pushed.check_generation(generation, self._now_us()))
        newer = self._store.take(heard)
        return {
            'generation': pushed.generation_of(self._store.overrides),
            'state': _state(newer, heard, self._store.overrides),
            'stored': not self._store.problem,
            'problem': self._store.problem,
            **self._loop.follow_pushed()}

    def hear(self, flavors: object) -> bool:
        """Take what another agent holds.

        :param flavors: as :meth:`pushed.Override.to_dict`, by id
        :returns: whether any of it is newer
        :raises nova_vqos.pushed.PushInvalid: when it cannot be
        """
        heard = pushed.from_dict(flavors)
        pushed.check_generation(pushed.generation_of(heard) or 1,
                                self._now_us())
        newer = self._store.take(heard)
        if newer:
            self._loop.follow_pushed()
        return newer

    def differing(self, digest: object) -> dict[str, ty.Any] | None:
        """What is held here; None: the same as there.

        :param digest: of what another agent holds
        :raises nova_vqos.pushed.PushInvalid: when it is none
        """
        if not isinstance(digest, str) or len(digest) > 64:
            raise pushed.PushInvalid('digest must be a text of 64 characters')
        overrides = self._store.overrides
        return (None if digest == pushed.digest_of(overrides)
                else pushed.to_dict(overrides))

    def digest(self) -> str:
        """Of what is held here."""
        return pushed.digest_of(self._store.overrides)

    def report(self) -> dict[str, ty.Any]:
        """What is held here, see AgentManager.get_pushed."""
        overrides = self._store.overrides
        generation = pushed.generation_of(overrides)
        return {
            'generation': generation,
            'pushed_at': state.utc_at(generation / 1e6) if generation else '',
            'flavors': pushed.to_dict(overrides),
            'problem': self._store.problem,
            **self._loop.pushed_report()}


def _state(newer: bool, heard: pushed.Overrides,
           held: pushed.Overrides) -> str:
    if newer:
        return 'applied'
    return ('same' if all(held.get(flavor_id) == override
                          for flavor_id, override in heard.items())
            else 'older')
