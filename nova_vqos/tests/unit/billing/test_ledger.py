# SPDX-License-Identifier: Apache-2.0
"""The ledger on disk, and what may become of it."""

import dataclasses
import json
import sqlite3
import stat

import pytest

from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import usage
from nova_vqos.tests.unit.billing import test_account
from nova_vqos.tests.unit.billing import test_meter

UUID = test_account.UUID


def uuid(number):
    return f'00000000-0000-4000-8000-{number:012d}'


def full_account(server_uuid=UUID):
    """An account with something in each of its fields."""
    return accounts.Account(
        server_uuid,
        own_cu_us=test_account.used(vcpu=accounts.MOST, disk=3),
        debt_cu_us=4, written_off_cu_us=5,
        inherited=accounts.Statement(
            server_uuid, 7, test_account.used(net_rx=1), 2, 3, -5),
        sequence=8, handed_to='host.example', saved_cu_us=-6,
        baseline=test_meter.reading(
            1.25, vcpu_ns=2**60,
            interfaces={'tap0': test_meter.packets(1, 2, 3, 4, 5)},
            disks={'vda': usage.DiskCounters(1, 2, 3, 4)}))


def without_savings(account):
    return dataclasses.replace(
        account, saved_cu_us=0, inherited=dataclasses.replace(
            account.inherited, saved_cu_us=0))


def baseline(**others):
    """A reading as the ledger holds it, with some of it replaced."""
    return json.dumps({**dataclasses.asdict(test_meter.reading()), **others})


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'lib' / 'ledger.sqlite'


@pytest.fixture
def ledger(path):
    made = ledgers.Ledger(str(path))
    yield made
    made.close()


def days(path, *some):
    """Pretend that the agent ran on these days."""
    with sqlite3.connect(path) as connection:
        connection.executemany('INSERT OR IGNORE INTO days VALUES (?)',
                               ((day,) for day in some))


class TestAccounts:
    @pytest.mark.parametrize('account', [
        full_account(), accounts.Account(UUID),
        dataclasses.replace(full_account(), baseline=test_meter.reading(
            disks=None)),
    ])
    def test_they_come_back_as_they_were(self, ledger, path, account):
        ledger.store([account])
        ledger.close()
        another = ledgers.Ledger(str(path))
        assert another.get(UUID) == account
        another.close()

    def test_a_reading_of_a_version_that_counted_more(self, ledger, path):
        disk = usage.DiskCounters(1, 2, 3, 4)
        held = accounts.Account(
            UUID, baseline=test_meter.reading(disks={'vda': disk}))
        ledger.store([held])
        with sqlite3.connect(path) as connection:
            connection.execute(
                'UPDATE servers SET checksum = 0, baseline = ?', (baseline(
                    wakes=7, disks={
                    'vda': {**dataclasses.asdict(disk), 'trims': 5}}),))
        connection.close()
        assert ledger.get(UUID) == held
        assert ledger.alarm == ''

    def test_an_unknown_one_is_none(self, ledger):
        assert ledger.get(UUID) is None

    @pytest.mark.parametrize('changes', [
        # More than SQLite has bits for, or than is read again.
        {'sequence': 2**70}, {'sequence': accounts.MOST + 1},
        {'debt_cu_us': -1}, {'written_off_cu_us': 2**63},
        {'saved_cu_us': -accounts.MOST - 1},
        {'own_cu_us': test_account.used(net_rx=2**63)}])
    def test_what_is_no_account_costs_no_other(self, ledger, changes):
        ledger.store([accounts.Account(uuid(1), sequence=1),
                      accounts.Account(uuid(2), sequence=1)])
        refused = ledger.store([
            accounts.Account(uuid(2), **changes),
            accounts.Account(uuid(1), sequence=2)])
        assert refused.keys() == {uuid(2)}
        assert next(iter(changes)) in refused[uuid(2)] or (
            'net_rx' in refused[uuid(2)])
        assert ledger.get(uuid(1)).sequence == 2
        assert ledger.get(uuid(2)).sequence == 1

    @pytest.mark.parametrize('column, value', [
        ('vcpu_cu_us', -1), ('vcpu_cu_us', 'many'), ('baseline', '{'),
        ('baseline', '{}'), ('baseline', '[]'), ('inherited', '5'),
        ('handed_to', '../x'), ('debt_cu_us', 1.5),
        *(('baseline', text) for text in (
            '5', '"x"', 'null', '[' * 100_000, baseline(run=7),
            baseline(read_at_s='1.0'), baseline(read_at_s=10**400),
            baseline(read_at_s=float('nan')), baseline(interfaces=5),
            baseline(interfaces=None), baseline(interfaces={'tap0': 5}),
            baseline(disks=[]), baseline(disks={'vda': {'a': 1}}),
            baseline(vcpu_ns='1'))),
    ])
    def test_a_damaged_row_begins_anew(self, ledger, path, column, value):
        ledger.store([full_account(), full_account(uuid(2))])
        with sqlite3.connect(path) as connection:
            connection.execute(
                f'UPDATE servers SET checksum = 0, {column} = ? '
                'WHERE server_uuid = ?', (value, UUID))
        connection.close()
        assert ledger.get(UUID) is None
        assert UUID in ledger.alarm
        assert ledger.get(uuid(2)) == full_account(uuid(2))


    def test_one_damaged_byte_is_of_one_row(self, ledger, path):
        """Wherever it is: no other value is read, and no other row."""
        ledger.store([full_account(), full_account(uuid(2))])
        with sqlite3.connect(path) as connection:
            names = [name for _, name, kind, *_ in connection.execute(
                'PRAGMA table_info(servers)')
                if kind == 'TEXT' and name != 'server_uuid']
        connection.close()
        assert {'handed_to', 'inherited', 'baseline'} <= set(names)
        for name in names:
            for byte in (b'\xff', b'0'):
                ledger.store([full_account()])
                ledger.alarm = ''
                with sqlite3.connect(path) as connection:
                    connection.execute(
                        f'UPDATE servers SET {name} = CAST(CAST(substr({name},'
                        f' 1, length({name}) - 3) AS BLOB) || ? AS TEXT) '
                        'WHERE server_uuid = ?', (byte, UUID))
                connection.close()
                assert ledger.get(UUID) is None, name
                assert UUID in ledger.alarm
                assert ledger.get(uuid(2)) == full_account(uuid(2))
                assert ledger.store([full_account(uuid(2))]) == {}

    def test_another_number_is_damage(self, ledger, path):
        ledger.store([full_account()])
        with sqlite3.connect(path) as connection:
            connection.execute('UPDATE servers SET debt_cu_us = 5')
        connection.close()
        assert ledger.get(UUID) is None
        assert UUID in ledger.alarm

    def test_an_agent_from_before_checksums(self, ledger, path):
        ledger.store([full_account()])
        with sqlite3.connect(path) as connection:
            connection.execute('UPDATE servers SET debt_cu_us = 5, '
                               'checksum = 0')
        connection.close()
        assert ledger.get(UUID).debt_cu_us == 5


