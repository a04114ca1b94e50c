# SPDX-License-Identifier: Apache-2.0
"""Threads of domains, found in cgroups of either version."""

import errno
from fractions import Fraction
import os

import pytest

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import threads
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fake_kernel
from nova_vqos.tests.fixtures import fakes

UUID = fakes.UUID
PID = fake_host.PID
VCPU = units.CpuCap(25_000, 50_000)
IO = units.CpuCap(400, 8_000)


@pytest.fixture
def host(host):
    host.group('emulator', PID, 60)
    host.group('vcpu0', 50)
    host.group('vcpu1', 51)
    host.group('iothread1', 70)
    for tid in 50, 51:
        host.thread(tid, f'CPU {tid}/KVM', 3)
    return host


@pytest.fixture
def kernel(monkeypatch):
    made = fake_kernel.FakeKernel(monkeypatch)
    made.add(PID, 50, 51, 60, 70)
    return made


@pytest.fixture
def budget():
    return domain_files.Budget(100)


@pytest.fixture
def cache(host, budget):
    made = host.cache(budget=budget)
    yield made
    made.close()


def read(cache):
    return threads.read(cache, UUID)


class TestThreads:
    def test_all_are_found(self, cache):
        assert read(cache) == base.Threads(
            {0: 50, 1: 51}, (PID, 60, 70), io=(PID, 70))

    def test_a_domain_is_looked_for_once(self, cache, host):
        for _ in range(3):
            read(cache)
        assert host.asked == [UUID]

    def test_helpers_come_and_go(self, cache, host):
        read(cache)
        host.group('emulator', PID, 61, 62)
        assert read(cache).others == (PID, 61, 62, 70)

    def test_a_vcpu_that_is_plugged_in(self, cache, host):
        read(cache)
        host.group('vcpu2', 52)
        assert read(cache).vcpus == {0: 50, 1: 51, 2: 52}

    def test_a_vcpu_that_is_unplugged(self, cache, host):
        read(cache)
        host.remove('vcpu1')
        assert read(cache).vcpus == {0: 50}

    def test_a_cgroup_that_is_only_being_made(self, cache, host):
        host.group('vcpu2')
        assert read(cache).vcpus == {0: 50, 1: 51}
        host.group('vcpu2', 52)
        assert read(cache).vcpus == {0: 50, 1: 51, 2: 52}

    def test_a_thread_that_cannot_be_seen_is_none(self, cache, host):
        host.group('vcpu1', 0)
        assert read(cache).vcpus == {0: 50}

    def test_a_domain_that_was_started_anew(self, cache, host):
        read(cache)
        for child in 'vcpu0', 'vcpu1', 'iothread1', 'emulator':
            host.remove(child)
        for directory in {host.domain, host.tuned}:
            for file in directory.iterdir():
                file.unlink()
            directory.rmdir()
        (host.root / 'sys/fs/cgroup/cgroup.controllers').unlink(
            missing_ok=True)
        again = fake_host.FakeHost(host.root, host.version, 'a/b',
                                   apart=host.tuned != host.domain)
        again.group('emulator', PID)
        again.group('vcpu0', 90)
        assert read(cache) == base.Threads({0: 90}, (PID,), io=(PID,))

    def test_a_domain_that_is_gone(self, cache, host):
        with pytest.raises(base.DomainGone):
            threads.read(cache, fakes.OTHER_UUID)
        host.write(f'proc/{PID}/cgroup', '')
        with pytest.raises(cgroup.CgroupError):
            read(cache)


def set_all(cache, slice_us):
    """Give all threads of the domain a slice."""
    return threads.set_slices(cache, UUID, dict.fromkeys(range(3), slice_us),
                             slice_us)


