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

"""Servers that pay for their I/O, in the agent's loop."""

import dataclasses
import json
import threading
import time

import pytest

from nova_vqos import profile as profiles
from nova_vqos.agent import biller as billers
from nova_vqos.billing import ledger as ledgers
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_host
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_meter

KIND = base.EventKind
P = base.Parameter
# What 60 CU are on two pCPUs of 100 CU.
WHOLE = base.Limit(30_000, 50_000)


class World(agent_world.World):
    """A host whose servers may be billed."""

    def __init__(self, directory, **options):
        self.path = directory / 'lib' / 'ledger.sqlite'
        self.told = billing_host.Told()

        def make_biller(host, clock):
            return billers.Biller(
                host, ledgers.Ledger(str(self.path)), self.told,
                billers.Options(**options), host='host', clock=clock)
        super().__init__(directory, make_biller=make_biller)

    def boot(self, uuid=fakes.UUID, *, dd_billing='charge', **others):
        specs = others.pop('specs', None) or fakes.make_specs(
            dd_billing=dd_billing)
        self.host.boot(uuid, specs=specs, **others)
        self.host.used[uuid] = test_meter.reading(self.now_s)

    def use(self, times=1, uuid=fakes.UUID, **used_ns):
        """Let a second go by in which a server uses something."""
        for _ in range(times):
            reading = self.host.used[uuid]
            self.host.used[uuid] = dataclasses.replace(
                reading, read_at_s=self.now_s + 1.0, **{
                    name: getattr(reading, name) + used
                    for name, used in used_ns.items()})
            self.tick()

    def busy(self, times):
        """It uses all of its 60 CU, and a third as much for I/O."""
        self.use(times, vcpu_ns=6 * 10**8, emulator_ns=2 * 10**8)

    def set_billing(self, dd_billing, uuid=fakes.UUID):
        """Nova changes the flavor of a server that runs."""
        self.host.domains[uuid] = dataclasses.replace(
            self.host.domains[uuid],
            extra_specs=fakes.make_specs(dd_billing=dd_billing))
        self.host.event(KIND.CHANGED, uuid, detail='metadata')
        self.settle()

    def used_cu_s(self, name='emulator'):
        return self.report()['bill']['used_cu_s'][name]

    def domain(self, uuid=fakes.UUID):
        return self.host.tunes[uuid].domain


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class TestCharge:
    def test_all_of_a_server_is_limited_to_its_entitlement(self, world):
        world.boot()
        world.start()
        assert world.domain() == WHOLE
        assert world.limits() == {agent_world.RIGHT}
        report = world.report()
        assert report['right_at_first_sight'] is False
        assert report['wanted']['domain'] == {
            'quota_us': 30_000, 'period_us': 50_000}

    def test_a_limit_that_is_added_is_no_wrong_cap(self, world):
        world.boot(quota_us=15_000, period_us=50_000, shares=614)
        world.start()
        assert world.domain() == WHOLE
        assert world.report()['right_at_first_sight'] is True

    @pytest.mark.parametrize('specs', [
        fakes.make_specs(), fakes.make_specs(dd_billing='account'),
        fakes.make_specs(dd_billing='charge', cap='floor')])
    def test_others_are_not_limited_as_a_whole(self, world, specs):
        world.boot(specs=specs)
        world.start()
        world.busy(40)
        assert world.domain().quota_us is None
        assert world.host.written[1:] == []

    def test_what_it_owes_is_taken_from_its_limit_with_few_writes(self, world):
        world.boot()
        world.start()
        world.host.written.clear()
        world.busy(60)
        assert world.domain().quota_us < 29_000
        assert 1 <= len(world.host.written) <= 8
        # On cgroup v1 no vCPU has more than all of them.
        assert all(limit.quota_us <= world.domain().quota_us
                   for limit in world.limits())
        report = world.report()
        assert report['tamperings'] == []
        assert report['right'] is True
        assert report['bill']['debt_cu_s'] > 0
        assert report['bill']['limit_cu'] < 58

    def test_it_gets_it_back_when_it_is_quiet(self, world):
        world.boot()
        world.start()
        world.busy(60)
        world.use(120, vcpu_ns=10**7)
        assert world.domain() == WHOLE
        assert world.report()['bill']['debt_cu_s'] == 0

    def test_a_limit_that_was_tampered_with_is_restored(self, world):
        world.boot()
        world.start()
        world.host.tunes[fakes.UUID] = dataclasses.replace(
            world.host.tunes[fakes.UUID], domain=base.Limit(None, 100_000))
        world.tick()
        assert world.domain() == WHOLE
        tampering, = world.report()['tamperings']
        assert 'domain 30000/50000' in tampering['expected']

    def test_one_that_meets_a_new_limit_is_told_of_as_well(self, world,
                                                           monkeypatch):
        world.boot()
        world.start()
        done, read = [], world.host.usages

        def usages(*arguments):
            """Somebody comes between the look at it and its bill."""
            tune = world.host.tunes[fakes.UUID]
            if tune.domain == WHOLE:
                done.append(tune)
                world.host.tunes[fakes.UUID] = dataclasses.replace(
                    tune, domain=base.Limit(45_000, 50_000))
            return read(*arguments)
        monkeypatch.setattr(world.host, 'usages', usages)
        world.busy(20)
        assert world.domain().quota_us < WHOLE.quota_us
        for tampering in world.report()['tamperings']:
            assert 'domain 45000/50000' in tampering['found']
            assert 'domain 30000/50000' in tampering['expected']
        # The last of them met the bill that gave it another limit.
        assert len(world.report()['tamperings']) == len(done)

    def test_the_echo_of_an_own_write_is_nobody_elses(self, world):
        world.boot()
        world.start()
        world.host.event(KIND.TUNED, values={
            P.DOMAIN_QUOTA_US: 30_000, P.DOMAIN_PERIOD_US: 50_000})
        world.settle()
        assert world.report()['tamperings'] == []

    def test_an_agent_that_starts_again_writes_nothing(self, world, tmp_path):
        world.boot()
        world.start()
        world.busy(60)
        limit = world.domain()
        assert limit.quota_us < WHOLE.quota_us
        again = World(tmp_path)
        again.now_s = world.now_s
        again.host.runs, again.host.domains, again.host.tunes = (
            world.host.runs, world.host.domains, world.host.tunes)
        again.host.used = world.host.used
        again.start()
        assert again.host.written == []
        again.tick(3)
        assert again.report()['bill']['debt_cu_s'] > 0

    def test_a_hypervisor_without_readings_limits_nothing(self, tmp_path):
        class Old(fakes.FakeHypervisor):
            usages = base.Hypervisor.usages

        world = World(tmp_path)
        world.host.__class__ = Old
        world.boot()
        world.start()
        world.tick(20)
        assert world.domain().quota_us is None
        assert world.host_report()['dd_billing'] == ['off']


