# SPDX-License-Identifier: Apache-2.0
"""The stats of a compute node, from its driver to its agent."""

import logging
import os
import stat

import pytest

from nova_vqos import compute_state
from nova_vqos import host_stats
from nova_vqos.tests.fixtures import requirement

TERMS = {'tick_us': 4000, 'plain_us': 50000, 'cache_longest_us': 200000,
         'cache_slice_us': 90000}
STATS = {'vqos_profile': 'valid', 'vqos_classes': ''}


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / 'vqos.json')


def test_the_agent_reads_what_the_driver_wrote(path):
    compute_state.Writer(path).write(STATS, TERMS)
    found = compute_state.load(path)
    assert found.at.endswith('+00:00')
    assert (found.stats, found.terms) == (STATS, TERMS)
    # An agent without root's right to read all reads it.
    assert os.stat(path).st_mode & 0o777 == 0o644
    assert os.listdir(os.path.dirname(path)) == ['vqos.json']


def test_what_the_driver_does_not_know_is_left_out(path):
    writer = compute_state.Writer(path)
    writer.write(STATS, TERMS, (2, 150), 30, {'one': 'full'})
    found = compute_state.load(path)
    assert (found.stock_servers, found.stock_cu, found.work_cu) == (2, 150, 30)
    assert found.moves == {'one': 'full'}
    writer.write(STATS, TERMS)
    found = compute_state.load(path)
    assert (found.stock_servers, found.stock_cu) == (None, None)
    assert (found.work_cu, found.moves) == (0, {})


def test_alarms(path):
    writer = compute_state.Writer(path)
    writer.write(STATS, TERMS, alarms=['x' * 5000] * 30 + ['the last'])
    found = compute_state.load(path).alarms
    assert (len(found), len(found[0]), found[-1]) == (20, 300, 'the last')
    writer.write(STATS, TERMS)
    assert compute_state.load(path).alarms == ()


def test_as_many_moves_as_there_is_place_for(path):
    texts = dict.fromkeys(host_stats.KEYS, '\xe9' * 255) | {
        'vqos_work': '\xe9' * 2000}
    compute_state.Writer(path).write(texts, TERMS, None, 0, {
        f'{number:036}': '\U0001f4a5' * 5000 for number in range(999)})
    found = compute_state.load(path)
    assert found.stats == texts
    # The last that were claimed will be asked for.
    assert list(found.moves)[-1] == f'{998:036}'


def test_a_directory_that_cannot_be_made_is_logged_once(tmp_path, caplog):
    (tmp_path / 'nova').touch()
    writer = compute_state.Writer(str(tmp_path / 'nova' / 'vqos.json'))
    for _ in range(2):
        writer.write(STATS, {})
    (record,) = caplog.records
    assert 'compute_state_path' in record.getMessage()
    (tmp_path / 'nova').unlink()
    writer.write(STATS, {})
    assert compute_state.load(str(tmp_path / 'nova' / 'vqos.json')).stats
    assert record.levelno == logging.WARNING


def test_a_full_disk_leaves_the_old_file(path, monkeypatch):
    writer = compute_state.Writer(path)
    writer.write(STATS, TERMS)

    def fail(*_args):
        raise OSError(28, 'No space left on device')
    monkeypatch.setattr(os, 'replace', fail)
    writer.write({}, {})
    monkeypatch.undo()
    assert compute_state.load(path).stats == STATS
    assert os.listdir(os.path.dirname(path)) == ['vqos.json']


def test_nothing_was_left(path):
    assert compute_state.load(path) is None


@pytest.mark.parametrize(('content', 'problem'), [
    ('', 'no JSON'), ('{', 'no JSON'), ('[' * 5000, 'no JSON'),
    ('[]', 'version'), ('{"version": 2}', 'version'),
    ('{"version": 1}', 'at is missing'),
    ('{"version": 1, "at": "", "stats": [], "terms": {}}', 'stats'),
    ('{"version": 1, "at": "", "stats": {"a": 1}, "terms": {}}', 'stats'),
    ('{"version": 1, "at": "", "stats": {}, "terms": {"a": true}}', 'terms'),
    ('{"version": 1, "at": "", "stats": {}, "terms": {}, "moves": 7}',
     'moves'),
    (' ' * 140_000, 'longer')])
def test_an_invalid_state_is_refused(path, content, problem):
    with open(path, 'w', encoding='utf-8') as file:
        file.write(content)
    with pytest.raises(ValueError, match=problem):
        compute_state.load(path)


def make_socket(path):
    os.mknod(path, stat.S_IFSOCK | 0o666)


def make_zeroes(path):
    """As /dev/zero."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))
    except PermissionError:
        requirement.need('devices are made by root')


@pytest.mark.parametrize('make', [os.mkfifo, make_socket, make_zeroes])
def test_what_is_no_regular_file_holds_up_nobody(path, make):
    """The directory belongs to Nova's user, the agent may be root."""
    make(path)
    with pytest.raises(ValueError, match=path):
        compute_state.load(path)


def test_a_link_is_not_followed(path, tmp_path):
    other = tmp_path / 'other.json'
    compute_state.Writer(str(other)).write(STATS, TERMS)
    os.symlink(other, path)
    with pytest.raises(ValueError, match='symbolic link'):
        compute_state.load(path)


def test_a_path_that_cannot_be_read(tmp_path):
    with pytest.raises(ValueError, match='not a regular file'):
        compute_state.load(str(tmp_path))
