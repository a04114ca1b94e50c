# SPDX-License-Identifier: Apache-2.0
"""Real servers of one project that share a ceiling, on the kernel's clock."""

import os
import time

import pytest

from nova_vqos.tests.host import guests
from nova_vqos_lab import cgroups
from nova_vqos_lab import process

CEILING_CU = 40
SECONDS = 12
LIMIT_S = 60
# A guest can be given less only by others on this machine.
LEAST = 0.7
# What each of the first two writes of a quota gives away, and emulation.
MOST = 1.04
# A busy one of two that are alike, and one whose neighbour is idle: that
# keeps a fifth of its half.
HALF_CU, LENT_CU, KEPT_CU = 20, 36, 4

pytestmark = pytest.mark.measured


@pytest.fixture
def serve(guest_on, lab):
    """Starts servers of 40 CU with a ceiling, as Nova does."""
    def start(project='p1', host=lab.fast):
        return guest_on(host, specs=guests.server(
            40, vqos_project_ceiling_cu=str(CEILING_CU)), cap=guests.CAP,
            shares=guests.SHARES, project=project)
    return start


def used_cu(servers):
    """What servers use for a while, with their emulators, on fast pCPUs."""
    def read():
        return [cgroups.cpu_time_ns(
            server.host.hierarchy, os.path.dirname(server.group()))
            for server in servers]
    before, began_ns = read(), time.monotonic_ns()
    # Not a wait for anything: the length of the measurement.
    time.sleep(SECONDS)
    after, took_ns = read(), time.monotonic_ns() - began_ns
    found = [100 * (now - then) / took_ns
             for now, then in zip(after, before, strict=True)]
    print('used', [round(cu, 2) for cu in found], 'CU, together',
          round(sum(found), 2))
    return found


def left_cu(server, host=None):
    """What is in force for a server, of all its threads, on a fast pCPU."""
    host = host or server.host
    quota_us, period_us = cgroups.read_cap(
        host.hierarchy, os.path.dirname(server.group(host)))
    cap_us, cap_period_us = server.cap(host)
    return 100 * min(cap_us / cap_period_us,
                     quota_us / period_us if quota_us > 0 else 1.0)


def wait_left(found):
    """Wait until servers are left some CU, within half a CU."""
    began_s = time.monotonic()
    process.wait_until(
        lambda: all(abs(left_cu(server) - cu) < 0.5
                    for server, cu in found.items()), LIMIT_S,
        f'{list(found.values())} CU')
    print(f'{list(found.values())} CU after {time.monotonic() - began_s:.1f}'
          ' s')


def test_two_share_a_ceiling_and_lend(lab, serve, agent_of, client):
    one, other = serve(), serve()
    foreign = serve('p2')
    agent = agent_of(lab.fast)
    wait_left({one: HALF_CU, other: HALF_CU, foreign: 40})
    foreign.domain().suspend()

    # Both want all: together they get no more than the ceiling.
    found = used_cu([one, other])
    assert LEAST * CEILING_CU < sum(found) < MOST * CEILING_CU
    for cu in found:
        assert LEAST * HALF_CU < cu < MOST * HALF_CU

    # One that is idle lends, and no more than the ceiling is used.
    other.domain().suspend()
    wait_left({one: LENT_CU, other: KEPT_CU})
    (cu,) = used_cu([one])
    assert LEAST * LENT_CU < cu < MOST * LENT_CU

    # It has its half back.
    other.domain().resume()
    wait_left({one: HALF_CU, other: HALF_CU})
    assert sum(used_cu([one, other])) < MOST * CEILING_CU
    assert client.get_server(lab.fast, one)['ceiling'] == {
        'ceiling_cu': CEILING_CU, 'left_cu': HALF_CU, 'servers': 2}
    (project, alone) = client.get_host(lab.fast)['project_ceilings']
    assert (project['project_id'], project['servers'],
            project['units_cu']) == ('p1', 2, 80)
    assert (alone['project_id'], alone['servers']) == ('p2', 1)

    # Without an agent nobody would lend: each has its own cap.
    agent.stop()
    for server in one, other:
        assert left_cu(server) == pytest.approx(40)


def test_a_live_migration_joins_those_of_its_host(lab, serve, agent_of):
    here, there = serve(), serve(host=lab.slow)
    agent_of(lab.fast)
    agent_of(lab.slow)
    # Alone on its host each has all of its units.
    wait_left({here: 40, there: 80})
    here.migrate(lab.slow)
    here.host = lab.slow
    # Twice the time: the pCPU of this host is half as fast.
    wait_left({here: 2 * HALF_CU, there: 2 * HALF_CU})
