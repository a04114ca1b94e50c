# SPDX-License-Identifier: Apache-2.0
"""How much of the host the units can reach, by systemd's own judgement."""

import shutil

import pytest

from nova_vqos.tests.host import unit_files
from nova_vqos_lab import process


# From 0 (confined) to 10; each release of systemd counts a little differently.
@pytest.mark.parametrize(('name', 'most'), [
    ('agent', 2.0), ('helper', 2.0), ('partition', 2.0), ('probe', 2.0),
    # It may write cgroups, trace, and be real-time.
    ('verify', 3.3)])
def test_systemd_finds_little_exposed(name, most):
    if shutil.which('systemd-analyze') is None:
        pytest.skip('the package systemd is missing')
    done = process.run(
        ['systemd-analyze', 'security', '--offline=true', '--no-pager',
         f'--threshold={int(most * 10)}',
         str(unit_files.ETC / f'nova-vqos-{name}.service')], check=False)
    assert done.returncode == 0, done.stdout
