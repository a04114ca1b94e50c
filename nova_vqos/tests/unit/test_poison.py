# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

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
