# SPDX-License-Identifier: Apache-2.0
"""The budget of levels, budget.json: what they may cost.

In CPU seconds and in seconds that tests asked to wait, since the clock of a
shared machine says little. CPU seconds are those of a machine of the
reference's speed, see plugin.py. ``tools/test.sh --budget`` writes the file
anew from the reports of the levels that ran last: a level may only grow by a
commit that says why.
"""

import collections
import json
import pathlib

from nova_vqos.tests.gate import junit

_PATH = pathlib.Path(__file__).with_name('budget.json')
#: By so much a level may exceed its budget.
GROWTH = 0.2
#: Seconds that scatter by themselves, where a budget is small.
SLACK_S = 10
#: What a new test may take: one that the budget does not name.
TEST_CPU_S = {'unit': 1.0}
OTHER_TEST_CPU_S = 5.0
# The budget names what takes this share of it: one test's CPU seconds scatter
# by more than half, where it asks again and again whether a process is ready.
_NAMED = 0.5
# What the first test of a process imports: which one that is, is by chance.
_IMPORTS_CPU_S = 1.5
#: A file of tests is kept from here on.
_LEAST_FILE_CPU_S = 1.0
_GREW = 10


def load(path=_PATH):
    """:returns: {'levels': {name: {..}}, 'flaky': {node id: cause}}"""
    with open(path, encoding='utf-8') as stream:
        return json.load(stream)


def store(budget, path=_PATH):
    with open(path, 'w', encoding='utf-8') as stream:
        json.dump(budget, stream, indent=1, sort_keys=True)
        stream.write('\n')


def of_report(report):
    """:returns: what a level's budget would be, were this its cost"""
    named_s = _new_test_s(report) * _NAMED
    summary = report.summary()
    return {
        'cpu_s': round(summary['cpu_s']),
        'waited_s': round(summary['waited_s']),
        'tests': {junit.short(one.nodeid): round(one.cost('cpu_s'), 1)
                  for one in report.cases if one.cost('cpu_s') > named_s},
        'files': {name: round(cpu_s, 1)
                  for name, cpu_s in _by_file(report).items()
                  if cpu_s >= _LEAST_FILE_CPU_S}}


def faults(report, budget):
    """Where a level costs more than it may.

    :param budget: of this level, see :func:`of_report`
    :returns: sentences
    """
    now = of_report(report)
    for name, words in (('cpu_s', 'CPU seconds'), ('waited_s', 'of waits')):
        most = budget[name] * (1 + GROWTH) + SLACK_S
        if now[name] > most:
            yield (f'level {report.level} takes {now[name]} s {words}, its '
                   f'budget is {budget[name]} (at most {most:.0f})')
    limit_s = _new_test_s(report)
    for test in sorted(now['tests'].keys() - budget['tests'].keys()):
        cpu_s = now['tests'][test]
        if cpu_s > limit_s * (1 + GROWTH) + _IMPORTS_CPU_S:
            yield (f'{test}, which the budget does not name, takes {cpu_s} '
                   f'CPU seconds, a new test at most {limit_s:g}')


def grew_most(report, budget):
    """:returns: files that grew most, as [(seconds more, file)]"""
    before = budget['files']
    return sorted(((cpu_s - before.get(name, 0), name)
                   for name, cpu_s in _by_file(report).items()),
                  reverse=True)[:_GREW]


def _new_test_s(report):
    return TEST_CPU_S.get(report.level, OTHER_TEST_CPU_S)


def _by_file(report):
    found = collections.Counter()
    for one in report.cases:
        found[junit.short(one.file)] += one.cost('cpu_s')
    return found
