# SPDX-License-Identifier: Apache-2.0
"""The agent reserves CPU time for servers, and reports what it did."""

from fractions import Fraction

import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import units
from nova_vqos.agent.overrides import store
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.agent.guarantee import worlds


def push(world, overrides, guarantee, quantum_class='default',
         dd_billing='off'):
    """:returns: how the servers of a world follow"""
    overrides.merge(policy_push.of_overrides({'f1': policy_override.Override(
        policy_override.generation_of(overrides.overrides) + 1, 'small', 2, 60,
        quantum_class, dd_billing, guarantee)}))
    _changed, following = world.ask(world.loop.follow_pushed)
    world.settle()
    return following


def test_what_is_promised_is_reserved(world):
    world.run()
    world.tick()
    assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
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
    world.host.reservations[fakes.UUID] = worlds.VCPU, worlds.IO
    world.start()
    world.tick(3)
    assert world.host.reserves == 0
    assert world.guarantee() is None
    assert world.host_report()['alarms'] == []


def test_nothing_is_reserved_where_that_is_off(tmp_path):
    world = worlds.World(tmp_path, guarantees_speed=False)
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
    assert world.host.reservations == {fakes.UUID: worlds.RESERVED}


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
        assert world.host.reservations[fakes.UUID][1] == worlds.IO
        # No quota binds it, and each write of one gives time away.
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}
        assert world.host_report()['writes'] == before
        assert world.report()['bill']['debt_cu_s'] == pytest.approx(0, abs=0.1)

    def test_has_all_again_as_soon_as_it_ends(self, world):
        self.serve(world, 20, 0.15)
        self.serve(world, 6, 0)
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED
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
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED

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
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED
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
        assert world.host.reservations[fakes.UUID][0] == worlds.VCPU
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
        for uuid in fakes.UUID, other:
            vcpu, _io = world.host.reservations[uuid]
            assert vcpu.share >= worlds.VCPU.share

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
        assert world.host.reservations[fakes.UUID][0] == worlds.VCPU

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
        assert world.host.reservations[fakes.UUID][0] == worlds.VCPU

    def test_has_all_of_it_when_it_is_charged_no_more(self, world):
        self.serve(world, 20, 0.15)
        world.change(extra_specs=fakes.make_specs(guarantee='required'))
        world.settle()
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED

    def test_a_new_agent_goes_on(self, world, tmp_path):
        """After one that was killed."""
        self.serve(world, 20, 0.15)
        (tmp_path / 'again').mkdir()
        again = billing.World(tmp_path / 'again', hypervisor=world.host,
                              guarantees_speed=True)
        again.now_s = world.now_s
        again.start()
        assert again.host.reservations[fakes.UUID] == worlds.RESERVED
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
        world.ask(lambda: world.loop.lift(fakes.UUID, 10))
        world.settle()
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED

    def test_one_that_gets_a_reservation_late_has_no_quota_any_more(
            self, world):
        del world.host.reservations[fakes.UUID]
        free_pcpus, world.host.free_pcpus = world.host.free_pcpus, Fraction(0)
        world.busy(60)
        assert world.domain().quota_us < billing.WHOLE.quota_us
        world.host.free_pcpus = free_pcpus
        world.tick()
        assert world.host.reservations[fakes.UUID][0].share < worlds.VCPU.share
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
        again = self.busy(world, io=0.03, vcpu=float(vcpu.share))
        assert again == worlds.RESERVED

    def test_gives_it_back_when_the_agent_ends(self, world):
        """Nothing would do so as soon as its vCPUs need it."""
        world.run()
        world.tick()
        assert self.busy(world, io=0.03, vcpu=0.05) != worlds.RESERVED
        world.executor.use_threads(1)
        world.loop.stop()
        world.loop.run()
        assert world.host.reservations[fakes.UUID] == worlds.RESERVED

    def test_has_the_least_where_use_is_not_known(self, world, monkeypatch):
        world.run()
        world.tick()
        monkeypatch.setattr(world.host, 'vcpu_runs', lambda _uuids: {})
        assert self.busy(world, io=0.03, vcpu=0.05) == worlds.RESERVED

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
    assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
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


@pytest.mark.causes_faults
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


def test_one_that_needs_nearly_a_whole_pcpu(world):
    world.run(specs=fakes.make_specs('182', guarantee='preferred'))
    world.tick()
    assert world.host.reserves == 0
    assert world.guarantee()['problem']


def test_without_a_profile_nothing_is_known(tmp_path):
    world = worlds.World(tmp_path, profile=False)
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
        return worlds.World(tmp_path, store=overrides)

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
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
        assert world.guarantee()['since']

    def test_what_is_taken_away_is_kept_until_it_stops(
            self, world, overrides, caplog):
        world.run()
        world.tick(11)
        following = push(world, overrides, 'off')
        assert following.keep_reservation == 1
        world.tick(30)
        assert world.host.reservations == {fakes.UUID: worlds.RESERVED}
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
        assert kept.host.reservations[fakes.UUID][0] == worlds.SHORT
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
        assert vcpu.share < worlds.VCPU.share
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
        assert before.share < worlds.VCPU.share
        assert after.period_us < before.period_us
        assert float(after.share) == pytest.approx(float(before.share),
                                                   rel=0.001)

    def test_a_new_agent_finds_what_is_kept(self, kept, overrides, tmp_path):
        (tmp_path / 'again').mkdir()
        again = worlds.World(tmp_path / 'again', hypervisor=kept.host,
                      store=overrides)
        again.start()
        again.tick(11)
        assert again.guarantee()['ends']
        found = again.host_report()['guarantee']
        assert found['total_pcpus'] == pytest.approx(1.746)
        assert found['reserved_pcpus'] == pytest.approx(0.65)
        push(again, overrides, 'off', quantum_class='io')
        assert again.host.reservations[fakes.UUID][0] == worlds.SHORT

    def test_so_does_one_that_is_to_reserve_no_more(self, world, tmp_path):
        world.run()
        world.tick()
        (tmp_path / 'again').mkdir()
        again = worlds.World(tmp_path / 'again', hypervisor=world.host,
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
        world = worlds.World(tmp_path, store=overrides, guarantees_speed=False)
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