class TestFile:
    def test_it_is_for_its_owner_alone(self, ledger, path):
        ledger.store([full_account()])
        for one in path.parent.iterdir():
            assert stat.S_IMODE(one.stat().st_mode) == 0o600

    def test_a_link_is_not_followed(self, ledger, path, tmp_path):
        target = tmp_path / 'target'
        target.write_bytes(b'')
        path.parent.mkdir()
        path.symlink_to(target)
        with pytest.raises(ledgers.LedgerError):
            ledger.store([full_account()])
        assert target.read_bytes() == b''

    @pytest.mark.parametrize('mode', [0o777, 0o770])
    def test_a_directory_open_to_writers_is_refused(self, ledger, path, mode):
        path.parent.mkdir()
        path.parent.chmod(mode)
        with pytest.raises(ledgers.LedgerError, match='writable by others'):
            ledger.open()

    @pytest.mark.parametrize('content', [
        b'no database at all' * 100,
        b'SQLite format 3\0' + b'\xff' * 8000,
    ])
    def test_a_damaged_ledger_is_moved_aside(self, ledger, path, content):
        path.parent.mkdir()
        path.write_bytes(content)
        ledger.store([full_account()])
        assert ledger.get(UUID) == full_account()
        aside, = path.parent.glob('*.damaged-*-0')
        assert aside.read_bytes() == content
        assert str(aside) in ledger.alarm

    def test_a_ledger_damaged_in_use_is_stored_again(self, ledger, path):
        ledger.store([full_account(uuid(number)) for number in range(200)])
        ledger.close()
        content = bytearray(path.read_bytes())
        content[4096:] = b'\x5a' * (len(content) - 4096)
        path.write_bytes(content)
        ledger.store([full_account()])
        assert ledger.get(UUID) == full_account()
        assert 'made a new one' in ledger.alarm

    def test_one_of_another_version_is_kept_aside(self, ledger, path):
        ledger.store([full_account()])
        ledger.close()
        with sqlite3.connect(path) as connection:
            connection.execute('PRAGMA user_version = 99')
        connection.close()
        ledger.open()
        assert 'schema 99' in ledger.alarm
        assert len(list(path.parent.glob('*.damaged-*-0'))) == 1

    def test_one_from_before_savings_gets_them(self, ledger, path):
        ledger.store([full_account()])
        ledger.close()
        with sqlite3.connect(path) as connection:
            for column in ('saved_cu_us', 'inherited_saved_cu_us',
                           'checksum'):
                connection.execute(f'ALTER TABLE servers DROP COLUMN {column}')
        again = ledgers.Ledger(str(path))
        assert again.get(UUID) == without_savings(full_account())
        again.store([full_account()])
        assert again.get(UUID) == full_account()
        assert again.alarm == ''

    def test_an_agent_from_before_savings_can_use_it(self, ledger, path):
        """After a downgrade: it accepts no field that it does not know."""
        ledger.store([full_account()])
        with sqlite3.connect(path) as connection:
            stated, = connection.execute(
                'SELECT inherited FROM servers').fetchone()
            # It names the columns that it knows.
            connection.execute(
                'INSERT OR REPLACE INTO servers (server_uuid, vcpu_cu_us, '
                'emulator_cu_us, iothread_cu_us, vhost_cu_us, net_rx_cu_us, '
                'net_tx_cu_us, disk_cu_us, debt_cu_us, written_off_cu_us, '
                'sequence, handed_to, inherited, baseline, updated_at) '
                'SELECT server_uuid, vcpu_cu_us, emulator_cu_us, '
                'iothread_cu_us, vhost_cu_us, net_rx_cu_us, net_tx_cu_us, '
                'disk_cu_us, debt_cu_us, written_off_cu_us, sequence, '
                'handed_to, inherited, baseline, updated_at FROM servers')
        connection.close()
        assert set(json.loads(stated)) == {
            'server_uuid', 'sequence', 'total_cu_us', 'debt_cu_us',
            'written_off_cu_us'}
        assert ledger.get(UUID) == without_savings(full_account())

    def test_one_of_the_first_versions_with_savings(self, ledger, path):
        ledger.store([full_account()])
        with sqlite3.connect(path) as connection:
            connection.execute(
                'UPDATE servers SET checksum = 0, inherited = ?, '
                'inherited_saved_cu_us = 0',
                (json.dumps(full_account().inherited.to_dict()),))
        connection.close()
        assert ledger.get(UUID) == full_account()

    def test_few_damaged_ones_are_kept(self, ledger, path):
        path.parent.mkdir()
        for number in range(6):
            path.write_bytes(b'damaged %d' % number * 100)
            ledger.open()
            ledger.close()
        kept = [one.read_bytes() for one in path.parent.glob('*.damaged-*')]
        assert len(kept) == 3
        assert b'damaged 5' * 100 in kept

    def test_one_that_was_removed_is_made_anew(self, ledger, path):
        ledger.store([full_account()])
        for one in path.parent.iterdir():
            one.unlink()
        ledger.store([full_account(uuid(2))])
        ledger.close()
        assert ledgers.Ledger(str(path)).get(uuid(2)) is not None

    def test_a_full_disk_is_logged_and_survived(self, ledger, path):
        ledger.store([full_account()])
        # SQLite says the same of a file that may not grow.
        ledger._connection.execute('PRAGMA max_page_count = 1')
        many = [full_account(uuid(number)) for number in range(500)]
        with pytest.raises(ledgers.LedgerError, match='full'):
            ledger.store(many)
        assert ledger.get(UUID) == full_account()
        ledger.store(many)
        assert len(uuids(ledger)) == 501

    def test_a_directory_that_cannot_be_made_is_logged(self, tmp_path):
        (tmp_path / 'file').write_text('in the way')
        ledger = ledgers.Ledger(str(tmp_path / 'file' / 'ledger'))
        with pytest.raises(ledgers.LedgerError):
            ledger.open()


