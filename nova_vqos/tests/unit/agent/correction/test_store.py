# SPDX-License-Identifier: Apache-2.0
"""The file of what was measured of servers."""

import json
import os

import pytest

from nova_vqos import learning
from nova_vqos import speeds
from nova_vqos.agent.correction import store as stores
from nova_vqos.tests.fixtures import fakes

KINDS = {'integer': 1.0, 'hash': 0.5}
SEEN = speeds.Speeds(1000.0, 'gold', KINDS, learning.History((
    learning.Observation(KINDS, 21.0, 1e-4),
    learning.Observation({'integer': 2.0, 'hash': 2.0}, 21.5, 1e-4))))
OTHER = speeds.Speeds(1000.0, 'gold', KINDS, learning.History())


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'speeds.json')


def stored(path):
    store = stores.Store(path)
    store.load()
    return store


def test_another_agent_finds_what_one_has_written(path):
    store = stored(path)
    assert store.get(fakes.UUID) is None
    assert store.problem == ''
    store.put(fakes.UUID, SEEN)
    assert store.is_changed
    store.write(store.text())
    assert not store.is_changed
    assert stored(path).get(fakes.UUID) == SEEN
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_nothing_is_written_where_nothing_changed(path):
    store = stored(path)
    assert store.text() is None
    store.put(fakes.UUID, None)
    assert store.text() is None
    store.write(None)
    assert not os.path.exists(path)


def test_of_too_many_servers_those_measured_first_are_dropped(
        path, monkeypatch):
    monkeypatch.setattr(stores, 'MOST_SERVERS', 3)
    store = stored(path)
    for number in range(5):
        store.put(f'server {number}', SEEN)
        store.put('server 0', OTHER if number % 2 else SEEN)
    assert [number for number in range(5)
            if store.get(f'server {number}')] == [0, 3, 4]


@pytest.mark.parametrize('content', [
    '', '[]', '{', '{"schema": 2, "servers": {}}', '{"servers": {}}',
    '{"schema": 1, "servers": {"x": [1]}}',
    *(json.dumps({'schema': 1, 'servers': {'x': {
        'at_s': 1000.0, 'reference': 'gold', 'first': first, 'history': {
            'observations': [{'kinds': {'integer': 1.0}, 'log_speed': speed,
                              'variance': 1e-4}]}}}})
      for first, speed in (({}, 1.0), ({'integer': 1.0}, 1e9))),
])
def test_an_invalid_file_is_a_problem_until_the_next_write(path, content):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(content)
    store = stored(path)
    assert path in store.problem
    assert store.get('x') is None
    store.put(fakes.UUID, SEEN)
    store.write(store.text())
    assert store.problem == ''
    assert stored(path).get(fakes.UUID) == SEEN


def test_a_file_that_others_may_write_is_ignored(path):
    store = stored(path)
    store.put(fakes.UUID, SEEN)
    store.write(store.text())
    os.chmod(path, 0o666)
    assert stored(path).get(fakes.UUID) is None


def test_what_cannot_be_written_is_a_problem_and_written_later(
        tmp_path, path):
    directory = tmp_path / 'later'
    directory.write_text('no directory')
    store = stores.Store(str(directory / 'speeds.json'))
    store.put(fakes.UUID, SEEN)
    store.write(store.text())
    assert store.problem
    directory.unlink()
    store.write(store.text())
    assert store.problem == ''
    assert stored(str(directory / 'speeds.json')).get(fakes.UUID) == SEEN


def test_without_a_path_all_is_kept_in_memory_alone():
    store = stores.Store('')
    store.put(fakes.UUID, SEEN)
    store.write(store.text())
    assert store.problem == ''
    assert store.get(fakes.UUID) == SEEN
