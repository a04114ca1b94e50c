# SPDX-License-Identifier: Apache-2.0
"""Programs of this host, by which guests are made."""

import os
import shutil
import subprocess

TIMEOUT_S = 300


class GuestError(Exception):
    """A guest that cannot be built; the message says what is missing."""


def which(program: str) -> str:
    """The path of a program.

    :raises GuestError: when it is not installed
    """
    found = shutil.which(program, path=os.environ.get('PATH', '')
                         + ':/usr/sbin:/sbin')
    if found is None:
        package = {'busybox': 'busybox-static'}.get(program, program)
        raise GuestError(f'{program} is not installed: install the package '
                         f'{package}')
    return found


def run(argv: list[str], cwd: str | None = None) -> str:
    """What a command prints.

    :raises GuestError: when it fails
    """
    try:
        return subprocess.run(argv, cwd=cwd, capture_output=True, text=True,
                              check=True, timeout=TIMEOUT_S).stdout
    except subprocess.CalledProcessError as error:
        raise GuestError(f'{" ".join(argv)} failed: {error.stderr.strip()}') \
            from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GuestError(f'{argv[0]} cannot be run: {error}') from error
