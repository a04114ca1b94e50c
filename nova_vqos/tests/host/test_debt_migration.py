# SPDX-License-Identifier: Apache-2.0
"""Servers that migrate with a debt, and what their new host makes of it."""

import contextlib
import signal

import libvirt
import pytest

from nova_vqos.hypervisor.linux import deadline
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_billing
from nova_vqos.tests.host import test_guarantee
from nova_vqos.tests.host import test_overdrawn
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import ionet
from nova_vqos_lab import process

LIMIT_S = 60
DISKS = '/var/lib/libvirt/io'

clients, image, start = test_usage.clients, test_usage.image, test_usage.start
empty, whole = test_guarantee.empty, test_guarantee.whole
no_ledger = test_billing.no_ledger


@pytest.fixture
def slow_takes_guests(lab):
    """The host slow has a bridge, and the disks of the host fast."""
    network = ionet.ClientNetwork(lab.slow, lab.network)
    network.create()
    for host in lab.hosts:
        host.run(['mkdir', '-p', DISKS])
    lab.slow.run(['mount', '--bind', lab.fast.path(DISKS.lstrip('/')), DISKS])
    yield
    lab.slow.run(['umount', DISKS])
    network.remove()


@pytest.fixture
def dear_disks(lab, profiles):
    test_overdrawn.store_dear_disks(lab.fast)
    # It reads less there.
    test_overdrawn.store_dear_disks(lab.slow, 4 * test_overdrawn.REQUEST_NS)


def test_a_limit_of_disks_stays_and_a_debt_moves(
        lab, agent_of, dear_disks, client, slow_takes_guests, start):
    server = start(specs=guests.server(
        test_overdrawn.UNITS, vqos_dd_billing='charge'), readers=1)
    _, other = (agent_of(host, throttle_overdrawn=True)
                for host in lab.hosts)
    test_overdrawn.wait_limit(server, there=True)
    # As nova-compute does.
    client.lift_limits(server)
    assert server.limits()[0][0] == -1

    agents.configure_hook(lab.slow, on_error='refuse', profile='/nonesuch')
    with pytest.raises(libvirt.libvirtError, match='/nonesuch'):
        server.migrate(lab.slow)
    assert test_overdrawn.limit(server)

    agents.configure_hook(lab.slow)
    other.process.signal(signal.SIGSTOP)
    try:
        server.migrate(lab.slow)
        # Nothing was billed yet where it is now.
        assert test_overdrawn.limit(server) == 0
    finally:
        other.process.signal(signal.SIGCONT)
    bill = test_billing.wait_billed(client, lab.slow, server, inherited=True)
    handed = test_billing.account(lab.fast, server)
    assert handed.handed_to == 'slow'
    assert bill['debt_cu_s'] >= handed.debt_cu_us / 1e6 > 0
    test_overdrawn.wait_limit(server, there=True)
    assert server.uuid not in client.get_host(lab.fast)['servers']


@pytest.mark.measured
def test_a_guaranteed_server_pays_where_it_is(whole, bus, client):
    guest = guests.Guest(whole, specs=guests.server(
        vqos_guarantee='required', vqos_dd_billing='charge'))
    with test_guarantee.started(whole, bus):
        test_billing.wait_billed(client, whole, guest)
    test_billing.owe(whole, guest, seconds=60)
    with (test_guarantee.host_of_all('target') as target,
          contextlib.ExitStack() as stack):
        # It restarts libvirtd, which the agent would have to find again.
        agents.install_hook(target)
        for host in (whole, target):
            stack.enter_context(test_guarantee.started(host, bus))
        wait_floor(guest)
        guest.migrate(target)
        owed_cu_s = test_billing.account(whole, guest).debt_cu_us / 1e6
        guest.host = target
        bill = test_billing.wait_billed(client, target, guest, inherited=True)
        wait_floor(guest)
        assert 0 < bill['debt_cu_s'] <= owed_cu_s
        process.wait_until(
            lambda: test_billing.wait_billed(client, target, guest)[
                'debt_cu_s'] < bill['debt_cu_s'] - 40, LIMIT_S,
            'some of it to be paid')
        guests.destroy_all(target)


def wait_floor(guest):
    """Wait until half of what its vCPU is entitled to is reserved for it."""
    whole_share = float(test_guarantee.VCPU.share)
    process.wait_until(
        lambda: (found := deadline.reservation(guest.thread(0))) is not None
        and float(found.share) == pytest.approx(whole_share / 2, rel=0.02),
        LIMIT_S, f'{guest.name} at its floor on {guest.host.name}')
