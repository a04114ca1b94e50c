# SPDX-License-Identifier: Apache-2.0
"""Which domains' clocks are counted, and what a host without counters has."""

import errno

import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import clock
from nova_vqos.hypervisor.linux import domain_clocks
from nova_vqos.hypervisor.linux import perf
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.hypervisor.linux import test_clock

UUID = fakes.UUID
RUNS = {UUID: 1}

kernel = test_clock.kernel


class World:
    """A host with one domain of two vCPUs, threads 50 and 51."""

    def __init__(self, host, cache, kernel):
        self.host, self.kernel = host, kernel
        self.now_s = 0.0
        host.group('vcpu0', 50)
        host.group('vcpu1', 51)
        host.times({'': 0, 'vcpu0': 0, 'vcpu1': 0})
        self.reader = domain_clocks.ClockReader(
            cache, str(host.root), most_files=12, now_s=lambda: self.now_s)

    def read(self):
        return self.reader.read(RUNS)

    def pass_retry(self):
        self.now_s += domain_clocks.RETRY_S


@pytest.fixture
def world(host, cache, kernel):
    test_clock.write_pmu(host.root)
    made = World(host, cache, kernel)
    yield made
    made.reader.close()


class TestCounting:
    def test_the_time_of_all_vcpus_counts(self, world):
        assert world.read() == base.NO_CLOCKS
        world.kernel.run(50, 300, 3000)
        world.kernel.run(51, 100, 2000)
        found = world.read()
        assert found.counted[UUID].ran_ns == 400_000_000
        assert found.counted[UUID].mhz == pytest.approx(2750)
        assert (found.pcpus_mhz, found.problems) == ({}, {})
        assert world.read().counted[UUID].ran_ns == 0

    def test_only_threads_of_vcpus_are_counted(self, world):
        world.read()
        assert set(world.kernel.opened) == {50, 51}

    def test_a_vcpu_that_is_plugged_in(self, world):
        world.read()
        world.host.group('vcpu2', 52)
        world.host.time('vcpu2', 0)
        assert world.read().counted == {}
        world.kernel.run(52, 100, 2000)
        assert world.read().counted[UUID].mhz == pytest.approx(2000)

    def test_it_ends_with_the_domain(self, world):
        world.read()
        world.reader.read({})
        assert not world.kernel.opened

    def test_one_that_cannot_be_found_costs_nothing(self, world):
        assert world.reader.read({**RUNS, fakes.OTHER_UUID: 2}).problems == {}
        world.kernel.run(50, 100, 2000)
        assert set(world.reader.read(
            {**RUNS, fakes.OTHER_UUID: 2}).counted) == {UUID}

    def test_a_thread_that_has_just_gone_is_looked_for_again(self, world):
        world.kernel.errors[51] = errno.ESRCH
        assert world.read() == base.NO_CLOCKS
        del world.kernel.errors[51]
        world.read()
        assert set(world.kernel.opened) == {50, 51}


class TestFailures:
    def test_files_have_a_bound(self, world):
        for number in 2, 3, 4:
            world.host.group(f'vcpu{number}', 50 + number)
            world.host.time(f'vcpu{number}', 0)
        assert '12 files' in world.read().problems[UUID]
        assert not world.kernel.opened

    def test_one_that_fails_is_tried_again_seldom(self, world):
        world.kernel.errors[51] = errno.EMFILE
        assert set(world.read().problems) == {UUID}
        assert not world.kernel.opened
        del world.kernel.errors[51]
        world.now_s += domain_clocks.RETRY_S - 1
        assert set(world.read().problems) == {UUID}
        world.now_s += 1
        assert world.read().problems == {}
        assert set(world.kernel.opened) == {50, 51}

    def test_whatever_fails_is_of_that_domain_alone(self, world, monkeypatch):
        world.read()

        def fail(_times):
            raise KeyError('of this test')
        monkeypatch.setattr(usage, 'total_clock', fail)
        assert 'KeyError' in world.read().problems[UUID]
        assert not world.kernel.opened

    def test_what_may_not_be_counted_is_so_for_all(self, world):
        test_clock.write(world.host.root, test_clock.CPUFREQ.format(
            0, 'scaling_cur_freq'), '2400000')
        world.kernel.errors[51] = errno.EACCES
        found = world.read()
        assert 'CAP_PERFMON' in found.problems[UUID]
        assert found.pcpus_mhz == {0: 2400.0}
        assert not world.kernel.opened


class TestWithoutCounters:
    @pytest.fixture
    def world(self, host, cache, kernel):
        test_clock.write_pmu(host.root, aperf=None)
        return World(host, cache, kernel)

    def test_nothing_is_shown_with_the_reason(self, world):
        found = world.read()
        assert (found.counted, found.pcpus_mhz) == ({}, {})
        assert 'aperf' in found.problems[UUID]

    def test_the_host_is_looked_at_seldom(self, world, monkeypatch):
        looks = []
        find = clock.find_events
        monkeypatch.setattr(clock, 'find_events',
                            lambda root: looks.append(root) or find(root))
        for _ in range(5):
            world.read()
        # Neither is the domain.
        assert (len(looks), world.host.asked) == (1, [])
        test_clock.write_pmu(world.host.root)
        world.pass_retry()
        assert world.read().problems == {}
        assert set(world.kernel.opened) == {50, 51}
        world.reader.close()

    def test_figures_of_pcpus_take_their_place(self, world):
        for pcpu in range(200):
            test_clock.write(world.host.root, test_clock.CPUFREQ.format(
                pcpu, 'scaling_cur_freq'), f'{2_000_000 + pcpu * 1000}')
        found = world.read().pcpus_mhz
        assert 32 <= len(found) <= domain_clocks.MOST_PCPUS
        assert (found[0], max(found)) == (2000.0, 196)

    def test_a_process_that_may_not_count(self, host, cache, kernel):
        test_clock.write_pmu(host.root)
        kernel.errors[perf.OWN_THREAD] = errno.EPERM
        assert 'CAP_PERFMON' in World(
            host, cache, kernel).read().problems[UUID]
