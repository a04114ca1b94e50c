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

"""What the agent bills, and what becomes of accounts: no host, a real file."""

import dataclasses
import sqlite3

import pytest

from nova_vqos.agent import biller as billers
from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger as ledgers
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import fake_hypervisor as fakes
from nova_vqos.tests.unit import test_meter

UUID = fakes.UUID
NOW_S = 1_700_000_000.0


class Told:
    """What others were told."""

    def __init__(self):
        self.claims = []
        self.statements = []
        self.events = []
        self.usages = []

    def claim(self, server_uuid):
        self.claims.append(server_uuid)

    def hand_over(self, host, statement):
        self.statements.append((host, statement))

    def overdrawn(self, payload):
        self.events.append(payload)

    def usage(self, payload):
        self.usages.append(payload)


class Host:
    """A host with a ledger, whose agent may end and start again."""

    def __init__(self, directory, name='here'):
        self.name = name
        self.directory = directory / name
        self.path = self.directory / 'ledger.sqlite'
        self.now_s = 1000.0
        self.hypervisor = fakes.FakeHypervisor()
        self.costs = test_meter.COSTS
        self.subjects = {}
        self.start()

    def hide_ledger(self):
        """Let the ledger be out of reach, from the agent's next start on."""
        self.biller.close()
        self.path.rename(self.directory / 'hidden')
        self.path.mkdir()
        self.start()

    def find_ledger(self):
        self.path.rmdir()
        (self.directory / 'hidden').rename(self.path)

    def start(self, **options):
        """An agent starts, with what the disk knows."""
        self.told = Told()
        self.biller = billers.Biller(
            self.hypervisor, ledgers.Ledger(str(self.path)), self.told,
            billers.Options(**options), host=self.name,
            clock=lambda: self.now_s, utc=lambda: NOW_S + self.now_s)
        self.subjects = {
            uuid: dataclasses.replace(subject, origin='found')
            for uuid, subject in self.subjects.items()}

    def run(self, uuid=UUID, *, run='one', origin='booted', billing='account',
            units=60, limit_share=None, began_s=None, **counters):
        """Let a server run here."""
        self.hypervisor.runs[uuid] = 1
        self.hypervisor.used[uuid] = test_meter.reading(
            self.now_s, run=run, **counters)
        self.subjects[uuid] = billers.Subject(
            uuid=uuid, name='instance', project_id='p', billing=billing,
            origin=origin, began_s=began_s, coefficient=1.0,
            entitlement_cu=units, limit_share=limit_share,
            devices=test_meter.DEVICES)

    def leave(self, uuid=UUID):
        del self.hypervisor.runs[uuid], self.subjects[uuid]

    def use(self, uuid=UUID, length_s=2.0, **counters):
        """Let a server use something, and be billed for it."""
        self.now_s += length_s
        reading = self.hypervisor.used[uuid]
        self.hypervisor.used[uuid] = dataclasses.replace(
            reading, read_at_s=self.now_s, **{
                name: getattr(reading, name) + value
                for name, value in counters.items()})
        return self.round().get(uuid)

    def use_time(self):
        """Let a round pass."""
        self.now_s += 2
        return self.round()

    def round(self):
        return self.biller.round(list(self.subjects.values()), self.costs,
                                 set(self.hypervisor.runs))

    def account(self, uuid=UUID):
        """What the disk knows."""
        ledger = ledgers.Ledger(str(self.path))
        try:
            return ledger.get(uuid)
        finally:
            ledger.close()

    def used_cu_s(self, name='emulator', uuid=UUID):
        return self.account(uuid).total_cu_us[name] / 1e6


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class TestBills:
    def test_it_is_on_disk_after_each_round(self, host):
        host.run()
        host.round()
        billed = host.use(emulator_ns=10**9, vcpu_ns=2 * 10**9)
        assert host.used_cu_s('emulator') == 100
        assert host.used_cu_s('vcpu') == 200
        assert billed.limit_share is None
        assert billed.report['used_cu_s']['vcpu'] == 200
        assert billed.report['used_lately_cu']['vcpu'] == 100
        assert billed.report['debt_cu_s'] == 0

    def test_one_that_started_here_pays_from_its_first_moment(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        assert host.used_cu_s() == 100

    @pytest.mark.parametrize('origin', ['found', 'migrated', 'restored'])
    def test_one_that_came_pays_from_now_on(self, host, origin):
        host.run(origin=origin, emulator_ns=10**9)
        host.round()
        assert host.used_cu_s() == 0
        host.use(emulator_ns=10**8)
        assert host.used_cu_s() == 10

    def test_an_agent_that_is_killed_loses_and_repeats_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        for _ in range(3):
            # Killed before it could do any more: no close.
            host.start()
            host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 400

    def test_stop_and_start_clear_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.round()
        host.run(run='two', emulator_ns=5 * 10**8)
        host.round()
        assert host.used_cu_s() == 150

    def test_also_while_the_agent_was_away(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.start()
        host.run(run='two', origin='found', emulator_ns=5 * 10**8)
        host.round()
        assert host.used_cu_s() == 150

    def test_a_server_that_cannot_be_read_is_billed_the_next_time(self, host):
        host.run()
        host.round()
        reading = host.hypervisor.used.pop(UUID)
        assert host.round() == {}
        host.hypervisor.used[UUID] = reading
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 100

    def test_one_that_is_not_understood_costs_only_itself(self, host, caplog):
        host.run(fakes.OTHER_UUID)
        host.run()
        host.round()
        good = host.subjects[UUID]
        host.subjects[UUID] = dataclasses.replace(good, devices=None)
        for _ in range(3):
            host.hypervisor.used[UUID] = test_meter.reading(
                host.now_s, interfaces={'tap0': test_meter.packets(1)})
            host.use(fakes.OTHER_UUID, emulator_ns=10**9)
        assert host.used_cu_s(uuid=fakes.OTHER_UUID) == 300
        assert host.biller.errors == 3
        assert caplog.text.count('cannot be billed') == 1
        host.subjects[UUID] = good
        assert host.use(emulator_ns=10**9) is not None
        assert host.used_cu_s() == 100

    def test_a_hypervisor_that_is_down_costs_nothing(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.hypervisor.up = False
        with pytest.raises(base.Unavailable):
            host.round()
        host.hypervisor.up = True
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200

    def test_what_is_not_modelled_is_told_once(self, host, caplog):
        host.costs = None
        host.run(interfaces={'tap0': test_meter.packets(1)})
        host.round()
        host.run(interfaces={'tap0': test_meter.packets(2)})
        billed = host.round()[UUID]
        assert billed.report['not_modelled'] == [
            'interface, mode bridge, backend qemu']
        assert caplog.text.count('the profile knows no costs of I/O') == 1


class TestCharge:
    def test_debt_outlives_the_agent(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        debt = host.account().debt_cu_us
        assert debt == 100 * 10**6
        host.start()
        billed = host.use(length_s=0.0)
        assert billed.report['debt_cu_s'] == 100

    def test_the_limit_falls_while_there_is_debt(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(20):
            billed = host.use(vcpu_ns=12 * 10**8, emulator_ns=3 * 10**8)
        assert billed.limit_share < 0.9
        assert billed.report['limit_cu'] == pytest.approx(
            60 * billed.limit_share)

    def test_an_account_alone_limits_nothing(self, host):
        host.run()
        host.round()
        for _ in range(20):
            billed = host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        assert billed.limit_share is None
        assert billed.report['debt_cu_s'] == 0

    def test_io_above_the_entitlement_is_told_once(self, host, caplog):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        for _ in range(40):
            host.use(emulator_ns=2 * 10**9)
        assert len(host.told.events) == 1
        assert host.told.events[0]['overdrawn'] is True
        assert caplog.text.count('alone costs more than its 60 CU') == 1


class TestLedger:
    def test_a_full_disk_loses_nothing(self, host):
        host.run()
        host.round()
        # The same error as of a full disk: the file may not grow.
        connection = host.biller._ledger._connection
        connection.execute('PRAGMA max_page_count = 1')
        for number in range(300):
            host.run(f'00000000-0000-4000-8000-{number:012d}')
        host.use(emulator_ns=10**9)
        assert 'full' in host.biller.alarms[0]
        assert host.biller.offers == ('off',)
        assert host.used_cu_s() == 0
        for number in range(300):
            host.leave(f'00000000-0000-4000-8000-{number:012d}')
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200
        host.use()
        assert host.biller.alarms == ()
        assert 'charge' in host.biller.offers

    def test_one_that_can_only_be_read_is_told_of_once(self, host, caplog,
                                                       monkeypatch):
        caplog.set_level('INFO')
        monkeypatch.setattr(ledgers, '_BUSY_TIMEOUT_S', 0.01)
        host.run()
        host.round()
        offers = []
        read = host.hypervisor.usages

        def usages(*arguments):
            offers.append(host.biller.offers)
            return read(*arguments)
        monkeypatch.setattr(host.hypervisor, 'usages', usages)
        # Another process keeps it from being written.
        host.biller._ledger.close()
        other = sqlite3.connect(host.path, isolation_level=None)
        other.execute('BEGIN IMMEDIATE')
        for _ in range(5):
            host.use(emulator_ns=10**9)
        assert offers == [('off', 'account', 'charge'), *4 * [('off',)]]
        assert host.biller.alarms
        assert caplog.text.count('Bills are kept in memory') == 1
        other.close()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 600
        assert host.biller.alarms == ()
        assert caplog.text.count('The ledger can be used again') == 1

    def test_one_that_is_well_again_is_seen_without_servers(self, host):
        host.round()
        host.hide_ledger()
        host.round()
        assert host.biller.offers == ('off',)
        host.find_ledger()
        host.use_time()
        assert 'charge' in host.biller.offers
        assert host.biller.alarms == ()

    def test_a_ledger_that_comes_late_is_added_to(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.biller.close()
        hidden = host.path.rename(host.directory / 'hidden')
        host.path.mkdir()
        host.start()
        host.use(emulator_ns=10**9)
        host.use(emulator_ns=10**9)
        assert host.biller.offers == ('off',)
        host.path.rmdir()
        hidden.rename(host.path)
        host.use(emulator_ns=10**9)
        # What was used before it was read first is lost: nobody knew it.
        assert host.used_cu_s() == 300
        assert host.biller.alarms == ()

    def test_what_stopped_before_it_came_is_added_too(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.hide_ledger()
        host.use()
        host.use(emulator_ns=10**9)
        host.leave()
        host.use_time()
        host.find_ledger()
        host.use_time()
        assert host.used_cu_s() == 200

    def test_and_what_was_started_again_before_it_came(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.hide_ledger()
        host.use()
        host.leave()
        host.use_time()
        host.run(run='two', emulator_ns=10**9)
        host.round()
        host.find_ledger()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 300

    def test_debt_of_a_ledger_that_comes_late_is_owed(self, host):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.hide_ledger()
        host.use(length_s=0.0)
        host.leave()
        host.use_time()
        host.find_ledger()
        host.use_time()
        assert host.account().debt_cu_us == 100 * 10**6

    def test_other_hosts_are_asked_once_it_came(self, host):
        host.round()
        host.hide_ledger()
        host.run(origin='migrated')
        host.round()
        assert host.told.claims == []
        host.find_ledger()
        host.use()
        host.use()
        assert host.told.claims == [UUID]

    def test_no_stub_is_handed_over(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.hide_ledger()
        host.use()
        host.leave()
        host.biller.take_claim(UUID, 'there', NOW_S + host.now_s)
        host.use_time()
        assert host.told.statements == []
        host.find_ledger()
        host.use_time()
        (_name, statement), = host.told.statements
        assert statement.total_cu_us['emulator'] == 100 * 10**6

    def test_a_damaged_one_costs_nothing_that_runs(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.biller._ledger.close()
        for suffix in ('-wal', '-shm'):
            host.path.with_name(host.path.name + suffix).unlink(
                missing_ok=True)
        host.path.write_bytes(b'damaged' * 1000)
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200
        assert 'begun anew' in host.biller.alarms[0]

    def test_a_row_that_somebody_damaged_begins_anew(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        with sqlite3.connect(host.path) as connection:
            connection.execute("UPDATE servers SET baseline = '{\"run\": 5}'")
        connection.close()
        host.start()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 0
        assert UUID in host.biller.alarms[0]

    def test_a_driver_that_counts_nothing_offers_nothing(self, tmp_path):
        class Old(fakes.FakeHypervisor):
            usages = base.Hypervisor.usages

        host = Host(tmp_path)
        host.hypervisor = Old()
        host.start()
        host.round()
        assert host.biller.offers == ('off',)
        assert not host.biller.can_read


class TestHandOver:
    @pytest.fixture
    def there(self, tmp_path):
        return Host(tmp_path, 'there')

    def move(self, source, target, **counters):
        """A live migration, and what the two agents say to each other."""
        source.leave()
        target.run(origin='migrated', run=f'at {target.now_s}', **counters)
        target.round()
        self.deliver(source, target)

    def deliver(self, source, target):
        for uuid in target.told.claims:
            source.biller.take_claim(uuid, target.name, NOW_S + source.now_s)
        target.told.claims.clear()
        source.round()
        for name, statement in source.told.statements:
            assert name == target.name
            target.biller.take_statement(accounts.Statement.from_dict(
                statement.to_dict()))
        source.told.statements.clear()
        target.round()

    def test_what_was_used_goes_along(self, host, there):
        host.run(emulator_ns=10**9)
        host.round()
        self.move(host, there)
        assert there.used_cu_s() == 100
        there.use(emulator_ns=10**9)
        assert there.used_cu_s() == 200
        assert host.account().handed_to == 'there'

    def test_and_back(self, host, there):
        host.run(emulator_ns=10**9)
        host.round()
        for source, target in ((host, there), (there, host)) * 3:
            source.now_s += 10
            target.now_s = source.now_s
            self.move(source, target)
            target.use(emulator_ns=10**9)
        assert host.used_cu_s() == 700

    def test_debt_goes_along(self, host, there):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.leave()
        there.run(origin='migrated', billing='charge', limit_share=1.0)
        there.round()
        self.deliver(host, there)
        billed = there.use(length_s=2.0, vcpu_ns=12 * 10**8)
        assert billed.report['debt_cu_s'] == 100
        assert billed.report['inherited'] is True

    def test_it_waits_for_the_server_to_end_here(self, host, there):
        host.run(emulator_ns=10**9)
        host.round()
        there.run(origin='migrated')
        there.round()
        self.deliver(host, there)
        assert there.used_cu_s() == 0
        host.leave()
        self.deliver(host, there)
        assert there.used_cu_s() == 100

    def test_a_claim_is_repeated_until_somebody_answers(self, there):
        there.run(origin='migrated')
        for _ in range(300):
            there.use(length_s=2.0)
        assert len(there.told.claims) == 9

    def test_a_new_server_is_hardly_asked_for(self, there):
        there.run(origin='booted')
        for _ in range(300):
            there.use(length_s=2.0)
        assert len(there.told.claims) == 2

    def test_a_server_that_stays_is_not_asked_for(self, host):
        host.run()
        host.round()
        host.told.claims.clear()
        host.leave()
        host.round()
        host.run(run='two')
        host.round()
        host.start()
        host.round()
        assert host.told.claims == []

    @pytest.mark.parametrize('claimant, age_s', [
        ('there', 1000), ('there', -1000), ('here', 0)])
    def test_what_is_no_claim_of_now_is_left_alone(self, host, claimant,
                                                   age_s):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.biller.take_claim(UUID, claimant, NOW_S + host.now_s - age_s)
        host.round()
        assert host.told.statements == []
        assert host.account().handed_to == ''

    def test_of_an_unknown_server_nothing_is_told(self, host):
        host.biller.take_claim(UUID, 'there', NOW_S + host.now_s)
        host.round()
        assert host.told.statements == []

    def test_a_statement_of_a_server_that_is_not_here_is_not_kept(self, host):
        host.biller.take_statement(accounts.Statement(
            UUID, 1, accounts.nothing(), 5, 0))
        host.round()
        assert host.account() is None

    def test_one_that_has_stopped_since_owes_it_all_the_same(self, host,
                                                             there):
        host.run(billing='charge', limit_share=1.0)
        host.round()
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.leave()
        there.run(origin='migrated', billing='charge', limit_share=1.0)
        there.round()
        there.leave()
        there.use_time()
        self.deliver(host, there)
        assert there.account().debt_cu_us == 100 * 10**6
        there.run(run='two', billing='charge', limit_share=1.0)
        assert there.round()[UUID].report['debt_cu_s'] == 100

    def test_what_was_not_heard_is_asked_for_at_the_next_start(self, host,
                                                               there):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.round()
        there.run()
        for _ in range(300):
            there.use()
        there.told.claims.clear()
        there.leave()
        there.use_time()
        there.run(run='two')
        for _ in range(300):
            there.use()
        assert len(there.told.claims) == 2
        self.deliver(host, there)
        assert there.used_cu_s() == 100
        there.leave()
        there.use_time()
        there.run(run='three')
        there.round()
        assert there.told.claims == []

    def test_an_agent_that_starts_asks_for_what_is_outstanding(self, host,
                                                               there):
        host.run(emulator_ns=10**9)
        host.round()
        self.move(host, there)
        there.leave()
        there.use_time()
        host.now_s += 10
        host.run(run='two', origin='migrated')
        host.round()
        host.start()
        host.use()
        self.deliver(there, host)
        assert host.used_cu_s() == 100

    def test_what_is_with_another_host_again_is_not_added_to(self, host):
        host.run(emulator_ns=10**9)
        host.round()
        host.leave()
        host.biller.take_claim(UUID, 'there', NOW_S + host.now_s)
        host.use_time()
        before = host.account()
        host.biller.take_statement(accounts.Statement(
            UUID, before.sequence + 1, accounts.nothing(), 5, 0))
        host.use_time()
        assert host.account() == before

    def test_who_handed_it_on_does_not_answer_for_the_next(self, host, there,
                                                          tmp_path):
        """The host that knows all may answer last."""
        last = Host(tmp_path, 'last')
        host.run(emulator_ns=10**9)
        host.round()
        self.move(host, there)
        there.use(emulator_ns=10**9)
        there.leave()
        there.use_time()
        last.now_s = host.now_s = there.now_s
        last.run(origin='migrated')
        last.round()
        host.biller.take_claim(UUID, 'last', NOW_S + host.now_s)
        host.use_time()
        assert host.told.statements == []
        assert host.account().handed_to == 'there'
        # It may still have missed the answer.
        there.told.claims.append(UUID)
        self.deliver(host, there)
        last.use(length_s=3.0)
        self.deliver(there, last)
        assert last.used_cu_s() == 200

    def test_claims_are_forgotten_while_no_ledger_can_be_read(
            self, host, monkeypatch):
        host.round()
        host.hide_ledger()
        asked = []
        get = ledgers.Ledger.get

        def slow_get(ledger, uuid):
            asked.append(uuid)
            return get(ledger, uuid)
        monkeypatch.setattr(ledgers.Ledger, 'get', slow_get)
        for number in range(100):
            host.biller.take_claim(f'00000000-0000-4000-8000-{number:012d}',
                                   'there', NOW_S + host.now_s)
        host.use_time()
        assert len(asked) == 1
        host.now_s += 301
        host.round()
        assert len(asked) == 2
        assert not host.biller._claims

    def test_claims_that_wait_are_bounded(self, host):
        for some in range(2):
            for number in range(6_000):
                uuid = f'00000000-0000-4000-800{some}-{number:012d}'
                host.hypervisor.runs[uuid] = 1
                host.biller.take_claim(uuid, 'there', NOW_S + host.now_s)
            host.use_time()
        assert len(host.biller._claims) == 10_000

    def test_messages_are_bounded(self, host):
        for _ in range(11_000):
            host.biller.take_claim(UUID, 'there', NOW_S + host.now_s)
        assert host.biller._inbox.qsize() == 10_000


class TestDue:
    def test_a_host_without_servers_is_left_in_peace(self, host):
        due = [second for second in range(300)
               if host.biller.is_due(float(second), ())]
        assert len(due) <= 6

    def test_servers_are_billed_each_interval(self, host):
        host.run()
        subjects = list(host.subjects.values())
        due = [tenth for tenth in range(0, 600, 5)
               if host.biller.is_due(tenth / 10, subjects)]
        assert due == list(range(0, 600, 20))

    def test_claims_are_answered_on_such_a_host_too(self, host):
        assert host.biller.is_due(0.0, ())
        host.biller.take_claim(UUID, 'there', NOW_S + host.now_s)
        assert host.biller.is_due(2.5, ())
