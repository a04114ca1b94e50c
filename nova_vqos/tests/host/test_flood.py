# SPDX-License-Identifier: Apache-2.0
"""A busy server that pays, and that a third party floods with packets."""

import contextlib
import os
import subprocess
import sys
import time

import pytest

from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.gate import machine
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import process

UNITS = 30
ENTITLED = UNITS / 100
FLOOR = 0.5
WHOLE = (15_000, 50_000)
# Of its pCPU, the guest can be given less only by others on this machine.
LEAST = 0.95
# So much that a flood takes all units also where others are busy here.
PACKET_NS = 10_000.0
FLOOD_S = 120
MEASURED_S = 4
LIMIT_S = 60
BACK_S = 10

clients, image, start = test_usage.clients, test_usage.image, test_usage.start

pytestmark = pytest.mark.measured


@pytest.fixture
def dear_packets(lab, profiles):
    """A profile of the host fast, by which received packets are dear."""
    path = agents.profile_path(lab.fast)
    document.store(document.load(path)._replace(
        io=io.document(make_profiles.make_io(interfaces=(io.Interface(
            'bridge', make_profiles.make_measured(PACKET_NS, 0.0),
            make_profiles.make_measured(0.0, 0.0)),)))), path)


@contextlib.contextmanager
def flooded(server, clients):
    """Frames are sent to it as fast as the other pCPU can."""
    with subprocess.Popen(clients.enter([
            sys.executable, '-m', 'nova_vqos.tests.host.frame_flood', 'eth0',
            server.mac, server.address, str(max(os.sched_getaffinity(0))),
            str(FLOOD_S)]), stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout.readline() == 'sending\n'
        yield
        running.kill()


def limit_share(server):
    """:returns: of a pCPU, that the server as a whole is left"""
    (quota_us, period_us), _vcpu = server.limits()
    return quota_us / period_us


def test_it_keeps_its_floor_and_has_its_units_back(
        agent_of, dear_packets, clients, start):
    server = start(specs=guests.server(UNITS, vqos_dd_billing='charge'),
                   spin=True)
    # As much as a flood can take.
    agent_of(server.host, charge_received_packets=True,
             bill_dropped_packets=True)
    process.wait_until(lambda: server.limits()[0] == WHOLE, LIMIT_S,
                       'a limit of all of its units')
    with flooded(server, clients):
        process.wait_until(
            lambda: limit_share(server) < 1.02 * FLOOR * ENTITLED, LIMIT_S,
            'the limit to fall to the floor')
        floor = guests.used_by(server, MEASURED_S)
    rate = floor.counted['rx'] + floor.counted['dropped']
    print(f'{rate:.0f} packets/s, {floor.counted["rx"]:.0f} of them received, '
          f'left it {floor.whole / ENTITLED:.3f} of its units, and its vCPU '
          f'{floor.vcpu / ENTITLED:.3f}')
    assert floor.whole > LEAST * FLOOR * ENTITLED
    # The rest is what its own threads need to receive.
    assert floor.vcpu > 0.75 * FLOOR * ENTITLED

    with machine.Standstill() as still:
        began_s = time.monotonic()
        process.wait_until(lambda: server.limits()[0] == WHOLE, LIMIT_S,
                           'its whole units')
        ended_s = time.monotonic()
    back_s = ended_s - began_s - still.lost_s(began_s, ended_s)
    back = guests.used_by(server, MEASURED_S)
    print(f'all of them again after {back_s:.1f} s: its vCPU '
          f'{back.vcpu / ENTITLED:.3f}')
    assert back_s < BACK_S
    assert back.vcpu > LEAST * ENTITLED
