# SPDX-License-Identifier: Apache-2.0
"""The phases of devstack/upgrade/resources.sh, as grenade calls them.

Grenade's and devstack's functions are stand-ins, written after their
contracts; nova_vqos is not replaced meanwhile, but stopped and started again.
"""

import datetime
import os
import subprocess

import pytest

from nova_vqos.calibration import guest
from nova_vqos.tests.cloud import conftest
from nova_vqos.tests.cloud import test_tools
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import node
from nova_vqos_lab import process

pytestmark = pytest.mark.nightly

NAME = 'grenade'
HOST = 'slow'
LIMIT_S = 180
SCRIPT = os.path.join(conftest.TOP, 'devstack/upgrade/resources.sh')
STAND_IN = os.path.join(conftest.TOP,
                        'nova_vqos/tests/functional/devstack/grenade.sh')


@pytest.fixture
def phase(lab, told, tmp_path):
    """Runs a phase on a cloud of which only one host takes servers."""
    assert lab.is_deployed, told.checks[-1]
    host = lab.hosts[HOST]
    (tmp_path / 'harness').mkdir()
    for name in 'grenaderc', 'openrc':
        (tmp_path / name).touch()
    (tmp_path / 'functions').write_text(
        f'source "{STAND_IN}"\n'
        'unset -f openstack virsh\n'
        f'NOVA_VQOS_LIBVIRT_URI={host.libvirt_uri}\n'
        f'NOVA_VQOS_PROVIDER={HOST}\n'
        f'NOVA_VQOS_PROFILE={host.path("etc/nova-vqos/profile.yaml")}\n')

    def run(*arguments):
        done = subprocess.run(
            lab.inside(['bash', SCRIPT, *arguments]), env={
                **lab.environment(), 'ROOT': str(tmp_path),
                'GRENADE_DIR': str(tmp_path), 'TOP_DIR': str(tmp_path),
                'ENABLED_SERVICES': '', 'DEFAULT_IMAGE_NAME': NAME},
            capture_output=True, text=True, timeout=LIMIT_S, check=False)
        print(done.stdout, done.stderr)
        return done

    service = ('compute', 'service', 'set', 'fast', 'nova-compute')
    with lab.cloud() as cloud:
        cloud.make_image(NAME, guest.find_kernel(), clouds.initramfs(),
                         guest.command_line())
        test_tools.execute(lab, 'openstack', *service, '--disable')
        try:
            yield run
        finally:
            test_tools.execute(lab, 'openstack', *service, '--enable')
            run('force_destroy')
            cloud.delete_images(NAME)


def test_claim_and_cap_survive(lab, phase):
    assert phase('create').returncode == 0
    assert phase('verify', 'pre-upgrade').returncode == 0
    one = lab.nodes[HOST]
    for program in node.AGENT, node.COMPUTE:
        one.stop(program)
    assert phase('verify_noapi', 'pre-upgrade').returncode == 0

    # Nothing restores a cap now.
    with lab.cloud() as cloud:
        domain = next(server.domain for server in cloud.servers()
                      if server.name == 'nova_vqos_grenade')
    virsh = ['virsh', '-c', lab.hosts[HOST].libvirt_uri, 'schedinfo', domain]
    process.run([*virsh, '--set', 'vcpu_quota=50000'])
    failed = phase('verify_noapi', 'post-upgrade')
    assert failed.returncode != 0
    assert "has a cap of '50000/" in failed.stderr

    since = datetime.datetime.now(datetime.UTC)
    one.start_agent_again()
    one.start_compute()
    with lab.cloud() as cloud:
        cloud.wait_for_compute(HOST, since)
    # The agent has restored it.
    assert phase('verify', 'post-upgrade').returncode == 0
    assert phase('destroy').returncode == 0
    with lab.cloud() as cloud:
        assert 'nova_vqos_grenade' not in {
            server.name for server in cloud.servers()}