class TestNobodyWorksItOut:
    """A limit that nobody could end any more."""

    @staticmethod
    def limited(directory, **options):
        world = World(directory, **options)
        world.boot()
        world.start()
        world.use(90, vcpu_ns=6 * 10**8, emulator_ns=5 * 10**8)
        assert world.limits() != {agent_world.RIGHT}
        return world

    @staticmethod
    def specs(world, specs):
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], extra_specs=specs)
        world.host.event(KIND.CHANGED)
        world.settle()

    def test_units_that_the_host_cannot_give_any_more(self, tmp_path):
        world = self.limited(tmp_path)
        profiles.store(fakes.make_profile(0.25), str(world.profile_path))
        world.host.written.clear()
        world.tick(60)
        assert world.domain().quota_us is None
        # The cap is what it was before the change of profile.
        assert world.limits() == {agent_world.RIGHT}
        assert len(world.host.written) == 1
        assert 'its cap is left as it is' in world.report()['problem']
        # And it is charged again when the host can.
        profiles.store(fakes.make_profile(), str(world.profile_path))
        world.tick(10)
        world.use(20, vcpu_ns=10**7)
        report = world.report()
        assert report['right'] is True
        assert report['bill']['limit_cu'] is not None
        assert report['tamperings'] == []

    def test_a_cap_that_somebody_else_set_meanwhile_stays(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.set_vcpus(2_000)
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], extra_specs={})
        world.host.event(KIND.CHANGED)
        world.settle()
        world.tick(3)
        assert world.domain().quota_us is None
        assert world.limits() == {base.Limit(2_000, 50_000)}

    @pytest.mark.parametrize('specs', [
        None, {}, {'vqos:dd_billing': 'account'}])
    def test_units_that_are_gone(self, tmp_path, specs):
        world = self.limited(tmp_path)
        world.host.written.clear()
        self.specs(world, specs)
        world.tick(60)
        assert world.domain().quota_us is None
        assert world.limits() == {agent_world.RIGHT}
        assert len(world.host.written) == 1
        self.specs(world, fakes.make_specs(dd_billing='charge'))
        world.tick(3)
        assert world.domain().quota_us is not None
        assert world.report()['right'] is True
        assert world.report()['tamperings'] == []

    def test_use_that_cannot_be_read(self, tmp_path, caplog):
        world = self.limited(tmp_path)
        reading = world.host.used.pop(fakes.UUID)
        limit = world.domain()
        world.tick(50)
        assert world.domain() == limit
        assert world.report()['problem'] == ''
        world.tick(900)
        assert world.domain() == WHOLE
        assert world.limits() == {agent_world.RIGHT}
        report = world.report()
        assert 'could not be read' in report['problem']
        assert report['right'] is True
        assert report['tamperings'] == []
        alarm, = world.host_report()['alarms']
        assert '1 servers are not billed' in alarm
        assert caplog.text.count('could not be read for 60 s') == 1
        # What it owed is not forgiven.
        world.host.used[fakes.UUID] = dataclasses.replace(
            reading, read_at_s=world.now_s)
        world.busy(20)
        report = world.report()
        assert report['problem'] == ''
        assert report['bill']['debt_cu_s'] > 0
        assert world.domain() != WHOLE
        assert world.host_report()['alarms'] == []

    def test_a_round_that_hangs(self, tmp_path):
        world = self.limited(tmp_path)
        world.loop._rounds._working = True
        world.tick(70)
        assert world.domain() == WHOLE
        assert 'could not be read' in world.report()['problem']

    def test_a_connection_that_is_lost_is_no_server_that_is(self, tmp_path):
        world = self.limited(tmp_path)
        limit = world.domain()
        reading = world.host.used.pop(fakes.UUID)
        world.host.up = False
        world.tick(300)
        world.host.up = True
        world.tick(12)
        assert world.host_report()['connected'] is True
        assert world.domain() == limit
        world.host.used[fakes.UUID] = reading
        assert world.report()['problem'] == ''

    def test_a_write_that_fails_is_repeated_with_pauses(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        self.specs(world, {})
        world.tick(20)
        world.host.refuse.clear()
        world.tick(60)
        assert world.domain().quota_us is None

    def test_a_write_without_effect_is_no_endless_one(self, tmp_path):
        world = self.limited(tmp_path)
        world.host.deaf.add(fakes.UUID)
        world.host.written.clear()
        self.specs(world, {})
        world.tick(100)
        assert 1 <= len(world.host.written) <= 16


class TestAccount:
    def test_a_server_without_units_is_billed_too(self, world):
        world.boot(specs={'vqos:dd_billing': 'account'})
        world.start()
        world.use(10, emulator_ns=10**8)
        bill = world.report()['bill']
        assert bill['used_cu_s']['emulator'] == pytest.approx(100, abs=21)
        assert bill['entitlement_cu'] is None
        assert bill['limit_cu'] is None

    def test_a_host_without_any_is_not_read(self, world):
        world.boot(dd_billing='off')
        world.start()
        world.tick(100)
        assert world.host.usage_reads == []

    def test_one_that_comes_is_billed_from_when_its_guest_runs(self, world):
        world.start()
        world.boot(dd_billing='account')
        world.host.used[fakes.UUID] = test_meter.reading(
            world.now_s, emulator_ns=10**9)
        world.host.event(KIND.STARTED, detail='migrated', at_s=world.now_s)
        world.tick(6)
        assert world.report()['bill'] is None
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        used_cu_s = world.report()['bill']['used_cu_s']['emulator']
        assert 0 < used_cu_s <= 100
        assert world.told.claims == [fakes.UUID] * len(world.told.claims)
        assert world.told.claims

    def arrive(self, world, *, seen=True, known=True):
        """A server begins to come, and takes long."""
        world.start()
        world.boot(incoming=True if known else None)
        if seen:
            world.host.event(KIND.STARTED, detail='migrated', at_s=world.now_s)
            world.settle()
        world.use(3600, emulator_ns=9 * 10**8)
        assert world.report()['origin'] == 'migrated'
        assert world.report()['bill'] is None
        assert world.told.claims == []

    def set_arrived(self, world):
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], incoming=False)

    @pytest.mark.parametrize('seen, known', [
        (True, True), (True, False), (False, True)])
    def test_one_that_takes_long_to_come_is_neither_billed_nor_asked_for(
            self, world, seen, known):
        self.arrive(world, seen=seen, known=known)
        self.set_arrived(world)
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        assert 0 < world.used_cu_s() <= 100
        assert len(world.told.claims) > 1

    @pytest.mark.parametrize('seen', [True, False])
    def test_one_that_came_unseen_is_billed_all_the_same(self, world, seen):
        self.arrive(world, seen=seen)
        assert len(world.host.described) < 70
        self.set_arrived(world)
        world.use(90, emulator_ns=10**8)
        assert 0 < world.used_cu_s() <= 900
        assert world.told.claims

    def test_one_that_was_here_once_and_comes_while_no_agent_is(self, world):
        """It has an account, but what its QEMU takes in is not its own."""
        world.boot(dd_billing='account')
        world.start()
        world.use(10, emulator_ns=10**8)
        before = world.used_cu_s()
        del world.host.runs[fakes.UUID]
        world.tick(3)
        world.boot(dd_billing='account', run_id=2, incoming=True)
        world.host.used[fakes.UUID] = test_meter.reading(
            world.now_s, run='two', emulator_ns=10**12)
        world.tick(3)
        self.set_arrived(world)
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        assert world.used_cu_s() <= before + 100

    def test_one_that_cannot_be_charged_here_is_billed_all_the_same(
            self, world):
        # More than two pCPUs are.
        world.boot(specs=fakes.make_specs('300', dd_billing='charge'))
        world.start()
        world.use(30, emulator_ns=5 * 10**8)
        report = world.report()
        assert 'cap is left as it is' in report['problem']
        assert report['bill']['billing'] == 'charge'
        assert report['bill']['limit_cu'] is None
        assert report['bill']['debt_cu_s'] == 0
        assert world.used_cu_s() > 1000

    def test_once_it_can_be_charged_it_is(self, world):
        profiles.store(fakes.make_profile(0.25), str(world.profile_path))
        world.boot()
        world.start()
        world.busy(10)
        assert world.report()['bill']['limit_cu'] is None
        profiles.store(fakes.make_profile(), str(world.profile_path))
        world.busy(60)
        assert world.report()['bill']['debt_cu_s'] > 0
        assert world.domain().quota_us < WHOLE.quota_us

    def test_one_that_is_billed_no_more_shows_no_bill(self, world):
        world.boot()
        world.start()
        world.busy(60)
        assert world.report()['bill']['limit_cu'] < 60
        world.set_billing('off')
        world.tick(3)
        assert world.report()['bill'] is None
        assert world.domain().quota_us is None
        # It begins with all that it is entitled to.
        world.set_billing('charge')
        world.settle()
        assert world.domain() == WHOLE

    def test_the_past_is_not_billed_when_it_is_switched_on(self, world):
        world.start()
        world.boot(dd_billing='off')
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        world.use(2000, emulator_ns=2 * 10**8)
        world.set_billing('charge')
        world.use(10, emulator_ns=10**8)
        assert 0 < world.used_cu_s() <= 100
        assert world.report()['bill']['debt_cu_s'] <= 100

    @pytest.mark.parametrize('restart', [False, True])
    def test_nor_is_the_time_in_which_it_was_off(self, world, tmp_path,
                                                 restart):
        world.start()
        world.boot(dd_billing='account')
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        world.use(20, emulator_ns=10**8)
        before = world.used_cu_s()
        assert before > 100
        world.set_billing('off')
        world.use(1000, emulator_ns=10**8)
        if restart:
            # Switched on while no agent is there.
            again = World(tmp_path)
            again.now_s, again.host.runs = world.now_s, world.host.runs
            again.host.domains, again.host.tunes, again.host.used = (
                world.host.domains, world.host.tunes, world.host.used)
            again.host.domains[fakes.UUID] = dataclasses.replace(
                again.host.domains[fakes.UUID],
                extra_specs=fakes.make_specs(dd_billing='account'))
            world = again
            world.start()
        else:
            world.set_billing('account')
        world.use(10, emulator_ns=10**8)
        assert before < world.used_cu_s() <= before + 100

    def test_a_round_that_was_on_its_way_leaves_no_bill(self, world):
        world.boot()
        world.start()
        world.busy(10)
        real = world.host.usages

        def switch_off(uuids):
            world.host.usages = real
            world.set_billing('off')
            return real(uuids)
        world.host.usages = switch_off
        world.busy(4)
        assert world.host.usages == real
        assert world.report()['bill'] is None

    def test_a_reading_that_fails_is_no_end(self, world):
        world.boot()
        world.start()

        def fail(_uuids):
            raise base.Unavailable('no')

        world.host.usages = fail
        world.tick(10)
        assert world.domain() == WHOLE
        assert world.host_report()['errors'] > 0
        # Caps do not depend on it.
        assert world.host_report()['connected'] is True
        del world.host.usages
        world.busy(10)
        assert world.report()['bill'] is not None


