# SPDX-License-Identifier: Apache-2.0
"""The servers of a project share a ceiling, on a host that a test turns."""

import gc
import weakref

import pytest

from nova_vqos import policy
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes

A, B, C = (f'{number}1111111-2222-4333-8444-555555555555'
           for number in (1, 2, 3))
S_NS = 1_000_000_000
LONG_S = 90


class World(agent.World):
    """Servers of 60 CU on one vCPU, each of which wants some CU.

    :ivar wants_cu: by UUID
    """

    def __init__(self, directory, version=1, **options):
        super().__init__(directory, fakes.FakeHypervisor(version), **options)
        self.wants_cu = {}
        self._total_ns = {}
        self.throttled_ns = {}
        self.held_ns = {}

    def serve(self, uuid, ceiling_cu=60, project='p1', wants_cu=100,
              units='60', **options):
        """Boot a server, with the cap that Nova writes."""
        specs = fakes.make_specs(units)
        if ceiling_cu is not None:
            specs[policy.PROJECT_CEILING_KEY] = str(ceiling_cu)
        self.wants_cu[uuid] = wants_cu
        self.boot(uuid, specs=specs, vcpus=1, quota_us=30_000,
                  period_us=50_000, run_id=int(uuid[:8]) + 1, **options)
        self.host.describe_as(uuid, project_id=project)

    def left_cu(self, uuid):
        """What is in force for a server, of all its threads."""
        tune = self.host.tunes[uuid]
        return 100 * min(limit.quota_us / limit.period_us for limit in (
            tune.domain, *tune.vcpus.values()) if limit.quota_us is not None)

    def run_on(self, seconds=1):
        """Let time pass; servers use what they want and are left.

        :returns: the largest sum of what all were left at a time
        """
        largest_cu = 0.0
        for _ in range(seconds):
            now_s = self.now_s + 1.0
            for uuid in self.host.runs:
                left_cu = self.left_cu(uuid)
                used_cu = min(self.wants_cu[uuid], left_cu)
                self._total_ns[uuid] = (self._total_ns.get(uuid, 0)
                                        + round(used_cu / 100 * S_NS))
                if self.wants_cu[uuid] > left_cu:
                    self.throttle(uuid, S_NS, by_domain=bool(
                        self.host.tunes[uuid].domain.quota_us))
                self.host.vcpu_used[uuid] = usage.VcpuTime(
                    'run', now_s, self._total_ns[uuid],
                    self.throttled_ns.get(uuid, 0), 1,
                    total_ns=self._total_ns[uuid],
                    held_ns=self.held_ns.get(uuid, 0))
            self.tick()
            largest_cu = max(largest_cu, sum(map(self.left_cu,
                                                 self.host.runs)))
        return largest_cu

    def throttle(self, uuid, time_ns, *, by_domain):
        """A limit holds a server back: the domain's, or that of its vCPU."""
        for counters in [self.throttled_ns, *[self.held_ns] * by_domain]:
            counters[uuid] = counters.get(uuid, 0) + time_ns

    def left(self, *uuids):
        return [round(self.left_cu(uuid), 1) for uuid in uuids]


@pytest.fixture(params=[1, 2], ids=['v1', 'v2'])
def world(request, tmp_path):
    return World(tmp_path, request.param)


@pytest.fixture
def pair(world):
    """Two that want all, and share what one may have."""
    world.serve(A)
    world.serve(B)
    world.start()
    world.run_on(3)
    return world


