# SPDX-License-Identifier: Apache-2.0
"""The record of runs, record.json: what ran when, and what was in doubt.

A file in the repository, since a gate has no other memory: which slice is the
oldest, which test is flaky again and again, which check never decides. The
gate cannot write there; a developer adds a run by ``tools/test.sh --record``,
and commits it.
"""

import collections
import json
import pathlib
import subprocess

from nova_vqos.tests.gate import running
from nova_vqos.tests.gate import slices

_PATH = pathlib.Path(__file__).with_name('record.json')
_SLICES = 'nova_vqos/tests/gate/slices.toml'
#: So many runs of each level are kept.
KEPT = 20
#: A slice that has no green run in so many commits is missed.
MOST_COMMITS = 60
#: A test that was flaky in so many of the runs that are kept has a cause.
FLAKY_RUNS = 2
#: A check that was undecided in so many runs in a row decides nothing.
UNDECIDED_IN_A_ROW = 5


def load(path=_PATH):
    """:returns: runs, the oldest first, see :func:`run_of`"""
    with open(path, encoding='utf-8') as stream:
        return json.load(stream)


def store(runs, path=_PATH):
    """Write the newest runs of each level."""
    kept, known = [], collections.Counter()
    for run in reversed(runs):
        levels = {name: row for name, row in run['levels'].items()
                  if known[name] < KEPT}
        known.update(levels.keys())
        if levels:
            kept.append(run | {'levels': levels})
    with open(path, 'w', encoding='utf-8') as stream:
        json.dump(kept[::-1], stream, indent=1, sort_keys=True)
        stream.write('\n')


def extended(runs, rows):
    """Runs of the record, and what has run since.

    What ran in a part, or on a tree that is no commit, is left out.

    :param rows: of levels that have run, the oldest first, see rows.py
    :returns: runs, another one for each commit that rows are of
    """
    known = {(level, row['at']) for run in runs
             for level, row in run['levels'].items()}
    by_commit = {}
    for row in rows:
        if row['is_commit'] and (row['level'], row['at']) not in known:
            by_commit.setdefault(row['commit'], []).append(row)
    return [*runs, *({
        'commit': commit, 'levels': {row['level']: {
            name: value for name, value in row.items()
            if name not in ('level', 'commit', 'is_commit') and value != []}
            for row in found}} for commit, found in by_commit.items())]


def newest_green(runs, wanted):
    """Where slices were green last.

    :param runs: of the record
    :param wanted: names of slices
    :returns: {name: commit; where it never was: the one since which there are
        slices}
    """
    first = (_git('log', '--diff-filter=A', '--format=%H', '--', _SLICES)
             or ['HEAD'])[-1]
    green = dict.fromkeys(wanted, first)
    for run in runs:
        for name in wanted:
            row = run['levels'].get(f'slice-{name}')
            if row and not row['status'] and _is_known(run['commit']):
                green[name] = run['commit']
    return green


def ages(green):
    """How long ago slices were green.

    :param green: {name: commit}
    :returns: {name: number of commits since}
    """
    return {name: int(_git('rev-list', '--count', f'{commit}..HEAD')[0])
            for name, commit in green.items()}


def changed_since(green):
    """What has changed since slices were green.

    :param green: {name: commit}
    :returns: {name: paths}
    """
    return {name: _git('diff', '--name-only', commit)
            for name, commit in green.items()}


def faults(runs, excused):
    """What the record says against tests, checks and slices.

    :param excused: {node id of a flaky test: why it is}
    :returns: sentences
    """
    yield from flaky_again(runs, excused)
    yield from never_decided(runs)
    # Where history is cut off, nobody knows how old a commit is.
    if _git('rev-parse', '--is-shallow-repository') != ['true']:
        yield from missed(ages(newest_green(runs, slices.load())))


def flaky_again(runs, excused):
    """Tests that were flaky more than once of late, as sentences."""
    for level, rows in _by_level(runs).items():
        flaky = collections.Counter(
            test for row in rows for test in row.get('flaky', ()))
        for test, count in sorted(flaky.items()):
            if count >= FLAKY_RUNS and test not in excused:
                yield (f'{test} was flaky in {count} of the last {len(rows)} '
                       f'runs of {level}: mend it, or write its cause into '
                       'budget.json, under "flaky"')


def missed(ages_of_slices):
    """Slices that have not run for too long, as sentences."""
    for name, age in sorted(ages_of_slices.items()):
        if age > MOST_COMMITS:
            yield (f'slice {name} has no green run in the last '
                   f'{MOST_COMMITS} commits ({age}): tools/test.sh '
                   f'slice-{name}, then tools/test.sh --record')


def never_decided(runs):
    """Checks that were undecided again and again, as sentences."""
    for level, rows in _by_level(runs).items():
        # Those that were ended have no tests.
        last = [set(row.get('undecided', ())) for row in rows
                if 'tests' in row][-UNDECIDED_IN_A_ROW:]
        if len(last) == UNDECIDED_IN_A_ROW:
            for test in sorted(set.intersection(*last)):
                yield (f'{test} of {level} was undecided in '
                       f'{UNDECIDED_IN_A_ROW} recorded runs in a row: it '
                       'decides nothing here')


def _by_level(runs):
    """:returns: {level: rows, the oldest first}"""
    found = {}
    for run in runs:
        for level, row in run['levels'].items():
            found.setdefault(level, []).append(row)
    return dict(sorted(found.items()))


def _is_known(commit):
    """Whether it is an ancestor of this one."""
    return subprocess.run(
        ['git', 'merge-base', '--is-ancestor', commit, 'HEAD'],
        cwd=running.TOP, capture_output=True, check=False).returncode == 0


def _git(*arguments):
    """:returns: the lines that a command printed; none where it failed"""
    return subprocess.run(['git', *arguments], cwd=running.TOP, text=True,
                          capture_output=True, check=False
                          ).stdout.splitlines()
