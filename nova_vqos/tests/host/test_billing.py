# SPDX-License-Identifier: Apache-2.0
"""Servers that are billed for what their hosts do for them, on real hosts."""

import os
import signal
import sqlite3
import time

import pytest

from nova_vqos.billing import ledger
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
# What a server may use in the intervals that a reading is late or early by.
INTERVAL_CU_S = 40 * 2.5


def ledger_path(host):
    return host.path('var/lib/nova-vqos/ledger.sqlite')


def account(host, guest):
    """:returns: what is on a host's disk of a guest, None if nothing is."""
    if not os.path.exists(ledger_path(host)):
        return None
    book = ledger.Ledger(ledger_path(host))
    try:
        return book.get(guest.uuid)
    finally:
        book.close()


def vcpu_cu_s(host, guest):
    found = account(host, guest)
    return 0 if found is None else found.total_cu_us['vcpu'] / 1e6


def domain_limit(guest, host=None):
    """:returns: quota and period of all of a guest, from the kernel."""
    host = host or guest.host
    return cgroups.read_cap(host.hierarchy, os.path.dirname(guest.group(host)))


def wait_domain_limit(guest, limit, host=None):
    """Wait until all of a guest is limited.

    A guest that has just started owes a little, for the start of its QEMU.
    """
    def limited():
        quota_us, period_us = domain_limit(guest, host)
        return (period_us == limit[1]
                and 0.8 * limit[0] <= quota_us <= limit[0])
    process.wait_until(limited, LIMIT_S, f'a limit of about {limit}, there '
                       f'is {domain_limit(guest, host)}')


def wait_billed(client, host, guest, **expected):
    """Wait until the agent has billed a guest, and what it is to be."""
    def billed():
        if guest.uuid not in client.get_host(host)['servers']:
            return None
        bill = client.get_server(host, guest)['bill']
        return bill if bill is not None and all(
            bill[name] == value for name, value in expected.items()) else None
    return process.wait_until(billed, LIMIT_S, 'the bill of the guest')


def wait_round(host, guest):
    """Wait until the next bill of a guest is on the disk."""
    before = vcpu_cu_s(host, guest)
    process.wait_until(lambda: vcpu_cu_s(host, guest) > before, LIMIT_S,
                       'another round')


def wait_all_billed(host, guest):
    """Wait until what a guest has used is billed, but for the last interval.

    What got lost, or is billed twice, is not so in any round.
    """
    def unbilled_cu_s():
        # What ran before its vCPU had a cgroup is not in the kernel's figure.
        return guest.cpu_time_ns() / 1e9 * 100 - vcpu_cu_s(host, guest)
    process.wait_until(lambda: -20 <= unbilled_cu_s() <= INTERVAL_CU_S,
                       LIMIT_S, f'a bill of all that {guest.name} used')


@pytest.fixture(autouse=True)
def no_ledger(lab):
    """Each test begins without one."""
    for host in lab.hosts:
        for suffix in ('', '-wal', '-shm'):
            path = ledger_path(host) + suffix
            if os.path.exists(path):
                os.unlink(path)


def test_one_that_pays_is_limited_as_a_whole(lab, server_on, agent_of, client):
    agent = agent_of(lab.fast)
    pays = server_on(lab.fast, vqos_dd_billing='charge')
    free = server_on(lab.fast, vqos_dd_billing='account')
    wait_domain_limit(pays, guests.CAP)
    assert 0.8 * guests.CAP[0] <= pays.cap()[0] <= guests.CAP[0]
    bill = wait_billed(client, lab.fast, pays, billing='charge')
    assert 32 <= bill['limit_cu'] <= 40
    bill = wait_billed(client, lab.fast, free, billing='account')
    assert bill['limit_cu'] is None
    assert domain_limit(free)[0] == -1
    process.wait_until(
        lambda: agent.state()['dd_billing'] == ['off', 'account', 'charge'],
        LIMIT_S, 'the heartbeat with that')
    # Its cap follows its debt each tick, and is behind for moments.
    client.wait_right(pays)
    assert client.get_server(lab.fast, pays)['tamperings'] == []


def test_a_changed_limit_is_restored(lab, server_on, agent_of, client):
    agent_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='charge')
    client.wait_right(guest)

    def tampered():
        # Where the agent is about to write itself, that undoes it unseen.
        lab.fast.run(['virsh', 'schedinfo', guest.name, '--live',
                      'global_quota=45000'])
        return client.tampering(guest, 'domain 45000')
    tampering = process.wait_until(tampered, LIMIT_S, 'a tampering',
                                   interval_s=4 * agents.TICK_S)
    assert 'libvirt' in tampering['channel'], tampering
    wait_domain_limit(guest, guests.CAP)


def test_a_killed_agent_loses_and_adds_none(lab, server_on, agent_of, client):
    agent = agent_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='account')
    wait_billed(client, lab.fast, guest)
    wait_round(lab.fast, guest)
    # From now on, by counters that nobody but the kernel has touched.
    used_ns, billed = guest.cpu_time_ns(), vcpu_cu_s(lab.fast, guest)
    for killed_after_s in (2.3, 3.1, 2.05):
        # Not a wait for anything: somewhere within a round.
        time.sleep(killed_after_s)
        agent.process.signal(signal.SIGKILL)
        assert agent.process.wait(10)
        agent = agent_of(lab.fast)
    wait_round(lab.fast, guest)
    billed = vcpu_cu_s(lab.fast, guest) - billed
    used_cu_s = (guest.cpu_time_ns() - used_ns) / 1e9 * 100
    assert used_cu_s > 2 * INTERVAL_CU_S
    assert abs(billed - used_cu_s) <= INTERVAL_CU_S, (billed, used_cu_s)