class TestSum:
    def test_busy_servers_have_their_parts_by_units(self, world):
        world.serve(A, units='60')
        world.serve(B, units='30')
        world.start()
        world.run_on(3)
        assert world.left(A, B) == [40.0, 20.0]

    @pytest.mark.parametrize('others', [
        {'project': 'p2'}, {'project': ''}, {'ceiling_cu': None},
        {'ceiling_cu': 120}], ids=['project', 'unknown', 'none', 'enough'])
    def test_it_is_of_one_project_and_of_flavors_that_have_it(self, world,
                                                              others):
        world.serve(A, **{'ceiling_cu': 120, **others})
        world.serve(B, ceiling_cu=120)
        world.start()
        world.run_on(LONG_S)
        assert world.left(A, B) == [60.0, 60.0]
        assert world.host.tunes[B].domain.quota_us is None
        assert any('name no project' in alarm for alarm in
                   world.host_report()['alarms']) is (
                       others.get('project') == '')

    def test_one_whose_project_is_not_known_any_more(self, pair):
        pair.change(B, project_id='')
        pair.run_on(10)
        assert pair.left(A, B) == [60.0, 60.0]

    def test_the_smallest_of_several_counts(self, world):
        world.serve(A, ceiling_cu=60)
        world.serve(B, ceiling_cu=100)
        world.start()
        world.run_on(3)
        assert world.left(A, B) == [30.0, 30.0]

    def test_it_is_never_exceeded_whatever_changes(self, pair):
        for wants in (100, 0), (0, 100), (100, 100), (5, 20), (100, 30):
            pair.wants_cu.update(zip((A, B), wants, strict=True))
            assert pair.run_on(LONG_S) <= 60.01

    def test_one_that_comes_takes_its_part_at_once(self, pair):
        pair.serve(C)
        pair.run_on(2)
        assert pair.left(A, B, C) == [20.0, 20.0, 20.0]

    def test_one_that_goes_leaves_its_part(self, pair):
        pair.host.stop(B)
        pair.run_on(5)
        assert pair.left(A) == [60.0]
        assert pair.host.tunes[A].domain.quota_us is None

    @pytest.mark.parametrize('specs', [None, fakes.make_specs()],
                             ids=['gone', 'without'])
    def test_a_description_just_before_a_tick(self, world, specs):
        world.serve(A, ceiling_cu=100)
        world.start()
        world.host.describe_as(A, extra_specs=specs)
        world.host.event(base.EventKind.CHANGED, A)
        world.loop.step()
        world.executor.work()
        world.tick()
        assert world.host_report()['errors'] == 0
        assert world.report(A)['ceiling'] is None

    def test_another_flavor_ends_it(self, pair):
        pair.change(B, extra_specs=fakes.make_specs())
        pair.run_on(5)
        assert pair.left(A, B) == [60.0, 60.0]
        assert pair.report(B)['ceiling'] is None


