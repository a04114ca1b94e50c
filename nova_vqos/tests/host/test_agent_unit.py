# SPDX-License-Identifier: Apache-2.0
"""An upgrade of an agent that was root, by a systemd that is PID 1.

All is done in one boot (agent_unit_guest); each test here looks at one part of
what was seen.
"""

import pytest

from nova_vqos.tests.host import agent_unit_guest
from nova_vqos.tests.host import newer_machine
from nova_vqos.tests.host import systemd

TIMEOUT_S = 480
_CAP_SYS_NICE = 1 << 23

pytestmark = [pytest.mark.timeout(TIMEOUT_S + 60), pytest.mark.rotation]


@pytest.fixture(scope='module')
def seen(open_checkout, tmp_path_factory):
    systemd.need()
    return newer_machine.observe(
        'nova_vqos.tests.host.agent_unit_guest',
        tmp_path_factory.mktemp('machine'), timeout_s=TIMEOUT_S, pcpus=2,
        by_systemd=True, load=('vhost_net',), options=())


def test_the_agent_is_of_its_user(seen):
    assert seen['active'] == 'active'
    assert seen['agent user'] == agent_unit_guest.USER
    assert seen['capabilities'] == _CAP_SYS_NICE


def test_the_agent_reaches_libvirt_and_the_helper(seen):
    assert seen['connected'], seen['log']
    assert seen['helper'] == 'active'
    assert seen['helper user'] == 'root'
    assert seen['socket'] == f'{agent_unit_guest.USER} 600'


def test_systemd_gives_it_what_root_has_left(seen):
    assert set(seen['owners'].values()) == {agent_unit_guest.USER}


def test_what_root_writes_is_apart(seen):
    assert seen['probe'] == 'root'


def test_the_probe_may_try_vhost(seen):
    """Within the limits of its unit; on this kernel limits do not hold it."""
    assert seen['vhost'].get('limited') is False, seen['vhost']
