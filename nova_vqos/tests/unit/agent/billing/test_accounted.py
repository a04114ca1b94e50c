# SPDX-License-Identifier: Apache-2.0
"""Accounts by default: figures, and no more."""

import uuid

import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos.agent.overrides import store as stores
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import make_profiles

SPECS = fakes.make_specs()
COSTS = io.document(make_profiles.make_io())


class World(billing.World):
    """A host whose profile has the costs of I/O."""

    def __init__(self, directory, **options):
        super().__init__(directory, **options)
        self.measure(COSTS)

    def measure(self, costs):
        document.store(fakes.make_profile()._replace(io=costs),
                       str(self.profile_path))


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def used(world):
    bill = world.report()['bill']
    return None if bill is None else bill['used_cu_s']['emulator']


class TestWho:
    def test_one_with_units_is_accounted(self, world):
        world.run(specs=SPECS)
        world.use(100, emulator_ns=10**8)
        bill = world.report()['bill']
        assert bill['billing'] == 'account'
        assert bill['used_cu_s']['emulator'] == pytest.approx(1000, abs=330)
        assert bill['limit_cu'] is None
        assert bill['debt_cu_s'] == 0
        # What its flavor says stays.
        assert world.report()['dd_billing'] == 'off'

    @pytest.mark.parametrize('specs', [
        fakes.make_specs(dd_billing='off'), {'vqos:quantum_class': 'io'},
        {'hw:cpu_policy': 'shared'}, None])
    def test_others_are_not(self, world, specs):
        world.boot()
        world.host.describe_as(extra_specs=specs)
        world.start()
        world.use(40, emulator_ns=10**8)
        assert used(world) is None
        assert world.host.usage_reads == []

    def test_a_host_without_costs_of_io_accounts_none(self, world):
        world.measure({})
        world.run(specs=SPECS)
        world.use(40, emulator_ns=10**8)
        assert used(world) is None
        # And begins once they were measured.
        world.measure(COSTS)
        world.use(70, emulator_ns=10**8)
        assert 0 < used(world) <= 700

    def test_what_was_used_before_it_began_is_not_in_it(self, world):
        world.measure({})
        world.start()
        world.boot(specs=SPECS)
        world.host.event(base.EventKind.STARTED, detail='booted')
        world.settle()
        world.use(40, emulator_ns=10**8)
        world.measure(COSTS)
        world.use(70, emulator_ns=10**8)
        assert 0 < used(world) <= 700

    def test_the_option_switches_it_off(self, tmp_path):
        world = World(tmp_path, accounts_all=False)
        world.run(specs=SPECS)
        world.use(40, emulator_ns=10**8)
        assert used(world) is None
        assert world.host.usage_reads == []

    @pytest.mark.parametrize('booted, accounted', [
        (SPECS, True), (fakes.make_specs(dd_billing='off'), False),
        (fakes.make_specs(dd_billing='account'), False)])
    def test_a_push_without_billing_ends_what_was_asked_for(
            self, tmp_path, booted, accounted):
        """It has ``off`` for a flavor that says nothing of billing."""
        store = stores.OverrideStore(str(tmp_path / 'pushed.json'))
        store.merge([policy_push.Push(1, False, {
            'f1': policy_override.of_flavor('small', 2, SPECS, 1)})])
        world = World(tmp_path, store=store)
        world.run(specs=booted)
        world.use(40, emulator_ns=10**8)
        assert (used(world) is not None) is accounted


class TestWhatItChanges:
    def test_nothing_of_the_server(self, world):
        world.run(specs=SPECS)
        before = world.host.tunes[fakes.UUID]
        writes = len(world.host.written)
        # More I/O than it has units.
        world.use(120, emulator_ns=9 * 10**8)
        assert used(world) > 3600
        assert world.host.tunes[fakes.UUID] == before
        assert len(world.host.written) == writes
        assert world.report()['bill']['overdrawn'] is False

    def test_nobody_else_is_told(self, world):
        """Not those that bill, and not other hosts."""
        world.run(specs=SPECS)
        world.use(200, emulator_ns=10**8)
        world.host.stop()
        world.tick(3)
        assert world.outbox.usages == []
        assert world.outbox.events == []
        assert world.outbox.claims == []

    def test_one_that_cannot_be_read_is_no_alarm(self, world):
        world.run(specs=SPECS)
        world.use(10, emulator_ns=10**8)
        del world.host.used[fakes.UUID]
        world.tick(200)
        assert world.report()['problem'] == ''
        assert world.host_report()['alarms'] == []