class TestLending:
    def test_one_that_is_idle_lends(self, pair):
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        # All but a fifth of its part.
        assert pair.left(A, B) == [54.0, 6.0]

    def test_one_that_is_idle_from_the_start_lends_soon(self, world):
        world.serve(A)
        world.serve(B, wants_cu=0)
        world.start()
        world.run_on(8)
        assert world.left(A, B) == [54.0, 6.0]

    def test_it_has_its_part_back_soon(self, pair):
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        pair.wants_cu[B] = 100
        pair.run_on(5)
        assert pair.left(A, B) == [30.0, 30.0]

    def test_one_that_is_throttled_in_bursts_has_its_part_back(self, pair):
        """It uses little in the mean, and waits for each bit."""
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        pair.throttle(B, S_NS // 2, by_domain=True)
        pair.run_on(5)
        assert pair.left(A, B) == [30.0, 30.0]

    def test_where_nothing_changes_nothing_is_written(self, pair):
        pair.run_on(LONG_S)
        pair.host.written.clear()
        pair.run_on(3 * LONG_S)
        assert not pair.host.written

    def test_small_changes_of_use_are_none(self, pair):
        pair.wants_cu[B] = 10
        pair.run_on(LONG_S)
        pair.host.written.clear()
        for wants_cu in (10, 11, 10, 9) * 20:
            pair.wants_cu[B] = wants_cu
            pair.run_on()
        assert not pair.host.written

    def test_it_is_written_rarely_whatever_servers_do(self, world):
        """One is busy, and of 40 others one wakes each second."""
        others = [f'{number:08}-2222-4333-8444-555555555555'
                  for number in range(100, 140)]
        for uuid in A, *others:
            world.serve(uuid, units='60', ceiling_cu=600, wants_cu=0)
        world.wants_cu[A] = 100
        world.start()
        world.run_on(LONG_S)
        world.host.written.clear()
        for number in range(200):
            world.wants_cu.update(dict.fromkeys(others, 0))
            world.wants_cu[others[number % 40]] = 100
            world.run_on()
        # One division in 5 s, with a write of less and one of more at most.
        for uuid in others:
            assert sum(one == uuid for one, _ in world.host.written) <= (
                2 * (200 / 5 + 3))

    def test_one_that_was_limited_by_little_is_limited_no_more(self, world):
        for uuid in A, B:
            world.serve(uuid, ceiling_cu=118, wants_cu=1)
        world.start()
        world.run_on(LONG_S)
        assert world.left(A, B) == [59.0, 59.0]
        world.host.stop(B)
        world.run_on(3)
        assert world.host.tunes[A].domain.quota_us is None

    def test_one_without_a_reading_may_want_all(self, pair):
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        pair.host.vcpu_times = lambda _run_ids: {}
        pair.run_on(LONG_S)
        assert pair.left(A, B) == [30.0, 30.0]


class TestOthersBesides:
    def test_more_is_given_only_once_less_is_in_force(self, pair):
        pair.wants_cu[B] = 0
        pair.host.refuse[B] = base.DomainBusy('a migration')
        pair.run_on(LONG_S)
        assert pair.left(A, B) == [30.0, 30.0]
        del pair.host.refuse[B]
        pair.run_on(5)
        assert pair.left(A, B) == [54.0, 6.0]

    def test_a_migration_suspends_it_for_one_and_others_make_room(self, pair):
        pair.ask(lambda: pair.loop.lift(B, 60.0))
        pair.settle()
        pair.run_on(6)
        assert pair.left_cu(B) == 60.0
        assert pair.left_cu(A) < 1.0
        pair.host.event(base.EventKind.CHANGED, B,
                        detail=base.JOB_COMPLETED)
        pair.settle()
        pair.run_on(5)
        assert pair.left(A, B) == [30.0, 30.0]
        assert pair.report(B)['last_recap']['reason'] in {'ceiling', 'lifted'}

    def test_one_that_migrates_and_uses_little_starves_no_other(self, pair):
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        pair.ask(lambda: pair.loop.lift(B, 10 * LONG_S))
        for wants_cu, left_cu in (8, 50.0), (30, 22.5), (100, 0.8), (0, 54.0):
            pair.wants_cu[B] = wants_cu
            pair.run_on(2 * LONG_S)
            assert pair.left(A, B) == [left_cu, 60.0]
        pair.host.event(base.EventKind.CHANGED, B, detail=base.JOB_COMPLETED)
        pair.settle()
        pair.settle()
        assert pair.left(A, B) == [54.0, 6.0]

    def test_one_that_arrives_takes_its_part_when_it_runs(self, pair):
        pair.serve(C, incoming=True)
        pair.host.event(base.EventKind.STARTED, C, detail='migrated')
        pair.run_on(3)
        assert pair.left(A, B) == [30.0, 30.0]
        pair.host.describe_as(C, incoming=False)
        pair.host.event(base.EventKind.RESUMED, C, at_s=pair.now_s)
        pair.run_on(3)
        assert pair.left(A, B, C) == [20.0, 20.0, 20.0]

    def test_one_that_cannot_be_held_is_waited_for_by_none(self, pair):
        pair.wants_cu[B] = 0
        pair.run_on(LONG_S)
        pair.serve(C, units='150', ceiling_cu=200)
        pair.run_on(5)
        assert 'faster than the pCPU' in pair.report(C)['problem']
        assert pair.report(C)['ceiling'] is None
        assert any('their caps are left as they are' in alarm
                   for alarm in pair.host_report()['alarms'])
        pair.wants_cu[B] = 100
        pair.run_on(10)
        assert pair.left(A, B) == [30.0, 30.0]
        # Alone it is looked at again all the same.
        for uuid in A, B:
            pair.host.stop(uuid)
        pair.run_on(3)
        document.store(fakes.make_profile(2.0), str(pair.profile_path))
        pair.run_on(5)
        assert pair.report(C)['ceiling']['servers'] == 1

    def test_another_writer_is_undone(self, pair):
        pair.host.set_tune(A, domain=base.Limit(None, 50_000))
        pair.run_on(10)
        assert pair.left(A, B) == [30.0, 30.0]
        assert pair.report(A)['tampering_count'] == 1

    def test_the_end_of_the_agent_gives_all_back(self, pair):
        pair.executor.use_threads(1)
        pair.loop.stop()
        pair.loop.run()
        for uuid in A, B:
            assert pair.left_cu(uuid) == 60.0
            assert pair.host.tunes[uuid].domain.quota_us is None

    def test_the_end_of_the_agent_gives_back_what_was_not_written(self, pair):
        """The ceiling limits it no more, and its quota is not yet raised."""
        pair.host.refuse[A] = base.DomainBusy('a snapshot')
        pair.host.stop(B)
        pair.run_on(3)
        assert pair.left(A) == [30.0]
        del pair.host.refuse[A]
        pair.executor.use_threads(1)
        pair.loop.stop()
        pair.loop.run()
        assert pair.left(A) == [60.0]

    def test_a_new_agent_goes_on(self, pair, tmp_path):
        again = pair.restarted(tmp_path)
        again.wants_cu = pair.wants_cu
        again.start()
        again.run_on(3)
        assert again.left(A, B) == [30.0, 30.0]

    def test_another_profile_gives_the_same_speed(self, pair):
        document.store(fakes.make_profile(2.0), str(pair.profile_path))
        pair.run_on(3)
        # Half of the time each.
        assert pair.left(A, B) == [15.0, 15.0]

    def test_what_is_reserved_is_refused(self, world):
        world.serve(A)
        world.host.describe_as(A, extra_specs={
            **world.host.domains[A].extra_specs, 'vqos:guarantee': 'required'})
        world.start()
        assert 'off in a flavor' in world.report(A)['policy_error']


class TestCharged:
    """Servers of 60 CU that pay for their I/O, and share 100 CU."""

    @pytest.fixture(params=[1, 2], ids=['v1', 'v2'])
    def world(self, request, tmp_path):
        world = billing.World(tmp_path, hypervisor=fakes.FakeHypervisor(
            request.param))
        for uuid in A, B:
            world.boot(uuid, run_id=int(uuid[0]), specs=fakes.make_specs(
                dd_billing='charge', project_ceiling_cu='100'))
            world.host.describe_as(uuid, project_id='p1')
        world.start()
        return world

    def left_cu(self, world, uuid):
        limit = world.domain(uuid)
        return 100 * limit.quota_us / limit.period_us

    def test_the_smaller_limit_holds_and_the_rest_is_lent(self, world):
        assert self.left_cu(world, A) == self.left_cu(world, B) == 50.0
        world.use(200, uuid=A, vcpu_ns=6 * 10**8, emulator_ns=3 * 10**8)
        limit_cu = world.report(A)['bill']['limit_cu']
        assert limit_cu < 42
        assert self.left_cu(world, A) == pytest.approx(limit_cu, rel=0.05)
        assert self.left_cu(world, B) > 56

    def test_a_ceiling_leaves_no_debt_to_a_new_agent(self, world, tmp_path):
        """It takes the limit in force for one, and finds that it is none."""
        world.host.set_tune(A, domain=base.Limit(15_000, 50_000))
        again = world.restarted(tmp_path)
        again.start()
        for _ in range(90):
            for uuid in A, B:
                again.use(uuid=uuid, vcpu_ns=10**8)
        assert self.left_cu(again, A) == self.left_cu(again, B) == 50.0


class TestReports:
    def test_of_a_server_and_of_the_host(self, pair):
        pair.run_on(5)
        assert pair.report(A)['ceiling'] == {
            'ceiling_cu': 60, 'left_cu': 30.0, 'servers': 2}
        assert pair.host_report()['project_ceilings'] == [{
            'project_id': 'p1', 'ceiling_cu': 60, 'servers': 2,
            'units_cu': 120, 'used_cu': pytest.approx(60.0)}]

    def test_keeps_nothing_of_a_server_that_started_again(self, pair):
        gone = weakref.ref(pair.loop._servers[A])
        pair.host.runs[A] += 100
        pair.host.event(base.EventKind.STARTED, A, detail='booted')
        # Before the next tick.
        assert pair.host_report()['project_ceilings'][0]['used_cu'] is None
        pair.run_on(3)
        gc.collect()
        assert gone() is None

    def test_too_many_for_what_limits_can_leave(self, world):
        """100 of them, at 0.8 CU of a pCPU each."""
        for number in range(100):
            world.serve(f'{number:08}-2222-4333-8444-555555555555',
                        units='1', ceiling_cu=1)
        world.start()
        world.run_on(3)
        found = [alarm for alarm in world.host_report()['alarms']
                 if 'the 100 servers of project p1 exceed their ceiling of '
                 '1 CU' in alarm]
        assert len(found) == 1


def test_unheld_workers_of_vhost(tmp_path):
    """Each vCPU is limited by itself: what throttles it counts."""
    world = World(tmp_path, limits_vhost=False)
    for uuid in A, B:
        world.serve(uuid)
        world.host.describe_as(uuid, interfaces={
            'tap0': usage.InterfaceKind('bridge', 'vhost')})
    world.start()
    world.run_on(3)
    assert world.left(A, B) == [30.0, 30.0]
    assert world.host.tunes[A].domain.quota_us is None
    world.wants_cu[B] = 0
    world.run_on(LONG_S)
    assert world.left(A, B) == [54.0, 6.0]
    world.throttle(B, S_NS // 2, by_domain=False)
    world.run_on(5)
    assert world.left(A, B) == [30.0, 30.0]
