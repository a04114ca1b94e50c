# SPDX-License-Identifier: Apache-2.0
"""What nova-vqos-manage's checks tell of the lab's cloud, and what comes."""

import json
import subprocess

import pytest

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import gauge

LIMIT_S = 120
CU = gauge.PROMISED_CU

# The story, which the first test waits for, has limits of its own.
pytestmark = pytest.mark.timeout(600, func_only=True)


@pytest.fixture(scope='module')
def cloud(lab, told):
    assert lab.is_deployed, told.checks[-1]
    with lab.cloud() as made:
        made.make_flavor('checked', {policy.UNITS_KEY: str(CU)})
        # Of a speed that only fast has.
        made.make_flavor('checked-fast', {
            policy.UNITS_KEY: str(int(lab.profiles.pcpu_cu('slow')) + 2)})
        yield made


@pytest.fixture(scope='module')
def image(lab, cloud):
    return cloud.make_image(
        'checked', guest.find_kernel(), clouds.initramfs(),
        guest.command_line(events={
            'sysbench': lab.profiles.benchmark().round_events}))


def check(lab, *arguments):
    """Rows by host, of the program in the controller's network."""
    ran = subprocess.run(
        lab.inside(['nova-vqos-manage', '--config-file', lab.hosts['fast']
                    .path('etc/nova-vqos/nova-vqos.conf'), *arguments,
                    '-f', 'json']),
        env=lab.environment(), capture_output=True, text=True,
        timeout=LIMIT_S, check=False)
    assert ran.stdout, ran.stderr
    rows = {row['host']: row for row in json.loads(ran.stdout)}
    fits = any(row['fits'] == 'yes' for row in rows.values())
    assert ran.returncode == (0 if fits else 1), ran.stderr
    return rows


def test_a_flavor_is_taken_where_the_check_says_so(lab, cloud, image):
    rows = check(lab, 'flavor', 'check', 'checked-fast')
    assert {host: row['fits'] for host, row in rows.items()} == {
        'fast': 'yes', 'slow': 'no'}, rows
    assert 'its slowest pCPU has' in rows['slow']['reasons'][0]
    for host, row in rows.items():
        server = cloud.boot('checked', 'checked-fast', image, host)
        try:
            refused = server.wait_settled()
            assert bool(refused) == (row['fits'] == 'no'), refused
        finally:
            server.delete()


def test_a_server_has_the_cap_that_was_told_before(lab, cloud, image):
    server = cloud.boot('checked', 'checked', image, 'fast')
    try:
        server.wait_active()
        row = check(lab, 'migration', 'check', server.uuid, 'slow')['slow']
        assert (row['fits'], row['as_fast']) == ('yes', True), row
        server.migrate('slow')
        assert lab.hosts['slow'].vcpu_cap(server.domain) == (
            row['cap']['quota_us'], row['cap']['period_us'])
    finally:
        server.delete()
