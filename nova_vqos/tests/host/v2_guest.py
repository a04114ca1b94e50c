# SPDX-License-Identifier: Apache-2.0
"""Runs pytest on the machine of v2_level, and prints each outcome at once.

One JSON object a line: a test that begins, or a part of it that ended. So
what was run is known also when the machine is ended, or its kernel dies.
"""

import json
import os
import sys
import typing as ty

import pytest

# Of the text of a failure: a serial port is slow. Its ends say most.
_END_CHARACTERS = 3000


class Outcomes:
    """A plugin of pytest."""

    def __init__(self, output: ty.TextIO) -> None:
        self._output = output

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._print(test=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.passed and report.when != 'call':
            return
        is_error = report.failed and report.when != 'call'
        text = report.longreprtext
        if report.failed:
            text += ''.join(f'\n-- {title}\n{content}'
                            for title, content in report.sections)
        self._print(test=report.nodeid,
                    outcome='error' if is_error else report.outcome,
                    seconds=round(report.duration, 1), text=_shortened(text))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._print(test=report.nodeid, outcome='error', seconds=0,
                        text=_shortened(report.longreprtext))

    def _print(self, **fields: ty.Any) -> None:
        print(json.dumps(fields), file=self._output, flush=True)


def _shortened(text: str) -> str:
    if len(text) <= 2 * _END_CHARACTERS:
        return text
    return f'{text[:_END_CHARACTERS]}\n[...]\n{text[-_END_CHARACTERS:]}'


def main() -> int:
    """:returns: pytest's exit status"""
    # Of guests that boot at a fifth of an emulated pCPU.
    os.environ.setdefault('NOVA_VQOS_LAB_PATIENCE', '5')
    # What pytest itself prints goes to the console.
    with os.fdopen(os.dup(1), 'w', encoding='ascii') as output:
        os.dup2(2, 1)
        return pytest.main(
            ['-q', '-p', 'no:cacheprovider', '-W', 'ignore', *sys.argv[1:]],
            plugins=[Outcomes(output)])


if __name__ == '__main__':
    sys.exit(main())
