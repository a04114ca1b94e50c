# SPDX-License-Identifier: Apache-2.0
"""Guests that move between two real hosts, through libvirt's hook."""

import libvirt
import pytest

from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

# What a thread may have run before its group's first cap: nothing, but for
# the grain of the clock that charges it.
NOTHING_NS = 1_000_000


@pytest.fixture
def guest(lab, server_on):
    return server_on(lab.fast)


@pytest.mark.smoke
def test_the_first_instruction_runs_at_the_right_cap(lab, guest):
    # It arrives paused: no instruction has run there when the cap is read.
    guest.migrate(lab.slow, libvirt.VIR_MIGRATE_PAUSED)
    assert guest.state(lab.slow) == guests.PAUSED
    assert guest.cap(lab.slow) == guests.CAP_ON_SLOW
    assert guest.libvirt_cap(lab.slow) == guests.CAP_ON_SLOW
    assert guest.shares(lab.slow) == guests.SHARES
    guest.domain(lab.slow).resume()
    assert guest.cap(lab.slow) == guests.CAP_ON_SLOW


def test_no_time_is_had_at_a_wrong_cap_in_either_direction(lab, guest):
    with guests.Arrival(guest, lab.slow) as arrival:
        guest.migrate(lab.slow)
    assert_right_from_the_start(arrival.seen, guests.CAP_ON_SLOW)

    guest.host = lab.slow
    with guests.Arrival(guest, lab.fast) as arrival:
        guest.migrate(lab.fast)
    assert_right_from_the_start(arrival.seen, guests.CAP)
    assert guest.libvirt_cap(lab.fast) == guests.CAP


def assert_right_from_the_start(seen, cap):
    assert seen
    wrong = [sample for sample in seen
             if sample[:2] != cap and sample[2] > NOTHING_NS]
    assert wrong == [], seen[:5]
    assert seen[-1][:2] == cap


@pytest.mark.smoke
def test_the_agent_finds_nothing_to_correct(lab, guest, agent_of, client):
    agent_of(lab.slow)
    guest.migrate(lab.slow)
    client.wait_right(guest, lab.slow)
    report = client.get_server(lab.slow, guest)
    assert report['right_at_first_sight'] is True, report
    assert report['writes'] == 0, report
    assert report['origin'] == 'migrated'
    assert report['wrong_ms'] == 0, report


@pytest.mark.smoke
def test_a_server_without_units_moves_as_it_is(lab, guest_on):
    stock = guest_on(lab.fast, cap=(5_000, 10_000), shares=77)
    stock.migrate(lab.slow)
    assert stock.cap(lab.slow) == (5_000, 10_000)
    assert stock.shares(lab.slow) == 77


def test_the_agent_corrects_a_failed_hook(lab, guest, agent_of, client):
    agents.configure_hook(lab.slow, profile='/nonesuch')
    guest.migrate(lab.slow, libvirt.VIR_MIGRATE_PAUSED)
    assert guest.cap(lab.slow) == guests.CAP
    guest.domain(lab.slow).resume()
    guest.host = lab.slow
    agent_of(lab.slow)
    guest.wait_cap(guests.CAP_ON_SLOW)


def test_the_window_of_a_failed_hook_is_reported(lab, guest, agent_of, client):
    agents.configure_hook(lab.slow, profile='/nonesuch')
    agent_of(lab.slow)
    guest.migrate(lab.slow)
    guest.wait_cap(guests.CAP_ON_SLOW, lab.slow)
    client.wait_right(guest, lab.slow)
    report = client.get_server(lab.slow, guest)
    assert report['right_at_first_sight'] is False
    assert report['wrong_ms'] > 0


@pytest.mark.smoke
def test_a_hook_that_refuses_leaves_the_source_unharmed(lab, guest):
    agents.configure_hook(lab.slow, on_error='refuse', profile='/nonesuch')
    with pytest.raises(libvirt.libvirtError, match='/nonesuch'):
        guest.migrate(lab.slow)
    assert guest.state() == guests.RUNNING
    assert guest.cap() == guests.CAP
    assert guest.libvirt_cap() == guests.CAP
    assert guests.connect(lab.slow).listAllDomains() == []
    before_ns = guest.cpu_time_ns()
    process.wait_until(lambda: guest.cpu_time_ns() > before_ns,
                       guests.LIMIT_S, 'the guest to go on')


def test_a_host_too_slow_refuses_where_told_to(lab, guest_on):
    agents.configure_hook(lab.slow, on_error='refuse')
    quick = guest_on(lab.fast, specs=guests.server(60), cap=(30_000, 50_000))
    with pytest.raises(libvirt.libvirtError, match='50 CU'):
        quick.migrate(lab.slow)
    assert quick.state() == guests.RUNNING
    assert quick.cap() == (30_000, 50_000)


def test_a_guest_that_is_restored_gets_the_cap_of_today(lab, guest):
    image = lab.fast.path('nova/saved')
    guest.domain().save(image)
    # The host was calibrated anew meanwhile.
    agents.store_profile(lab.fast, 0.8)
    guests.connect(lab.fast).restore(image)
    assert guest.cap() == (25_000, 50_000)
    assert guest.libvirt_cap() == (25_000, 50_000)
