# SPDX-License-Identifier: Apache-2.0
"""What was pushed is kept across restarts, and what is kept is checked."""

import json
import os
import threading

import pytest

from nova_vqos import policy_override
from nova_vqos.agent.overrides import store as override_store
from nova_vqos.tests.unit import test_policy_override

NEWER = {'f1': test_policy_override.ONE._replace(
    generation=6, dd_billing='off')}
OLDER = {'f1': test_policy_override.ONE}


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
    assert make_store(path).merge(OLDER)
    again = make_store(path)
    assert again.overrides == OLDER
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert os.listdir(path.parent) == ['pushed.json']


def test_older_and_known_overrides_change_nothing(path):
    store = make_store(path)
    assert store.merge(NEWER)
    written = os.stat(path).st_ino
    assert not store.merge(OLDER)
    assert not store.merge(NEWER)
    assert not store.merge({})
    assert store.overrides == NEWER
    assert os.stat(path).st_ino == written


@pytest.mark.parametrize('content', [
    b'', b'{', b'null', b'[]', b'7', b'{}', b'{"schema": 1}',
    b'{"schema": 2, "flavors": {}}', b'{"schema": 1, "flavors": []}',
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
    store.merge(OLDER)
    assert store.problem == ''
    assert make_store(path).overrides == OLDER


@pytest.mark.parametrize('mode', [0o666, 0o620])
def test_what_others_may_write_is_ignored(path, mode):
    make_store(path).merge(OLDER)
    path.chmod(mode)
    store = make_store(path)
    assert store.overrides == {}
    assert 'chmod go-w' in store.problem


def test_what_is_no_file_is_ignored(path):
    path.mkdir(parents=True)
    store = make_store(path)
    assert 'is ignored' in store.problem
    # It cannot be kept, and holds all the same.
    assert store.merge(OLDER)
    assert store.overrides == OLDER
    assert 'cannot be stored' in store.problem


def test_a_disk_that_takes_it_later(path, caplog):
    store = make_store(path)
    path.parent.write_text('in the way')
    store.merge(OLDER)
    assert 'cannot be stored' in store.problem
    store.merge(OLDER)
    assert caplog.text.count('cannot be stored') == 1
    path.parent.unlink()
    store.merge({})
    assert store.problem == ''
    assert make_store(path).overrides == OLDER


def test_two_pushes_at_once(path):
    store = make_store(path)
    made = [{f'f{number}': test_policy_override.ONE,
             'f': test_policy_override.ONE._replace(
        generation=10 + number)} for number in range(8)]
    threads = [threading.Thread(target=store.merge, args=(push,))
               for push in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.overrides['f'].generation == 17
    assert len(store.overrides) == 9
    assert make_store(path).overrides == store.overrides


def test_the_most_that_there_can_be_fits_into_the_file(path):
    fields = test_policy_override.ONE._replace(
        generation=policy_override.MOST_GENERATION,
        name='\U0001f600' * 255, vcpus=4096)
    store = make_store(path)
    store.merge({f'{number:04}' + '\U0001f600' * 251: fields
                for number in range(policy_override.MOST_FLAVORS)})
    assert make_store(path).overrides == store.overrides
    assert len(json.loads(path.read_bytes())['flavors']) == 1500