class TestSlices:
    def test_each_vcpu_may_have_its_own(self, cache, kernel):
        set_all(cache, 5_000)
        assert threads.set_slices(cache, UUID, {1: 90_000}, 5_000) == 1
        assert kernel.slices_us()[51] == 90_000
        assert kernel.slices_us()[50] == 5_000

    def test_all_threads_get_it(self, cache, kernel):
        assert set_all(cache, 90_000) == 5
        assert set(kernel.slices_us().values()) == {90_000}

    def test_again_nothing_is_written(self, cache, kernel):
        set_all(cache, 90_000)
        kernel.writes.clear()
        assert set_all(cache, 90_000) == 0
        assert kernel.writes == []

    def test_new_threads_get_it(self, cache, kernel, host):
        set_all(cache, 90_000)
        host.group('vcpu2', 52)
        host.group('emulator', PID, 61)
        kernel.add(52, 61)
        assert set_all(cache, 90_000) == 2
        assert kernel.threads[52].slice_ns == 90_000_000

    def test_slices_that_another_writer_changed(self, cache, kernel):
        set_all(cache, 90_000)
        kernel.threads[51].slice_ns = 1_000_000
        assert set_all(cache, 90_000) == 1

    def test_one_that_ends_meanwhile(self, cache, kernel, host):
        kernel.before_write = lambda tid: (
            kernel.threads.pop(51, None) if tid == 51 else None)
        assert set_all(cache, 90_000) == 4
        # Its vCPU was unplugged and plugged in again, without an event.
        kernel.add(53)
        host.group('vcpu1', 53)
        assert set_all(cache, 90_000) == 1
        assert kernel.slices_us()[53] == 90_000

    def test_the_kernels_own_again(self, cache, kernel):
        set_all(cache, 90_000)
        assert set_all(cache, None) == 5
        assert not any(thread.custom for thread in kernel.threads.values())

    def test_no_right_to_set_it(self, cache, kernel, host):
        kernel.refuse[50] = errno.EPERM
        with pytest.raises(base.SlicesDenied):
            set_all(cache, 90_000)
        # The domain is known all the same.
        assert read(cache).vcpus
        assert host.asked == [UUID]


class TestRuns:
    def test_each_vcpu(self, cache, host):
        host.thread(51, 'CPU 1/KVM', 8)
        assert threads.read_runs(cache, [UUID]) == {UUID: {
            0: base.ThreadRun(3_000_000, 5000, 7),
            1: base.ThreadRun(8_000_000, 5000, 7)}}

    def test_how_often_each_vcpu_slept(self, cache, host):
        assert threads.read_sleeps(cache, [UUID]) == {UUID: {0: 4, 1: 4}}
        (host.root / 'proc/51/status').unlink()
        assert set(threads.read_sleeps(host.cache(), [UUID])[UUID]) == {0}

    @pytest.mark.parametrize('content', [
        '', 'State:\tS\n', 'Name:\tvoluntary_ctxt_switches:\n',
        'State:\tS\nvoluntary_ctxt_switches:\n',
        'State:\tS\nvoluntary_ctxt_switches:\tmany\n'])
    def test_sleeps_that_are_not_understood(self, cache, host, content):
        host.write('proc/50/status', content)
        assert threads.read_sleeps(cache, [UUID]) == {}

    def test_from_open_files(self, cache, host, monkeypatch):
        threads.read_runs(cache, [UUID])[UUID]
        opened = []
        monkeypatch.setattr(os, 'open', lambda path, *_rest: (
            opened.append(path)))
        host.thread(51, 'CPU 1/KVM', 9)
        assert threads.read_runs(cache, [UUID])[UUID][1].run_ns == 9_000_000
        assert opened == []

    def test_a_vcpu_that_ends_meanwhile(self, cache, host):
        (host.root / 'proc/51/schedstat').unlink()
        assert set(threads.read_runs(cache, [UUID])[UUID]) == {0}
        host.group('vcpu1', 53)
        host.thread(53, 'CPU 1/KVM', 1)
        assert threads.read_runs(cache, [UUID])[UUID][1].run_ns == 1_000_000

    def test_domains_that_cannot_be_read_are_left_out(self, cache, host):
        assert set(threads.read_runs(
            cache, [UUID, fakes.OTHER_UUID])) == {UUID}
        host.write('proc/50/schedstat', 'nonsense')
        assert threads.read_runs(cache, [UUID]) == {}

    def test_without_the_hypervisor_nothing_is_known(self, host):
        def fail(_uuid):
            raise base.Unavailable('no daemon')
        cache = host.cache(find=fail)
        assert threads.read_runs(cache, [UUID]) == {}

    def test_each_thread_of_io(self, cache, host):
        host.thread(PID, 'qemu-system-x86', 4)
        host.thread(70, 'IO iothread1', 5)
        # One that comes and goes, and is no I/O thread.
        host.thread(60, 'worker', 6)
        assert threads.read_io_runs(cache, [UUID]) == {UUID: {
            PID: base.ThreadRun(4_000_000, 5000, 7),
            70: base.ThreadRun(5_000_000, 5000, 7)}}

    def test_no_file_stays_open(self, cache, host, budget):
        threads.read_runs(cache, [UUID])
        # The domain's directory, and one file of each vCPU.
        assert budget.files == 97
        host.remove('vcpu1')
        threads.read_runs(cache, [UUID])
        assert budget.files == 98
        cache.close()
        assert budget.files == 100


