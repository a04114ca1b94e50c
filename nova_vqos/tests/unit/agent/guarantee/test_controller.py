# SPDX-License-Identifier: Apache-2.0
"""The agent reserves CPU time for servers, and reports what it did."""

from fractions import Fraction

import pytest

from nova_vqos import agent_state
from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import units
from nova_vqos.agent.overrides import store
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import make_profiles

# Of 60 CU on two vCPUs, on pCPUs of 100 CU, for each vCPU and I/O thread.
VCPU = units.CpuCap(15_000, 50_000)
IO = units.CpuCap(1_000, 20_000)
# Of class io, with runtimes of two ticks at least.
SHORT = units.CpuCap(8_000, 26_667)


class World(agent.World):
    def __init__(self, directory, **options):
        super().__init__(directory, **{'guarantees_speed': True, **options})

    def boot(self, uuid=fakes.UUID, guarantee='required', **options):
        super().boot(uuid, **{
            'specs': fakes.make_specs(guarantee=guarantee), **options})

    def state(self):
        return agent_state.from_text(
            self.state_path.read_text(encoding='utf-8'))

    def guarantee(self, uuid=fakes.UUID):
        return self.report(uuid)['guarantee']

    def alarms(self, uuid=fakes.UUID):
        """Those of its host that are about a server."""
        return [alarm for alarm in self.host_report()['alarms']
                if uuid in alarm]


def push(world, overrides, guarantee, quantum_class='default',
         dd_billing='off'):
    """:returns: how the servers of a world follow"""
    overrides.merge(policy_push.of_overrides({'f1': policy_override.Override(
        policy_override.generation_of(overrides.overrides) + 1, 'small', 2, 60,
        quantum_class, dd_billing, guarantee)}))
    _changed, following = world.ask(world.loop.follow_pushed)
    world.settle()
    return following


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def test_what_is_promised_is_reserved(world):
    world.run()
    world.tick()
    assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
    assert world.host.reclaims == {fakes.UUID: False}
    found = world.guarantee()
    assert found.pop('since').startswith('20')
    assert found.pop('reserved_pcpus') == pytest.approx(0.65)
    assert found == {'vcpus': 2, 'runtime_us': 15_000, 'period_us': 50_000,
                     'problem': '', 'ends': False, 'counted': None}


@pytest.mark.parametrize('guarantee', ['off', None])
def test_others_are_left_alone(world, guarantee):
    world.boot(specs=fakes.make_specs() if guarantee is None
               else fakes.make_specs(guarantee=guarantee))
    world.start()
    world.tick(3)
    assert world.host.reserves == 0
    assert world.guarantee() is None


def test_a_reservation_of_others_is_left_alone(world):
    world.boot(specs=None)
    world.host.reservations[fakes.UUID] = VCPU, IO
    world.start()
    world.tick(3)
    assert world.host.reserves == 0
    assert world.guarantee() is None
    assert world.host_report()['alarms'] == []


def test_nothing_is_reserved_where_that_is_off(tmp_path):
    world = World(tmp_path, guarantees_speed=False)
    world.run(guarantee='preferred')
    world.tick(3)
    assert world.host.reserves == 0
    assert world.state().guarantee_pcpus is None
    # Known, unlike that of an agent that has not measured yet.
    assert world.state().guarantee_total_pcpus == 0.0
    assert world.host_report()['guarantee'] is None
    assert world.guarantee()['since'] is None


def test_it_comes_right_after_the_cap(world):
    """Not at the next tick: a migrated guest runs half a second later."""
    world.start()
    world.tick()
    world.boot()
    world.host.event(base.EventKind.STARTED, detail='booted')
    world.settle()
    assert world.limits() == {agent.RIGHT}
    assert world.host.reservations == {fakes.UUID: (VCPU, IO)}


def test_one_that_is_right_is_looked_at_now_and_then(world):
    world.run()
    world.tick()
    before = world.host.reserves
    world.tick(30)
    assert 2 <= world.host.reserves - before <= 4


def test_a_vcpu_that_is_plugged_in_has_its_part(world):
    world.run()
    world.tick()
    world.host.plug_vcpu(2)
    world.host.event(base.EventKind.CHANGED)
    world.tick(2)
    vcpu, _io = world.host.reservations[fakes.UUID]
    # The units are shared by three by now.
    assert vcpu == units.CpuCap(10_000, 50_000)
    assert world.guarantee()['vcpus'] == 3


