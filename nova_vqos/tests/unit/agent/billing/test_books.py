# SPDX-License-Identifier: Apache-2.0
"""Accounts while the ledger is out of reach, full, late or damaged."""

import sqlite3

from nova_vqos.agent.billing import books
from nova_vqos.billing import account
from nova_vqos.billing import charge
from nova_vqos.billing import ledger
from nova_vqos.billing import runtime_charge
from nova_vqos.tests.fixtures import billing_host

UUID = billing_host.UUID


def test_a_debt_stays_where_another_control_decides():
    """A server is held by a reservation from now on, or not any more."""
    book = books.Book(account.Account(UUID, debt_cu_us=5_000_000), 'booted')
    for kind in (charge.Charge, runtime_charge.RuntimeCharge, charge.Charge):
        book.set_control(0.5, kind)
        before = book.control
        assert type(before) is kind
        assert (before.debt_cu_s, before.limit_share) == (5.0, 0.5)
        book.set_control(0.5, kind)
        assert book.control is before


class TestLedger:
    def test_a_full_disk_loses_nothing(self, host):
        host.begin()
        # The same error as of a full disk: the file may not grow.
        connection = host.ledger._connection
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

    def test_a_locked_ledger_is_logged_once(self, host, caplog, monkeypatch):
        caplog.set_level('INFO')
        monkeypatch.setattr(ledger, '_BUSY_TIMEOUT_S', 0.01)
        host.begin()
        offers = []
        read = host.hypervisor.usages

        def usages(*arguments):
            offers.append(host.biller.offers)
            return read(*arguments)
        monkeypatch.setattr(host.hypervisor, 'usages', usages)
        # Another process keeps it from being written.
        host.ledger.close()
        other = sqlite3.connect(host.path, isolation_level=None)
        other.execute('BEGIN IMMEDIATE')
        host.use(times=5, emulator_ns=10**9)
        assert offers == [('off', 'account', 'charge'), *4 * [('off',)]]
        assert host.biller.alarms
        assert caplog.text.count('kept in memory') == 1
        other.close()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 600
        assert host.biller.alarms == ()
        assert caplog.text.count('ledger is writable again') == 1

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
        host.begin(emulator_ns=10**9)
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
        # Usage before the first reading is lost: it is unknown.
        assert host.used_cu_s() == 300
        assert host.biller.alarms == ()

    def test_what_stopped_before_it_came_is_added_too(self, host):
        host.begin(emulator_ns=10**9)
        host.hide_ledger()
        host.use()
        host.use(emulator_ns=10**9)
        host.end()
        host.find_ledger()
        host.use_time()
        assert host.used_cu_s() == 200

    def test_and_what_was_started_again_before_it_came(self, host):
        host.begin(emulator_ns=10**9)
        host.hide_ledger()
        host.use()
        host.end()
        host.begin(run='two', emulator_ns=10**9)
        host.find_ledger()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 300

    def test_debt_of_a_ledger_that_comes_late_is_owed(self, host):
        host.begin(billing='charge', limit_share=1.0)
        host.use(vcpu_ns=12 * 10**8, emulator_ns=10**9)
        host.hide_ledger()
        host.use(length_s=0.0)
        host.end()
        host.find_ledger()
        host.use_time()
        assert host.account().debt_cu_us == 100 * 10**6

    def test_other_hosts_are_asked_once_it_came(self, host):
        host.round()
        host.hide_ledger()
        host.begin(origin='migrated')
        assert host.sent.claims == []
        host.find_ledger()
        host.use()
        host.use()
        assert [claim.server_uuid for claim in host.sent.claims] == [UUID]

    def test_no_stub_is_handed_over(self, host):
        host.begin(emulator_ns=10**9)
        host.hide_ledger()
        host.use()
        host.leave()
        host.receive_claim('there')
        host.use_time()
        assert host.sent.statements == []
        host.find_ledger()
        host.use_time()
        answer, = host.sent.statements
        assert answer.statement.total_cu_us['emulator'] == 100 * 10**6

    def test_a_damaged_one_costs_nothing_that_runs(self, host):
        host.begin(emulator_ns=10**9)
        host.ledger.close()
        for suffix in ('-wal', '-shm'):
            host.path.with_name(host.path.name + suffix).unlink(
                missing_ok=True)
        host.path.write_bytes(b'damaged' * 1000)
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 200
        assert 'made a new one' in host.biller.alarms[0]

    def test_a_damaged_row_begins_anew(self, host):
        host.begin(emulator_ns=10**9)
        with sqlite3.connect(host.path) as connection:
            connection.execute(
                "UPDATE servers SET checksum = 0, baseline = '{\"run\": 5}'")
        connection.close()
        host.start()
        host.use(emulator_ns=10**9)
        assert host.used_cu_s() == 0
        assert UUID in host.biller.alarms[0]
