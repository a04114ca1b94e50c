# SPDX-License-Identifier: Apache-2.0
"""What the agent reports of real guests, counted independently."""

import contextlib
import os
import threading
import time

import pytest

from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

LIMIT_S = guests.LIMIT_S
SAMPLE_S = 1.0
MEASURED_S = 10
# Of a window as the agent takes it, with an edge that was counted at another
# moment.
TOLERANCE = 0.05
# The kernel brings its counters up to date one after the other, at a tick at
# the latest.
SLACK_S = 0.01

pytestmark = pytest.mark.measured


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


class Watch(threading.Thread):
    """Counts for itself what a guest uses, again and again."""

    def __init__(self, guest):
        super().__init__(daemon=True)
        self._guest = guest
        self._stopped = threading.Event()
        self._counted = []

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_error):
        self._stopped.set()
        self.join()

    def run(self):
        while not self._stopped.wait(0.1):
            self._counted.append((time.monotonic(), *counted_s(self._guest)))

    def rates(self, over_s):
        """Of all windows of a length, the least and the most of each.

        :returns: parts of a pCPU that were used, and for which it was held
            back
        """
        counted, found, last = list(self._counted), [], 0
        for began_s, *before in counted:
            while last < len(counted) and (
                    counted[last][0] < began_s + over_s):
                last += 1
            if last == len(counted):
                break
            ended_s, *after = counted[last]
            found.append([(now - then) / (ended_s - began_s)
                          for now, then in zip(after, before, strict=True)])
        return [(min(values), max(values))
                for values in zip(*found, strict=True)]


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
    with contextlib.ExitStack() as stack:
        watches = {guest: stack.enter_context(Watch(guest))
                   for guest in (capped, foreign)}
        agent_of(lab.fast, sample_interval_s=SAMPLE_S)
        for guest in watches:
            wait_reported(client, lab.fast, guest)
        # Not a wait for anything: the length of the measurement.
        time.sleep(MEASURED_S)
        for guest in watches:
            wait_counted(client, guest)
        for guest, watch in watches.items():
            assert_rates(wait_rates(client, guest), watch)
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


def wait_rates(client, guest):
    """:returns: a report whose rates are of no more than twelve seconds"""
    def report():
        found = client.get_server(guest.host, guest)
        rates = found['rates_10s']
        return found if rates and rates['over_s'] <= 12 else None
    return process.wait_until(report, LIMIT_S, f'rates of {guest.name}')


def assert_rates(found, watch):
    assert found['rates']['over_s'] >= MEASURED_S / 2
    assert found['rates_10s']['over_s'] == pytest.approx(10, abs=2)
    for rates in found['rates'], found['rates_10s']:
        for part, (least, most) in zip(
                (rates['delivered_cu'] / 100, rates['throttled']),
                watch.rates(rates['over_s']), strict=True):
            assert least * (1 - TOLERANCE) < part < most * (1 + TOLERANCE)
    # The agent was started less than five minutes ago.
    assert found['rates_5min'] is None


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


def assert_at_most(found_s, guest, host):
    """Check that no more is reported than a guest used on a host."""
    most_s = counted_s(guest, host)
    # NOTE: the agent reads the emulator's time, then that of all threads, and
    # the difference is of its vCPUs: with what the emulator used between the
    # two.
    emulator_s = cgroups.cpu_time_ns(host.hierarchy, os.path.join(
        os.path.dirname(guest.group(host)), 'emulator')) / 1e9
    assert found_s[0] <= most_s[0] + emulator_s + SLACK_S
    assert found_s[1] <= most_s[1] + SLACK_S


def wait_counted(client, guest):
    """Wait until what a guest used so far is reported, and no more."""
    least_s = counted_s(guest)

    def is_reported():
        found_s = reported_s(client, guest.host, guest)
        assert_at_most(found_s, guest, guest.host)
        return all(found >= least for found, least in zip(
            found_s, least_s, strict=True))
    process.wait_until(is_reported, LIMIT_S, f'what {guest.name} used')


def test_a_guest_that_migrates_counts_anew(lab, server_on, agent_of, client):
    guest = server_on(lab.fast)
    for host in lab.hosts:
        agent_of(host, sample_interval_s=SAMPLE_S)
    wait_reported(client, lab.fast, guest)
    guest.migrate(lab.slow)
    wait_reported(client, lab.slow, guest)
    assert_at_most(reported_s(client, lab.slow, guest), guest, lab.slow)
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
