# SPDX-License-Identifier: Apache-2.0
"""The CPU time that a host reserves: total, free, and the kernel's count."""

from fractions import Fraction

import pytest

from nova_vqos import units
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos.tests.unit.agent.guarantee import worlds


class TestHost:
    def test_what_is_left_is_reported(self, world):
        world.run()
        world.tick(11)
        found = world.host_report()['guarantee']
        # Of the 1.8 pCPUs that the kernel reserves 3 % are not sold.
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        assert found['free_pcpus'] == pytest.approx(1.096)
        assert world.state().guarantee_pcpus == pytest.approx(1.096)
        assert world.state().guarantee_total_pcpus == pytest.approx(1.746)
        # Of 200 CU 174 are sold.
        assert world.host_report()['units']['reserved_cu'] == 26

    def test_an_earlier_agent_has_reserved_some(self, world, tmp_path):
        world.run()
        world.tick()
        (tmp_path / 'again').mkdir()
        again = worlds.World(tmp_path / 'again', hypervisor=world.host)
        again.start()
        again.tick(11)
        found = again.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)

    def test_one_that_cannot_be_described_delays_it_only(self, world):
        world.host.starting.add(fakes.UUID)
        world.run()
        world.tick(30)
        assert world.state().guarantee_pcpus is None
        assert world.state().guarantee_total_pcpus is None
        world.tick(60)
        assert world.state().guarantee_pcpus == pytest.approx(1.746)

    def test_a_host_whose_pcpus_differ(self, world):
        document.store(make_profiles.make_profile(
            'host', make_profiles.make_class((0,), 1.0),
            make_profiles.make_class((1,), 0.5),
            fingerprint={'tick_us': '4000'}), str(world.profile_path))
        world.start()
        world.tick(11)
        assert world.state().guarantee_pcpus is None
        assert world.state().guarantee_total_pcpus == 0.0
        assert world.host_report()['alarms']

    def test_a_server_that_goes_leaves_room(self, world):
        world.run()
        world.tick()
        world.host.runs.clear()
        world.tick(11)
        assert world.state().guarantee_pcpus == pytest.approx(1.746)

    def test_a_kernel_that_reserves_nothing(self, world):
        world.host.free_pcpus = base.ReservationRefused('no capability')
        world.start()
        world.tick(11)
        assert world.state().guarantee_pcpus is None
        assert world.state().guarantee_total_pcpus == 0.0
        assert any('no capability' in alarm
                   for alarm in world.host_report()['alarms'])

    def test_what_could_not_be_measured_is_so_soon(self, world):
        """A partition may be made after the agent has started."""
        world.host.free_pcpus = base.ReservationRefused('no partition')
        world.start()
        world.tick(11)
        world.host.free_pcpus = Fraction(1)
        world.tick(31)
        assert world.state().guarantee_pcpus == pytest.approx(0.97)
        assert world.host_report()['alarms'] == []

    def test_a_total_that_includes_what_is_reserved(self, world):
        world.run()
        world.tick()
        reserved = world.host_report()['guarantee']['reserved_pcpus']
        world.host.total_pcpus = Fraction(3)
        world.tick(610)
        found = world.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(2.91)
        assert found['free_pcpus'] == pytest.approx(2.91 - reserved)

    def test_it_is_measured_again(self, world):
        world.start()
        world.tick()
        world.host.free_pcpus = Fraction(1)
        world.tick(300)
        assert world.state().guarantee_pcpus == pytest.approx(1.746)
        assert world.host_report()['alarms'] == []
        world.tick(310)
        assert world.state().guarantee_pcpus == pytest.approx(0.97)
        # The kernel lost some, or another has it.
        assert any('0.80 pCPUs' in alarm
                   for alarm in world.host_report()['alarms'])

    @pytest.mark.parametrize('wrong', [Fraction(1, 2), Fraction(3)])
    def test_one_wrong_measurement_does_not_count(self, world, wrong):
        """A server goes, and kernel and agent forget it one by one."""
        found = [Fraction(9, 5), wrong, Fraction(9, 5), Fraction(9, 5),
                 # Each ends at the next lower 1/1024.
                 Fraction(9, 5) - Fraction(1, 1024), wrong]
        world.host.bandwidth = lambda: base.Bandwidth(
            found.pop(0) if found else Fraction(9, 5), is_total=False,
            number=2)
        world.start()
        totals = set()
        for _ in range(1300):
            world.tick()
            totals.add(world.state().guarantee_total_pcpus)
        assert found == []
        assert totals - {None} == {1.746}
        assert world.host_report()['alarms'] == []

    def test_nothing_is_reserved_while_it_is_measured(self, world):
        """All that is left is asked for by the measurement."""
        world.start()
        probe = world.loop._guarantees._bandwidth._probe
        probe.busy = True
        world.boot()
        world.tick(3)
        assert world.limits() == {agent.RIGHT}
        assert world.host.reserves == 0
        probe.busy = False
        world.tick()
        assert world.guarantee()['since']


