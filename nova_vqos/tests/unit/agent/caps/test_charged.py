# SPDX-License-Identifier: Apache-2.0
"""Caps and limits of servers that pay for their I/O, in both cgroups."""

import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind
UNLIMITED = base.Limit(None, 50_000)


@pytest.fixture(params=[1, 2], ids=['v1', 'v2'])
def world(request, tmp_path):
    """A server that has paid for a minute, and its host."""
    world = billing.World(tmp_path, hypervisor=fakes.FakeHypervisor(
        request.param))
    world.run()
    world.busy(60)
    assert world.domain().quota_us < 29_000
    world.host.written.clear()
    return world


def make_slow(world):
    """No pCPU of the host is fast enough any more."""
    document.store(fakes.make_profile(0.25), str(world.profile_path))


def vcpu_limit(world):
    limit, = world.limits()
    return limit


def share(limit):
    return limit.quota_us / limit.period_us


@pytest.mark.parametrize('dd_billing, limit, right', [
    ('charge', UNLIMITED, True), ('off', UNLIMITED, True),
    ('off', base.Limit(4_000, 50_000), False)])
def test_what_gives_another_speed_at_first(tmp_path, dd_billing, limit, right):
    """A weight does not, nor does a limit on I/O that is not yet set."""
    world = billing.World(tmp_path)
    world.boot(dd_billing=dd_billing, quota_us=15_000, period_us=50_000,
               shares=99)
    world.host.set_tune(domain=limit)
    world.start()
    assert world.reported('right_at_first_sight', 'writes') == (right, 1)


class TestLimit:
    def test_vcpus_have_it_only_where_a_child_may_have_no_more(self, world):
        if world.host.cgroup_version == 1:
            assert vcpu_limit(world) == world.domain()
        else:
            assert vcpu_limit(world) == agent.RIGHT

    @pytest.mark.parametrize('online', [1, 2, 4])
    def test_it_is_the_same_for_any_number_of_vcpus(self, world, online):
        before = share(world.domain())
        world.host.set_tune(vcpus=dict.fromkeys(range(online), UNLIMITED))
        world.host.event(KIND.CHANGED)
        world.settle()
        assert share(world.domain()) == pytest.approx(before, rel=1e-4)
        assert world.report()['right'] is True
        world.use(120, vcpu_ns=10**7)
        # More vCPUs share the units; fewer leave the others their speed.
        assert share(world.domain()) == pytest.approx(0.6, rel=1e-4)
        assert share(vcpu_limit(world)) == pytest.approx(
            min(0.3, 0.6 / online), rel=1e-4)

    def test_a_migration_suspends_it_and_its_failure_restores_it(self, world):
        before = world.domain()
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.settle()
        assert world.domain().quota_us is None
        assert vcpu_limit(world) == agent.RIGHT
        world.host.event(KIND.CHANGED, detail=base.JOB_COMPLETED)
        world.settle()
        world.settle()
        assert world.domain() == before

    @pytest.mark.parametrize('specs', [
        fakes.make_specs(), fakes.make_specs(dd_billing='account'),
        fakes.make_specs(dd_billing='charge', cap='floor')])
    def test_another_flavor_ends_it(self, world, specs):
        world.change(extra_specs=specs)
        assert world.domain().quota_us is None
        assert vcpu_limit(world).quota_us == (
            None if 'vqos:cap' in specs else 15_000)
        world.tick(20)
        assert world.report()['right'] is True
        world.change(extra_specs=fakes.make_specs(dd_billing='charge'))
        assert world.domain() == billing.WHOLE

    def test_more_units_change_it_at_once(self, world):
        before = share(world.domain())
        world.change(extra_specs=fakes.make_specs('120', dd_billing='charge'))
        assert share(world.domain()) == pytest.approx(2 * before, rel=1e-3)


