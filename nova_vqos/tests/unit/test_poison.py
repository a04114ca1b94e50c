# SPDX-License-Identifier: Apache-2.0
"""The poison fixture poisons."""

import pathlib
import socket
import subprocess

import pytest


def test_processes_are_poisoned():
    with pytest.raises(AssertionError, match='subprocess.Popen'):
        subprocess.run(['true'], check=True)


def test_the_network_is_poisoned():
    with socket.socket() as sock, pytest.raises(
            AssertionError, match='socket.connect'):
        sock.connect(('127.0.0.1', 9))


@pytest.mark.parametrize('path', ['/sys/devices/system/cpu/online',
                                  '/etc/nova-vqos/profile.yaml'])
def test_host_files_are_poisoned(path):
    with pytest.raises(AssertionError, match=path):
        pathlib.Path(path).read_text()


def test_writing_elsewhere_is_poisoned():
    with pytest.raises(AssertionError, match='for writing'):
        pathlib.Path('/opt/nova-vqos-was-here').write_text('')
