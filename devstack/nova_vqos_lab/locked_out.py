# SPDX-License-Identifier: Apache-2.0
"""Whether a nova-compute has locked itself out of libvirt.

Stock Nova 34 can, when libvirtd ends: see doc/source/contributor/
locked_out.rst. It then goes on for ever, and starts and ends no server.
"""

from collections.abc import Iterator
import os
import re
import signal

from nova_vqos_lab import process

_REPORT_LIMIT_S = 30
_HEADING = re.compile(r'^====\s+(.*\S)\s+====$', re.MULTILINE)
_THREAD = re.compile(r'^------\s+Thread #.*$', re.MULTILINE)
_FUNCTION = re.compile(r'^\S+:\d+ in (\w+)$', re.MULTILINE)
# Holds the lock of the connection, and in the same thread waits for it.
_HOLDER, _WAITER = '_get_connection', '_connection_closed'


def is_locked_out(compute: process.Process) -> bool:
    """:returns: whether a thread of nova-compute waits for itself

    :param compute: with a log
    :raises process.LabError: when it does not report its threads in time
    """
    return is_in(_report(compute))


def is_in(report: str) -> bool:
    """:returns: whether a report of Nova's (of oslo.reports) shows that."""
    return any(_HOLDER in stack and stack[-1] == _WAITER
               for stack in _stacks(report))


def _stacks(report: str) -> Iterator[list[str]]:
    """:returns: of each thread its functions, the innermost one last"""
    for thread in _THREAD.split(report)[1:]:
        stack = _FUNCTION.findall(_HEADING.split(thread)[0])
        if stack:
            yield stack


def _report(compute: process.Process) -> str:
    with open(compute.log, encoding='utf-8', errors='replace') as log:
        log.seek(0, os.SEEK_END)
        compute.signal(signal.SIGUSR2)
        report = ''

        def is_complete() -> bool:
            nonlocal report
            report += log.read()
            # What comes after the threads.
            _, heading, rest = report.partition('  Threads  ')
            return bool(heading and _HEADING.search(rest))

        process.wait_until(is_complete, _REPORT_LIMIT_S,
                           "nova-compute's report of its threads",
                           alive=compute.alive, log=compute.log)
    return report
