# SPDX-License-Identifier: Apache-2.0
"""Code of an earlier nova_vqos, to upgrade from.

It runs with the packages of the new one: a program finds it by PYTHONPATH,
entry points included, before what is installed.
"""

import io
import os
import subprocess
import sys
import tarfile

from nova_vqos_lab import process

_TOP = os.path.dirname(os.path.dirname(os.path.dirname(
    os.path.abspath(__file__))))
#: The commit that an upgrade begins with. Agents before RPC 1.6 hand no
#: accounts over to later ones.
REVISION = 'fa88d359'
_LIMIT_S = 60
# That of a release is in its tag, which a checkout need not have.
_VERSION = '0.1.0'


class NoRevision(process.LabError):
    """The checkout lacks a commit: its history may have been cut."""


def extract(revision: str, directory: str) -> None:
    """Write the code of a commit, with its entry points.

    :param revision: as Git names it
    :param directory: for the code; it exists
    :raises NoRevision: when the checkout lacks it
    :raises process.LabError: when its entry points cannot be made
    """
    # NOTE: a name with a dash in front would be an option.
    done = subprocess.run(
        ['git', '-C', _TOP, 'archive', '--end-of-options', revision],
        capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode:
        raise NoRevision(f'no code of commit {revision}: '
                         f'{done.stderr.decode().strip()}')
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        archive.extractall(directory, filter='data')
    made = subprocess.run(
        [sys.executable, 'setup.py', '-q', 'egg_info'], cwd=directory,
        env={**os.environ, 'PBR_VERSION': _VERSION}, capture_output=True,
        text=True, timeout=_LIMIT_S, check=False)
    if made.returncode:
        raise process.LabError(f'no entry points of commit {revision}: '
                               f'{made.stderr.strip()}')
