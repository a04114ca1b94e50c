# SPDX-License-Identifier: Apache-2.0
"""Servers that start again from the definition that libvirt keeps.

Nova does so in a soft reboot, its default: no driver and no hook sees it.
"""

import libvirt
import pytest

from nova_vqos import domain_xml
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
RIGHT_ON_SLOW = (*guests.CAP_ON_SLOW, guests.SHARES)


@pytest.fixture
def guest(lab, guest_on):
    return guest_on(lab.fast, specs=guests.server(40), cap=guests.CAP,
                    shares=guests.SHARES, persistent=True)


def wait_next_start(guest, tune):
    process.wait_until(lambda: guest.next_start() == tune, guests.LIMIT_S,
                       f'a next start with {tune}, not {guest.next_start()}')


def definition(guest):
    return guest.domain().XMLDesc(libvirt.VIR_DOMAIN_XML_INACTIVE)


def assert_right_at_first_sight(guest):
    assert guest.cap() == guests.CAP_ON_SLOW
    assert guest.shares() == guests.SHARES


def test_after_a_migration(lab, guest, agent_of, client):
    agent = agent_of(lab.slow)
    guest.migrate_as_nova(lab.slow)
    with guests.Writes(guest) as writes:
        wait_next_start(guest, RIGHT_ON_SLOW)
        # Nothing is given away for it.
        assert writes.take() == 0
    agent.stop()
    guest.soft_reboot()
    assert_right_at_first_sight(guest)


def test_one_that_came_while_there_was_no_agent(lab, guest, agent_of):
    guest.migrate_as_nova(lab.slow)
    assert guest.next_start() == (*guests.CAP, None)
    agent = agent_of(lab.slow)
    wait_next_start(guest, RIGHT_ON_SLOW)
    agent.stop()
    guest.soft_reboot()
    assert_right_at_first_sight(guest)


def test_pins_and_limits_of_the_source_stay_behind(lab, guest, agent_of):
    # As an agent there leaves them.
    domain = guest.domain()
    domain.setMetadata(
        libvirt.VIR_DOMAIN_METADATA_ELEMENT, f'<{domain_xml.MARK}/>',
        'nova_vqos', domain_xml.MARK_NS, LIVE)
    domain.pinVcpuFlags(0, tuple(
        pcpu in lab.fast.pcpus for pcpu in range(max(lab.fast.pcpus) + 1)),
        LIVE)
    domain.setSchedulerParametersFlags(
        {'emulator_period': 50_000, 'emulator_quota': 30_000}, LIVE)
    guest.migrate_as_nova(lab.slow)
    left = definition(guest)
    assert domain_xml.MARK_NS in left and 'emulator_quota' in left
    agent = agent_of(lab.slow)
    wait_next_start(guest, RIGHT_ON_SLOW)
    mended = definition(guest)
    assert not domain_xml.read(mended).pinned
    assert domain_xml.MARK_NS not in mended
    assert '_quota' not in mended
    agent.stop()
    guest.soft_reboot()
    assert_right_at_first_sight(guest)


def test_after_a_calibration(lab, guest, agent_of):
    agent_of(lab.fast)
    agents.store_profile(lab.fast, 0.8)
    guest.wait_cap((25_000, 50_000))
    wait_next_start(guest, (25_000, 50_000, guests.SHARES))
