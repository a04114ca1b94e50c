# SPDX-License-Identifier: Apache-2.0
"""Runs a benchmark once more, on an emulated machine with a newer kernel."""

import os
import pathlib
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'devstack'))

from nova_vqos.tests.host import newer_machine

OPTION = '--newer-kernel'


def run(last: str, timeout_s: float, *words: str) -> str:
    """Run this program there, with its arguments but ``OPTION``.

    :param last: its output has this when it got to the end; else what the
        machine wrote to its console is printed, too
    :param words: arguments that come before the others
    :returns: what it printed, which is printed here
    """
    with tempfile.TemporaryDirectory() as directory:
        done = newer_machine.run_read_only(
            [sys.executable, os.path.abspath(sys.argv[0]), *words, *(
                word for word in sys.argv[1:] if word != OPTION)],
            pathlib.Path(directory), kernel=newer_machine.fetch_kernel(),
            timeout_s=timeout_s)
    print(done.output, end='')
    if last not in done.output:
        print(done.console[-4000:], file=sys.stderr)
    return done.output
