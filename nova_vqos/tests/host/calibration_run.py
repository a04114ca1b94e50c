# SPDX-License-Identifier: Apache-2.0
"""Runs of nova-vqos-calibrate on this machine, and what they leave."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import uuid

import pytest

from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests.fixtures import make_profiles

PROGRAM = os.path.join(os.path.dirname(sys.executable), 'nova-vqos-calibrate')
_MARK = 'NOVA_VQOS_TEST_RUN'


@pytest.fixture
def path(tmp_path):
    """The profile of this host, made up but for its fingerprint."""
    made = str(tmp_path / 'profile.yaml')
    document.store(make_profiles.make_profile(
        socket.gethostname(),
        make_profiles.make_class(os.sched_getaffinity(0), 1.0),
        fingerprint=fingerprint.of_host()), made)
    return made


@pytest.fixture
def mark():
    """Tells what a run started from all else; nothing of it may be left."""
    made = uuid.uuid4().hex
    yield made
    for process in marked(made):
        os.kill(process, signal.SIGKILL)


def marked(mark):
    """:returns: the processes that a run has started"""
    found = []
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if f'{_MARK}={mark}'.encode() in (
                    process / 'environ').read_bytes():
                found.append(int(process.name))
    return found


def environment(mark):
    return os.environ | {_MARK: mark, 'PYTHONPATH': os.pathsep.join(sys.path)}


def run(mark, *arguments, timeout_s, before=(), **changes):
    """Run it to its end.

    :param before: a command that runs the program
    :param changes: of the environment
    """
    return subprocess.run([*before, PROGRAM, *arguments], text=True,
                          capture_output=True, check=False,
                          timeout=timeout_s, env=environment(mark) | changes)