class TestUnheldVhost:
    """A kernel whose limits do not hold workers of vhost."""

    @pytest.fixture(params=[1, 2], ids=['v1', 'v2'])
    def world(self, request, tmp_path):
        return self.make_world(tmp_path, request.param)

    def make_world(self, directory, version, backend='vhost'):
        world = billing.World(
            directory, hypervisor=fakes.FakeHypervisor(version),
            limits_vhost=False)
        world.boot()
        world.host.describe_as(fakes.UUID, interfaces={
            'tap0': usage.InterfaceKind('bridge', backend)})
        world.start()
        return world

    def use(self, world, seconds, vhost_ns):
        """Its two vCPUs use all that they may, and vhost something besides."""
        for _ in range(seconds):
            world.use(vcpu_ns=round(2 * share(vcpu_limit(world)) * 10**9),
                      vhost_ns=vhost_ns)

    def test_its_vcpus_alone_pay(self, world):
        assert world.domain().quota_us is None
        assert vcpu_limit(world) == agent.RIGHT
        self.use(world, 120, 2 * 10**8)
        assert world.domain().quota_us is None
        # 60 CU, of which vhost has 20.
        assert share(vcpu_limit(world)) == pytest.approx(0.2, abs=0.01)
        assert world.report()['right'] is True

    def test_they_keep_their_floor_whatever_vhost_uses(self, world):
        self.use(world, 120, 10**9)
        assert share(vcpu_limit(world)) == pytest.approx(
            0.5 * 0.3, rel=1e-3)
        assert world.report()['bill']['overdrawn'] is True

    def test_they_get_it_back(self, world):
        self.use(world, 60, 2 * 10**8)
        world.use(150, vcpu_ns=10**7)
        assert vcpu_limit(world) == agent.RIGHT

    def test_at_the_end_of_the_agent_too(self, world):
        self.use(world, 60, 2 * 10**8)
        assert vcpu_limit(world) != agent.RIGHT
        TestEnd.stop(world)
        assert vcpu_limit(world) == agent.RIGHT

    def test_another_flavor_ends_it(self, world):
        self.use(world, 60, 2 * 10**8)
        world.change(extra_specs=fakes.make_specs())
        assert vcpu_limit(world) == agent.RIGHT

    def test_a_server_without_vhost_is_limited_as_a_whole(self, tmp_path):
        world = self.make_world(tmp_path, 2, 'qemu')
        assert world.domain() == billing.WHOLE


class TestRelease:
    """It ends where the agent cannot work it out any more."""

    @pytest.fixture(params=[None, {}, {'vqos:dd_billing': 'account'}, 'slow'],
                    ids=['none', 'empty', 'account', 'slow'])
    def end(self, request):
        """:returns: ends its promise, or makes one that no host can meet"""
        def end(world):
            if request.param == 'slow':
                make_slow(world)
            else:
                world.change(extra_specs=request.param)
            world.tick(3)
        return end

    def test_it_has_what_it_had_without_a_limit(self, world, end):
        end(world)
        assert world.domain().quota_us is None
        assert world.limits() == {agent.RIGHT}
        assert len(world.host.written) == 1
        report = world.report()
        assert report['last_recap']['reason'] == 'released'
        assert report['right'] is (None if report['policy'] is None else False)
        assert bool(report['problem']) is (report['policy'] is not None)
        assert (report['wanted'] is None) is (report['policy'] is None)
        assert report['in_force']['vcpus']['0'] == {
            'quota_us': 15_000, 'period_us': 50_000}
        world.tick(30)
        assert len(world.host.written) == 1

    def test_an_error_is_over_when_it_ends(self, world):
        world.host.refuse[fakes.UUID] = base.HypervisorError('refused')
        world.change(extra_specs={})
        world.tick(3)
        assert world.report()['problem'] == 'refused'
        world.host.refuse.clear()
        world.tick(60)
        assert world.domain().quota_us is None
        assert world.report()['problem'] == ''

    def test_what_others_set_meanwhile_stays(self, world, end):
        """A weight is none of the limit, nor is a cap of one vCPU."""
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        end(world)
        vcpus = {0: base.Limit(2_000, 50_000), 1: base.Limit(3_000, 50_000)}
        world.host.set_tune(shares=99, vcpus=vcpus)
        world.host.refuse.clear()
        world.tick(60)
        in_force = world.host.tunes[fakes.UUID]
        assert in_force.shares == 99
        assert in_force.vcpus == vcpus
        assert in_force.domain.quota_us is None

    def test_a_weight_of_others_stays_beside_restored_caps(self, world, end):
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        end(world)
        world.host.set_tune(shares=99)
        world.host.refuse.clear()
        world.tick(60)
        in_force = world.host.tunes[fakes.UUID]
        assert in_force.shares == 99
        assert world.limits() == {agent.RIGHT}
        assert in_force.domain.quota_us is None

    @pytest.mark.parametrize('limit', [
        base.Limit(4_000, 50_000), base.Limit(4_000, 100_000)])
    def test_a_limit_of_others_on_one_without_units_stays(self, world, limit):
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        world.change(extra_specs={})
        world.host.set_tune(domain=limit)
        world.host.refuse.clear()
        world.tick(60)
        assert world.domain() == limit
        assert world.limits() == {agent.RIGHT}

    def test_a_limit_of_others_is_as_ours_while_it_is_to_pay(self, world):
        make_slow(world)
        world.tick(3)
        world.host.set_tune(domain=base.Limit(4_000, 50_000))
        world.tick(20)
        assert world.domain().quota_us is None

    def test_a_promise_that_can_be_kept_again(self, world, end):
        end(world)
        if world.report()['policy'] is None:
            world.change(extra_specs=fakes.make_specs(dd_billing='charge'))
        document.store(fakes.make_profile(), str(world.profile_path))
        world.tick(3)
        assert world.domain() == billing.WHOLE
        world.busy(20)
        assert world.domain().quota_us < 30_000
        assert world.reported('right', 'problem', 'tamperings') == (
            True, '', [])
        assert world.report()['bill']['limit_cu'] < 60


