# SPDX-License-Identifier: Apache-2.0
"""Servers burst with what they saved, on a host that a test turns."""

import dataclasses
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


class Mixin:
    """Servers on one vCPU, each of which wants some CU.

    The host has two pCPUs of 100 CU.
    """

    def serve(self, uuid, units='30', burst_cu='90', seconds='100',
              wants_cu=0, **specs):
        """Boot a server, with the cap that Nova writes."""
        found = fakes.make_specs(units)
        if burst_cu is not None:
            found |= {policy.BURST_KEY: burst_cu,
                      policy.BURST_SECONDS_KEY: seconds}
        self.wants_cu[uuid] = wants_cu
        self.boot(uuid, specs={**found, **specs}, vcpus=1,
                  quota_us=int(units) * 500, period_us=50_000,
                  run_id=int(uuid[:8]) + 1)

    def cap_cu(self, uuid):
        """What is in force for a server."""
        (limit,) = set(self.host.tunes[uuid].vcpus.values())
        return 100 * limit.quota_us / limit.period_us

    def run_on(self, seconds=1):
        """Let time pass; servers use what they want and may."""
        for _ in range(seconds):
            for uuid in self.host.runs:
                self._use(uuid)
            self.tick()

    def _use(self, uuid):
        used_ns = round(min(self.wants_cu[uuid], self.cap_cu(uuid)) / 100
                        * S_NS)
        total_ns = self.total_ns[uuid] = self.total_ns.get(uuid, 0) + used_ns
        self.host.vcpu_used[uuid] = usage.VcpuTime(
            'run', self.now_s + 1.0, total_ns, 0, 1, total_ns=total_ns)
        if uuid in self.host.used:
            reading = self.host.used[uuid]
            self.host.used[uuid] = dataclasses.replace(
                reading, read_at_s=self.now_s + 1.0,
                vcpu_ns=reading.vcpu_ns + used_ns)

    def saved_cu_s(self, uuid=A):
        return self.report(uuid)['bill']['saved_cu_s']


class World(Mixin, billing.World):
    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        self.wants_cu, self.total_ns = {}, {}


class Unbilled(Mixin, agent.World):
    def __init__(self, directory):
        super().__init__(directory)
        self.wants_cu, self.total_ns = {}, {}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def rested(world):
    """One that saved for a minute."""
    world.serve(A)
    world.start()
    world.run_on(62)
    return world