def uuids(ledger):
    return {uuid for uuid, in ledger._connection.execute(
        'SELECT server_uuid FROM servers')}


class TestBounds:
    def test_those_that_ran_last_long_ago_are_dropped(self, path):
        ledger = ledgers.Ledger(str(path), keep_days=2)
        ledger.store([full_account(uuid(1)), full_account(uuid(2))])
        with sqlite3.connect(path) as connection:
            connection.execute('UPDATE servers SET updated_at = '
                               "'2001-01-01T00:00:00+00:00'")
        connection.close()
        days(path, '2001-01-02', '2001-01-03')
        assert ledger.prune(frozenset({uuid(1)})) == 1
        assert uuids(ledger) == {uuid(1)}

    def test_a_clock_that_jumps_drops_nothing(self, path):
        ledger = ledgers.Ledger(str(path), keep_days=2)
        ledger.store([full_account()])
        # The clock was years ahead for a while.
        days(path, '2099-01-01')
        assert ledger.prune(frozenset()) == 0
        assert uuids(ledger) == {UUID}

    def test_too_many_cost_those_that_ran_last_longest_ago(self, path):
        ledger = ledgers.Ledger(str(path), most_rows=3)
        ledger.store([full_account(uuid(number)) for number in range(6)])
        with sqlite3.connect(path) as connection:
            for number in range(6):
                connection.execute(
                    'UPDATE servers SET updated_at = ? WHERE server_uuid = ?',
                    (f'2001-01-0{6 - number}', uuid(number)))
        connection.close()
        # The one that is oldest of all runs.
        ledger.prune(frozenset({uuid(5)}))
        assert uuids(ledger) == {uuid(0), uuid(1), uuid(5)}

