# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.
"""What the agent tells of real guests, counted independently."""

import time

import pytest

from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

CAP = (20_000, 50_000)
CAP_ON_SLOW = (40_000, 50_000)
SHARES = 410
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


def told_s(client, host, guest):
    """The same as the agent tells it; None: it does not know the guest."""
    found = client.list_servers(host).get(guest.uuid)
    return found and found['vcpu_s'] and (found['vcpu_s'],
                                          found['throttled_s'])


def wait_told(client, host, guest):
    process.wait_until(lambda: told_s(client, host, guest), LIMIT_S,
                       f'the agent to tell of {guest.name}')


def test_what_guests_are_delivered(lab, guest_on, agent_of, client):
    capped = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                      shares=SHARES)
    foreign = guest_on(lab.fast, cap=(5_000, 50_000))
    agent_of(lab.fast, sample_interval_s=SAMPLE_S)
    for guest in capped, foreign:
        wait_told(client, lab.fast, guest)
    before = {guest: counted_s(guest) for guest in (capped, foreign)}
    began_s = time.monotonic()
    # Not a wait for anything: the length of the measurement, and after it
    # the time that a sample may take.
    time.sleep(MEASURED_S)
    after = {guest: counted_s(guest) for guest in before}
    elapsed_s = time.monotonic() - began_s
    time.sleep(3 * SAMPLE_S)
    for guest, least_s in after.items():
        told = told_s(client, lab.fast, guest)
        most_s = counted_s(guest)
        for least, found, most in zip(least_s, told, most_s, strict=True):
            assert least <= found <= most
    for guest in before:
        used_s, held_s = (now - then for now, then in zip(
            after[guest], before[guest], strict=True))
        rates = client.get_server(lab.fast, guest)['rates']
        assert rates['over_s'] >= MEASURED_S / 2
        assert rates['delivered_cu'] == pytest.approx(
            100 * used_s / elapsed_s, rel=0.1)
        assert rates['throttled'] == pytest.approx(
            held_s / elapsed_s, rel=0.1)
    servers = client.list_servers(lab.fast)
    assert servers[capped.uuid]['entitled_cu'] == 40
    assert servers[capped.uuid]['right'] is True
    assert servers[capped.uuid]['flavor'] == 'test'
    assert servers[foreign.uuid]['entitled_cu'] is None
    assert servers[foreign.uuid]['right'] is None


def test_it_is_told_while_libvirtd_is_down(lab, guest_on, agent_of, client):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    agent = agent_of(lab.fast, sample_interval_s=SAMPLE_S)
    wait_told(client, lab.fast, guest)
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
    """Wait until what a guest used so far is told."""
    used_s, _held_s = counted_s(guest)
    process.wait_until(
        lambda: told_s(client, guest.host, guest)[0] >= used_s, LIMIT_S,
        f'what {guest.name} used')


def test_a_guest_that_migrates_counts_anew(lab, guest_on, agent_of, client):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    for host in lab.hosts:
        agent_of(host, sample_interval_s=SAMPLE_S)
    wait_told(client, lab.fast, guest)
    guest.migrate(lab.slow)
    wait_told(client, lab.slow, guest)
    assert told_s(client, lab.slow, guest) <= counted_s(guest, lab.slow)
    process.wait_until(
        lambda: told_s(client, lab.fast, guest) is None, LIMIT_S,
        'the agent to tell nothing of a guest that has gone')
    process.wait_until(
        lambda: client.get_server(lab.slow, guest)['right'], LIMIT_S,
        'the agent to find it right')
    found = client.get_server(lab.slow, guest)
    assert found['origin'] == 'migrated'
    assert found['coefficient'] == 0.5
    assert found['last_recap']['reason'] == 'migrated'
    assert found['last_recap']['wrong_ms'] == 0.0
    assert guest.cap(lab.slow) == CAP_ON_SLOW


def test_what_somebody_else_changed_is_told_with_its_window(
        lab, guest_on, agent_of, client):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    agent_of(lab.fast)
    process.wait_until(
        lambda: client.list_servers(lab.fast).get(guest.uuid, {}).get(
            'right'), LIMIT_S, 'the agent to find it right')
    guest.meddle(45_000)
    guest.wait_cap(CAP)

    def recap():
        last = client.get_server(lab.fast, guest)['last_recap']
        return last if last and last['reason'] == 'tampered' else None
    last = process.wait_until(recap, LIMIT_S, 'a recap that was tampered')
    assert 0 < last['wrong_ms'] < 1000 * 20 * agents.TICK_S


def test_the_host_is_told_of(lab, guest_on, agent_of, client):
    guest = guest_on(lab.fast, specs=guests.server(40), cap=CAP,
                     shares=SHARES)
    agent_of(lab.fast)
    process.wait_until(
        lambda: client.get_host(lab.fast)['units']['used_cu'] == 40, LIMIT_S,
        f'the agent to find {guest.name}')
    found = client.get_host(lab.fast)
    pcpus = len(lab.fast.pcpus)
    assert found['units'] == {
        'capacity_cu': 100 * pcpus, 'reserved_cu': 0, 'allocation_ratio': 1.0,
        'used_cu': 40, 'slowest_cu': 100.0, 'fastest_cu': 100.0}
    assert found['profile']['id'] == found['profile_id']
    assert found['profile']['age_s'] >= 0
    assert found['started_at'] <= found['at']
