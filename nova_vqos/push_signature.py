# SPDX-License-Identifier: Apache-2.0
"""Signatures of policy pushes: Ed25519, of all that a push says.

The operator has the private key, agents have the public one. A push is signed
with its generation, and so an old one that is sent again has no effect where
a newer one holds.
"""

import base64
from collections.abc import Callable, Iterable
import dataclasses
import functools
import typing as ty

from nova_vqos import policy_override
from nova_vqos import policy_push

if ty.TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ed25519

#: The option of agents with the public keys.
OPTION = '[vqos_agent] push_public_keys'


class SignatureInvalid(policy_override.PushInvalid):
    """A push is not signed by any of the keys that an agent trusts."""


def signed(push: policy_push.Push,
           key: 'ed25519.Ed25519PrivateKey') -> policy_push.Push:
    """The push with its signature."""
    return dataclasses.replace(push, signature=base64.b64encode(
        key.sign(push.content)).decode())


class Verifier:
    """Checks signatures by the public keys of an agent.

    :ivar required: whether pushes must be signed
    :ivar problem: why a key cannot be used; '': all can
    """

    def __init__(self, paths: Iterable[str] = ()) -> None:
        """
        :param paths: of public keys, of which each will do; none: pushes need
            no signature. Where none can be read, all pushes are refused
        """
        self.problem = ''
        self._verifiers: list[Callable[[bytes, bytes], bool]] = []
        paths = list(paths)
        self.required = bool(paths)
        if not paths:
            return
        # Not loaded without keys: its library takes 10 MiB.
        from nova_vqos import push_keys
        for path in paths:
            try:
                self._verifiers.append(functools.partial(
                    push_keys.verifies, push_keys.load_public(path)))
            except push_keys.KeyInvalid as error:
                self.problem = f'{OPTION}: {error}'

    def check(self, push: policy_push.Push) -> None:
        """
        :raises SignatureInvalid: when the push is not signed as it has to be
        """
        if not self.required:
            return
        if not push.signature:
            raise SignatureInvalid(
                f'the push is not signed, and {OPTION} requires that: sign it '
                'by [vqos_manage] push_private_key')
        signature = base64.b64decode(push.signature)
        if not any(verifies(signature, push.content)
                   for verifies in self._verifiers):
            raise SignatureInvalid(
                f'the signature of the push is of none of {OPTION}: sign it '
                'by a key of these, in [vqos_manage] push_private_key')