class TestOneThatPaysForItsIo:
    """Its vCPUs use all that they may, of 60 CU."""

    @pytest.fixture(params=[1, 2], ids=['v1', 'v2'])
    def world(self, request, tmp_path):
        world = billing.World(
            tmp_path, hypervisor=fakes.FakeHypervisor(request.param),
            guarantees_speed=True)
        world.boot(specs=fakes.make_specs(guarantee='required',
                                          dd_billing='charge'))
        world.start()
        return world

    def serve(self, world, seconds, io_share):
        """:param io_share: of a pCPU, that its emulator uses"""
        for _ in range(seconds):
            vcpu, _io = world.host.reservations[fakes.UUID]
            world.use(vcpu_ns=round(2 * vcpu.share * 10**9),
                      emulator_ns=round(io_share * 10**9))

    def vcpu(self, world):
        return float(world.host.reservations[fakes.UUID][0].share)

    def reserved_pcpus(self, world):
        """:returns: of the host, and of the server, in their reports"""
        return (world.host_report()['guarantee']['reserved_pcpus'],
                world.report()['guarantee']['reserved_pcpus'])

    def test_pays_from_what_is_reserved(self, world):
        assert world.domain() == billing.WHOLE
        before = world.host_report()['writes']
        self.serve(world, 20, 0.15)
        assert self.vcpu(world) == pytest.approx(0.3 - 0.15 / 2, abs=0.002)
        # What serves its I/O keeps its part.
        assert world.host.reservations[fakes.UUID][1] == IO
        # No quota binds it, and each write of one gives time away.
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}
        assert world.host_report()['writes'] == before
        assert world.report()['bill']['debt_cu_s'] == pytest.approx(0, abs=0.1)

    def test_has_all_again_as_soon_as_it_ends(self, world):
        self.serve(world, 20, 0.15)
        self.serve(world, 6, 0)
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)
        assert world.report()['guarantee']['problem'] == ''

    def test_keeps_its_floor(self, world):
        self.serve(world, 30, 2.0)
        assert self.vcpu(world) == pytest.approx(0.15, abs=0.0001)
        assert world.report()['bill']['overdrawn']

    def test_what_it_lacks_is_not_sold(self, world):
        self.serve(world, 20, 0.3)
        assert self.vcpu(world) == pytest.approx(0.15, abs=0.002)
        assert self.reserved_pcpus(world) == pytest.approx((0.65, 0.65))
        world.tick(1)
        assert world.host_report()['guarantee'][
            'free_pcpus'] == pytest.approx(1.746 - 0.65)

    def test_what_it_lacks_is_not_reserved_for_another(self, world):
        """That boots at the same time as others, so that it does not fit."""
        self.serve(world, 20, 0.3)
        other = '22222222-2222-4333-8444-555555555555'
        world.boot(other, specs=fakes.make_specs('120', guarantee='required'))
        # The kernel would reserve it: 1.3 of 1.45 pCPUs. All are 1.8.
        world.host.free_pcpus = Fraction(145, 100)
        self.serve(world, 4, 0.3)
        assert other not in world.host.reservations
        assert 'pay for their I/O' in world.report(other)['guarantee'][
            'problem']
        self.serve(world, 6, 0)
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)

    def test_what_it_lacks_is_not_taken_by_one_that_grows(self, world):
        other = '22222222-2222-4333-8444-555555555555'
        world.boot(other, specs=fakes.make_specs(guarantee='required'))
        world.tick(2)
        before = world.host.reservations[other]
        self.serve(world, 20, 0.3)
        # The kernel would reserve it: 0.65 of 0.8 pCPUs more.
        world.change(uuid=other, extra_specs=fakes.make_specs(
            '120', guarantee='required'))
        self.serve(world, 4, 0.3)
        assert world.host.reservations[other] == before
        assert 'pay for their I/O' in world.report(other)['guarantee'][
            'problem']
        self.serve(world, 6, 0)
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)
        # It has less than it is to have, and says so.
        assert world.report(other)['guarantee']['since'] is None
        assert world.report()['guarantee']['problem'] == ''

    def test_one_that_pays_and_grows_has_back_what_it_had(self, world):
        """By a new calibration; there is no time for more."""
        world.host.free_pcpus = Fraction(1, 20)
        world.tick(1000)
        self.serve(world, 20, 0.15)
        document.store(fakes.make_profile(coefficient=0.8),
                       str(world.profile_path))
        world.tick(12)
        # 60 CU are 0.75 of such a pCPU.
        self.serve(world, 20, 0.3)
        owes = self.vcpu(world)
        assert owes < 0.28
        assert 'pay for their I/O' in world.report()['guarantee']['problem']
        self.serve(world, 20, 0.4)
        assert self.vcpu(world) < owes - 0.02
        self.serve(world, 20, 0)
        assert world.host.reservations[fakes.UUID][0] == VCPU
        # The kernel was asked for more, and has no more.
        assert 'not enough' in world.report()['guarantee']['problem']
        assert self.reserved_pcpus(world) == pytest.approx((0.65, 0.65))

    def test_two_that_grow_at_once_do_not_share_the_same_time(self, world):
        """Each would fit: 0.35 of 0.5. The kernel has 0.8."""
        other = '22222222-2222-4333-8444-555555555555'
        world.boot(other, specs=fakes.make_specs(guarantee='required'))
        world.tick(2)
        self.serve(world, 20, 0.5)
        assert self.vcpu(world) == pytest.approx(0.15, abs=0.002)
        document.store(fakes.make_profile(coefficient=0.667),
                       str(world.profile_path))
        self.serve(world, 14, 0.7)
        # With what is kept.
        assert self.reserved_pcpus(world)[0] <= 1.8
        self.serve(world, 60, 0)
        assert world.host.reservations[fakes.UUID][0].share >= VCPU.share
        assert world.host.reservations[other][0].share >= VCPU.share

    def test_at_the_end_it_has_what_it_had(self, world):
        """The kernel would refuse all of a growth."""
        world.host.free_pcpus = Fraction(1, 20)
        world.tick(1000)
        self.serve(world, 20, 0.3)
        document.store(fakes.make_profile(coefficient=0.8),
                       str(world.profile_path))
        self.serve(world, 20, 0.4)
        assert self.vcpu(world) < 0.28
        world.executor.use_threads(1)
        world.loop.stop()
        world.loop.run()
        assert world.host.reservations[fakes.UUID][0] == VCPU

    def test_one_that_grows_gets_what_nobody_needs(self, world):
        other = '22222222-2222-4333-8444-555555555555'
        world.boot(other, specs=fakes.make_specs(guarantee='required'))
        world.tick(2)
        self.serve(world, 20, 0.15)
        world.change(uuid=other, extra_specs=fakes.make_specs(
            '90', guarantee='required'))
        self.serve(world, 4, 0.15)
        assert world.host.reservations[other][0].share == Fraction(45, 100)
        assert world.report(other)['guarantee']['problem'] == ''

    def test_has_all_of_it_when_the_agent_ends(self, world):
        self.serve(world, 20, 0.15)
        world.executor.use_threads(1)
        world.loop.stop()
        world.loop.run()
        assert world.host.reservations[fakes.UUID][0] == VCPU

    def test_has_all_of_it_when_it_is_charged_no_more(self, world):
        self.serve(world, 20, 0.15)
        world.change(extra_specs=fakes.make_specs(guarantee='required'))
        world.settle()
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)

    def test_a_new_agent_goes_on(self, world, tmp_path):
        """After one that was killed."""
        self.serve(world, 20, 0.15)
        (tmp_path / 'again').mkdir()
        again = billing.World(tmp_path / 'again', hypervisor=world.host,
                              guarantees_speed=True)
        again.now_s = world.now_s
        again.start()
        assert again.host.reservations[fakes.UUID] == (VCPU, IO)
        self.serve(again, 10, 0.15)
        assert self.vcpu(again) == pytest.approx(0.3 - 0.15 / 2, abs=0.002)
        assert self.reserved_pcpus(again) == pytest.approx((0.65, 0.65))

    def test_another_cap_stays_another_cap(self, world):
        """A re-cap, here by a new calibration, is not undone by a charge."""
        self.serve(world, 20, 0.15)
        document.store(fakes.make_profile(coefficient=1.5),
                       str(world.profile_path))
        world.tick(12)
        self.serve(world, 20, 0.15)
        # 60 CU are 0.2 of each such pCPU, and the I/O is 22.5 CU.
        assert self.vcpu(world) == pytest.approx(0.2 - 0.15 / 2, abs=0.002)

    def test_has_all_of_it_while_that_is_lifted(self, world):
        self.serve(world, 20, 0.15)
        world.loop.lift(fakes.UUID, 10)
        world.settle()
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)

    def test_one_that_gets_a_reservation_late_has_no_quota_any_more(
            self, world):
        del world.host.reservations[fakes.UUID]
        free_pcpus, world.host.free_pcpus = world.host.free_pcpus, Fraction(0)
        world.busy(60)
        assert world.domain().quota_us < billing.WHOLE.quota_us
        world.host.free_pcpus = free_pcpus
        world.tick()
        assert world.host.reservations[fakes.UUID][0].share < VCPU.share
        assert world.domain() == billing.WHOLE
        # What it owes by now is paid over a while. The rest is at once.
        self.serve(world, 120, 0)
        self.serve(world, 4, 0.15)
        assert self.vcpu(world) == pytest.approx(0.3 - 0.15 / 2, abs=0.002)

    def test_one_without_a_reservation_has_a_quota(self, world):
        self.serve(world, 20, 0.15)
        del world.host.reservations[fakes.UUID]
        world.host.free_pcpus = Fraction(0)
        world.busy(60)
        assert world.domain().quota_us < billing.WHOLE.quota_us
        assert world.report()['guarantee']['since'] is None


