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

"""Slices and runs, on the driver that libvirt itself brings for tests."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import libvirt as driver
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import model
from nova_vqos.tests.unit import fake_host
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import fake_kernel

# In this process, with one domain that runs: no daemon, no host.
URI = 'test:///default'


@pytest.fixture
def hypervisor(tmp_path):
    connected = driver.LibvirtHypervisor(
        URI, root=str(tmp_path), run_path=str(tmp_path / 'run'))
    connected.connect(lambda _event: None)
    yield connected
    connected.close()


@pytest.fixture
def daemon(hypervisor):
    return hypervisor._session.connected()


@pytest.fixture
def host(tmp_path):
    made = fake_host.FakeHost(tmp_path, 1, 'machine/qemu-1-test')
    made.write('run/test.pid', f'{fake_host.PID}\n')
    made.group('vcpu0', 50)
    made.thread(50, 'CPU 0/TCG', 3)
    return made


@pytest.fixture
def kernel(monkeypatch):
    made = fake_kernel.FakeKernel(monkeypatch)
    made.add(fake_host.PID, 50)
    return made


def test_slices_and_runs(hypervisor, host, kernel):
    uuid, = hypervisor.running()
    assert hypervisor.threads(uuid) == base.Threads(
        {0: 50}, (fake_host.PID,))
    assert hypervisor.set_slices(uuid, {0: 90_000}, 90_000) == 2
    assert kernel.slices_us() == {fake_host.PID: 90_000, 50: 90_000}
    assert hypervisor.vcpu_runs([uuid, fakes.OTHER_UUID]) == {
        uuid: {0: schedstat.ThreadRun(3_000_000, 5000, 7)}}


def test_known_domains_cost_no_call(hypervisor, host, kernel,
                                    monkeypatch):
    uuid, = hypervisor.running()
    hypervisor.set_slices(uuid, {0: 90_000}, 90_000)
    monkeypatch.setattr(hypervisor._session, 'call', None)
    assert hypervisor.set_slices(uuid, {0: 90_000}, 90_000) == 0


def test_a_new_run_is_looked_for_anew(hypervisor, host, kernel,
                                      daemon):
    uuid, = hypervisor.running()
    hypervisor.threads(uuid)
    domain = daemon.lookupByUUIDString(uuid)
    domain.destroy()
    host.write('run/test.pid', '43\n')
    host.write('proc/43/cgroup', '2:cpu,cpuacct:/machine/qemu-2-test\n')
    made = host.mount / 'machine/qemu-2-test/emulator'
    made.mkdir(parents=True)
    (made / 'tasks').write_text('43\n')
    domain.create()
    hypervisor.running()
    assert hypervisor.threads(uuid) == base.Threads({}, (43,))


def test_a_domain_that_is_not_there(hypervisor, host):
    for method in hypervisor.threads, lambda uuid: (
            hypervisor.set_slices(uuid, {}, None)):
        with pytest.raises(base.DomainGone):
            method(fakes.OTHER_UUID)


def test_the_hosts_pcpus(hypervisor, tmp_path):
    directory = tmp_path / 'sys/devices/system/cpu'
    directory.mkdir(parents=True)
    (directory / 'online').write_text('0-1\n')
    assert hypervisor.topology() == (model.Socket(0, ((0,), (1,))),)
