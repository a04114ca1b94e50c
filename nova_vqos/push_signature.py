# SPDX-License-Identifier: Apache-2.0
"""Signatures of policy pushes: Ed25519, of all that a push says.

The operator has the private key, agents have the public one. A push is signed
with its generation, and so an old one that is sent again has no effect where
a newer one holds.
"""

import base64
from collections.abc import Iterable
import dataclasses

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from nova_vqos import files
from nova_vqos import policy_override
from nova_vqos import policy_push

#: The option of agents with the public keys.
OPTION = '[vqos_agent] push_public_keys'


class SignatureInvalid(policy_override.PushInvalid):
    """A push is not signed by any of the keys that an agent trusts."""


class KeyInvalid(ValueError):
    """A file is no key of this kind, or unsafe."""


def make_key() -> tuple[bytes, bytes]:
    """A new private key and its public one, in PEM."""
    private = ed25519.Ed25519PrivateKey.generate()
    return private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()), private.public_key().public_bytes(
            serialization.Encoding.PEM,
            serialization.PublicFormat.SubjectPublicKeyInfo)


def load_private(path: str) -> ed25519.Ed25519PrivateKey:
    """A key that signs.

    :raises KeyInvalid: when there is none, or others may read it
    """
    try:
        found = serialization.load_pem_private_key(
            files.read(path, secret=True), password=None)
    except (files.FileError, ValueError, TypeError,
            exceptions.UnsupportedAlgorithm) as error:
        raise KeyInvalid(f'{path} is no usable private key: {error}'
                         ) from error
    if not isinstance(found, ed25519.Ed25519PrivateKey):
        raise KeyInvalid(f'{path} is no Ed25519 key')
    return found


def load_public(path: str) -> ed25519.Ed25519PublicKey:
    """A key that verifies.

    :raises KeyInvalid: when there is none, or others may write it
    """
    try:
        found = serialization.load_pem_public_key(files.read(path))
    except (files.FileError, ValueError,
            exceptions.UnsupportedAlgorithm) as error:
        raise KeyInvalid(f'{path} is no usable public key: {error}') from error
    if not isinstance(found, ed25519.Ed25519PublicKey):
        raise KeyInvalid(f'{path} is no Ed25519 key')
    return found


def signed(push: policy_push.Push,
           key: ed25519.Ed25519PrivateKey) -> policy_push.Push:
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
        self._keys = []
        paths = list(paths)
        self.required = bool(paths)
        for path in paths:
            try:
                self._keys.append(load_public(path))
            except KeyInvalid as error:
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
        if not any(_verifies(key, signature, push.content)
                   for key in self._keys):
            raise SignatureInvalid(
                f'the signature of the push is of none of {OPTION}: sign it '
                'by a key of these, in [vqos_manage] push_private_key')


def _verifies(key: ed25519.Ed25519PublicKey, signature: bytes,
              content: bytes) -> bool:
    try:
        key.verify(signature, content)
    except exceptions.InvalidSignature:
        return False
    return True