class TestIoThatNeedsMore:
    """Busy threads of I/O, for servers whose vCPUs leave some of theirs."""

    def busy(self, world, io, vcpu, ticks=12):
        """Use so much of a pCPU."""
        for _ in range(ticks):
            for runs, share in ((world.host.io_ran, io),
                                (world.host.ran, vcpu)):
                before = runs.get(fakes.UUID, {0: base.ThreadRun(0, 0, 0)})
                runs[fakes.UUID] = {
                    number: run._replace(
                        run_ns=run.run_ns + int(share * 1e9))
                    for number, run in before.items()}
            world.tick()
        return world.host.reservations[fakes.UUID]

    def test_has_it_and_gives_it_back(self, world):
        world.run()
        world.tick()
        vcpu, io = self.busy(world, io=0.03, vcpu=0.05)
        assert float(io.share) == pytest.approx(0.09, rel=0.01)
        # The server as a whole has what it had.
        assert float(2 * (vcpu.share + io.share)) == pytest.approx(0.7,
                                                                   rel=0.01)
        # So has its host, though it has one such thread and not two.
        assert world.host_report()['guarantee'][
            'reserved_pcpus'] == pytest.approx(0.65, abs=0.001)
        assert self.busy(world, io=0.03, vcpu=float(vcpu.share)) == (VCPU, IO)

    def test_gives_it_back_when_the_agent_ends(self, world):
        """Nothing would do so as soon as its vCPUs need it."""
        world.run()
        world.tick()
        assert self.busy(world, io=0.03, vcpu=0.05) != (VCPU, IO)
        world.executor.use_threads(1)
        world.loop.stop()
        world.loop.run()
        assert world.host.reservations[fakes.UUID] == (VCPU, IO)

    def test_has_the_least_where_use_is_not_known(self, world, monkeypatch):
        world.run()
        world.tick()

        def fail(_uuids):
            raise base.HypervisorError('of this test')
        monkeypatch.setattr(world.host, 'vcpu_runs', fail)
        assert self.busy(world, io=0.03, vcpu=0.05) == (VCPU, IO)

    def test_is_not_looked_at_without_a_guarantee(self, world, monkeypatch):
        asked = []
        monkeypatch.setattr(world.host, 'io_runs', lambda uuids: (
            asked.append(uuids) or {}))
        world.boot(specs=fakes.make_specs(guarantee='off'))
        world.start()
        world.tick(12)
        assert asked == []


