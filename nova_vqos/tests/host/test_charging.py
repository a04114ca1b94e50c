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

"""The agent, and a real guest that pays for its I/O or does not.

tools/bench/billing.py measures more of it, and longer.
"""

import os

import pytest

from nova_vqos.tests.host import guests
from nova_vqos_lab import ioguest
from nova_vqos_lab import iomeasure
from nova_vqos_lab import ionet
from nova_vqos_lab import process

UNITS = 30
ENTITLED = UNITS / 100
# Of its pCPU, the guest can be given less only by others on this machine.
LEAST = 0.95
SECONDS = 20
LIMIT_S = 60


@pytest.fixture
def clients(lab):
    network = ionet.ClientNetwork(lab.fast, lab.network)
    network.create()
    yield network
    network.remove()


@pytest.fixture
def server(lab, clients):
    """A server of HTTP, without a cap as long as there is no agent."""
    image = ioguest.build_image(os.path.dirname(lab.fast.directory))
    guest = ioguest.IoGuest(lab.fast, image, specs=guests.server(UNITS))
    guest.wait_ready()
    yield guest
    guest.destroy()


def test_the_worst_window_is_found():
    """What is measured by is right: half a pCPU, but all of it for 10 s."""
    used_ns, samples = 0, []
    for second in range(41):
        samples.append(iomeasure.Sample(
            second, ioguest.CpuTime(used_ns, used_ns, 0, 0), used_ns,
            {'rx': 100 * second}))
        used_ns += 1_000_000_000 if 20 <= second < 30 else 500_000_000
    found = iomeasure.use(samples, lambda counted: 1e6 * counted['rx'])
    assert found.whole == pytest.approx(25 / 40)
    assert found.modelled == pytest.approx(0.1)
    assert found.most == pytest.approx(20 / 30 + 0.1)
    assert found.counted == {'rx': 100}
    between = iomeasure.at(samples, 20.5)
    assert (between.cpu.vcpu, between.counted['rx']) == (10_500_000_000, 2050)


def used_by(server):
    (samples,) = iomeasure.watch([server], SECONDS)
    return iomeasure.use(samples)


def test_a_server_pays_for_its_io_out_of_its_entitlement(
        profiles, server, clients, agent_of):
    agent_of(server.host)
    process.wait_until(lambda: server.limits()[1] == (15_000, 50_000),
                       LIMIT_S, 'a cap')
    with iomeasure.Load(clients.load(
            'http', server.address, '--clients', '4', '--seconds', '600',
            '--pcpu', str(max(os.sched_getaffinity(0))))) as load:
        process.wait_until(load.begun, LIMIT_S, 'requests')

        # Nobody pays: its vCPU alone takes all that it is entitled to.
        free = used_by(server)
        assert free.vcpu == pytest.approx(ENTITLED, rel=0.05)
        assert free.emulator > 0.03 * ENTITLED
        assert free.whole > 1.03 * ENTITLED

        server.set_specs(vqos_dd_billing='charge')
        process.wait_until(lambda: server.limits()[0][0] > 0, LIMIT_S,
                           'a limit on the whole domain')
        paid = used_by(server)
        assert LEAST * ENTITLED < paid.whole < 1.02 * ENTITLED
        assert paid.vcpu < 0.97 * ENTITLED

        # What was limited has its vCPU's whole time back.
        server.set_specs(vqos_dd_billing='off')
        process.wait_until(
            lambda: [quota_us for quota_us, _ in server.limits()]
            == [-1, 15_000], LIMIT_S, 'no limit on the domain')
        assert load.failed() == 0
