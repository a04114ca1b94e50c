# SPDX-License-Identifier: Apache-2.0
"""What was pushed is kept across restarts, and what is kept is checked."""

import json
import os
import threading

import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import push_signature
from nova_vqos.agent.overrides import store as override_store
from nova_vqos.tests.unit import test_policy_override
from nova_vqos.tests.unit import test_push_signature

ONE = test_policy_override.ONE


def make_push(generation, *flavor_ids, full=False, signature='', **fields):
    return policy_push.Push(generation, full, {
        flavor_id: ONE._replace(generation=generation, **fields)
        for flavor_id in flavor_ids or ['f1']}, signature)


NEWER = make_push(6, dd_billing='off')
OLDER = make_push(5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'lib' / 'pushed.json'


def make_store(path):
    store = override_store.OverrideStore(str(path))
    store.load()
    return store


def test_at_first_there_is_nothing_and_nothing_is_wrong(path):
    store = make_store(path)
    assert store.overrides == {}
    assert store.problem == ''


def test_accepted_overrides_outlive_the_agent(path):
    assert make_store(path).merge([OLDER]) == (True, None)
    again = make_store(path)
    assert again.pushes == (OLDER,)
    assert again.overrides == OLDER.overrides
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ['pushed.json']


def test_older_and_known_overrides_change_nothing(path):
    store = make_store(path)
    assert store.merge([NEWER]) == (True, None)
    written = os.stat(path).st_ino
    for received in ([OLDER], [NEWER], []):
        assert store.merge(received) == (False, None)
    assert store.overrides == NEWER.overrides
    assert os.stat(path).st_ino == written


@pytest.mark.parametrize('content', [
    b'', b'{', b'null', b'[]', b'7', b'{}', b'{"schema": 1}',
    b'{"schema": 2, "flavors": {}}', b'{"schema": 1, "flavors": []}',
    b'{"schema": 3, "pushes": []}', b'{"schema": 2, "pushes": {}}',
    b'{"schema": 2, "pushes": [{"generation": 1}]}',
    b'{"schema": 1, "flavors": {"f1": {"generation": 1}}}',
    b'\xff\xfe\x00', b'[' * 100_000, b'{"schema": 1, "flavors": {}}'[:-1],
    b' ' * (4 * 1024 * 1024 + 1),
])
def test_a_damaged_file_is_ignored_and_logged(path, content, caplog):
    path.parent.mkdir()
    path.write_bytes(content)
    store = make_store(path)
    assert store.overrides == {}
    assert 'is ignored' in store.problem
    assert 'is ignored' in caplog.text
    # The next push mends it.
    store.merge([OLDER])
    assert store.problem == ''
    assert make_store(path).pushes == (OLDER,)


@pytest.mark.parametrize('mode', [0o666, 0o620])
def test_what_others_may_write_is_ignored(path, mode):
    make_store(path).merge([OLDER])
    path.chmod(mode)
    store = make_store(path)
    assert store.overrides == {}
    assert 'chmod go-w' in store.problem


def test_what_is_no_file_is_ignored(path):
    path.mkdir(parents=True)
    store = make_store(path)
    assert 'is ignored' in store.problem
    # It cannot be kept, and holds all the same.
    assert store.merge([OLDER]) == (True, None)
    assert store.pushes == (OLDER,)
    assert 'cannot be stored' in store.problem


def test_a_disk_that_takes_it_later(path, caplog):
    store = make_store(path)
    path.parent.write_text('in the way')
    store.merge([OLDER])
    assert 'cannot be stored' in store.problem
    store.merge([OLDER])
    assert caplog.text.count('cannot be stored') == 1
    path.parent.unlink()
    store.merge([])
    assert store.problem == ''
    assert make_store(path).pushes == (OLDER,)


def test_two_pushes_at_once(path):
    store = make_store(path)
    made = [make_push(10 + number, f'f{number}', 'f') for number in range(8)]
    threads = [threading.Thread(target=store.merge, args=([push],))
               for push in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.overrides['f'].generation == 17
    assert len(store.overrides) == 9
    assert make_store(path).overrides == store.overrides


def test_the_most_that_there_can_be_fits_into_the_file(path):
    most = policy_override.MOST_FLAVORS
    for pushes in (1, most):
        store = make_store(path)
        store.merge([make_push(
            policy_override.MOST_GENERATION - number, *(
                f'{flavor:04}' + '\U0001f600' * 251
                for flavor in range(number, most, pushes)),
            name='\U0001f600' * 255, vcpus=4096, signature='x' * 86 + '==')
            for number in range(pushes)])
        assert make_store(path).pushes == store.pushes
        assert len(store.overrides) == most
        path.unlink()


def test_there_is_no_room_for_more(path, caplog):
    """None of those that are there is dropped for it."""
    most = policy_override.MOST_FLAVORS
    store = make_store(path)
    store.merge([OLDER])
    junk = make_push(7, *map(str, range(most)))
    newer, refused = store.merge([junk])
    assert (newer, type(refused)) == (False, policy_push.TooManyFlavors)
    assert store.pushes == make_store(path).pushes == (OLDER,)
    assert store.refused
    store.merge([junk])
    assert caplog.text.count('is refused') == 1
    # What there is room for is taken, whatever comes with it.
    newer, refused = store.merge([junk, make_push(8, 'f2')])
    assert newer and refused is not None
    assert set(store.overrides) == {'f1', 'f2'}
    assert store.refused
    # A full push makes room.
    full = make_push(9, *map(str, range(most)), full=True)
    assert store.merge([full]) == (True, None)
    assert store.pushes == (full,)
    assert store.refused == ''


def test_signatures_are_checked_at_each_start(path, tmp_path):
    key, public = test_push_signature.write_key(tmp_path / 'key')
    other, _public = test_push_signature.write_key(tmp_path / 'other')
    signed = push_signature.signed(make_push(5, 'f1'), key)
    unsigned = make_push(6, 'f2')
    forged = push_signature.signed(make_push(7, 'f3'), other)
    make_store(path).merge([signed, unsigned, forged])
    written = path.read_bytes()
    store = override_store.OverrideStore(
        str(path), push_signature.Verifier([public]))
    store.load()
    assert store.pushes == (signed,)
    assert 'is ignored' in store.problem
    store.merge([])
    assert path.read_bytes() == written
    newer = push_signature.signed(make_push(8, 'f4'), key)
    store.merge([newer])
    assert store.problem == ''
    assert make_store(path).pushes == (signed, newer)


def test_the_overrides_of_an_agent_before_pushes(path):
    """That it has been upgraded."""
    path.parent.mkdir()
    overrides = {'f1': ONE, 'f2': ONE._replace(generation=6), 'f3': ONE}
    path.write_text(json.dumps({
        'schema': 1, 'flavors': policy_override.to_dict(overrides)}))
    store = make_store(path)
    assert store.problem == ''
    assert store.overrides == overrides
    # It learns which of them were dropped.
    store.merge([make_push(6, 'f2', full=True)])
    assert set(make_store(path).overrides) == {'f2'}