def test_a_floor_may_use_more(world):
    world.run(specs=fakes.make_specs(guarantee='required', cap='floor'))
    world.tick(11)
    assert world.limits() == {base.Limit(None, 100_000)}
    assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
    assert world.host.reclaims == {fakes.UUID: True}
    assert world.guarantee()['problem'] == ''
    assert world.host_report()['guarantee'][
        'reserved_pcpus'] == pytest.approx(0.65)


class TestRefusal:
    @pytest.fixture
    def world(self, world):
        world.host.free_pcpus = Fraction(1, 2)
        world.run()
        world.tick()
        return world

    def test_its_cap_holds(self, world):
        assert world.limits() == {agent.RIGHT}
        found = world.guarantee()
        assert (found['since'], found['vcpus']) == (None, 0)
        assert found['problem']
        assert world.alarms()
        assert world.host_report()['refused_reservations'] > 0

    def test_it_is_tried_at_each_tick_until_it_succeeds(self, world):
        before = world.host.reserves
        world.tick(3)
        assert world.host.reserves == before + 3
        world.host.free_pcpus = Fraction(1)
        world.tick()
        assert world.guarantee()['problem'] == ''
        assert world.guarantee()['since']
        assert world.alarms() == []


@pytest.mark.parametrize('error', [
    base.HypervisorError('not understood'), base.DomainGone('gone'),
    RuntimeError('a bug')])
