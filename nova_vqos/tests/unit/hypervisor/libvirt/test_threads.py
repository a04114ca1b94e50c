# SPDX-License-Identifier: Apache-2.0
"""Slices and runs, on the driver that libvirt itself brings for tests."""

from fractions import Fraction

import pytest

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import threads
from nova_vqos.quantum import model
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fake_kernel
from nova_vqos.tests.fixtures import fakes

VCPU = units.CpuCap(25_000, 50_000)
IO = units.CpuCap(400, 8_000)


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
    assert hypervisor.vcpu_threads(uuid) == {0: 50}
    assert threads.read(hypervisor._domains, uuid) == base.Threads(
        {0: 50}, (fake_host.PID,), io=(fake_host.PID,))
    assert hypervisor.set_slices(uuid, {0: 90_000}, 90_000) == 2
    assert kernel.slices_us() == {fake_host.PID: 90_000, 50: 90_000}
    assert hypervisor.vcpu_runs([uuid, fakes.OTHER_UUID]) == {
        uuid: {0: base.ThreadRun(3_000_000, 5000, 7)}}


def test_known_domains_cost_no_call(hypervisor, host, kernel, monkeypatch):
    uuid, = hypervisor.running()
    hypervisor.set_slices(uuid, {0: 90_000}, 90_000)
    monkeypatch.setattr(hypervisor._session, 'call', None)
    assert hypervisor.set_slices(uuid, {0: 90_000}, 90_000) == 0


def test_reservations(hypervisor, host, kernel):
    uuid, = hypervisor.running()
    assert hypervisor.reserve(uuid, VCPU, IO) == base.Reserved(
        {0: VCPU}, Fraction(55, 100))
    # Another slice does not end it.
    assert hypervisor.set_slices(uuid, {0: 90_000}, 90_000) == 0
    assert deadline.reservation(50) == VCPU
    assert deadline.reservation(fake_host.PID) == IO


def test_a_new_run_is_looked_for_anew(hypervisor, host, kernel, daemon):
    uuid, = hypervisor.running()
    hypervisor.vcpu_threads(uuid)
    domain = daemon.lookupByUUIDString(uuid)
    domain.destroy()
    host.write('run/test.pid', '43\n')
    host.write('proc/43/cgroup', '2:cpu,cpuacct:/machine/qemu-2-test\n')
    made = host.mount / 'machine/qemu-2-test/emulator'
    made.mkdir(parents=True)
    (made / 'tasks').write_text('43\n')
    domain.create()
    hypervisor.running()
    assert threads.read(hypervisor._domains, uuid) == base.Threads(
        {}, (43,), io=(43,))


def test_an_absent_domain(hypervisor, host):
    for method in hypervisor.vcpu_threads, lambda uuid: (
            hypervisor.set_slices(uuid, {}, None)), lambda uuid: (
            hypervisor.reserve(uuid, VCPU, IO)):
        with pytest.raises(base.DomainGone):
            method(fakes.OTHER_UUID)


def test_the_hosts_pcpus(hypervisor, tmp_path):
    directory = tmp_path / 'sys/devices/system/cpu'
    directory.mkdir(parents=True)
    (directory / 'online').write_text('0-1\n')
    assert hypervisor.topology() == (model.Socket(0, ((0,), (1,))),)