def owe(host, guest, seconds):
    """Let a guest owe something, as if it had done much I/O."""
    owed_cu_us = seconds * 40 * 1_000_000
    with sqlite3.connect(ledger_path(host)) as connection:
        # Without the use another host would not believe the debt.
        changed = connection.execute(
            'UPDATE servers SET checksum = 0, debt_cu_us = ?, '
            'net_rx_cu_us = net_rx_cu_us + ? WHERE server_uuid = ?',
            (owed_cu_us, owed_cu_us, guest.uuid)).rowcount
    connection.close()
    assert changed == 1


def test_debt_is_paid_and_a_stop_ends_it(lab, server_on, agent_of, client):
    agent = agent_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='charge')
    wait_billed(client, lab.fast, guest)
    agent.process.signal(signal.SIGKILL)
    assert agent.process.wait(10)
    owe(lab.fast, guest, seconds=20)
    agent = agent_of(lab.fast)
    process.wait_until(lambda: domain_limit(guest)[0] < guests.CAP[0] * 0.6,
                       LIMIT_S, 'the limit to fall')
    debt_cu_s = wait_billed(client, lab.fast, guest)['debt_cu_s']
    process.wait_until(
        lambda: wait_billed(client, lab.fast, guest)['debt_cu_s']
        < debt_cu_s - 40, LIMIT_S, 'some of it to be paid')
    assert client.get_server(lab.fast, guest)['tamperings'] == []
    agent.process.signal(signal.SIGTERM)
    assert agent.process.wait(agents.STOP_LIMIT_S)
    assert domain_limit(guest) == guests.CAP
    assert guest.cap() == guests.CAP
    assert account(lab.fast, guest).debt_cu_us > 0


def test_an_account_migrates_and_comes_back(lab, server_on, agent_of, client):
    agent_of(lab.fast)
    agent_of(lab.slow)
    guest = server_on(lab.fast, vqos_dd_billing='charge')
    wait_billed(client, lab.fast, guest)
    process.wait_until(lambda: vcpu_cu_s(lab.fast, guest) > 400, LIMIT_S,
                       'ten seconds of bills')
    wait_all_billed(lab.fast, guest)
    client.lift_limits(guest)
    assert domain_limit(guest)[0] == -1

    there = vcpu_cu_s(lab.fast, guest)
    guest.migrate(lab.slow)
    wait_billed(client, lab.slow, guest, inherited=True)
    assert vcpu_cu_s(lab.slow, guest) >= there
    wait_domain_limit(guest, guests.CAP_ON_SLOW, lab.slow)
    assert account(lab.fast, guest).handed_to == 'slow'

    there, began_s = vcpu_cu_s(lab.slow, guest), time.monotonic()
    guest.host = lab.slow
    guest.migrate(lab.fast)
    wait_billed(client, lab.fast, guest, inherited=True)
    back = vcpu_cu_s(lab.fast, guest)
    # What it had used on the host that it left first is in there once.
    most = there + 40 * (time.monotonic() - began_s) + INTERVAL_CU_S
    assert there <= back <= most, (there, back, most)
    assert account(lab.slow, guest).handed_to == 'fast'


def test_the_limit_of_the_source_does_not_travel(lab, server_on, agent_of):
    agent_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='charge')
    wait_domain_limit(guest, guests.CAP)
    # As with `virsh migrate`: nobody tells the agent.
    guest.migrate(lab.slow)
    assert domain_limit(guest, lab.slow)[0] == -1
    assert guest.cap(lab.slow) == guests.CAP_ON_SLOW


def test_the_limit_returns_unless_it_moves(lab, server_on, agent_of, client):
    agent_of(lab.fast)
    guest = server_on(lab.fast, vqos_dd_billing='charge')
    wait_domain_limit(guest, guests.CAP)
    client.wait_right(guest)
    client.lift_limits(guest)
    assert domain_limit(guest)[0] == -1
    wait_domain_limit(guest, guests.CAP)
    assert client.get_server(lab.fast, guest)['tamperings'] == []


@pytest.mark.smoke
def test_one_that_nobody_asked_to_bill_has_an_account(lab, server_on,
                                                      agent_of, client):
    """Where the host has the costs of I/O; and nothing else of it changes."""
    path = agents.profile_path(lab.fast)
    document.store(document.load(path)._replace(
        io=io.document(make_profiles.make_io())), path)
    agent_of(lab.fast)
    guest = server_on(lab.fast)
    left_out = server_on(lab.fast, vqos_dd_billing='off')
    bill = wait_billed(client, lab.fast, guest, billing='account')
    assert bill['limit_cu'] is None
    report = client.get_server(lab.fast, guest)
    assert report['dd_billing'] == 'off'
    assert report['emulator_memory']['high_bytes'] > 0
    client.wait_right(guest)
    assert domain_limit(guest)[0] == -1
    process.wait_until(lambda: vcpu_cu_s(lab.fast, guest) > 0, LIMIT_S,
                       'its account on the disk')
    assert client.get_server(lab.fast, left_out)['bill'] is None
