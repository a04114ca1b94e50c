# SPDX-License-Identifier: Apache-2.0
"""What the agent reports of real guests, counted independently."""

import time

import pytest

from nova_vqos.tests.host import guests
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SAMPLE_S = 1.0
MEASURED_S = 10


def throttled_s(guest, host=None):
    """For how long its only vCPU was held back, as the kernel counts it."""
    host = host or guest.host
    path = host.hierarchy.directory('cpu', f'{guest.group(host)}/cpu.stat')
    with open(path, encoding='ascii') as file:
        fields = dict(line.split() for line in file)
    if host.hierarchy.version == 1:
        return int(fields['throttled_time']) / 1e9
    return int(fields['throttled_usec']) / 1e6


def counted_s(guest, host=None):
    """CPU time and throttled time of its only vCPU so far."""
    return guest.cpu_time_ns(host) / 1e9, throttled_s(guest, host)


def reported_s(client, host, guest):
    """The same as the agent reports it; None: it does not know the guest."""
    found = client.list_servers(host).get(guest.uuid)
    return found and found['vcpu_s'] and (found['vcpu_s'],
                                          found['throttled_s'])


def wait_reported(client, host, guest):
    # What is sent before its queue exists is lost.
    client.wait_reachable(host)
    process.wait_until(lambda: reported_s(client, host, guest), LIMIT_S,
                       f'the agent to report {guest.name}')


def test_what_guests_are_delivered(lab, guest_on, server_on, agent_of, client):
    capped = server_on(lab.fast)
    foreign = guest_on(lab.fast, cap=(5_000, 50_000))
    agent_of(lab.fast, sample_interval_s=SAMPLE_S)
    for guest in capped, foreign:
        wait_reported(client, lab.fast, guest)
    before = {guest: counted_s(guest) for guest in (capped, foreign)}
    began_s = time.monotonic()
    # Not a wait for anything: the length of the measurement, and after it
    # the time that a sample may take.
    time.sleep(MEASURED_S)
    after = {guest: counted_s(guest) for guest in before}
    elapsed_s = time.monotonic() - began_s
    time.sleep(3 * SAMPLE_S)
    for guest, least_s in after.items():
        reported = reported_s(client, lab.fast, guest)
        most_s = counted_s(guest)
        for least, found, most in zip(least_s, reported, most_s, strict=True):
            assert least <= found <= most
    for guest in before:
        used_s, held_s = (now - then for now, then in zip(
            after[guest], before[guest], strict=True))
        found = client.get_server(lab.fast, guest)
        assert found['rates']['over_s'] >= MEASURED_S / 2
        assert found['rates_10s']['over_s'] == pytest.approx(10, abs=2)
        for rates in found['rates'], found['rates_10s']:
            assert rates['delivered_cu'] == pytest.approx(
                100 * used_s / elapsed_s, rel=0.1)
            assert rates['throttled'] == pytest.approx(
                held_s / elapsed_s, rel=0.1)
        # The agent was started less than five minutes ago.
        assert found['rates_5min'] is None
    servers = client.list_servers(lab.fast)
    assert servers[capped.uuid]['entitled_cu'] == 40
    assert servers[capped.uuid]['right'] is True
    assert servers[capped.uuid]['flavor'] == 'test'
    assert servers[foreign.uuid]['entitled_cu'] is None
    assert servers[foreign.uuid]['right'] is None
    found = client.get_host(lab.fast)
    assert found['units'] == {
        'capacity_cu': 100 * len(lab.fast.pcpus), 'reserved_cu': 0,
        'stock_cu': 0, 'work_cu': 0, 'allocation_ratio': 1.0, 'used_cu': 40,
        'slowest_cu': 100.0, 'fastest_cu': 100.0}
    assert found['profile']['id'] == found['profile_id']
    assert found['profile']['age_s'] >= 0
    assert found['started_at'] <= found['at']


def test_it_is_reported_without_libvirtd(lab, server_on, agent_of, client):
    guest = server_on(lab.fast)
    agent = agent_of(lab.fast, sample_interval_s=SAMPLE_S)
    wait_reported(client, lab.fast, guest)
    lab.fast.stop_libvirtd()
    try:
        agent.wait_connected(False)
        wait_counted(client, guest)
        assert client.get_host(lab.fast)['connected'] is False
    finally:
        lab.fast.start_libvirtd()
    agent.wait_connected(True)
    wait_counted(client, guest)


def wait_counted(client, guest):
    """Wait until what a guest used so far is reported."""
    used_s, _held_s = counted_s(guest)
    process.wait_until(
        lambda: reported_s(client, guest.host, guest)[0] >= used_s, LIMIT_S,
        f'what {guest.name} used')


def test_a_guest_that_migrates_counts_anew(lab, server_on, agent_of, client):
    guest = server_on(lab.fast)
    for host in lab.hosts:
        agent_of(host, sample_interval_s=SAMPLE_S)
    wait_reported(client, lab.fast, guest)
    guest.migrate(lab.slow)
    wait_reported(client, lab.slow, guest)
    assert reported_s(client, lab.slow, guest) <= counted_s(guest, lab.slow)
    process.wait_until(
        lambda: reported_s(client, lab.fast, guest) is None, LIMIT_S,
        'the agent to report nothing of a guest that has gone')
    client.wait_right(guest, lab.slow)
    found = client.get_server(lab.slow, guest)
    assert found['origin'] == 'migrated'
    assert found['coefficient'] == 0.5
    assert found['last_recap']['reason'] == 'migrated'
    assert found['last_recap']['wrong_ms'] == 0.0
    assert guest.cap(lab.slow) == guests.CAP_ON_SLOW
