# SPDX-License-Identifier: Apache-2.0
"""The agent, and a real guest that pays for its I/O or does not.

tools/bench/billing.py measures more of it, and longer.
"""

import os

import pytest

from nova_vqos.tests.host import guests
from nova_vqos.tests.host import test_usage
from nova_vqos_lab import ioguest
from nova_vqos_lab import iomeasure
from nova_vqos_lab import process

pytestmark = pytest.mark.measured

UNITS = 30
ENTITLED = UNITS / 100
# Of its pCPU, the guest can be given less only by others on this machine.
LEAST = 0.95
SECONDS = 12
LIMIT_S = 60

clients = test_usage.clients


@pytest.fixture
def server(lab, clients):
    """A server of HTTP, without a cap as long as there is no agent."""
    image = ioguest.build_image(os.path.dirname(lab.fast.directory))
    guest = ioguest.IoGuest(lab.fast, image, specs=guests.server(UNITS))
    guest.wait_ready()
    yield guest
    guest.destroy()


def test_io_is_paid_from_the_entitlement(profiles, server, clients, agent_of):
    agent_of(server.host)
    process.wait_until(lambda: server.limits()[1] == (15_000, 50_000),
                       LIMIT_S, 'a cap')
    with iomeasure.Load(clients.load(
            'http', server.address, '--clients', '4', '--seconds', '600',
            '--pcpu', str(max(os.sched_getaffinity(0))))) as load:
        process.wait_until(load.begun, LIMIT_S, 'requests')

        # Nobody pays: its vCPU alone takes all that it is entitled to.
        free = guests.used_by(server, SECONDS)
        assert free.vcpu == pytest.approx(ENTITLED, rel=0.05)
        assert free.emulator > 0.03 * ENTITLED
        assert free.whole > 1.03 * ENTITLED

        server.set_specs(vqos_dd_billing='charge')
        process.wait_until(lambda: server.limits()[0][0] > 0, LIMIT_S,
                           'a limit on the whole domain')
        paid = guests.used_by(server, SECONDS)
        assert LEAST * ENTITLED < paid.whole < 1.02 * ENTITLED
        assert paid.vcpu < 0.97 * ENTITLED

        # What was limited has its vCPU's whole time back.
        server.set_specs(vqos_dd_billing='off')
        process.wait_until(
            lambda: [quota_us for quota_us, _ in server.limits()]
            == [-1, 15_000], LIMIT_S, 'no limit on the domain')
        assert load.failed() == 0