class TestShare:
    """What the operator lets be reserved of the two pCPUs."""

    def make(self, directory, share, **options):
        return worlds.World(directory, guaranteed_share=share, **options)

    @pytest.mark.parametrize(('share', 'total_pcpus', 'reserved_cu'), [
        (0.4, 0.8, 120), (0.85, 1.7, 30),
        # The kernel reserves 1.8, of which 3 % are not sold.
        (0.95, 1.746, 26)])
    def test_no_more_is_sold(self, tmp_path, share, total_pcpus, reserved_cu):
        world = self.make(tmp_path, share)
        world.run()
        world.tick(11)
        state = world.state()
        assert state.guarantee_total_pcpus == pytest.approx(total_pcpus)
        assert state.guarantee_pcpus == pytest.approx(total_pcpus - 0.65)
        found = world.host_report()
        assert found['guarantee']['total_pcpus'] == pytest.approx(total_pcpus)
        assert found['units']['reserved_cu'] == reserved_cu
        assert found['alarms'] == []

    def test_a_partition_has_pcpus_of_its_own(self, tmp_path):
        world = self.make(tmp_path, 0.5)
        world.host.total_pcpus = Fraction(19, 5)
        world.start()
        world.tick(11)
        assert world.state().guarantee_total_pcpus == 2.0

    def test_what_would_go_above_it_is_refused(self, tmp_path):
        world = self.make(tmp_path, 0.4)
        world.run()
        world.tick(11)
        world.boot(fakes.OTHER_UUID)
        world.tick(2)
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
        assert world.limits(fakes.OTHER_UUID) == {agent.RIGHT}
        problem = world.guarantee(fakes.OTHER_UUID)['problem']
        for text in ('[vqos_agent] guaranteed_share is 0.4', '0.150 pCPUs',
                     '0.700'):
            assert text in problem
        assert any(fakes.OTHER_UUID in alarm and 'guaranteed_share' in alarm
                   for alarm in world.host_report()['alarms'])
        assert world.guarantee()['problem'] == ''
        world.host.stop()
        world.tick(2)
        assert world.host.reservations[fakes.OTHER_UUID] == worlds.RESERVED
        assert world.host_report()['alarms'] == []

    def test_of_two_that_come_at_once_one_has_room(self, tmp_path):
        world = self.make(tmp_path, 0.5)
        world.start()
        world.tick(11)
        world.boot()
        world.boot(fakes.OTHER_UUID)
        world.tick()
        assert len(world.host.reservations) == 1

    def test_one_that_just_has_room(self, tmp_path):
        world = self.make(tmp_path, 0.35)
        world.start()
        world.tick(11)
        assert world.state().guarantee_pcpus == pytest.approx(0.7)
        world.boot()
        world.tick()
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}

    def test_what_the_kernel_refused_takes_nothing(self, tmp_path):
        world = self.make(tmp_path, 0.5)
        world.start()
        world.tick(11)
        world.host.free_pcpus = Fraction(0)
        world.boot()
        world.tick(3)
        assert 'not enough' in world.guarantee()['problem']
        assert world.state().guarantee_pcpus == pytest.approx(1.0)

    def test_nor_does_what_ended_in_an_error(self, tmp_path):
        world = self.make(tmp_path, 0.5)
        world.start()
        world.tick(11)
        real, world.host.reserve = world.host.reserve, self.fail
        world.boot()
        world.tick(2)
        assert world.state().guarantee_pcpus == pytest.approx(1.0)
        world.host.reserve = real
        world.tick()
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}

    def fail(self, *_arguments, **_options):
        raise base.HypervisorError('not understood')

    def test_servers_that_run_keep_what_they_have(self, tmp_path):
        world = worlds.World(tmp_path)
        world.boot(fakes.OTHER_UUID)
        world.run()
        world.tick()
        (tmp_path / 'again').mkdir()
        again = self.make(tmp_path / 'again', 0.4, hypervisor=world.host)
        again.start()
        again.tick(30)
        assert again.state().guarantee_total_pcpus == pytest.approx(0.8)
        assert again.state().guarantee_pcpus == 0.0
        for uuid in fakes.UUID, fakes.OTHER_UUID:
            assert again.guarantee(uuid)['problem'] == ''
            assert again.guarantee(uuid)['since']