class TestEnd:
    """The agent ends, and so does what only an agent could end later."""

    @staticmethod
    def stop(world):
        world.executor.use_threads(1)
        world.loop.stop()
        world.loop.run()
        world.executor.shutdown(wait=True)

    @staticmethod
    def boot_other(world):
        """Another server that has paid, and is known later."""
        world.boot(fakes.OTHER_UUID, run_id=2)
        world.tick(3)
        world.use(30, fakes.OTHER_UUID, vcpu_ns=6 * 10**8,
                  emulator_ns=2 * 10**8)

    def test_it_gets_all_of_it_back(self, world):
        self.stop(world)
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}
        assert len(world.host.written) == 1

    def test_also_where_it_can_not_be_worked_out(self, world):
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        make_slow(world)
        world.tick()
        world.host.refuse.clear()
        self.stop(world)
        assert world.domain().quota_us is None
        assert world.limits() == {agent.RIGHT}

    def test_also_where_its_units_are_gone(self, world):
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        world.change(extra_specs={})
        world.host.refuse.clear()
        self.stop(world)
        assert world.domain().quota_us is None
        assert world.limits() == {agent.RIGHT}

    def test_a_server_that_does_not_pay_is_left_alone(self, world):
        self.boot_other(world)
        world.change(extra_specs=fakes.make_specs())
        world.host.set_vcpus(7_000)
        world.host.written.clear()
        self.stop(world)
        assert [uuid for uuid, _changes in world.host.written] == [
            fakes.OTHER_UUID]
        assert world.domain(fakes.OTHER_UUID) == billing.WHOLE

    @pytest.mark.parametrize('error', [
        base.HypervisorError('no such cgroup'), base.DomainGone('it ended')])
    @pytest.mark.parametrize('unread, other', [
        (fakes.UUID, fakes.OTHER_UUID), (fakes.OTHER_UUID, fakes.UUID)])
    def test_others_get_theirs(self, world, monkeypatch, error, unread, other):
        read = world.host.read

        def refuse(uuid):
            if uuid == unread:
                raise error
            return read(uuid)
        self.boot_other(world)
        assert world.domain(other).quota_us < billing.WHOLE.quota_us
        monkeypatch.setattr(world.host, 'read', refuse)
        self.stop(world)
        assert world.domain(other) == billing.WHOLE
