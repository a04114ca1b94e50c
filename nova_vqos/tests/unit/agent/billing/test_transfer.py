# SPDX-License-Identifier: Apache-2.0
"""What two hosts say to each other of a server that moved between them."""

import pytest

from nova_vqos.billing import account
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import savings
from nova_vqos.tests.fixtures import billing_host

UUID = billing_host.UUID


class TestTransfer:
    @pytest.fixture
    def there(self, tmp_path):
        return billing_host.Host(tmp_path, 'there')

    def move(self, source, target, **counters):
        """A live migration, and what the two agents say to each other."""
        source.leave()
        target.begin(origin='migrated', run=f'at {target.now_s}', **counters)
        self.deliver(source, target)

    def deliver(self, source, target):
        for asked in target.sent.claims:
            source.receive_claim(target.name, asked.server_uuid,
                                 nonce=asked.nonce,
                                 most_debt_cu_us=asked.most_debt_cu_us,
                                 most_saved_cu_us=asked.most_saved_cu_us)
        target.sent.claims.clear()
        source.round()
        for answer in source.sent.statements:
            assert answer.host == target.name
            target.receive(answer)
        source.sent.statements.clear()
        target.round()

    def test_the_usage_is_transferred(self, host, there):
        host.begin(emulator_ns=10**9)
        self.move(host, there)
        assert there.used_cu_s() == 100
        there.use(emulator_ns=10**9)
        assert there.used_cu_s() == 200
        assert host.account().handed_to == 'there'

    def test_and_back(self, host, there):
        host.begin(emulator_ns=10**9)
        for source, target in ((host, there), (there, host)) * 3:
            source.now_s += 10
            target.now_s = source.now_s
            self.move(source, target)
            target.use(emulator_ns=10**9)
        assert host.used_cu_s() == 700

    def test_debt_goes_along(self, host, there):
        host.begin(billing='charge', limit_share=1.0)
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.leave()
        there.begin(origin='migrated', billing='charge', limit_share=1.0)
        self.deliver(host, there)
        billed = there.use(length_s=2.0, vcpu_ns=12 * 10**8)
        assert billed.report.debt_cu_s == 100
        assert billed.report.inherited is True

    BURST = savings.Terms(50, 100, 60)

    def test_savings_go_along(self, host, there):
        host.begin(burst=self.BURST)
        host.use(length_s=20.0)
        host.leave()
        there.begin(origin='migrated', burst=self.BURST, is_default=True)
        self.deliver(host, there)
        # A second of its own, and twenty of the other host.
        assert there.use(length_s=1.0).report.saved_cu_s == 1050
        assert there.account().saved_cu_us == 1050 * 10**6
        assert there.account().inherited.saved_cu_us == 1000 * 10**6

    def test_savings_that_cannot_be_are_refused(self, there):
        there.begin(origin='migrated', burst=self.BURST)
        (asked,) = there.sent.claims
        there.receive(billing_host.Answer('there', account.Statement(
            UUID, int(billing_host.NOW_S), account.nothing(), 0, 0,
            self.BURST.most_cu_us + 1), asked.nonce, is_copy=False))
        there.round()
        assert there.account().saved_cu_us == 0
        assert there.biller.transfer.refused == 1

    def test_what_a_host_counts_is_what_was_used_there(self, host, there):
        """Else a counter of that host would jump when the account comes."""
        host.begin(emulator_ns=10**9)
        self.move(host, there)
        report = there.use(emulator_ns=10**9).report
        assert report.used_cu_s['emulator'] == 200
        assert report.used_here_cu_s['emulator'] == 100

    def test_it_waits_for_the_server_to_end_here(self, host, there):
        host.begin(emulator_ns=10**9)
        there.begin(origin='migrated')
        self.deliver(host, there)
        assert there.used_cu_s() == 0
        host.leave()
        self.deliver(host, there)
        assert there.used_cu_s() == 100

    @pytest.mark.parametrize('origin, claims', [
        ('migrated', 9), ('booted', 2)])
    def test_a_claim_is_repeated_until_answered(self, there, origin, claims):
        there.run(origin=origin)
        there.use(times=300, length_s=2.0)
        assert len(there.sent.claims) == claims

    @pytest.mark.parametrize('origin', ['migrated', 'booted'])
    def test_the_host_that_it_came_from_is_asked_first(self, host, there,
                                                       origin):
        there.sources = {UUID: 'here'}
        there.run(origin=origin)
        there.use(times=300)
        assert [claim.source for claim in there.sent.claims] == (
            ['here'] * 7 + [''] * 2)
        host.begin(emulator_ns=10**9)
        host.leave()
        self.deliver(host, there)
        assert there.used_cu_s() == 100
        # It has come, and is not asked for again.
        there.end()
        there.begin(run='two')
        assert there.sent.claims == []

    def test_all_are_asked_where_it_is_not_known(self, there):
        there.run(origin='migrated')
        there.use(times=300)
        assert {claim.source for claim in there.sent.claims} == {''}

    def test_a_server_that_stays_is_not_asked_for(self, host):
        host.begin()
        host.use(times=200)
        host.leave()
        host.round()
        host.begin(run='two')
        host.use(times=200)
        host.start()
        host.round()
        assert host.sent.claims == []

    @pytest.mark.parametrize('claimant, age_s', [
        ('there', 1000), ('there', -1000), ('here', 0)])
    def test_other_or_old_claims_are_ignored(self, host, claimant, age_s):
        host.begin(emulator_ns=10**9)
        host.leave()
        host.receive_claim(claimant, age_s=age_s)
        host.round()
        assert host.sent.statements == []
        assert host.account().handed_to == ''

    def test_an_unknown_server_gets_no_answer(self, host):
        host.receive_claim('there')
        host.round()
        assert host.sent.statements == []

    def test_a_server_that_has_stopped_since_still_owes_it(self, host, there):
        host.begin(billing='charge', limit_share=1.0)
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.leave()
        there.begin(origin='migrated', billing='charge', limit_share=1.0)
        there.end()
        self.deliver(host, there)
        assert there.account().debt_cu_us == 100 * 10**6
        there.run(run='two', billing='charge', limit_share=1.0)
        assert there.round()[UUID].report.debt_cu_s == 100

    def test_an_unheard_answer_is_claimed_at_the_next_start(self, host, there):
        host.begin(emulator_ns=10**9)
        host.leave()
        host.round()
        there.run()
        there.use(times=300)
        there.sent.claims.clear()
        there.end()
        there.run(run='two')
        there.use(times=100)
        assert len(there.sent.claims) == 2
        self.deliver(host, there)
        assert there.used_cu_s() == 100
        there.end()
        there.begin(run='three')
        assert there.sent.claims == []

    def test_an_agent_that_starts_claims_what_it_lacks(self, host, there):
        host.begin(emulator_ns=10**9)
        self.move(host, there)
        there.end()
        host.now_s += 10
        host.begin(run='two', origin='migrated')
        host.start()
        host.use()
        self.deliver(there, host)
        assert host.used_cu_s() == 100

    def test_a_server_that_is_elsewhere_again_gains_nothing(self, host, there):
        host.begin(emulator_ns=10**9)
        host.leave()
        there.begin(origin='migrated')
        claim, = there.sent.claims
        self.deliver(host, there)
        there.leave()
        there.receive_claim('other')
        there.use_time()
        before = there.account()
        assert before.handed_to == 'other'
        there.receive(billing_host.Answer(
            'there', account.Statement(UUID, before.sequence + 1,
                                       before.total_cu_us, 5, 0),
            claim.nonce, is_copy=False))
        there.use_time()
        assert there.account() == before
        assert there.biller.alarms == ()

    def test_its_last_host_has_the_last_word(self, host, there, tmp_path):
        last = billing_host.Host(tmp_path, 'last')
        host.begin(emulator_ns=10**9)
        self.move(host, there)
        there.use(emulator_ns=10**9)
        there.end()
        last.now_s = host.now_s = there.now_s
        last.begin(origin='migrated')
        claims = tuple(last.sent.claims)
        self.deliver(host, last)
        assert last.used_cu_s() == 100
        assert host.account().handed_to == 'there'
        # It goes on asking.
        last.use(length_s=3.0)
        assert last.sent.claims
        self.deliver(there, last)
        assert last.used_cu_s() == 200
        last.use(times=300)
        assert last.sent.claims == []
        # The first one may still come late.
        last.sent.claims.extend(claims)
        self.deliver(host, last)
        assert last.used_cu_s() == 200

    def test_a_host_that_died_costs_what_was_used_there(self, host, there,
                                                        tmp_path):
        last = billing_host.Host(tmp_path, 'last')
        host.begin(emulator_ns=10**9)
        self.move(host, there)
        there.use(emulator_ns=10**9)
        there.leave()
        last.begin(origin='booted')
        self.deliver(host, last)
        last.use(emulator_ns=10**9)
        assert last.used_cu_s() == 200
        # It comes back, and so does the server.
        last.leave()
        there.use_time()
        there.begin(origin='migrated', run='three')
        self.deliver(last, there)
        assert there.used_cu_s() == 300

    def test_a_host_that_claims_and_dies_costs_nothing(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.leave()
        host.receive_claim('there')
        host.use_time()
        assert host.account().handed_to == 'there'
        host.run(run='two', billing='charge', limit_share=1.0)
        report = host.round()[UUID].report
        assert report.debt_cu_s == 100
        assert report.used_cu_s['emulator'] == 100

    def test_an_agent_that_ends_before_the_answer_asks_again(self, host,
                                                             there):
        host.begin(emulator_ns=10**9)
        there.begin(origin='migrated')
        there.use()
        there.start()
        there.use()
        assert there.sent.claims
        host.leave()
        self.deliver(host, there)
        assert there.used_cu_s() == 100
        there.start()
        there.use(times=10)
        assert there.sent.claims == []

    def test_an_agent_asks_no_longer_than_an_account_may_come(self, there):
        there.begin()
        there.use(times=400)
        there.start()
        there.use(times=10)
        assert there.sent.claims == []

    def test_it_is_handed_over_once_it_is_stored(self, host, there,
                                                 monkeypatch):
        """Else an agent that ends would count it twice."""
        host.begin(emulator_ns=10**9)
        host.leave()
        there.begin(origin='migrated')
        with monkeypatch.context() as patch:
            def full(_ledger, _accounts):
                raise ledgers.LedgerError('disk full')
            patch.setattr(ledgers.Ledger, 'store', full)
            host.receive_claim('there', nonce=there.sent.claims[0].nonce)
            host.use_time()
            assert host.sent.statements == []
        host.use_time()
        self.deliver(host, there)
        assert host.account().handed_to == 'there'
        assert there.used_cu_s() == 100

    def test_a_server_with_fewer_units_there_owes_less(self, host, there):
        host.begin(billing='charge', limit_share=1.0, units=200)
        host.use(length_s=1.0, times=30, vcpu_ns=10**9, emulator_ns=3 * 10**9)
        debt_cu_us = host.account().debt_cu_us
        assert debt_cu_us > 10 * 300 * 10**6
        host.leave()
        there.begin(billing='charge', limit_share=1.0, units=10)
        self.deliver(host, there)
        assert there.account().debt_cu_us == 10 * 300 * 10**6
        assert (there.account().written_off_cu_us
                == debt_cu_us - 10 * 300 * 10**6)
        assert there.biller.alarms == ()

    def test_an_older_agent_gets_no_copy(self, host):
        host.begin(emulator_ns=10**9)
        host.end()
        host.receive_claim('there', nonce='')
        host.use_time()
        host.receive_claim('other', nonce='')
        host.use_time()
        answer, = host.sent.statements
        assert (answer.host, answer.nonce) == ('there', '')

    def test_claims_are_forgotten_without_a_ledger(self, host, monkeypatch):
        host.round()
        host.hide_ledger()
        asked = []
        get = ledgers.Ledger.get

        def slow_get(ledger, uuid):
            asked.append(uuid)
            return get(ledger, uuid)
        monkeypatch.setattr(ledgers.Ledger, 'get', slow_get)
        for number in range(100):
            host.receive_claim(
                'there', f'00000000-0000-4000-8000-{number:012d}')
        host.use_time()
        assert len(asked) == 1
        host.now_s += 301
        host.round()
        assert len(asked) == 2
        assert not host.biller.transfer._claims

    def test_claims_that_wait_are_bounded(self, host):
        for some in range(2):
            for number in range(6_000):
                uuid = f'00000000-0000-4000-800{some}-{number:012d}'
                host.hypervisor.runs[uuid] = 1
                host.receive_claim('there', uuid)
            host.use_time()
        assert len(host.biller.transfer._claims) == 10_000
        assert (uuid, 'there') in host.biller.transfer._claims

    def test_messages_are_bounded(self, host):
        for _ in range(11_000):
            host.receive_claim('there')
        assert host.biller.transfer._inbox.qsize() == 10_000
