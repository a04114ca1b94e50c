# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-status on the lab: nothing is wrong but what the lab lacks."""

import json
import os
import subprocess

import pytest

from nova_vqos.tests.cloud import conftest
from nova_vqos_lab import paths
from nova_vqos_lab import services

LAB = os.path.join(conftest.TOP, 'devstack', 'lab')
LIMIT_S = 120
SUCCESS, WARNING = 0, 1

# Of the machine that carries the lab.
MACHINE = {'Frequency', 'Halt polling', 'Interrupt time'}
# The lab has no systemd, which would have run the probe as well.
NO_SYSTEMD = {"Agent's unit", 'Quantum classes'}


def look(where, role, service):
    """:returns: the exit status, and code and details by check"""
    done = subprocess.run(
        [LAB, *where, f'{services.BIN}/nova-vqos-status', '--role', role,
         '--nova-config', f'{paths.etc(service)}/nova.conf',
         '--placement-config', f'{paths.etc("placement")}/placement.conf',
         'upgrade', 'check', '--json'],
        capture_output=True, text=True, timeout=LIMIT_S, check=False)
    print(done.stdout, done.stderr)
    found = {one['check']: (one['result'], one['details'])
             for one in json.loads(done.stdout)['checks']}
    return done.returncode, found


def wrong(found):
    return {name: details for name, (code, details) in found.items()
            if code != SUCCESS}


@pytest.mark.parametrize('host', ['fast', 'slow'])
def test_a_compute_host(lab, told, host):
    assert lab.is_deployed, told.checks[-1]
    status, found = look(['on', host], 'compute', f'nova-compute-{host}')
    assert {name: details for name, details in wrong(found).items()
            if name not in MACHINE | NO_SYSTEMD} == {}
    assert {found[name][0] for name in NO_SYSTEMD} == {WARNING}
    assert status == WARNING
    assert lab.profiles.of(host).id in found['Profile'][1]


def test_the_controller(lab, told):
    assert lab.is_deployed, told.checks[-1]
    status, found = look(['exec'], 'controller', 'nova-scheduler')
    assert (status, wrong(found)) == (SUCCESS, {})
    assert found['Placement'][1].endswith('retry_count is 1.')
    assert found['Profile'][1] == (
        'Does not apply: this machine is no compute host.')
