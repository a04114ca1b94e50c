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

"""What two hosts say to each other of a server that moved between them."""

import pytest

from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger as ledgers
from nova_vqos.tests.unit import billing_host

UUID = billing_host.UUID


@pytest.fixture
def host(tmp_path):
    return billing_host.Host(tmp_path)


class TestHandOver:
    @pytest.fixture
    def there(self, tmp_path):
        return billing_host.Host(tmp_path, 'there')

    def move(self, source, target, **counters):
        """A live migration, and what the two agents say to each other."""
        source.leave()
        target.run(origin='migrated', run=f'at {target.now_s}', **counters)
        target.round()
        self.deliver(source, target)

    def deliver(self, source, target):
        for uuid in target.told.claims:
            source.take_claim(target.name, uuid)
        target.told.claims.clear()
        source.round()
        for name, statement in source.told.statements:
            assert name == target.name
            target.biller.hand_over.take_statement(accounts.Statement.from_dict(
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

    def test_what_a_host_counts_is_what_was_used_there(self, host, there):
        """Else a counter of that host would jump when the account comes."""
        host.run(emulator_ns=10**9)
        host.round()
        self.move(host, there)
        report = there.use(emulator_ns=10**9).report
        assert report['used_cu_s']['emulator'] == 200
        assert report['used_here_cu_s']['emulator'] == 100

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
        host.take_claim(claimant, age_s=age_s)
        host.round()
        assert host.told.statements == []
        assert host.account().handed_to == ''

    def test_of_an_unknown_server_nothing_is_told(self, host):
        host.take_claim('there')
        host.round()
        assert host.told.statements == []

    def test_a_statement_of_a_server_that_is_not_here_is_not_kept(self, host):
        host.biller.hand_over.take_statement(accounts.Statement(
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
        host.take_claim('there')
        host.use_time()
        before = host.account()
        host.biller.hand_over.take_statement(accounts.Statement(
            UUID, before.sequence + 1, accounts.nothing(), 5, 0))
        host.use_time()
        assert host.account() == before

    def test_who_handed_it_on_does_not_answer_for_the_next(self, host, there,
                                                          tmp_path):
        """The host that knows all may answer last."""
        last = billing_host.Host(tmp_path, 'last')
        host.run(emulator_ns=10**9)
        host.round()
        self.move(host, there)
        there.use(emulator_ns=10**9)
        there.leave()
        there.use_time()
        last.now_s = host.now_s = there.now_s
        last.run(origin='migrated')
        last.round()
        host.take_claim('last')
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
            host.take_claim('there', f'00000000-0000-4000-8000-{number:012d}')
        host.use_time()
        assert len(asked) == 1
        host.now_s += 301
        host.round()
        assert len(asked) == 2
        assert not host.biller.hand_over._claims

    def test_claims_that_wait_are_bounded(self, host):
        for some in range(2):
            for number in range(6_000):
                uuid = f'00000000-0000-4000-800{some}-{number:012d}'
                host.hypervisor.runs[uuid] = 1
                host.take_claim('there', uuid)
            host.use_time()
        assert len(host.biller.hand_over._claims) == 10_000

    def test_messages_are_bounded(self, host):
        for _ in range(11_000):
            host.take_claim('there')
        assert host.biller.hand_over._inbox.qsize() == 10_000
