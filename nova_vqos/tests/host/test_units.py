# SPDX-License-Identifier: Apache-2.0
"""How much of the host the units can reach, by systemd's own judgement."""

import shutil

import pytest

from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import unit_files
from nova_vqos_lab import process


# From 0 (confined) to 10; each release of systemd counts a little differently.
@pytest.mark.parametrize('name', [
    'agent', 'helper', 'partition', 'probe', 'vendordata', 'verify'])
def test_systemd_finds_little_exposed(name):
    if shutil.which('systemd-analyze') is None:
        requirement.need('the package systemd is missing')
    done = process.run(
        ['systemd-analyze', 'security', '--offline=true', '--no-pager',
         '--threshold=20',
         str(unit_files.ETC / f'nova-vqos-{name}.service')], check=False)
    assert done.returncode == 0, done.stdout
