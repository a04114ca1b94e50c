# SPDX-License-Identifier: Apache-2.0
"""Signed pushes, and what is none."""

import dataclasses

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
import hypothesis
from hypothesis import strategies as st
import pytest

from nova_vqos import files
from nova_vqos import policy_push
from nova_vqos import push_keys
from nova_vqos import push_signature
from nova_vqos.tests.unit import test_policy_push


def write_key(path):
    """:returns: a private key, and the path of its public one"""
    private, public = push_keys.make_key()
    files.write(private, str(path), mode=0o600)
    files.write(public, f'{path}.pub')
    return push_keys.load_private(str(path)), f'{path}.pub'


@pytest.fixture(scope='module')
def key(tmp_path_factory):
    return write_key(tmp_path_factory.mktemp('keys') / 'key')


@pytest.fixture(scope='module')
def other(tmp_path_factory):
    return write_key(tmp_path_factory.mktemp('keys') / 'other')


def accepted(verifier, pushes):
    """What an agent takes of these."""
    found = []
    for push in pushes:
        try:
            verifier.check(push)
        except push_signature.SignatureInvalid:
            continue
        found.append(push)
    return found


@hypothesis.given(
    st.lists(test_policy_push.pushes(), max_size=5),
    st.lists(test_policy_push.pushes(), max_size=5), st.randoms())
def test_what_others_make_never_gets_in(key, other, real, evil, random):
    """Unsigned, with another's signature, or signed by another key."""
    verifier = push_signature.Verifier([key[1]])
    real = [push_signature.signed(push, key[0]) for push in real]
    contents = {push.content for push in real}
    stolen = [push.signature for push in real] + ['']
    forged = [dataclasses.replace(push, signature=random.choice(stolen))
              for push in evil if push.content not in contents]
    forged += [push_signature.signed(push, other[0]) for push in evil]
    # And some of the real ones once more.
    sent = [*real, *forged, *real[:2]]
    random.shuffle(sent)
    held = ()
    for push in sent:
        held = policy_push.merged(held, accepted(verifier, [push]))
    assert held == policy_push.merged((), real)


@hypothesis.given(test_policy_push.pushes(), test_policy_push.pushes())
def test_nothing_of_a_push_can_be_changed(key, push, other_push):
    verifier = push_signature.Verifier([key[1]])
    signed = push_signature.signed(push, key[0])
    verifier.check(policy_push.from_dict(signed.to_dict()))
    for field in ('generation', 'full', 'overrides'):
        changed = dataclasses.replace(
            signed, **{field: getattr(other_push, field)})
        assert (changed.content == signed.content) == bool(
            accepted(verifier, [changed]))


@hypothesis.given(test_policy_push.pushes())
def test_without_a_key_all_is_as_before(push):
    verifier = push_signature.Verifier()
    verifier.check(push)
    assert not verifier.required


def test_a_key_is_replaced(key, other):
    push = policy_push.Push(1, False, {})
    old, new = (push_signature.signed(push, one) for one, _path in (
        key, other))
    both = push_signature.Verifier([key[1], other[1]])
    assert accepted(both, [old, new]) == [old, new]
    assert accepted(push_signature.Verifier([other[1]]), [old, new]) == [new]


@pytest.fixture
def wrong_key(tmp_path):
    """Of another kind."""
    private = ec.generate_private_key(ec.SECP256R1())
    files.write(private.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption()), str(tmp_path / 'ec'), mode=0o600)
    files.write(private.public_key().public_bytes(
        serialization.Encoding.PEM,
        serialization.PublicFormat.SubjectPublicKeyInfo),
        str(tmp_path / 'ec.pub'))
    return tmp_path / 'ec'


def test_a_key_that_cannot_be_used_refuses_all(tmp_path, key, wrong_key):
    """And does not end the agent: caps work without pushes."""
    signed = push_signature.signed(policy_push.Push(1, False, {}), key[0])
    unsafe = tmp_path / 'unsafe.pub'
    files.write(files.read(key[1]), str(unsafe), mode=0o666)
    (tmp_path / 'empty').touch()
    for path in (tmp_path / 'none', tmp_path / 'empty', unsafe, tmp_path,
                 f'{wrong_key}.pub', key[1].removesuffix('.pub')):
        verifier = push_signature.Verifier([str(path)])
        assert verifier.required
        assert push_signature.OPTION in verifier.problem
        assert accepted(verifier, [signed]) == []
        verifier = push_signature.Verifier([str(path), key[1]])
        assert verifier.problem
        assert accepted(verifier, [signed]) == [signed]


def test_no_private_key(tmp_path, key, wrong_key):
    with pytest.raises(push_keys.KeyInvalid):
        push_keys.load_private(str(tmp_path / 'none'))
    for path in (key[1], str(wrong_key)):
        copy = tmp_path / 'copy'
        files.write(files.read(path), str(copy), mode=0o600)
        with pytest.raises(push_keys.KeyInvalid):
            push_keys.load_private(str(copy))


@pytest.mark.parametrize('mode', [0o640, 0o604, 0o660])
def test_a_private_key_that_others_may_read(tmp_path, mode):
    _key, _public = write_key(tmp_path / 'key')
    (tmp_path / 'key').chmod(mode)
    with pytest.raises(push_keys.KeyInvalid, match='chmod'):
        push_keys.load_private(str(tmp_path / 'key'))
