# SPDX-License-Identifier: Apache-2.0
"""An overdrawn server, whose disk the agent holds back in a real QEMU."""

import signal
import time

import libvirt
import pytest

from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import process

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
UNITS = 30
# Far more than it is: a reader that takes its time is overdrawn by far.
REQUEST_NS = 2_000_000.0
# What nine tenths of a half of 30 CU pay for.
ROOM_PER_S = 0.9 * 0.5 * 0.3 / (REQUEST_NS / 1e9)
# A guest that is paused pays its debt at the rate of its units.
LIMIT_S = 240
MEASURED_S = 10

clients, image, start = test_usage.clients, test_usage.image, test_usage.start

pytestmark = pytest.mark.measured


@pytest.fixture
def dear_disks(profiles, lab):
    """A profile of the host fast, by which requests of disks are dear."""
    store_dear_disks(lab.fast)


def store_dear_disks(host, request_ns=REQUEST_NS):
    """Add what requests of disks cost to the profile of a host."""
    cost = make_profiles.make_measured(request_ns, 0.0)
    path = agents.profile_path(host)
    document.store(document.load(path)._replace(
        io=io.document(make_profiles.make_io(disks=tuple(
            io.Disk('file', buffered, cost, cost)
            for buffered in (False, True))))), path)


def tune(server):
    return server.domain.blockIoTune('vda', LIVE)


def limit(server):
    """:returns: requests per second, 0: no limit"""
    return tune(server)['total_iops_sec']


def rate(server):
    """:returns: requests per second, as QEMU counts them"""
    before, began_s = server.disk_requests()['read'], time.monotonic()
    # Not a wait for anything: the length of the measurement.
    time.sleep(MEASURED_S)
    return (server.disk_requests()['read'] - before) / (
        time.monotonic() - began_s)


def wait_limit(server, *, there):
    process.wait_until(lambda: bool(limit(server)) is there, LIMIT_S,
                       'a limit on the disk' if there else 'none')


def test_its_disk_is_held_back(agent_of, dear_disks, client, start):
    server = start(specs=guests.server(UNITS, vqos_dd_billing='charge'),
                   readers=1)
    free = rate(server)
    assert free > 2 * ROOM_PER_S
    # That of another writer, such as Nova's by the flavor.
    server.domain.setBlockIoTune('vda', {'total_iops_sec': 100_000}, LIVE)
    agent = agent_of(server.host, throttle_overdrawn=True)
    client.wait_reachable(server.host)
    process.wait_until(
        lambda: (client.get_server(server.host, server)['disk_limit'] or {}
                 ).get('problem'), LIMIT_S, 'a disk that cannot be limited')
    assert limit(server) == 100_000
    assert agent.log().count('its disks are not held back') == 1

    server.domain.setBlockIoTune('vda', {'total_iops_sec': 0}, LIVE)
    wait_limit(server, there=True)
    assert tune(server)['group_name'] == 'nova-vqos'
    process.wait_until(
        lambda: client.get_server(server.host, server)['disk_limit']['since'],
        LIMIT_S, 'its report')
    held = []
    # A busy machine holds it back, too: any window will do. More it never
    # gets.
    while len(held) < 6 and (not held or held[-1] < 0.85 * ROOM_PER_S):
        held.append(rate(server))
    print(f'{free:.0f} requests/s free, {held} held back, the limit is '
          f'{limit(server)}, room for {ROOM_PER_S:.1f}')
    assert held[-1] >= 0.85 * ROOM_PER_S
    assert max(held) <= 1.15 * ROOM_PER_S
    bill = client.get_server(server.host, server)['bill']
    assert bill['used_lately_cu']['disk'] < 0.6 * UNITS

    # Its debt is paid, and nothing is held back.
    server.pause()
    wait_limit(server, there=False)
    process.wait_until(
        lambda: client.get_server(server.host, server)['disk_limit'] is None,
        LIMIT_S, 'its report')
    server.resume()
    wait_limit(server, there=True)

    # Killed, an agent leaves it; one that is not to set any ends it.
    agent.process.signal(signal.SIGKILL)
    assert agent.process.wait(10)
    assert limit(server)
    agent = agent_of(server.host)
    wait_limit(server, there=False)


def test_it_ends_with_the_agent(agent_of, dear_disks, start):
    server = start(specs=guests.server(UNITS, vqos_dd_billing='charge'),
                   readers=1)
    agent = agent_of(server.host, throttle_overdrawn=True)
    wait_limit(server, there=True)
    agent.stop()
    assert limit(server) == 0
