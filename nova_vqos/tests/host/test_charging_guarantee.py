# SPDX-License-Identifier: Apache-2.0
"""A real guest whose speed is guaranteed, and that pays for its I/O.

No quota binds its vCPU: what is reserved for it has to follow.
"""

import os

import pytest

from nova_vqos import units
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_guarantee
from nova_vqos_lab import cgroups
from nova_vqos_lab import ioguest
from nova_vqos_lab import iomeasure
from nova_vqos_lab import ionet
from nova_vqos_lab import process

UNITS = 40
ENTITLED = UNITS / 100
WHOLE = units.CpuCap(20_000, 50_000)
# Of its pCPU, the guest can be given less only by others on this machine.
LEAST = 0.95
SECONDS = 20
LIMIT_S = 60

empty, whole = test_guarantee.empty, test_guarantee.whole
agent = test_guarantee.agent

pytestmark = pytest.mark.measured


@pytest.fixture
def clients(lab, whole):
    network = ionet.ClientNetwork(whole, lab.network)
    network.create()
    yield network
    network.remove()


@pytest.fixture
def server(whole, clients):
    """A server of HTTP."""
    image = ioguest.build_image(os.path.dirname(whole.directory))
    guest = ioguest.IoGuest(whole, image, specs=guests.server(
        UNITS, vqos_guarantee='required'))
    guest.wait_ready()
    return guest


def reserved(server):
    (tid,) = cgroups.threads(server.host.hierarchy, server.group())
    return deadline.reservation(tid)


def test_io_is_paid_from_what_is_reserved(server, clients, agent):
    process.wait_until(lambda: reserved(server) == WHOLE, LIMIT_S,
                       'the reservation of its vCPU')
    free_pcpus = agent.state()['guarantee_pcpus']
    with iomeasure.Load(clients.load(
            'http', server.address, '--clients', '4', '--seconds', '600',
            '--pcpu', str(max(os.sched_getaffinity(0))))) as load:
        process.wait_until(load.begun, LIMIT_S, 'requests')

        # Nobody pays: its vCPU alone takes all that it is entitled to.
        free = guests.used_by(server, SECONDS)
        assert free.whole > 1.03 * ENTITLED

        server.set_specs(vqos_dd_billing='charge')
        process.wait_until(lambda: reserved(server).share < WHOLE.share,
                           LIMIT_S, 'less for its vCPU')
        with iomeasure.QuotaWrites(server) as writes:
            paid = guests.used_by(server, SECONDS)
        print(f'{free.whole:.4f} of a pCPU without billing, {paid.whole:.4f} '
              f'charged, of {ENTITLED}; vCPU {paid.vcpu:.4f}')
        assert LEAST * ENTITLED < paid.whole < 1.02 * ENTITLED
        assert paid.vcpu < 0.97 * ENTITLED
        # Which would bind nothing.
        assert writes.seen == 0
        # What it lacks is kept for it.
        assert reserved(server).share < WHOLE.share
        assert agent.state()['guarantee_pcpus'] == pytest.approx(
            free_pcpus, abs=0.001)

        # Without an agent nothing would give it back.
        agent.stop()
        assert reserved(server) == WHOLE
        assert load.failed() == 0
