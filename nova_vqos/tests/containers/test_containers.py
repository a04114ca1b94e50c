# SPDX-License-Identifier: Apache-2.0
"""The agent in its container, beside libvirt's, put there by the role."""

import os
import pathlib

import pytest

from nova_vqos.tests.containers import conftest
from nova_vqos.tests.containers import role as roles
from nova_vqos.tests.fixtures import project
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

SYS_NICE = 1 << 23
UID = '42499'
AGENT = 'nova-vqos-agent'
HELPER = 'nova-vqos-helper'
PROBE = 'nova-vqos-probe'
# What a test of the packages asks of Nova as well.
_NOVA_LOADS = (project.TOP / 'tools/lib/nova_loads.py').read_text()


@pytest.fixture(scope='module')
def deployed(role):
    assert role.apply('deploy') > 0
    return role


@pytest.fixture(scope='class')
def running(host, deployed):
    """Helper and agent, as systemd would start them."""
    agents.store_profile(host, 1.0)
    deployed.once(PROBE)
    deployed.start(HELPER)
    started = deployed.start(AGENT)
    process.wait_until(
        lambda: '"hypervisor_connected": true' in state(host), 60,
        'the agent', log=started.log, alive=started.alive)
    yield deployed
    print(pathlib.Path(started.log).read_text())
    deployed.stop(AGENT)
    deployed.stop(HELPER)


def state(host):
    path = pathlib.Path(host.path('run/nova-vqos/agent.json'))
    return path.read_text() if path.exists() else ''


def wait_cap(guest, cap):
    process.wait_until(lambda: guest.cap() == cap, guests.LIMIT_S,
                       f'a cap of {cap}')


def test_nova_loads_it(images):
    """The driver, the filter, the weighers and the validators."""
    images.run('run', '--rm', '--network=none', '--cgroupns=host',
               'localhost/nova-compute:vqos', 'python', '-W', 'ignore', '-c',
               _NOVA_LOADS)


def test_what_was_deployed_stays(deployed):
    assert deployed.apply('deploy') == 0


class TestRunning:
    """While helper and agent run."""

    def test_a_cap_is_corrected(self, host, running):
        guest = guests.Guest(host, specs=guests.server(40),
                             cap=(45_000, 50_000))
        wait_cap(guest, guests.CAP)
        guest.meddle(35_000)
        wait_cap(guest, guests.CAP)

    def test_the_agent_has_one_capability(self, running):
        found = roles.status(running.main_pid(AGENT))
        assert found['Uid'] == [UID] * 4
        for kind in 'CapEff', 'CapPrm', 'CapBnd', 'CapAmb':
            assert int(found[kind][0], 16) == SYS_NICE, kind
        assert found['NoNewPrivs'] == ['1']

    def test_the_helper_has_none(self, running):
        found = roles.status(running.main_pid(HELPER))
        assert found['Uid'] == ['0'] * 4
        assert [int(found[kind][0], 16) for kind in (
            'CapEff', 'CapPrm', 'CapBnd', 'CapAmb')] == [0] * 4
        assert found['NoNewPrivs'] == ['1']

    def test_the_probe_measures(self, host, running):
        """Whether the kernel enforces slices, in cgroups of its own."""
        assert running.once(PROBE) in (0, 3)
        if not os.path.exists(host.path('run/nova-vqos-probe/quantum.json')):
            requirement.need('no pCPU was idle enough')


def test_the_hook_runs_in_libvirts_container(host, deployed):
    """No agent runs: what libvirt restores, the hook has capped."""
    agents.store_profile(host, 1.0)
    guest = guests.Guest(host, specs=guests.server(40), cap=(45_000, 50_000))
    assert guest.cap() == (45_000, 50_000)
    saved = f'{conftest.ROOT}/lab/saved'
    guest.domain().save(saved)
    guests.connect(host).restore(saved)
    assert guest.cap() == guests.CAP


def test_it_calibrates(host, deployed, tmp_path):
    path = pathlib.Path(agents.profile_path(host))
    path.unlink(missing_ok=True)
    deployed.apply(
        'calibrate', nova_vqos_reference=str(tmp_path / 'gold'),
        nova_vqos_calibrate_arguments=[
            '--benchmark', 'integer', '--rounds', '4', '--max-seconds', '5',
            '--max-interval', '0.9', '--widest-interval', '0.9'])
    assert (tmp_path / 'gold.yaml').read_text() == path.read_text()


def test_an_upgrade_has_the_new_image(deployed):
    deployed.apply('upgrade', nova_vqos_image='localhost/other')
    assert 'localhost/other' in deployed.commands(AGENT)['ExecStart']
    deployed.apply('upgrade')
    assert roles.IMAGE in deployed.commands(AGENT)['ExecStart']


def test_z_it_is_removed(host, deployed):
    made = (f'{roles.UNITS}/nova-vqos* /etc/tmpfiles.d/nova-vqos* '
            '/run/nova-vqos*')
    assert host.run(['sh', '-c', f'ls -d {made}'], check=False).stdout != ''
    deployed.apply('remove')
    assert host.run(['sh', '-c', f'ls -d {made}'], check=False).stdout == ''
    # Without nova_vqos_purge; with it, the lab's mounts would be in the way.
    assert os.path.exists(host.path('etc/nova-vqos/nova-vqos.conf'))