class TestMigration:
    def test_nothing_limits_the_threads_that_send_it(self, world):
        world.boot()
        world.start()
        assert not world.ask(lambda: world.loop.is_lifted(fakes.UUID))
        world.loop.lift(fakes.UUID, 30.0)
        world.settle()
        assert world.domain().quota_us is None
        assert world.limits() == {agent_world.RIGHT}
        assert world.ask(lambda: world.loop.is_lifted(fakes.UUID))
        assert world.report()['tamperings'] == []

    def test_the_limit_comes_back_after_one_that_failed(self, world):
        world.boot()
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        world.settle()
        world.host.event(KIND.CHANGED, detail=base.JOB_COMPLETED)
        world.settle()
        world.settle()
        assert world.domain() == WHOLE

    def test_and_after_one_that_never_began(self, world):
        world.boot()
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        world.tick(29)
        assert world.domain().quota_us is None
        world.tick(3)
        assert world.domain() == WHOLE

    def test_a_server_that_is_not_here_is_no_reason_to_wait(self, world):
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        assert world.ask(lambda: world.loop.is_lifted(fakes.UUID))


class TestSignsOfLife:
    def test_they_say_what_works_here(self, world):
        # At once: a host that offers less is refused new servers.
        world.start()
        world.tick(2)
        state = json.loads(world.state_path.read_text())
        assert state['dd_billing'] == ['off', 'account', 'charge']
        assert world.host_report()['dd_billing'] == state['dd_billing']

    def test_without_a_ledger_nothing_does(self, world):
        world.path.parent.write_text('in the way')
        world.start()
        world.tick(12)
        state = json.loads(world.state_path.read_text())
        assert state['dd_billing'] == ['off']
        assert 'ledger' in state['alarms'][0]


