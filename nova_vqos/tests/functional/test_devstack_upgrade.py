# SPDX-License-Identifier: Apache-2.0
"""What grenade runs of devstack/upgrade, on a machine that was stacked.

The phases of resources.sh are run on the lab's cloud: see level cloud.
"""

import pytest

from nova_vqos.tests.functional import devstack_machine

machine = devstack_machine.machine
pytestmark = devstack_machine.MARKS


@pytest.mark.parametrize('projects, expected', [
    (' keystone glance placement nova cinder',
     'keystone glance placement nova_vqos nova cinder'),
    # One without Nova has nothing of ours.
    (' keystone swift', 'keystone swift')])
def test_it_is_upgraded_just_before_nova(machine, projects, expected):
    host = machine()
    host.record()
    printed = host.devstack('grenade', 'settings',
                            UPGRADE_PROJECTS=projects)
    last = printed.splitlines()[-1]
    assert last.removeprefix('UPGRADE_PROJECTS:').split() == expected.split()
    assert host.record() == [
        f'devstack_localrc {where} enable_plugin nova_vqos '
        f'https://example.org/nova_vqos {branch}'
        for where, branch in (('base', 'base'), ('target', 'main'))]


def test_a_compute_host(machine):
    host = machine()
    host.devstack('stack')
    first, pid = host.tree(), host.agent_pid()
    host.record()

    host.devstack('grenade', 'shutdown.sh')
    assert host.agent_pid() is None
    assert host.record() == ['stop_process vqos-agent']

    # The files that the base has made stay, and are not measured again.
    host.devstack('grenade', 'upgrade.sh')
    assert [line.split()[0] for line in host.record()] == [
        'git_clone', 'setup_develop', 'pip_install_gr', 'upgrade_project',
        'nova-vqos-probe', 'run_process']
    assert host.agent_pid() not in (None, pid)
    assert host.tree() == first
    devstack_machine.check_agent(host)
    devstack_machine.check_hook(host)


def test_a_controller(machine):
    host = machine(devstack_machine.CONTROLLER)
    host.devstack('stack')
    first = host.tree()
    host.record()
    for script in 'shutdown.sh', 'upgrade.sh':
        host.devstack('grenade', script)
    assert [line.split()[0] for line in host.record()] == [
        'git_clone', 'setup_develop', 'upgrade_project']
    assert host.tree() == first