class TestClock:
    """A kernel that counts reserved time by the clock of the CPU."""

    @pytest.fixture
    def world(self, tmp_path):
        world = worlds.World(tmp_path, least_frequency_scale=0.8)
        world.host.clock_counts = True
        return world

    def test_what_is_reserved_lasts_for_the_share(self, world):
        world.run()
        world.tick(11)
        assert world.host.reservations[fakes.UUID] == (
            units.CpuCap(12_000, 50_000), worlds.IO)
        # Of the time that the host has at that clock it takes as much.
        assert world.guarantee()['reserved_pcpus'] == pytest.approx(0.65)
        found = world.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        assert found['free_pcpus'] == pytest.approx(1.096)

    def test_that_of_one_that_may_use_more_is_not(self, world):
        world.run(specs=fakes.make_specs(guarantee='required', cap='floor'))
        world.tick(11)
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
        assert world.guarantee()['reserved_pcpus'] == pytest.approx(0.65)

    @pytest.mark.parametrize(('mhz', 'counted'), [
        (3000, 0.8), (1500, 0.4), (3600, 0.96), (4500, 1.0), (None, None)])
    def test_it_says_what_the_kernel_counts(self, world, mhz, counted):
        profile = fakes.make_profile()
        document.store(profile._replace(cpu_classes=tuple(
            one._replace(clock_mhz=3000.0) for one in profile.cpu_classes)),
            str(world.profile_path))
        world.run()
        if mhz is not None:
            world.host.mhz[fakes.UUID] = mhz
        for number in range(32):
            world.host.vcpu_used[fakes.UUID] = usage.VcpuTime(
                'run', world.now_s + 1, number * 10**9, 0, 2)
            world.tick()
        assert world.guarantee()['counted'] == (
            counted and pytest.approx(counted))

    def test_what_may_use_more_counts_as_it_is(self, world):
        world.run(specs=fakes.make_specs(guarantee='required', cap='floor'))
        world.tick(11)
        assert world.guarantee()['counted'] is None

    def test_nothing_is_guaranteed_where_the_scale_is_not_known(
            self, tmp_path):
        world = worlds.World(tmp_path)
        world.host.clock_counts = True
        world.run()
        world.tick(11)
        assert world.host.reserves == 0
        assert world.state().guarantee_total_pcpus == 0.0
        for text in world.guarantee()['problem'], *world.state().alarms[:1]:
            assert 'least_frequency_scale' in text
        # Turbo is switched off.
        world.host.clock_counts = False
        world.tick(610)
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
        assert world.guarantee()['problem'] == ''
        assert world.state().guarantee_total_pcpus == pytest.approx(1.746)

    def test_turbo_that_is_switched_off(self, world):
        world.run()
        world.tick(11)
        world.host.clock_counts = False
        world.tick(610)
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
        assert world.host_report()['guarantee'][
            'free_pcpus'] == pytest.approx(1.096)
