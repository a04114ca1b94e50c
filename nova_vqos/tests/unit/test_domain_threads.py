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
"""Threads of domains, found in cgroups of either version."""

import errno
import os

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.hypervisor import counters
from nova_vqos.hypervisor import domain_threads
from nova_vqos.hypervisor import schedstat
from nova_vqos.tests.unit import fake_host
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import fake_kernel

UUID = fakes.UUID
PID = fake_host.PID


@pytest.fixture(params=[
    (1, 'machine/qemu-1-a.libvirt-qemu', False),
    (1, 'machine.slice/machine-qemu.scope/libvirt', True),
    (2, 'machine.slice/machine-qemu.scope/libvirt', False),
], ids=['v1', 'v1-apart-systemd', 'v2-systemd'])
def host(request, tmp_path):
    version, path, apart = request.param
    made = fake_host.FakeHost(tmp_path, version, path, apart=apart)
    made.group('emulator', PID, 60)
    made.group('vcpu0', 50)
    made.group('vcpu1', 51)
    made.group('iothread1', 70)
    for tid in 50, 51:
        made.thread(tid, f'CPU {tid}/KVM', 3)
    return made


@pytest.fixture
def kernel(monkeypatch):
    made = fake_kernel.FakeKernel(monkeypatch)
    made.add(PID, 50, 51, 60, 70)
    return made


@pytest.fixture
def pids():
    """What the emulator of a domain is, by UUID."""
    return {UUID: PID}


@pytest.fixture
def reader(host, pids):
    asked = []

    def find(uuid):
        asked.append(uuid)
        try:
            return pids[uuid]
        except KeyError:
            raise base.DomainGone(uuid) from None
    made = domain_threads.ThreadReader(str(host.root), find,
                                       counters.Budget())
    made.asked = asked
    yield made
    made.close()


class TestThreads:
    def test_all_are_found(self, reader):
        assert reader.read(UUID) == base.Threads({0: 50, 1: 51},
                                                 (PID, 60, 70))

    def test_a_domain_is_looked_for_once(self, reader):
        for _ in range(3):
            reader.read(UUID)
        assert reader.asked == [UUID]
        reader.forget(UUID)
        reader.read(UUID)
        assert reader.asked == [UUID] * 2

    def test_helpers_come_and_go(self, reader, host):
        reader.read(UUID)
        host.group('emulator', PID, 61, 62)
        assert reader.read(UUID).others == (PID, 61, 62, 70)

    def test_a_vcpu_that_is_plugged_in(self, reader, host):
        reader.read(UUID)
        host.group('vcpu2', 52)
        assert reader.read(UUID).vcpus == {0: 50, 1: 51, 2: 52}

    def test_a_vcpu_that_is_unplugged(self, reader, host):
        reader.read(UUID)
        host.remove('vcpu1')
        assert reader.read(UUID).vcpus == {0: 50}

    def test_a_cgroup_that_is_only_being_made(self, reader, host):
        host.group('vcpu2')
        assert reader.read(UUID).vcpus == {0: 50, 1: 51}
        host.group('vcpu2', 52)
        assert reader.read(UUID).vcpus == {0: 50, 1: 51, 2: 52}

    def test_a_thread_that_cannot_be_seen_is_none(self, reader, host):
        host.group('vcpu1', 0)
        assert reader.read(UUID).vcpus == {0: 50}

    def test_a_domain_that_was_started_anew(self, reader, host, pids):
        reader.read(UUID)
        for child in 'vcpu0', 'vcpu1', 'iothread1', 'emulator':
            host.remove(child)
        for directory in {host.domain, host.tuned}:
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()
        again = fake_host.FakeHost(host.root / 'again', host.version, 'a/b')
        again.group('emulator', PID)
        again.group('vcpu0', 90)
        reader._root = str(again.root)
        assert reader.read(UUID) == base.Threads({0: 90}, (PID,))

    def test_a_domain_that_is_gone(self, reader, host):
        with pytest.raises(base.DomainGone):
            reader.read(fakes.OTHER_UUID)
        host.write(f'proc/{PID}/cgroup', '')
        with pytest.raises(cgroup.CgroupError):
            reader.read(UUID)