class TestStop:
    @staticmethod
    def limited(directory, threads):
        """From here on as in a service: jobs run on threads."""
        world = World(directory)
        world.boot()
        world.start()
        world.busy(60)
        assert world.domain().quota_us < WHOLE.quota_us
        world.executor.use_threads(threads)
        return world

    @staticmethod
    def want(world, limit_share):
        """The biller wants another limit: the loop has it written."""
        server = world.loop._known[fakes.UUID]
        server.limit_share = limit_share
        server.reconsider = True
        world.loop.step()
        assert server.working

    @staticmethod
    def stop(world):
        thread = threading.Thread(target=world.loop.run)
        world.loop.stop()
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    @staticmethod
    def end_jobs(world):
        """What was still under way is done by then, for better or worse."""
        world.executor.shutdown(wait=True)

    def test_a_clean_one_gives_all_of_it_back(self, tmp_path):
        world = self.limited(tmp_path, 1)
        self.stop(world)
        assert world.domain() == WHOLE
        assert world.limits() == {agent_world.RIGHT}

    def test_nothing_is_written_to_one_that_has_it(self, tmp_path):
        world = World(tmp_path)
        world.boot()
        world.start()
        world.host.written.clear()
        self.stop(world)
        assert world.domain() == WHOLE
        assert world.host.written == []

    def test_a_write_under_way_comes_first(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 2)
        write = world.host.write
        slow = iter([0.5])

        def write_slowly(uuid, changes):
            time.sleep(next(slow, 0))
            write(uuid, changes)

        monkeypatch.setattr(world.host, 'write', write_slowly)
        self.want(world, 0.3)
        self.stop(world)
        self.end_jobs(world)
        assert world.domain() == WHOLE
        assert world.limits() == {agent_world.RIGHT}

    def test_a_raise_that_waits_for_its_turn_is_not_lost(self, tmp_path):
        world = self.limited(tmp_path, 1)
        world.executor.submit(time.sleep, 0.5)
        self.want(world, 1.0)
        self.stop(world)
        self.end_jobs(world)
        assert world.domain() == WHOLE

    def test_a_write_that_fails_is_tried_again(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 1)
        write = world.host.write
        errors = iter([base.DomainBusy('it migrates')])

        def fail_once(uuid, changes):
            for error in errors:
                raise error
            write(uuid, changes)

        monkeypatch.setattr(world.host, 'write', fail_once)
        self.stop(world)
        assert world.domain() == WHOLE

    def test_one_that_cannot_be_helped_is_told_of(self, tmp_path, caplog):
        world = self.limited(tmp_path, 1)
        world.host.deaf.add(fakes.UUID)
        self.stop(world)
        assert caplog.text.count('keeps the limit on its I/O') == 1

    def test_it_does_not_wait_for_ever(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 1)
        end = threading.Event()
        monkeypatch.setattr(world.host, 'write',
                            lambda _uuid, _changes: end.wait(30))
        self.want(world, 0.3)
        self.stop(world)
        end.set()


def test_a_profile_whose_costs_of_io_are_nonsense(world, caplog):
    """All that was measured is billed all the same."""
    profiles.store(fakes.make_profile()._replace(io={'interfaces': 7}),
                   str(world.profile_path))
    world.boot()
    world.start()
    world.busy(60)
    assert world.report()['bill']['debt_cu_s'] > 0
    said, = [record.getMessage() for record in caplog.records
             if 'calibrate io' in record.getMessage()]
    assert 'io.created_at is missing' in said
