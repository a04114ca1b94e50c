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


"""What of a server's policy is of its flavor as booted, and what is pushed."""

import logging
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import pushed
from nova_vqos.agent import state
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

_KEYS = dict(zip(pushed.FOLLOWED, (policies.QUANTUM_CLASS_KEY,
                                   policies.DD_BILLING_KEY), strict=True))


class KeepLast(Exception):
    """A server cannot follow what was pushed."""


class Following:
    """How one server follows what is pushed.

    :ivar applied: what it follows; None: its flavor as booted
    :ivar wanted: what was last pushed of its flavor; None: nothing
    :ivar error: why it does not follow that; '': it does
    :ivar unmatched: why it does not follow what was pushed of a flavor that
        might be taken for its own; '': there is none
    """

    def __init__(self) -> None:
        self.applied: pushed.Override | None = None
        self.wanted: pushed.Override | None = None
        self.error = ''
        self.unmatched = ''
        self._understood = False

    def policy_of(self, domain: base.Domain, overrides: pushed.Overrides
                  ) -> policies.ServerPolicy | None:
        """The policy that a server is to have.

        :raises KeepLast: when what was pushed contradicts what it booted
            with, which leaves its last good policy
        :raises nova_vqos.policy.PolicyError: when its flavor as booted cannot
            be honoured
        """
        specs = domain.extra_specs
        if specs is None:
            # Not a server of Nova, or not any more.
            self.applied = self.wanted = None
            self.error = self.unmatched = ''
            return None
        self.wanted, self.unmatched = pushed.match(
            overrides, domain.flavor_id, domain.flavor_name, domain.vcpus)
        try:
            policy = pushed.effective(specs, domain.vcpus, self.wanted)
        except policies.PolicyError as error:
            if self.wanted is None:
                raise
            self._complain(domain, str(error))
            if self._understood:
                raise KeepLast from error
            policy = pushed.effective(specs, domain.vcpus, None)
            self.applied = None
        else:
            self.error = ''
            self.applied = self.wanted
        self._understood = True
        return policy

    def _complain(self, domain: base.Domain, error: str) -> None:
        if error != self.error:
            LOG.error('Server %s cannot follow what was pushed of its flavor '
                      '%s, and keeps its policy: %s', domain.uuid,
                      domain.flavor_name, error)
        self.error = error

    @staticmethod
    def booted(domain: base.Domain | None) -> dict[str, str]:
        """What can be pushed, as the flavor had it that was booted."""
        specs = {} if domain is None else domain.extra_specs or {}
        return {name: specs.get(key, policies.CHOICES[key][0])
                for name, key in _KEYS.items()}

    @property
    def problem(self) -> str:
        """Why it does not follow what might be meant for it; '': it does."""
        return self.error or self.unmatched

    def sources(self) -> dict[str, str]:
        """Where each field of its policy is from: flavor, or pushed."""
        source = 'flavor' if self.applied is None else 'pushed'
        return {'units': 'flavor', 'cap': 'flavor',
                **dict.fromkeys(pushed.FOLLOWED, source)}

    def told(self) -> dict[str, ty.Any] | None:
        """What was last pushed of its flavor, in primitives."""
        return None if self.wanted is None else {
            **self.wanted.to_dict(),
            'pushed_at': state.utc_at(self.wanted.generation / 1e6)}
