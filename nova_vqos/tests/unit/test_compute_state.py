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

"""What the compute driver leaves for the agent, and the agent makes of it."""

import json
import logging
import os

import pytest

from nova_vqos import compute_state
from nova_vqos import tuning
from nova_vqos.tests import make_profiles

PROFILE = make_profiles.make_profile(
    'host', make_profiles.make_class((0, 1), 1.5),
    fingerprint={'tick_us': '4000'})
TERMS = {'tick_us': 4000, 'plain_us': 50000, 'cache_longest_us': 200000,
         'cache_slice_us': 90000}
STATS = {'vqos_profile': 'valid', 'vqos_classes': ''}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'vqos.json')


def test_what_is_left_is_told(path):
    terms = compute_state.terms_of(PROFILE, tuning.DEFAULT_PERIODS)
    assert terms == TERMS
    compute_state.Keeper(path).keep(STATS, terms)
    told = compute_state.told(path)
    assert told.pop('stats_at').endswith('+00:00')
    assert told == {'stats': STATS, 'terms': TERMS, 'stats_problem': ''}
    # An agent without root's right to read all reads it.
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.listdir(os.path.dirname(path)) == ['vqos.json']


def test_without_a_profile_there_are_no_terms(path):
    assert compute_state.terms_of(None, tuning.DEFAULT_PERIODS) == {}


def test_a_directory_that_is_not_there_is_logged_once(tmp_path, caplog):
    keeper = compute_state.Keeper(str(tmp_path / 'nova' / 'vqos.json'))
    for _ in range(2):
        keeper.keep(STATS, {})
    (record,) = caplog.records
    assert 'compute_state_path' in record.getMessage()
    (tmp_path / 'nova').mkdir()
    keeper.keep(STATS, {})
    assert compute_state.told(str(tmp_path / 'nova' / 'vqos.json'))['stats']
    assert record.levelno == logging.WARNING


def test_a_full_disk_leaves_what_was_there(path, monkeypatch):
    keeper = compute_state.Keeper(path)
    keeper.keep(STATS, TERMS)

    def fail(*_args):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(compute_state.json, 'dump', fail)
    keeper.keep({}, {})
    monkeypatch.undo()
    assert compute_state.told(path)['stats'] == STATS
    assert os.listdir(os.path.dirname(path)) == ['vqos.json']


def test_nothing_was_left(path):
    told = compute_state.told(path)
    assert told['stats'] is None
    assert path in told['stats_problem']


@pytest.mark.parametrize(('content', 'problem'), [
    ('', 'no JSON'), ('{', 'no JSON'), ('[' * 5000, 'no JSON'),
    ('[]', 'version'), ('{"version": 2}', 'version'),
    ('{"version": 1}', 'text'),
    ('{"version": 1, "at": "", "stats": [], "terms": {}}', 'mappings'),
    ('{"version": 1, "at": "", "stats": {"a": 1}, "terms": {}}', 'text'),
    ('{"version": 1, "at": "", "stats": {}, "terms": {"a": true}}', 'number'),
    (json.dumps({'version': 1, 'at': '', 'terms': {},
                 'stats': {'a': 'x' * 256}}), '255'),
    (' ' * 70_000, 'longer')])
def test_what_is_no_state_is_refused(path, content, problem):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(content)
    told = compute_state.told(path)
    assert told['stats'] is None
    assert problem in told['stats_problem']


def test_a_path_that_cannot_be_read(tmp_path):
    assert 'directory' in compute_state.told(str(tmp_path))['stats_problem']
