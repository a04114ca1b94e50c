# SPDX-License-Identifier: Apache-2.0
"""Runs one level by pytest: at once what may be, alone what is measured.

What failed is run again where the machine may have made it fail: what is
measured, and what ran while the machine stood still for longer than limits of
time allow for.
"""

import os
import pathlib
import subprocess
import sys
from xml.etree import ElementTree

from nova_vqos.tests.gate import junit
from nova_vqos.tests.gate import machine

TOP = pathlib.Path(__file__).parents[3]
REPORTS = TOP / 'build' / 'reports'

#: What failed is run again so often, ...
REPEATS = 2
#: ... unless more than so many did: that is not this machine's noise.
MOST_FLAKY = 5
_NO_TESTS = 5


class Run:
    """One level.

    :ivar report: of what has run so far
    :ivar passed: whether all of it did
    """

    def __init__(self, level, tests, wanted, arguments, workers,
                 reports=REPORTS, measures=True,
                 wait=machine.wait_until_quiet):
        """
        :param level: its name, and its report's
        :param tests: files and directories
        :param wanted: expression of markers; '': all
        :param arguments: of pytest, besides
        :param workers: of xdist, for tests that measure nothing
        :param reports: the directory of its report
        :param measures: whether there may be tests that measure
        :param wait: called before anything is measured, or run again
        """
        self.report = junit.Report(level)
        self.passed = True
        self._tests = tests
        self._wanted = wanted
        self._arguments = arguments
        self._workers = workers
        self._reports = reports
        self._measures = measures
        self._wait = wait
        self._count = 0

    def run(self):
        """:returns: the report, which is written as well"""
        statuses = [self._add('not measured' if self._measures else '',
                              self._workers)]
        if self._measures:
            self._wait()
            statuses.append(self._add('measured', ()))
        self._repeat()
        if set(statuses) == {_NO_TESTS}:
            print(f'level {self.report.level} has no such test',
                  file=sys.stderr)
            self.passed = False
        self.passed &= not self.report.of(junit.FAILED)
        self.report.write(self._reports / f'{self.report.level}.xml')
        return self.report

    def _add(self, marked, workers):
        status, cases = self._pytest(self._tests, marked, workers)
        self.report.cases += cases
        # Tests that failed are in the report. All else is no result of tests.
        if status not in (0, _NO_TESTS) and (
                status != 1 or all(one.outcome != junit.FAILED
                                   for one in cases)):
            self.passed = False
        return status

    def _pytest(self, tests, marked='', workers=()):
        """:returns: its status, and cases"""
        self._count += 1
        path = (self._reports / 'parts'
                / f'{self.report.level}-{self._count}.xml')
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        markers = ' and '.join(f'({one})' for one in (self._wanted, marked)
                               if one)
        status = subprocess.run(
            [sys.executable, '-m', 'pytest', '-q', '-p', 'no:cacheprovider',
             '-p', 'nova_vqos.tests.gate.plugin', '-W', 'ignore',
             '--durations', '5', '-r', 'sfEX', '--junitxml', str(path),
             *(('-m', markers) if markers else ()), *workers, *tests,
             *self._arguments], cwd=TOP, check=False,
            env=os.environ | {'PYTHONDONTWRITEBYTECODE': '1'}).returncode
        try:
            return status, junit.Report.read(path).cases
        except (OSError, ElementTree.ParseError):
            return status or 1, []

    def _repeat(self):
        """Run what failed again, each file's by themselves."""
        failed = [one for one in self.report.of(junit.FAILED) if one.machine]
        # What a fixture of several tests raised is one failure.
        causes = {(one.file, one.failed_set_up or one.nodeid)
                  for one in failed}
        if len(causes) > MOST_FLAKY:
            print(f'{len(causes)} failed: more than {MOST_FLAKY} are not '
                  'repeated')
            return
        for file in sorted({one.file for one in failed}):
            cases = [one for one in failed if one.file == file]
            for attempt in range(1, REPEATS + 1):
                print(f'== repeating what failed in {file}, {attempt} of '
                      f'{REPEATS} times', flush=True)
                for one in cases:
                    print(f'   {one.nodeid}: {one.message}\n'
                          f'   the machine: {one.machine}', flush=True)
                self._wait()
                _status, again = self._pytest([one.nodeid for one in cases])
                cases = self._replace(cases, again)
                if not cases:
                    break

    def _replace(self, cases, again):
        """:returns: those that failed again"""
        found = {one.nodeid: one for one in again}
        left = []
        for case in cases:
            result = (case.repeated(found[case.nodeid])
                      if case.nodeid in found else case)
            self.report.cases[self.report.cases.index(case)] = result
            if result.outcome == junit.FAILED:
                left.append(result)
        return left
