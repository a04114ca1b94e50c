# SPDX-License-Identifier: Apache-2.0
"""The memory of an emulator, by a tree that a test made."""

import os
import shutil

import pytest

from nova_vqos.hypervisor.linux import memory
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes

STATM = f'proc/{fake_host.PID}/statm'
PAGE_BYTES = os.sysconf('SC_PAGE_SIZE')


def test_what_files_and_shared_memory_do_not_have(host, cache):
    host.write(STATM, '300000 26000 6000 1500 0 40000 0\n')
    assert memory.read(cache, [fakes.UUID]) == {
        fakes.UUID: 20_000 * PAGE_BYTES}
    host.write(STATM, '300000 26001 6000 1500 0 40000 0\n')
    assert memory.read(cache, [fakes.UUID]) == {
        fakes.UUID: 20_001 * PAGE_BYTES}


@pytest.mark.parametrize('content', ['', 'x', '1 2', '1 2 y'])
def test_one_that_is_not_understood_is_left_out(host, cache, content):
    host.write(STATM, content)
    assert memory.read(cache, [fakes.UUID]) == {}


def test_an_emulator_that_is_gone_is_left_out(host, cache):
    host.write(STATM, '300000 26000 6000 1500 0 40000 0\n')
    assert memory.read(cache, [fakes.UUID])
    shutil.rmtree(host.root / 'proc' / str(fake_host.PID))
    assert memory.read(cache, [fakes.UUID]) == {}
