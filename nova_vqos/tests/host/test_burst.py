# SPDX-License-Identifier: Apache-2.0
"""Real servers that save units and spend them, on the kernel's clock."""

import signal
import time

import pytest

from nova_vqos.tests.gate import machine
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_billing
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

# What else runs on this machine takes the room that a burst needs.
pytestmark = pytest.mark.measured

UNITS, BURST_CU, BURST_SECONDS = 20, 60, 30
# It may save 1200 CU seconds, and bursts once it has a tenth of that.
SAVED_CU_S = 400
# Of a pCPU of half the speed: its units.
CAP_CU_ON_SLOW = 2 * UNITS
SECONDS = 6
# A server that uses nothing is billed that seldom, at the latest.
BILL_S = 32
LIMIT_S = 90
# A guest can be given less only by others on this machine.
LEAST = 0.7
# Emulation, and what each of the first writes of a quota gives away.
MOST = 1.1


@pytest.fixture
def serve(guest_on, lab):
    """Starts busy servers with their units, as Nova does."""
    def start(units=UNITS, **specs):
        return guest_on(lab.fast, specs=guests.server(units, **specs),
                        cap=(units * 500, 50_000), shares=guests.SHARES)
    return start


@pytest.fixture
def saver(serve):
    """A busy server that bursts."""
    return serve(vqos_dd_billing='account', vqos_burst_cu=str(BURST_CU),
                 vqos_burst_seconds=str(BURST_SECONDS))


def used_cu(server, seconds=SECONDS):
    """What the vCPU of a server uses for a while, on a fast pCPU."""
    def read():
        return cgroups.cpu_time_ns(server.host.hierarchy, server.group())
    before, began_ns = read(), time.monotonic_ns()
    # Not a wait for anything: the length of the measurement.
    time.sleep(seconds)
    found = 100 * (read() - before) / (time.monotonic_ns() - began_ns)
    print(f'used {found:.2f} CU')
    return found


def cap_cu(server):
    quota_us, period_us = server.cap(server.host)
    return 100 * quota_us / period_us


def wait_cap(server, cu):
    """:returns: after how many seconds its cap is that"""
    began_s = time.monotonic()
    process.wait_until(lambda: cap_cu(server) == pytest.approx(cu), LIMIT_S,
                       f'{cu} CU')
    took_s = time.monotonic() - began_s
    print(f'{cu} CU after {took_s:.1f} s')
    return took_s


def wait_saved(client, server, least_cu_s=SAVED_CU_S):
    process.wait_until(
        lambda: saved_cu_s(client, server) >= least_cu_s, LIMIT_S,
        f'{least_cu_s} CU seconds')


def saved_cu_s(client, server):
    found = client.get_server(server.host, server)['burst']
    return -1.0 if found['saved_cu_s'] is None else found['saved_cu_s']


def test_it_saves_and_spends(lab, saver, agent_of, client):
    agent_of(lab.fast)
    # It wants more than its units from the first moment on, and saves nothing.
    assert used_cu(saver) < MOST * UNITS
    assert cap_cu(saver) == UNITS
    saver.domain().suspend()
    wait_cap(saver, BURST_CU)
    wait_saved(client, saver)
    saver.domain().resume()
    # What it saved lasts ten seconds at least.
    found = used_cu(saver)
    assert LEAST * BURST_CU < found < MOST * BURST_CU
    wait_cap(saver, UNITS)
    assert LEAST * UNITS < used_cu(saver) < MOST * UNITS
    assert saved_cu_s(client, saver) < 0.1 * (
        BURST_CU - UNITS) * BURST_SECONDS


def test_a_full_host_has_no_room(lab, saver, serve, agent_of, client):
    agent_of(lab.fast)
    saver.domain().suspend()
    wait_saved(client, saver)
    wait_cap(saver, BURST_CU)
    others = [serve(40), serve(40)]
    # They use all of theirs. With what it wants of its own the pCPU is full.
    saver.domain().resume()
    right = 0
    with machine.Standstill() as still:
        wait_cap(saver, UNITS)
        while right < 3:
            began_s = time.monotonic()
            found = used_cu(saver), cap_cu(saver)
            if found[0] < MOST * UNITS and found[1] == UNITS:
                right += 1
                continue
            # The others leave room while they are kept from their pCPU.
            assert still.lost_s(began_s - SECONDS, time.monotonic()), found
    process.wait_until(
        lambda: client.get_server(lab.fast, saver)['burst']['problem']
        == 'the host has no room', LIMIT_S, 'the reason')
    for one in others:
        assert LEAST * 40 < used_cu(one) < MOST * 40


def test_a_balance_moves_with_its_server(lab, saver, agent_of, client):
    for host in lab.hosts:
        agent_of(host)
    saver.domain().suspend()
    # Enough for a burst after a slow migration.
    wait_saved(client, saver, 1.5 * SAVED_CU_S)
    before, began_s = saved_cu_s(client, saver), time.monotonic()
    saver.domain().resume()
    saver.migrate(lab.slow)
    test_billing.wait_billed(client, lab.slow, saver, inherited=True)
    assert test_billing.account(lab.fast, saver).handed_to == 'slow'
    saver.host = lab.slow
    # Since it is busy, it has gained none but what was not billed yet.
    there, passed_s = saved_cu_s(client, saver), time.monotonic() - began_s
    print(f'{before} CU s, and {there} after {passed_s:.1f} s')
    assert max(1, before - (BURST_CU - UNITS) * passed_s) <= there
    assert there <= before + UNITS * BILL_S
    process.wait_until(lambda: cap_cu(saver) > CAP_CU_ON_SLOW, LIMIT_S,
                       'a burst')
    wait_cap(saver, CAP_CU_ON_SLOW)
    assert saved_cu_s(client, saver) < before


def test_a_killed_agent_loses_no_balance(lab, saver, agent_of, client):
    agent = agent_of(lab.fast)
    saver.domain().suspend()
    wait_cap(saver, BURST_CU)
    wait_saved(client, saver)
    before = saved_cu_s(client, saver)
    agent.process.signal(signal.SIGKILL)
    assert agent.process.wait(LIMIT_S)
    assert cap_cu(saver) == BURST_CU
    again = agent_of(lab.fast)
    process.wait_until(lambda: saved_cu_s(client, saver) > before, LIMIT_S,
                       'the balance')
    wait_cap(saver, BURST_CU)
    # No burst outlives an agent that ends.
    again.stop()
    assert cap_cu(saver) == UNITS