class TestBalance:
    def test_one_that_uses_nothing_saves_its_units(self, rested):
        assert rested.saved_cu_s() == pytest.approx(30 * 60, abs=90)
        burst = rested.report(A)['burst']
        assert (burst['burst_cu'], burst['left_cu'],
                burst['most_saved_cu_s'], burst['problem']) == (
                    90, 90.0, 6000.0, '')
        assert burst['saved_cu_s'] == rested.saved_cu_s()

    def test_one_that_is_new_has_saved_nothing(self, world):
        world.serve(A, wants_cu=100)
        world.start()
        world.run_on(60)
        assert world.cap_cu(A) == 30.0
        assert world.saved_cu_s() == pytest.approx(0, abs=90)

    def test_it_bursts_until_all_is_spent(self, rested):
        """1800 CU seconds at 60 CU more than its units: 30 s."""
        rested.wants_cu[A] = 100
        caps = []
        for _ in range(60):
            rested.run_on()
            caps.append(rested.cap_cu(A))
        assert set(caps) == {90.0, 30.0}
        assert caps == sorted(caps, reverse=True)
        assert caps.count(90.0) == pytest.approx(31, abs=4)
        assert -60 * 4 <= rested.saved_cu_s() <= 0

    def test_it_saves_a_tenth_before_it_bursts_again(self, rested):
        rested.wants_cu[A] = 100
        rested.run_on(60)
        rested.wants_cu[A] = 0
        rested.run_on(12)
        assert 0 < rested.saved_cu_s() < 600
        assert rested.cap_cu(A) == 30.0
        rested.run_on(32)
        assert rested.cap_cu(A) == 90.0

    def test_it_is_bounded_by_the_flavor(self, world):
        world.serve(A, seconds='10')
        world.start()
        world.run_on(90)
        assert world.saved_cu_s() == 600

    def test_no_vcpu_has_more_than_a_pcpu(self, world):
        world.serve(A, burst_cu='250', seconds='10')
        world.start()
        world.run_on(62)
        assert world.cap_cu(A) == 100.0

    def test_one_whose_units_are_whole_pcpus(self, world):
        world.serve(A, units='100', seconds='10', burst_cu='250')
        world.start()
        world.run_on(62)
        assert world.cap_cu(A) == 100.0
        # It is not the room that it lacks.
        assert world.host_report()['burst_room_cu'] == 200
        assert 'whole pCPU' in world.report(A)['burst']['problem']

    @pytest.mark.parametrize('dd_billing', ['off', 'account', None])
    def test_whatever_is_billed(self, world, dd_billing):
        world.serve(A, **({} if dd_billing is None
                          else {policy.DD_BILLING_KEY: dd_billing}))
        world.start()
        world.run_on(62)
        assert world.cap_cu(A) == 90.0
        # Its balance follows it to another host.
        (claim, *_) = world.outbox.claims
        assert claim.most_saved_cu_us == 6000 * 10**6

    def test_its_weight_and_its_next_start_stay(self, rested):
        assert rested.host.tunes[A].shares == round(30 * 1024 / 100)
        assert rested.host.persisted == [
            (A, (15_000, 50_000), rested.host.tunes[A].shares)]

    def test_another_flavor_ends_it(self, rested):
        rested.change(A, extra_specs=fakes.make_specs('30'))
        rested.run_on(3)
        assert rested.cap_cu(A) == 30.0
        assert rested.report(A)['burst'] is None

    @pytest.mark.parametrize('units, burst_cu', [('30', 60), ('20', 80)])
    def test_another_flavor_with_another_burst(self, rested, units, burst_cu):
        """More than it has by as much, or by less."""
        rested.change(A, extra_specs={
            **fakes.make_specs(units), policy.BURST_KEY: str(burst_cu),
            policy.BURST_SECONDS_KEY: '100'})
        rested.run_on(3)
        assert rested.cap_cu(A) == burst_cu


