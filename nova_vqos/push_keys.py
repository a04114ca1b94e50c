# SPDX-License-Identifier: Apache-2.0
"""Ed25519 keys of policy pushes, as files in PEM.

A module of its own, which an agent without keys does not load: cryptography
takes 10 MiB.
"""

from cryptography import exceptions
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519

from nova_vqos import files


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


def verifies(key: ed25519.Ed25519PublicKey, signature: bytes,
             content: bytes) -> bool:
    """Whether a signature is by this key, and of this content."""
    try:
        key.verify(signature, content)
    except exceptions.InvalidSignature:
        return False
    return True