class TestReserve:
    @pytest.fixture
    def kernel(self, kernel):
        kernel.free = Fraction(2)
        return kernel

    def test_vcpus_and_what_serves_their_io_have_it(self, cache, kernel):
        assert threads.reserve(cache, UUID, VCPU, IO) == base.Reserved(
            {0: VCPU, 1: VCPU}, Fraction(110, 100))
        assert [tid for tid, thread in kernel.threads.items()
                if thread.policy == fake_kernel.DEADLINE] == [PID, 50, 51, 70]
        # Only they use what others leave.
        assert {tid for tid, thread in kernel.threads.items()
                if thread.flags & 2} == {PID, 70}
        threads.reserve(cache, UUID, VCPU, IO, reclaims=True)
        assert {tid for tid, thread in kernel.threads.items()
                if thread.flags & 2} == {PID, 50, 51, 70}

    def test_it_is_not_written_again(self, cache, kernel):
        for _ in range(2):
            threads.reserve(cache, UUID, VCPU, IO)
        assert sorted(kernel.writes) == [PID, 50, 51, 70]

    def test_where_too_little_is_left_io_comes_first(self, cache, kernel):
        kernel.free = Fraction(65, 100)
        found = threads.reserve(cache, UUID, VCPU, IO)
        assert (found.vcpus, found.pcpus) == ({0: VCPU}, Fraction(60, 100))
        assert found.refusal

    def test_one_that_is_refused_more_keeps_what_it_has(self, cache, kernel):
        threads.reserve(cache, UUID, VCPU, IO)
        kernel.free = Fraction(0)
        found = threads.reserve(cache, UUID, units.CpuCap(30_000, 50_000), IO)
        assert found.refusal
        assert found.vcpus == {0: VCPU, 1: VCPU}

    def test_threads_that_lose_some_leave_it_to_the_others(self, cache,
                                                           kernel):
        """No time is free, and none is needed."""
        threads.reserve(cache, UUID, VCPU, IO)
        kernel.free = Fraction(0)
        less, more = units.CpuCap(22_500, 50_000), units.CpuCap(800, 8_000)
        for vcpu, io in ((less, more), (VCPU, IO)):
            assert threads.reserve(cache, UUID, vcpu, io) == base.Reserved(
                {0: vcpu, 1: vcpu}, Fraction(110, 100))

    def test_it_is_read(self, cache, kernel):
        assert threads.reserved(cache, UUID) == base.Reserved({}, Fraction(0))
        made = threads.reserve(cache, UUID, VCPU, IO)
        kernel.writes.clear()
        assert threads.reserved(cache, UUID) == made
        assert kernel.writes == []

    def test_what_is_there_changes_and_no_more_comes(self, cache, kernel,
                                                     host):
        assert threads.reserve(cache, UUID, VCPU, IO, anew=False).pcpus == 0
        threads.reserve(cache, UUID, VCPU, IO)
        host.group('vcpu2', 52)
        kernel.add(52)
        less = units.CpuCap(10_000, 50_000)
        found = threads.reserve(cache, UUID, less, IO, anew=False)
        assert found == base.Reserved({0: less, 1: less}, Fraction(1, 2))

    def test_vcpus_that_a_refused_pin_confines(self, cache, kernel,
                                               monkeypatch):
        affinity = {tid: {0, 1} for tid in kernel.threads}
        monkeypatch.setattr(os, 'sched_getaffinity', affinity.__getitem__)
        affinity[50] = {0}
        # Without a reservation a pin is not refused.
        assert threads.confined(cache, UUID, {0, 1}) == set()
        threads.reserve(cache, UUID, VCPU, IO)
        assert threads.confined(cache, UUID, {0, 1}) == {0}
        assert threads.confined(cache, UUID, {0}) == set()
        affinity[51] = {1, 2}
        assert threads.confined(cache, UUID, {0, 1}) == {0, 1}

    def test_a_vcpu_that_ends_meanwhile(self, cache, kernel):
        del kernel.threads[51]
        found = threads.reserve(cache, UUID, VCPU, IO)
        assert (found.vcpus.keys(), found.refusal) == ({0}, '')