def test_an_error_does_not_end_it(world, monkeypatch, error):
    real = world.host.reserve
    errors = [error]

    def reserve(*arguments, **options):
        if errors:
            raise errors.pop()
        return real(*arguments, **options)
    monkeypatch.setattr(world.host, 'reserve', reserve)
    world.run()
    world.tick(5)
    assert errors == []
    assert world.guarantee()['since']


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
        again = World(tmp_path / 'again', hypervisor=world.host)
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
        probe = world.loop._guarantees._probe
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
        return World(directory, guaranteed_share=share, **options)

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
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
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
        assert world.host.reservations[fakes.OTHER_UUID] == (VCPU, IO)
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
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}

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
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}

    def fail(self, *_arguments, **_options):
        raise base.HypervisorError('not understood')

    def test_servers_that_run_keep_what_they_have(self, tmp_path):
        world = World(tmp_path)
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
        world = World(tmp_path, least_frequency_scale=0.8)
        world.host.clock_counts = True
        return world

    def test_what_is_reserved_lasts_for_the_share(self, world):
        world.run()
        world.tick(11)
        assert world.host.reservations[fakes.UUID] == (
            units.CpuCap(12_000, 50_000), IO)
        # Of the time that the host has at that clock it takes as much.
        assert world.guarantee()['reserved_pcpus'] == pytest.approx(0.65)
        found = world.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        assert found['free_pcpus'] == pytest.approx(1.096)

    def test_that_of_one_that_may_use_more_is_not(self, world):
        world.run(specs=fakes.make_specs(guarantee='required', cap='floor'))
        world.tick(11)
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
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
        world = World(tmp_path)
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
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
        assert world.guarantee()['problem'] == ''
        assert world.state().guarantee_total_pcpus == pytest.approx(1.746)

    def test_turbo_that_is_switched_off(self, world):
        world.run()
        world.tick(11)
        world.host.clock_counts = False
        world.tick(610)
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
        assert world.host_report()['guarantee'][
            'free_pcpus'] == pytest.approx(1.096)


def test_one_that_needs_nearly_a_whole_pcpu(world):
    world.run(specs=fakes.make_specs('182', guarantee='preferred'))
    world.tick()
    assert world.host.reserves == 0
    assert world.guarantee()['problem']


def test_without_a_profile_nothing_is_known(tmp_path):
    world = World(tmp_path, profile=False)
    world.run()
    world.tick()
    assert world.guarantee()['problem']
    document.store(fakes.make_profile(), str(world.profile_path))
    world.tick(30)
    assert world.guarantee()['since']


