# SPDX-License-Identifier: Apache-2.0
"""Guests of type kvm: their vCPUs are threads in the kernel's KVM_RUN.

They run firmware that spins, and no operating system: the KVM of some machines
is made by software (kvm_pvm), which runs no ordinary Linux.
"""

import contextlib

import pytest

from nova_vqos.calibration.cpu import in_guest
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import agents
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_guarantee
from nova_vqos.tests.host import test_migration
from nova_vqos_lab import kvm
from nova_vqos_lab import process
from nova_vqos_lab import rom

WINDOW_S = 5.0
# One quota more or less in a window is 1 %, and the kernel counts by ticks.
TOLERANCE = 0.02
_ROM = '/var/lib/libvirt/spin.rom'

pytestmark = pytest.mark.measured


@pytest.fixture(scope='module')
def pair(lab):
    """Two hosts with KVM, of all pCPUs; the second at half the speed."""
    if reason := kvm.missing():
        requirement.need(reason)
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(
            test_guarantee.host_of_all(name, kvm=True))
            for name in test_guarantee.ADDRESSES]
        agents.store_profile(made[1], 0.5)
        for host in made:
            agents.install_hook(host)
            with open(host.path(_ROM.lstrip('/')), 'wb') as file:
                file.write(rom.first(rom.SPIN))
        yield made


@pytest.fixture
def start(pair):
    """Starts guests, and destroys all of them after the test."""
    def start_one(host, **options):
        return guests.Guest(host, rom=_ROM, **options)
    yield start_one
    for host in pair:
        guests.destroy_all(host)


def capped(start, host):
    """A server as the driver starts it."""
    return start(host, specs=guests.server(40), cap=guests.CAP,
                 shares=guests.SHARES)


def test_it_is_kvm(pair, start):
    guest = start(pair[0])
    seen = pair[0].run(['virsh', 'qemu-monitor-command', guest.name, '--hmp',
                        'info kvm']).stdout
    assert 'enabled' in seen
    assert in_guest.find_virt_type() == 'kvm'


def test_a_cap_holds_in_the_kernels_loop(pair, start):
    guest = capped(start, pair[0])
    assert guest.delivered_share(WINDOW_S) == pytest.approx(0.4, rel=TOLERANCE)
    spinning = start(pair[0])
    assert spinning.delivered_share(WINDOW_S) > 0.9


def test_the_agent_caps_what_spins(pair, start, agent_of, client):
    guest = start(pair[0], specs=guests.server(40))
    agent_of(pair[0])
    guest.wait_cap(guests.CAP)
    client.wait_right(guest)
    guest.meddle(45_000)
    client.wait_tampering(guest, '45000')
    guest.wait_cap(guests.CAP)
    assert guest.delivered_share(WINDOW_S) == pytest.approx(0.4, rel=TOLERANCE)


def test_the_hook_is_right_from_the_first_instruction(
        pair, start, agent_of, client):
    fast, slow = pair
    agent_of(slow)
    guest = capped(start, fast)
    for source, target, cap in ((fast, slow, guests.CAP_ON_SLOW),
                                (slow, fast, guests.CAP)):
        guest.host = source
        with guests.Arrival(guest, target) as arrival:
            guest.migrate(target)
        test_migration.assert_right_from_the_start(arrival.seen, cap)
        guest.host = target
        if target is slow:
            client.wait_right(guest, slow)
            report = client.get_server(slow, guest)
            assert report['right_at_first_sight'] is True, report
            assert report['wrong_ms'] == 0, report
        quota_us, period_us = cap
        assert guest.delivered_share(WINDOW_S) == pytest.approx(
            quota_us / period_us, rel=TOLERANCE)


def test_a_guarantee_holds_beside_noise(pair, start, agent_of):
    host = pair[0]
    test_guarantee.need_bandwidth()
    agent = agent_of(host, guarantees_speed=True)
    process.wait_until(
        lambda: agent.state().get('guarantee_pcpus') is not None,
        guests.LIMIT_S, 'what can be reserved', log=agent.process.log)
    guest = start(host, specs=guests.server(40, vqos_guarantee='required'))
    test_guarantee.wait_reserved(guest)
    assert deadline.reservation(guest.thread(0)) == test_guarantee.VCPU
    with test_guarantee.noise(host):
        share = guest.delivered_share(WINDOW_S)
    assert share == pytest.approx(0.4, rel=0.05)
