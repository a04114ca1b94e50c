# SPDX-License-Identifier: Apache-2.0
"""What the record of runs says against tests, checks and slices."""

from nova_vqos.tests.gate import record


def run(level='host', **row):
    return {'commit': 'c', 'levels': {
        level: {'status': 0, 'at': 't', 'tests': 1, **row}}}


def row(level, commit='c', at='1', *, is_commit=True, **others):
    return {'level': level, 'commit': commit, 'at': at, 'status': 0,
            'is_commit': is_commit, **others}


def test_a_test_that_was_flaky_twice_needs_a_cause():
    runs = [run(flaky=['one', 'other']), *[run()] * 18, run(flaky=['one'])]
    (found,) = record.flaky_again(runs, {})
    assert found.startswith('one ')
    assert not list(record.flaky_again(runs, {'one': 'why'}))


def test_runs_of_others_make_no_flake_older():
    runs = [run(flaky=['one']), *[run('slice-a')] * 30, run(flaky=['one'])]
    assert len(list(record.flaky_again(runs, {}))) == 1


def test_a_check_that_is_never_decided_decides_nothing():
    runs = [run(undecided=['speed', 'pace'])] * 4
    assert not list(record.never_decided(runs))
    (found,) = record.never_decided([*runs, run(undecided=['speed'])])
    assert found.startswith('speed ')


def test_runs_of_other_levels_do_not_count():
    undecided = run(undecided=['speed'])
    ended = run()
    del ended['levels']['host']['tests']
    runs = [undecided, run('unit'), ended, *[undecided] * 4]
    assert len(list(record.never_decided(runs))) == 1
    assert not list(record.never_decided([*runs, run()]))


def test_a_slice_that_has_not_run_for_long_is_missed():
    most = record.MOST_COMMITS
    (found,) = record.missed({'a': most, 'b': most + 1})
    assert 'slice b ' in found


def test_a_run_is_kept_with_what_is_in_doubt():
    (kept,) = record.extended([], [
        row('host', tests=2, failed=[], flaky=['one']),
        row('lint', at='2', status=1)])
    assert kept == {'commit': 'c', 'levels': {
        'host': {'status': 0, 'at': '1', 'tests': 2, 'flaky': ['one']},
        'lint': {'status': 1, 'at': '2'}}}


def test_what_ran_is_added_once_by_its_commit():
    rows = [row('unit', 'a'), row('host', 'b', '2'), row('lint', 'b', '3')]
    # Another developer has recorded the newest row.
    runs = record.extended([], rows[2:])
    found = record.extended(runs, rows)
    assert [(one['commit'], [*one['levels']]) for one in found] == [
        ('b', ['lint']), ('a', ['unit']), ('b', ['host'])]
    assert record.extended(found, rows) == found


def test_what_no_commit_shows_is_not_added():
    assert not record.extended([], [row('host', is_commit=False)])


def test_the_oldest_runs_of_a_level_are_dropped(tmp_path):
    path = tmp_path / 'record.json'
    record.store([run('unit'), *(run(tests=number)
                                 for number in range(record.KEPT + 1))], path)
    found = record.load(path)
    assert [[*one['levels']] for one in found[:2]] == [['unit'], ['host']]
    assert len(found) == record.KEPT + 1
    assert found[1]['levels']['host']['tests'] == 1