class TestRoom:
    def test_a_full_host_has_none(self, rested):
        for uuid in B, C:
            rested.serve(uuid, units='85', burst_cu=None, wants_cu=100)
        rested.wants_cu[A] = 100
        rested.run_on(5)
        assert [rested.cap_cu(uuid) for uuid in (A, B, C)] == [30, 85, 85]
        assert rested.report(A)['burst']['problem'] == 'the host has no room'
        assert rested.host_report()['burst_room_cu'] == 0
        # Nothing is spent meanwhile, and it goes on as soon as there is room.
        before = rested.saved_cu_s()
        rested.run_on(10)
        assert rested.saved_cu_s() == pytest.approx(before, abs=1)
        rested.wants_cu[B] = 0
        rested.run_on(12)
        assert rested.cap_cu(A) > 80

    def test_what_is_left_goes_to_those_that_use_theirs(self, rested):
        rested.serve(B)
        rested.run_on(62)
        assert [rested.cap_cu(A), rested.cap_cu(B)] == [90, 90]
        rested.serve(C, units='70', burst_cu=None, wants_cu=100)
        rested.wants_cu[A] = 100
        rested.run_on(5)
        # Of 200 - 70 - 30 CU A has 60: B may have 40, in steps of 7.5.
        assert [rested.cap_cu(A), rested.cap_cu(B)] == [90, 67.5]

    def test_what_runs_beside_servers_is_no_room(self, rested):
        """The host's own work, or the kernel's: 150 CU in each second."""
        for second in range(130):
            rested.host.host_used = usage.HostUsage(
                rested.now_s, round(1.5 * second * S_NS), 0, 0)
            rested.run_on()
        assert rested.host_report()['burst_room_cu'] == 50
        # In steps of 7.5 CU.
        assert rested.cap_cu(A) == 30 + 45

    def test_few_writes(self, rested):
        rested.wants_cu[A] = 20
        before = rested.report(A)['writes']
        rested.run_on(120)
        assert rested.report(A)['writes'] == before

    def test_it_is_written_seldom_beside_one_that_comes_and_goes(self,
                                                                 rested):
        rested.serve(B, units='90', burst_cu=None)
        rested.serve(C, units='60', burst_cu=None, wants_cu=60)
        rested.wants_cu[A] = 30
        before = rested.report(A)['writes']
        for second in range(120):
            rested.wants_cu[B] = 90 * (second // 4 % 2)
            rested.run_on()
        assert rested.report(A)['writes'] - before <= 2 * (3 + 12) + 1

    def test_what_cannot_be_read_is_no_room(self, rested):
        rested.serve(B, units='100', burst_cu=None)
        rested.serve(C, units='70', burst_cu=None)
        rested.run_on(10)
        assert rested.cap_cu(A) == 90
        rested.host.vcpu_used.clear()
        rested.tick(5)
        assert rested.cap_cu(A) == 30

    def test_readings_that_fail_are_no_room(self, rested, monkeypatch):
        rested.serve(B, units='100', burst_cu=None)
        rested.serve(C, units='70', burst_cu=None)
        rested.run_on(10)
        assert rested.cap_cu(A) == 90

        def fail(_run_ids):
            raise base.HypervisorError('the daemon hangs')
        monkeypatch.setattr(rested.host, 'vcpu_times', fail)
        rested.run_on(9)
        # One that fails now and then changes nothing.
        assert rested.cap_cu(A) == 90
        rested.run_on(4)
        assert rested.cap_cu(A) == 30


class TestAgent:
    def test_no_burst_outlives_it(self, rested):
        rested.executor.use_threads(1)
        rested.loop.stop()
        rested.loop.run()
        assert rested.cap_cu(A) == 30.0

    def test_nor_does_one_that_ended_and_was_not_written(self, rested):
        rested.wants_cu[A] = 100
        rested.run_on()
        rested.host.refuse[A] = base.DomainBusy('a snapshot')
        rested.run_on(60)
        assert rested.cap_cu(A) == 90.0
        del rested.host.refuse[A]
        rested.executor.use_threads(1)
        rested.loop.stop()
        rested.loop.run()
        assert rested.cap_cu(A) == 30.0

    def test_one_that_was_killed_keeps_the_balance(self, rested, tmp_path):
        before = rested.saved_cu_s()
        again = rested.restarted(tmp_path)
        again.wants_cu, again.total_ns = rested.wants_cu, rested.total_ns
        again.settle()
        assert again.cap_cu(A) == 30.0
        again.run_on(6)
        assert again.saved_cu_s() == pytest.approx(before + 6 * 30, abs=90)
        assert again.cap_cu(A) == 90.0

    def test_nothing_is_saved_where_nothing_is_billed(self, tmp_path):
        world = Unbilled(tmp_path)
        world.serve(A)
        world.start()
        world.run_on(62)
        assert world.cap_cu(A) == 30.0
        burst = world.report(A)['burst']
        assert burst['saved_cu_s'] is None
        assert 'does not bill' in burst['problem']
        assert world.host_report()['keeps_bursts'] is False

    def test_another_profile(self, rested):
        document.store(fakes.make_profile(coefficient=2.0),
                       str(rested.profile_path))
        rested.run_on(12)
        assert rested.cap_cu(A) == pytest.approx(45, rel=1e-4)

    def test_a_profile_that_cannot_give_its_units(self, rested):
        """Its cap is left as it is, without the burst."""
        document.store(fakes.make_profile(coefficient=0.2),
                       str(rested.profile_path))
        rested.run_on(12)
        assert rested.cap_cu(A) == 30.0
        assert 'its cap is left as it is' in rested.report(A)['burst'][
            'problem']

    def test_a_server_that_is_killed_and_starts_again(self, rested):
        rested.host.runs[A] += 100
        rested.host.event(base.EventKind.STARTED, A, detail='booted')
        rested.run_on(3)
        assert rested.saved_cu_s() > 1000

    def test_one_that_has_gone_is_forgotten(self, rested):
        """Also where it starts again while what servers use is being read."""
        gone = weakref.ref(rested.loop._servers[A])
        rested.now_s += 2.0
        rested.loop.step()
        rested.host.runs[A] += 100
        rested.host.event(base.EventKind.STARTED, A, detail='booted')
        rested.executor.work()
        rested.run_on(3)
        gc.collect()
        assert gone() is None
