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


"""What was pushed is kept across restarts, and what is kept is checked."""

import json
import os
import threading

import pytest

from nova_vqos import pushed
from nova_vqos.agent import pushed_store
from nova_vqos.tests.unit import test_pushed

NEWER = {'f1': test_pushed.ONE._replace(generation=6, dd_billing='off')}
OLDER = {'f1': test_pushed.ONE}


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'lib' / 'pushed.json'


def make_store(path):
    store = pushed_store.PushedStore(str(path))
    store.load()
    return store


def test_at_first_there_is_nothing_and_nothing_is_wrong(path):
    store = make_store(path)
    assert store.overrides == {}
    assert store.problem == ''


def test_what_was_taken_outlives_the_agent(path):
    assert make_store(path).take(OLDER)
    again = make_store(path)
    assert again.overrides == OLDER
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ['pushed.json']


def test_what_is_older_or_known_changes_nothing(path):
    store = make_store(path)
    assert store.take(NEWER)
    written = os.stat(path).st_ino
    assert not store.take(OLDER)
    assert not store.take(NEWER)
    assert not store.take({})
    assert store.overrides == NEWER
    assert os.stat(path).st_ino == written


@pytest.mark.parametrize('content', [
    b'', b'{', b'null', b'[]', b'7', b'{}', b'{"schema": 1}',
    b'{"schema": 2, "flavors": {}}', b'{"schema": 1, "flavors": []}',
    b'{"schema": 1, "flavors": {"f1": {"generation": 1}}}',
    b'\xff\xfe\x00', b'[' * 100_000, b'{"schema": 1, "flavors": {}}'[:-1],
    b' ' * (4 * 1024 * 1024 + 1),
])
def test_what_is_damaged_is_ignored_and_told_of(path, content, caplog):
    path.parent.mkdir()
    path.write_bytes(content)
    store = make_store(path)
    assert store.overrides == {}
    assert 'is ignored' in store.problem
    assert 'is ignored' in caplog.text
    # The next push mends it.
    store.take(OLDER)
    assert store.problem == ''
    assert make_store(path).overrides == OLDER


@pytest.mark.parametrize('mode', [0o666, 0o620])
def test_what_others_may_write_is_ignored(path, mode):
    make_store(path).take(OLDER)
    path.chmod(mode)
    store = make_store(path)
    assert store.overrides == {}
    assert 'chmod go-w' in store.problem


def test_what_is_no_file_is_ignored(path):
    path.mkdir(parents=True)
    store = make_store(path)
    assert 'is ignored' in store.problem
    # It cannot be kept, and holds all the same.
    assert store.take(OLDER)
    assert store.overrides == OLDER
    assert 'cannot be kept' in store.problem


def test_a_disk_that_takes_it_later(path, caplog):
    store = make_store(path)
    path.parent.write_text('in the way')
    store.take(OLDER)
    assert 'cannot be kept' in store.problem
    store.take(OLDER)
    assert caplog.text.count('cannot be kept') == 1
    path.parent.unlink()
    store.take({})
    assert store.problem == ''
    assert make_store(path).overrides == OLDER


def test_two_pushes_at_once(path):
    store = make_store(path)
    made = [{f'f{number}': test_pushed.ONE, 'f': test_pushed.ONE._replace(
        generation=10 + number)} for number in range(8)]
    threads = [threading.Thread(target=store.take, args=(push,))
               for push in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.overrides['f'].generation == 17
    assert len(store.overrides) == 9
    assert make_store(path).overrides == store.overrides


def test_the_most_that_there_can_be_fits_into_the_file(path):
    fields = test_pushed.ONE._replace(generation=pushed.MOST_GENERATION,
                                      name='\U0001f600' * 255, vcpus=4096)
    store = make_store(path)
    store.take({f'{number:04}' + '\U0001f600' * 251: fields
                for number in range(pushed.MOST_FLAVORS)})
    assert make_store(path).overrides == store.overrides
    assert len(json.loads(path.read_bytes())['flavors']) == 1500
