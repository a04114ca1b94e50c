# SPDX-License-Identifier: Apache-2.0
"""Which servers the agent bills, from when on, and what it says of it."""

import json

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.billing import test_meter

KIND = base.EventKind


class TestAccount:
    def test_a_server_without_units_is_billed_too(self, world):
        world.run(specs={'vqos:dd_billing': 'account'})
        world.use(10, emulator_ns=10**8)
        bill = world.report()['bill']
        assert bill['used_cu_s']['emulator'] == pytest.approx(100, abs=21)
        assert bill['entitlement_cu'] is None
        assert bill['limit_cu'] is None

    def test_a_host_without_any_is_not_read(self, world):
        world.run(dd_billing='off')
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
        assert {claim.server_uuid for claim in world.outbox.claims} == {
            fakes.UUID}

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
        assert world.outbox.claims == []

    @pytest.mark.parametrize('seen, known', [
        (True, True), (True, False), (False, True)])
    def test_a_late_arrival_has_no_bill_and_no_claim(self, world, seen, known):
        self.arrive(world, seen=seen, known=known)
        world.host.describe_as(incoming=False)
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        assert 0 < world.used_cu_s() <= 100
        assert len(world.outbox.claims) > 1

    @pytest.mark.parametrize('seen', [True, False])
    def test_one_that_came_unseen_is_billed_all_the_same(self, world, seen):
        self.arrive(world, seen=seen)
        assert len(world.host.described) < 70
        world.host.describe_as(incoming=False)
        world.use(90, emulator_ns=10**8)
        assert 0 < world.used_cu_s() <= 900
        assert world.outbox.claims

    def test_one_that_was_here_once_and_comes_while_no_agent_is(self, world):
        """It has an account, but what its QEMU takes in is not its own."""
        world.run(dd_billing='account')
        world.use(10, emulator_ns=10**8)
        before = world.used_cu_s()
        world.host.stop()
        world.tick(3)
        world.boot(dd_billing='account', run_id=2, incoming=True)
        world.host.used[fakes.UUID] = test_meter.reading(
            world.now_s, run='two', emulator_ns=10**12)
        world.tick(3)
        world.host.describe_as(incoming=False)
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)
        world.use(10, emulator_ns=10**8)
        assert world.used_cu_s() <= before + 100

    def test_a_server_too_fast_to_be_charged_is_still_billed(self, world):
        # More than two pCPUs are.
        world.run(specs=fakes.make_specs('300', dd_billing='charge'))
        world.use(30, emulator_ns=5 * 10**8)
        report = world.report()
        assert 'cap is left as it is' in report['problem']
        assert report['bill']['billing'] == 'charge'
        assert report['bill']['limit_cu'] is None
        assert report['bill']['debt_cu_s'] == 0
        assert world.used_cu_s() > 1000

    def test_once_it_can_be_charged_it_is(self, world):
        document.store(fakes.make_profile(0.25), str(world.profile_path))
        world.run()
        world.busy(10)
        assert world.report()['bill']['limit_cu'] is None
        document.store(fakes.make_profile(), str(world.profile_path))
        world.busy(60)
        assert world.report()['bill']['debt_cu_s'] > 0
        assert world.domain().quota_us < billing.WHOLE.quota_us

    def test_one_that_is_billed_no_more_shows_no_bill(self, world):
        world.run()
        world.busy(60)
        assert world.report()['bill']['limit_cu'] < 60
        world.set_billing('off')
        world.tick(3)
        assert world.report()['bill'] is None
        assert world.domain().quota_us is None
        # It begins with all that it is entitled to.
        world.set_billing('charge')
        world.settle()
        assert world.domain() == billing.WHOLE

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
    def test_nor_is_time_while_it_was_off(self, world, tmp_path, restart):
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
            world = world.restarted(tmp_path)
            world.host.describe_as(
                extra_specs=fakes.make_specs(dd_billing='account'))
            world.start()
        else:
            world.set_billing('account')
        world.use(10, emulator_ns=10**8)
        assert before < world.used_cu_s() <= before + 100

    def test_a_round_that_was_on_its_way_leaves_no_bill(self, world):
        world.run()
        world.busy(10)
        real = world.host.usages

        def switch_off(*arguments):
            world.host.usages = real
            world.set_billing('off')
            return real(*arguments)
        world.host.usages = switch_off
        world.busy(4)
        assert world.host.usages == real
        assert world.report()['bill'] is None

    def test_a_reading_that_fails_is_no_end(self, world):
        world.run()

        def fail(*_arguments):
            raise base.Unavailable('no')

        world.host.usages = fail
        world.tick(10)
        assert world.domain() == billing.WHOLE
        assert world.host_report()['errors'] > 0
        # Caps do not depend on it.
        assert world.host_report()['connected'] is True
        del world.host.usages
        world.busy(10)
        assert world.report()['bill'] is not None


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


def test_a_profile_whose_costs_of_io_are_nonsense(world, caplog):
    """All that was measured is billed all the same."""
    document.store(fakes.make_profile()._replace(io={'interfaces': 7}),
                   str(world.profile_path))
    world.run()
    world.busy(60)
    assert world.report()['bill']['debt_cu_s'] > 0
    said, = [record.getMessage() for record in caplog.records
             if 'calibrate io' in record.getMessage()]
    assert 'io.created_at is missing' in said