def set_all(reader, slice_us):
    """Give all threads of the domain a slice."""
    return reader.set_slices(UUID, dict.fromkeys(range(3), slice_us),
                             slice_us)


class TestSlices:
    def test_each_vcpu_may_have_its_own(self, reader, kernel):
        set_all(reader, 5_000)
        assert reader.set_slices(UUID, {1: 90_000}, 5_000) == 1
        assert kernel.slices_us()[51] == 90_000
        assert kernel.slices_us()[50] == 5_000

    def test_all_threads_get_it(self, reader, kernel):
        assert set_all(reader, 90_000) == 5
        assert set(kernel.slices_us().values()) == {90_000}

    def test_again_nothing_is_written(self, reader, kernel):
        set_all(reader, 90_000)
        kernel.writes.clear()
        assert set_all(reader, 90_000) == 0
        assert kernel.writes == []

    def test_what_is_new_gets_it(self, reader, kernel, host):
        set_all(reader, 90_000)
        host.group('vcpu2', 52)
        host.group('emulator', PID, 61)
        kernel.add(52, 61)
        assert set_all(reader, 90_000) == 2
        assert kernel.threads[52].slice_ns == 90_000_000

    def test_what_somebody_changed(self, reader, kernel):
        set_all(reader, 90_000)
        kernel.threads[51].slice_ns = 1_000_000
        assert set_all(reader, 90_000) == 1

    def test_one_that_ends_meanwhile(self, reader, kernel, host):
        kernel.before_write = lambda tid: (
            kernel.threads.pop(51, None) if tid == 51 else None)
        assert set_all(reader, 90_000) == 4
        # Its vCPU was plugged out and in again, which nobody saw.
        kernel.add(53)
        host.group('vcpu1', 53)
        assert set_all(reader, 90_000) == 1
        assert kernel.slices_us()[53] == 90_000

    def test_the_kernels_own_again(self, reader, kernel):
        set_all(reader, 90_000)
        assert set_all(reader, None) == 5
        assert not any(thread.custom for thread in kernel.threads.values())

    def test_no_right_to_set_it(self, reader, kernel):
        kernel.refuse[50] = errno.EPERM
        with pytest.raises(base.SlicesDenied):
            set_all(reader, 90_000)
        # The domain is known all the same.
        assert reader.read(UUID).vcpus
        assert reader.asked == [UUID]


class TestRuns:
    def test_each_vcpu(self, reader, host):
        host.thread(51, 'CPU 1/KVM', 8)
        assert reader.runs([UUID]) == {UUID: {
            0: schedstat.ThreadRun(3_000_000, 5000, 7),
            1: schedstat.ThreadRun(8_000_000, 5000, 7)}}

    def test_from_open_files(self, reader, host, monkeypatch):
        reader.runs([UUID])
        opened = []
        monkeypatch.setattr(os, 'open', lambda path, *_rest: (
            opened.append(path)))
        host.thread(51, 'CPU 1/KVM', 9)
        assert reader.runs([UUID])[UUID][1].run_ns == 9_000_000
        assert opened == []

    def test_a_vcpu_that_ends_meanwhile(self, reader, host):
        (host.root / 'proc/51/schedstat').unlink()
        assert set(reader.runs([UUID])[UUID]) == {0}
        host.group('vcpu1', 53)
        host.thread(53, 'CPU 1/KVM', 1)
        assert reader.runs([UUID])[UUID][1].run_ns == 1_000_000

    def test_domains_that_cannot_be_read_are_left_out(self, reader, host):
        assert set(reader.runs([UUID, fakes.OTHER_UUID])) == {UUID}
        host.write('proc/50/schedstat', 'nonsense')
        assert reader.runs([UUID]) == {}

    def test_without_the_hypervisor_nothing_is_known(self, reader):
        def fail(_uuid):
            raise base.Unavailable('no daemon')
        reader._find_pid = fail
        with pytest.raises(base.Unavailable):
            reader.runs([UUID])

    def test_no_file_stays_open(self, reader, host):
        reader.runs([UUID])
        assert reader._budget.files == counters.MOST_KEPT_OPEN - 2
        host.remove('vcpu1')
        reader.runs([UUID])
        assert reader._budget.files == counters.MOST_KEPT_OPEN - 1
        reader.close()
        assert reader._budget.files == counters.MOST_KEPT_OPEN