class TestPush:
    @pytest.fixture
    def overrides(self, tmp_path):
        return store.OverrideStore(str(tmp_path / 'pushed.json'))

    @pytest.fixture
    def world(self, tmp_path, overrides):
        return World(tmp_path, store=overrides)

    @pytest.fixture
    def kept(self, world, overrides):
        """A server whose guarantee was taken away by a push."""
        world.run()
        world.tick(11)
        push(world, overrides, 'off')
        return world

    @pytest.mark.parametrize('guarantee', ['required', 'preferred'])
    def test_it_is_reserved_at_once(self, world, overrides, guarantee):
        world.run(guarantee='off')
        world.tick()
        assert world.host.reserves == 0
        push(world, overrides, guarantee)
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
        assert world.guarantee()['since']

    def test_what_is_taken_away_is_kept_until_it_stops(
            self, world, overrides, caplog):
        world.run()
        world.tick(11)
        following = push(world, overrides, 'off')
        assert following.keep_reservation == 1
        world.tick(30)
        assert world.host.reservations == {fakes.UUID: (VCPU, IO)}
        found = world.guarantee()
        assert (found['ends'], found['problem']) == (True, '')
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        assert world.host_report()['guarantee'][
            'reserved_pcpus'] == pytest.approx(0.65)
        assert world.host_report()['alarms'] == []
        assert caplog.text.count('until it stops') == 1
        # It was started again.
        world.boot(run_id=2)
        world.tick(3)
        assert world.host.reservations == {}
        assert world.guarantee() is None
        assert world.host_report()['guarantee']['reserved_pcpus'] == 0

    def test_it_follows_the_cap_as_long(self, kept, overrides):
        push(kept, overrides, 'off', quantum_class='io')
        assert kept.host.reservations[fakes.UUID][0] == SHORT
        kept.host.plug_vcpu(2)
        kept.host.event(base.EventKind.CHANGED)
        kept.tick()
        assert kept.host.reservations[fakes.UUID][0].share == Fraction(1, 5)

    def test_one_that_pays_for_its_io_has_less(self, tmp_path, overrides):
        world = billing.World(tmp_path, overrides, guarantees_speed=True)
        world.boot(specs=fakes.make_specs(guarantee='required',
                                          dd_billing='charge'))
        world.start()
        push(world, overrides, 'off', dd_billing='charge')
        world.busy(10)
        vcpu, _io = world.host.reservations[fakes.UUID]
        assert vcpu.share < VCPU.share
        assert world.domain() == billing.WHOLE

    def test_it_has_another_period_and_pays_on(self, tmp_path, overrides):
        world = billing.World(tmp_path, overrides, guarantees_speed=True)
        world.boot(specs=fakes.make_specs(guarantee='required',
                                          dd_billing='charge'))
        world.start()
        world.use(4, vcpu_ns=6 * 10**8, emulator_ns=10**8)
        before, _io = world.host.reservations[fakes.UUID]
        push(world, overrides, 'required', 'io', 'charge')
        after, _io = world.host.reservations[fakes.UUID]
        assert before.share < VCPU.share
        assert after.period_us < before.period_us
        assert float(after.share) == pytest.approx(float(before.share),
                                                   rel=0.001)

    def test_a_new_agent_finds_what_is_kept(self, kept, overrides, tmp_path):
        (tmp_path / 'again').mkdir()
        again = World(tmp_path / 'again', hypervisor=kept.host,
                      store=overrides)
        again.start()
        again.tick(11)
        assert again.guarantee()['ends']
        found = again.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        push(again, overrides, 'off', quantum_class='io')
        assert again.host.reservations[fakes.UUID][0] == SHORT

    def test_so_does_one_that_is_to_reserve_no_more(self, world, tmp_path):
        world.run()
        world.tick()
        (tmp_path / 'again').mkdir()
        again = World(tmp_path / 'again', hypervisor=world.host,
                      guarantees_speed=False)
        again.start()
        again.host.plug_vcpu(2)
        again.host.event(base.EventKind.CHANGED)
        again.tick(2)
        assert again.host.reservations[fakes.UUID][0] == units.CpuCap(
            10_000, 50_000)
        assert again.host_report()['guarantee'] is None
        assert again.state().guarantee_total_pcpus == 0.0

    def test_it_can_be_given_back(self, kept, overrides):
        push(kept, overrides, 'required')
        found = kept.guarantee()
        assert (found['ends'], found['problem']) == (False, '')
        assert found['since']

    def test_an_alarm_ends_with_what_was_not_to_be_had(self, world,
                                                       overrides):
        world.host.free_pcpus = Fraction(1, 2)
        world.run()
        world.tick(3)
        assert world.alarms()
        push(world, overrides, 'off')
        world.tick()
        assert world.guarantee() is None
        assert world.alarms() == []

    @pytest.mark.parametrize('guarantee, is_alarm', [
        ('required', True), ('preferred', False)])
    def test_a_host_that_guarantees_nothing(self, tmp_path, overrides,
                                            guarantee, is_alarm):
        world = World(tmp_path, store=overrides, guarantees_speed=False)
        world.run(guarantee='off')
        push(world, overrides, guarantee)
        world.tick()
        assert world.host.reservations == {}
        assert world.limits() == {agent.RIGHT}
        found = world.guarantee()
        assert found['since'] is None
        assert 'guarantees_speed' in found['problem']
        assert any(fakes.UUID in alarm and 'guarantees_speed' in alarm
                   for alarm in world.host_report()['alarms']) == is_alarm