class TestWhen:
    """Accounts by default cost next to nothing."""

    @pytest.fixture
    def reads(self, world):
        """:returns: what was read of servers, from now on"""
        world.run(specs=SPECS)
        world.tick(40)
        world.host.usage_reads.clear()
        return world.host.usage_reads

    def test_the_interval_is_half_a_minute(self, world, reads):
        world.tick(320)
        assert len(reads) == 10
        assert world.host.idle[fakes.UUID].share == 0.02

    def test_an_idle_one_has_a_turn_of_its_own(self, world):
        uuids = [str(uuid.UUID(int=number)) for number in range(24)]
        for one in uuids:
            world.boot(one, specs=SPECS)
        world.start()
        world.tick(40)
        waits_s = [world.host.idle[one].most_s for one in uuids]
        assert all(0 < most_s <= 120 for most_s in waits_s)
        for begin_s in range(0, 120, 30):
            assert 2 <= sum(begin_s < most_s <= begin_s + 30
                            for most_s in waits_s) <= 12

    def test_a_new_one_is_billed_at_once(self, world, reads):
        world.run(fakes.OTHER_UUID, specs=SPECS)
        world.tick(4)
        assert reads == [{fakes.OTHER_UUID}]
        # Its book stays open, and others do not wait longer for it.
        world.tick(60)
        assert 2 <= reads.count({fakes.UUID, fakes.OTHER_UUID}) <= 3
        assert fakes.OTHER_UUID in world.host.idle

    def test_one_that_cannot_be_read_at_first_does_not_wait(self, world,
                                                            reads):
        world.boot(fakes.OTHER_UUID, specs=SPECS)
        reading = world.host.used.pop(fakes.OTHER_UUID)
        world.start()
        world.tick(10)
        assert world.report(fakes.OTHER_UUID)['bill'] is None
        world.host.used[fakes.OTHER_UUID] = reading
        world.tick(3)
        assert world.report(fakes.OTHER_UUID)['bill'] is not None

    def test_switched_off_it_is_closed_at_once(self, world, reads):
        world.run(fakes.OTHER_UUID)
        world.set_billing('off')
        world.tick(3)
        world.host.describe_as(extra_specs=SPECS)
        world.host.event(base.EventKind.CHANGED, detail='metadata')
        world.settle()
        while not any(fakes.UUID in read for read in reads):
            world.tick()
        assert fakes.UUID not in world.host.idle

    def test_others_are_billed_in_between(self, world, reads):
        world.run(fakes.OTHER_UUID)
        world.tick(320)
        assert 155 <= len(reads) <= 162
        assert 10 <= reads.count({fakes.UUID, fakes.OTHER_UUID}) <= 11
        assert reads.count({fakes.OTHER_UUID}) >= 144
        # Its book stays open meanwhile: that of a new one has no idle time.
        while fakes.UUID not in reads[-1]:
            world.tick()
        assert fakes.UUID in world.host.idle

    def test_one_that_has_gone_is_closed_with_the_next_bill(self, world,
                                                            reads):
        world.run(fakes.OTHER_UUID)
        world.tick(4)
        reads.clear()
        world.host.stop()
        world.tick(4)
        world.run(specs=SPECS)
        while fakes.UUID not in reads[-1]:
            world.tick()
        assert fakes.UUID not in world.host.idle


class TestAskedForLater:
    def test_its_account_goes_on_and_is_claimed(self, world):
        world.run(specs=SPECS)
        world.use(40, emulator_ns=10**8)
        before = used(world)
        assert before > 0
        world.set_billing('account')
        world.use(10, emulator_ns=10**8)
        assert used(world) > before
        assert world.report()['bill']['billing'] == 'account'
        assert {claim.server_uuid for claim in world.outbox.claims} == {
            fakes.UUID}
        world.use(120, emulator_ns=10**8)
        assert sum(one['used_cu_s']['emulator']
                   for one in world.outbox.usages) <= 1300

    def test_it_pays_from_then_on(self, world):
        world.run(specs=SPECS)
        world.use(60, vcpu_ns=6 * 10**8, emulator_ns=2 * 10**8)
        world.set_billing('charge')
        world.tick(3)
        assert world.report()['bill']['billing'] == 'charge'
        assert world.report()['bill']['debt_cu_s'] == 0
        world.busy(60)
        assert world.report()['bill']['debt_cu_s'] > 0
        assert world.domain().quota_us is not None

    def test_its_usage_is_sent_before_nobody_asks(self, world):
        world.run(specs=fakes.make_specs(dd_billing='account'))
        world.use(40, emulator_ns=10**8)
        assert world.outbox.usages == []
        world.host.describe_as(extra_specs=SPECS)
        world.host.event(base.EventKind.CHANGED, detail='metadata')
        world.settle()
        world.tick(60)
        (last,) = world.outbox.usages
        assert last['used_cu_s']['emulator'] == pytest.approx(400, abs=30)
        world.use(4000)
        assert len(world.outbox.usages) == 1

    def test_an_alarm_of_it_ends_when_nobody_asks(self, world):
        world.run(specs=fakes.make_specs(dd_billing='account'))
        world.tick(5)
        del world.host.used[fakes.UUID]
        world.tick(90)
        assert 'cannot be read' in ''.join(world.host_report()['alarms'])
        world.host.describe_as(extra_specs=SPECS)
        world.host.event(base.EventKind.CHANGED, detail='metadata')
        world.settle()
        world.tick(5)
        assert world.host_report()['alarms'] == []

    def test_a_debt_stays_where_it_is_while_nobody_asks(self, world):
        world.run()
        world.busy(60)
        owed = world.report()['bill']['debt_cu_s']
        assert owed > 0
        world.host.describe_as(extra_specs=SPECS)
        world.host.event(base.EventKind.CHANGED, detail='metadata')
        world.settle()
        world.busy(60)
        assert world.report()['bill']['debt_cu_s'] == pytest.approx(
            owed, rel=0.2)
        assert world.domain().quota_us is None
