# SPDX-License-Identifier: Apache-2.0
"""How each level ended: build/reports/LEVEL.json, and a table of them."""

import datetime
import json
import pathlib
import subprocess
from xml.etree import ElementTree

from nova_vqos.tests.gate import junit
from nova_vqos.tests.gate import running

_NAMES = ('failed', 'flaky', 'undecided', 'skipped')


def write(level, status, wall_s, cpu_s, *, is_whole=True):
    """Note how a level ended.

    :param status: of exit
    :param is_whole: whether all of its tests were wanted
    :param cpu_s: of all that it ran, as it was; with what it installed
    """
    row = {'level': level, 'status': status, 'wall_s': wall_s,
           'all_cpu_s': cpu_s, 'commit': _git('rev-parse', 'HEAD'),
           'is_commit': is_whole and not _git('status', '--porcelain'),
           'at': datetime.datetime.now(datetime.UTC).isoformat(
               timespec='seconds')}
    report = report_of(level)
    if report:
        row |= report.summary()
    path = _path(level)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(row), encoding='utf-8')


def report_of(level):
    """:returns: its junit.Report, None where it has none"""
    try:
        return junit.Report.read(running.REPORTS / f'{level}.xml')
    except (OSError, ElementTree.ParseError):
        return None


def read(levels=None):
    """Rows of levels that have run.

    :param levels: None: all of them
    :returns: in this order; of all of them the oldest first
    """
    paths = (running.REPORTS.glob('*.json') if levels is None
             else filter(pathlib.Path.exists, map(_path, levels)))
    found = [json.loads(path.read_text(encoding='utf-8')) for path in paths]
    return found if levels else sorted(found, key=lambda row: row['at'])


def table(rows):
    """:returns: lines for people"""
    yield (f'{"level":<22} {"result":<8} {"tests":>6} {"failed":>6} '
           f'{"flaky":>5} {"undecided":>9} {"skipped":>7} {"CPU s":>7} '
           f'{"wall s":>7}')
    for row in rows:
        counts = [len(row[name]) if name in row else '-' for name in _NAMES]
        yield (f'{row["level"]:<22} '
               f'{"passed" if not row["status"] else "FAILED":<8} '
               f'{row.get("tests", "-"):>6} {counts[0]:>6} {counts[1]:>5} '
               f'{counts[2]:>9} {counts[3]:>7} {row["all_cpu_s"]:>7.0f} '
               f'{row["wall_s"]:>7.0f}')
    for row in rows:
        for name in _NAMES[:3]:
            for test in row.get(name, ()):
                yield f'{name}: {test}'


def _path(level):
    return pathlib.Path(running.REPORTS, f'{level}.json')


def _git(*arguments):
    return subprocess.run(['git', *arguments], cwd=running.TOP,
                          capture_output=True, text=True, check=False
                          ).stdout.strip()
