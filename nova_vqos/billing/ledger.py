# SPDX-License-Identifier: Apache-2.0
"""The accounts of a host's servers, on disk.

SQLite in write-ahead mode. One billing interval of all servers, with the
baselines of its readings, is one transaction. So an agent that is killed loses
nothing and counts nothing twice. A host that loses its power may lose the
transactions that the kernel had not written yet.
"""

from collections.abc import Iterable, Set
import contextlib
import dataclasses
import datetime
import glob
import json
import logging
import os
import sqlite3
import stat
import threading
import typing as ty
import zlib

from nova_vqos.billing import account as accounts
from nova_vqos.billing import meter
from nova_vqos.billing import usage

LOG = logging.getLogger(__name__)

SCHEMA = 1

_AMOUNTS = tuple(f'{name}_cu_us' for name in meter.COMPONENTS)
_COLUMNS = ('server_uuid', *_AMOUNTS, 'debt_cu_us', 'written_off_cu_us',
            'sequence', 'handed_to', 'inherited', 'baseline', 'updated_at',
            'saved_cu_us', 'inherited_saved_cu_us', 'checksum')
# NOTE: these came later. An agent from before them leaves them alone, and
# writes their default: so all use one schema.
_LATER = {name: f'{name} INTEGER NOT NULL DEFAULT 0'
          for name in ('saved_cu_us', 'inherited_saved_cu_us', 'checksum')}
_CREATE = f"""
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS servers (
    server_uuid TEXT PRIMARY KEY NOT NULL,
    {' '.join(f'{name} INTEGER NOT NULL,' for name in _AMOUNTS)}
    debt_cu_us INTEGER NOT NULL,
    written_off_cu_us INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    handed_to TEXT NOT NULL,
    inherited TEXT,
    baseline TEXT,
    updated_at TEXT NOT NULL,
    {', '.join(_LATER.values())}
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_age ON servers (updated_at);
CREATE TABLE IF NOT EXISTS days (day TEXT PRIMARY KEY NOT NULL) WITHOUT ROWID;
PRAGMA user_version = {SCHEMA};
COMMIT;
"""
# All that is put into these texts is written above.
_STORE = (f'INSERT OR REPLACE INTO servers ({", ".join(_COLUMNS)}) '  # noqa: S608 # nosec
          f'VALUES ({", ".join("?" * len(_COLUMNS))})')
_GET = f'SELECT {", ".join(_COLUMNS)} FROM servers'  # noqa: S608 # nosec

# SQLite's codes for a file that is damaged, or of another kind.
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_BUSY_TIMEOUT_S = 5.0
_MOST_ASIDE = 3


class LedgerError(Exception):
    """The ledger cannot be read or written now."""


class _Unusable(Exception):
    """The file is damaged, or of another version."""


class Ledger:
    """The accounts of a host's servers. Calls may come from several threads.

    :ivar alarm: how an unusable file was replaced; empty: none was
    """

    def __init__(self, path: str, *, keep_days: int = 90,
                 most_rows: int = 10_000) -> None:
        """Prepare; nothing is opened yet.

        :param keep_days: days to keep the account of a server that does not
            run here, counting only days on which the agent ran
        :param most_rows: maximum number of accounts; beyond it, accounts of
            servers that do not run here are dropped, oldest first
        """
        self.alarm = ''
        self._path = path
        self._keep_days = keep_days
        self._most_rows = most_rows
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def open(self) -> None:
        """Open the file, or make it; does nothing where it is open.

        A damaged file is moved aside, and replaced by an empty one.

        :raises LedgerError: when that fails
        """
        with self._working():
            self._opened()

    def close(self) -> None:
        """Close the file. Never raises."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(sqlite3.Error):
                    connection.close()

    def get(self, uuid: str) -> accounts.Account | None:
        """The account of a server; None: there is none.

        :raises LedgerError: when it cannot be read
        """
        with self._working():
            row = self._opened().execute(
                f'{_GET} WHERE server_uuid = ?', (uuid,)).fetchone()
        if row is None:
            return None
        try:
            return _account(row)
        except _NO_ACCOUNT as error:
            self.alarm = (f'the account of server {uuid} was damaged and '
                          f'restarts at zero: {error}')
            LOG.error('%s', self.alarm)
            return None

    def store(self, some: Iterable[accounts.Account]) -> dict[str, str]:
        """Store accounts, all of them or none, but for those that are refused.

        :returns: by UUID, why an account is refused, now and ever
        :raises LedgerError: when they cannot be stored now, as where the disk
            is full
        """
        now = datetime.datetime.now(datetime.UTC)
        rows, refused = [], {}
        for one in some:
            try:
                rows.append(_row(one, now.isoformat(timespec='seconds')))
            except Exception as error:
                # Whatever it is: the others are to be stored.
                refused[one.server_uuid] = str(error)
        with self._working():
            try:
                self._store(rows, now)
            except _Unusable as error:
                # Accounts of running servers are in memory: none is lost.
                self._move_aside(str(error))
                self._store(rows, now)
        return refused

    def prune(self, running: Set[str]) -> int:
        """Drop accounts that are too old or too many.

        NOTE: age is counted in days on which the agent ran: a clock that
        jumps by years adds one.

        :param running: servers whose accounts are not dropped
        :returns: number of dropped accounts
        :raises LedgerError: when the file cannot be written
        """
        with self._working():
            connection = self._opened()
            day = connection.execute(
                'SELECT day FROM days ORDER BY day DESC LIMIT 1 OFFSET ?',
                (self._keep_days,)).fetchone()
            old = [] if day is None else [uuid for uuid, in connection.execute(
                'SELECT server_uuid FROM servers WHERE updated_at < ?', day)]
            count, = connection.execute(
                'SELECT count(*) FROM servers').fetchone()
            dropped = [uuid for uuid in old if uuid not in running]
            excess = count - len(dropped) - self._most_rows
            if excess > 0:
                known = {*running, *dropped}
                oldest = (uuid for uuid, in connection.execute(
                    'SELECT server_uuid FROM servers '
                    'ORDER BY updated_at').fetchall() if uuid not in known)
                dropped += [uuid for uuid, _number in zip(
                    oldest, range(excess), strict=False)]
            with self._transaction(connection):
                connection.executemany(
                    'DELETE FROM servers WHERE server_uuid = ?',
                    ((uuid,) for uuid in dropped))
                if day is not None:
                    connection.execute('DELETE FROM days WHERE day < ?', day)
            return len(dropped)

    def _store(self, rows: list[tuple[ty.Any, ...]],
               now: datetime.datetime) -> None:
        connection = self._opened()
        with self._transaction(connection):
            connection.executemany(_STORE, rows)
            connection.execute('INSERT OR IGNORE INTO days VALUES (?)',
                               (now.date().isoformat(),))

    def _opened(self) -> sqlite3.Connection:
        if self._connection is not None and self._is_same_file():
            return self._connection
        if self._connection is not None:
            LOG.warning('Ledger %s was removed or replaced, making a new one',
                        self._path)
            self.close()
        try:
            return self._open_file()
        except _Unusable as error:
            self._move_aside(str(error))
            return self._open_file()

    def _open_file(self) -> sqlite3.Connection:
        self._inode = self._make_safe_file()
        connection = sqlite3.connect(
            self._path, timeout=_BUSY_TIMEOUT_S, isolation_level=None,
            check_same_thread=False)
        # A byte that is no text damages one row, not all that is read.
        connection.text_factory = _text
        try:
            with _damage_found():
                self._prepare(connection)
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version, = connection.execute('PRAGMA user_version').fetchone()
        if version not in (0, SCHEMA):
            raise _Unusable(f'it has schema {version}, not {SCHEMA}')
        connection.execute('PRAGMA journal_mode = WAL')
        # NOTE: an agent that is killed loses nothing, a host that is killed
        # some of the last seconds.
        connection.execute('PRAGMA synchronous = NORMAL')
        verdict, = connection.execute('PRAGMA quick_check(1)').fetchone()
        if verdict != 'ok':
            raise _Unusable(verdict)
        if version == 0:
            connection.executescript(_CREATE)
            return
        found = {name for _, name, *_ in connection.execute(
            'PRAGMA table_info(servers)')}
        for name in _LATER.keys() - found:
            connection.execute(
                f'ALTER TABLE servers ADD COLUMN {_LATER[name]}')

    def _make_safe_file(self) -> int:
        """Make the file where it is missing; check that it is safe.

        :returns: its number in the file system
        :raises OSError: when it cannot be made, or is not safe
        """
        directory = os.path.dirname(self._path)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        status = os.stat(directory)
        self._check(directory, status, stat.S_ISDIR)
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                         | os.O_NOFOLLOW, 0o600)
        try:
            status = os.fstat(handle)
            self._check(self._path, status, stat.S_ISREG)
            return status.st_ino
        finally:
            os.close(handle)

    @staticmethod
    def _check(path: str, status: os.stat_result,
               is_kind: ty.Callable[[int], bool]) -> None:
        if not is_kind(status.st_mode):
            raise OSError(f'{path} is of the wrong kind')
        if status.st_uid not in (0, os.geteuid()):
            raise OSError(f'{path} belongs to user {status.st_uid}')
        if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise OSError(f'{path} is writable by others')

    def _is_same_file(self) -> bool:
        try:
            return os.lstat(self._path).st_ino == self._inode
        except OSError:
            return False

    def _move_aside(self, reason: str) -> None:
        self.close()
        now = datetime.datetime.now(datetime.UTC).strftime('%Y%m%dT%H%M%S')
        aside = f'{self._path}.damaged-{now}'
        number = 0
        while os.path.lexists(f'{aside}-{number}'):
            number += 1
        aside = f'{aside}-{number}'
        os.rename(self._path, aside)
        for suffix in ('-wal', '-shm'):
            with contextlib.suppress(FileNotFoundError):
                os.rename(f'{self._path}{suffix}', f'{aside}{suffix}')
        self.alarm = (f'the ledger {self._path} could not be used, moved it '
                      f'to {aside} and made a new one: {reason}')
        LOG.error('%s', self.alarm)
        # In the order in which they were moved.
        found = sorted(glob.glob(f'{glob.escape(self._path)}.damaged-*[0-9]'),
                       key=lambda path: os.lstat(path).st_ctime_ns)
        for path in found[:-_MOST_ASIDE]:
            for suffix in ('', '-wal', '-shm'):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(f'{path}{suffix}')

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection) -> ty.Iterator[
            None]:
        with _damage_found():
            connection.execute('BEGIN IMMEDIATE')
            try:
                yield
                connection.execute('COMMIT')
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute('ROLLBACK')
                raise

    @contextlib.contextmanager
    def _working(self) -> ty.Iterator[None]:
        with self._lock:
            try:
                with _damage_found():
                    yield
            except _Unusable as error:
                try:
                    self._move_aside(str(error))
                except OSError as cause:
                    raise LedgerError(str(cause)) from cause
                raise LedgerError(str(error)) from error
            except (OSError, sqlite3.Error) as error:
                # The next call opens it again.
                self.close()
                raise LedgerError(
                    f'the ledger {self._path} cannot be used: {error}'
                ) from error


@contextlib.contextmanager
def _damage_found() -> ty.Iterator[None]:
    """Distinguish a damaged file from one that cannot be used now."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        code = getattr(error, 'sqlite_errorcode', None)
        if code is not None and code & 0xff in _DAMAGED:
            raise _Unusable(str(error)) from error
        raise


# What is raised where an account is no account, or a row no row.
_NO_ACCOUNT = (ValueError, TypeError, KeyError, RecursionError)


def _row(one: accounts.Account, updated_at: str) -> tuple[ty.Any, ...]:
    """
    :raises ValueError: when an amount is out of its limits
    """
    amounts = {**one.own_cu_us, 'debt_cu_us': one.debt_cu_us,
               'written_off_cu_us': one.written_off_cu_us,
               'sequence': one.sequence}
    # NOTE: with each bill: by name only where one is wrong.
    if not 0 <= min(amounts.values()) <= max(amounts.values()) <= (
            accounts.MOST):
        for name, amount in amounts.items():
            accounts.check_amount(amount, name)
    accounts.check_balance(one.saved_cu_us, 'saved_cu_us')
    accounts.check_balance(one.inherited.saved_cu_us, 'saved_cu_us')
    # NOTE: not in the document: an agent from before savings would take that,
    # and so the whole account, for damaged.
    stated = one.inherited
    if stated.saved_cu_us:
        stated = dataclasses.replace(stated, saved_cu_us=0)
    row = (
        one.server_uuid,
        *(one.own_cu_us[name] for name in meter.COMPONENTS),
        one.debt_cu_us, one.written_off_cu_us, one.sequence, one.handed_to,
        json.dumps(stated.to_dict()) if stated.server_uuid else None,
        None if one.baseline is None
        else json.dumps(_document(one.baseline), default=_document),
        updated_at, one.saved_cu_us, one.inherited.saved_cu_us)
    return *row, _checksum(row)


def _checksum(row: tuple[ty.Any, ...]) -> int:
    return zlib.crc32(repr(row).encode('utf-8', 'backslashreplace'))


def _text(value: bytes) -> str:
    return value.decode('utf-8', 'backslashreplace')


def _document(value: ty.Any) -> dict[str, ty.Any]:
    # NOTE: dataclasses.asdict would copy each value.
    return {field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)}


def _account(columns: tuple[ty.Any, ...]) -> accounts.Account:
    """The inverse of :func:`_row`.

    :raises ValueError: when the row is not what _row makes
    :raises TypeError: likewise
    :raises KeyError: likewise
    :raises RecursionError: likewise
    """
    *others, checksum = columns
    # An agent from before checksums writes 0.
    if checksum not in (0, _checksum(tuple(others))):
        raise ValueError('its checksum is of something else')
    row = dict(zip(_COLUMNS, columns, strict=True))
    # The same checks as of a statement from another host.
    own = accounts.Statement.from_dict({
        'server_uuid': row['server_uuid'], 'sequence': row['sequence'],
        'total_cu_us': {name: row[f'{name}_cu_us']
                        for name in meter.COMPONENTS},
        'debt_cu_us': row['debt_cu_us'],
        'written_off_cu_us': row['written_off_cu_us'],
        'saved_cu_us': row['saved_cu_us']})
    account = accounts.Account(
        own.server_uuid, own_cu_us=own.total_cu_us,
        debt_cu_us=own.debt_cu_us, written_off_cu_us=own.written_off_cu_us,
        sequence=own.sequence, saved_cu_us=own.saved_cu_us,
        handed_to=row['handed_to'] and accounts.check_host(row['handed_to']))
    if row['inherited'] is not None:
        account = dataclasses.replace(
            account, inherited=accounts.Statement.from_dict({
                'saved_cu_us': row['inherited_saved_cu_us'],
                # The first versions with savings have them in here.
                **json.loads(row['inherited'])}))
    if row['baseline'] is not None:
        account = dataclasses.replace(
            account, baseline=_usage(json.loads(row['baseline'])))
    return account


def _usage(value: object) -> usage.Usage:
    """A reading from its document, the inverse of :func:`_document`."""
    data = _known(usage.Usage, value)
    run, read_at_s = data.pop('run'), data.pop('read_at_s')
    if not isinstance(run, str):
        raise ValueError(f'run is {run!r}')
    if (not isinstance(read_at_s, int | float)
            or not 0 <= read_at_s <= accounts.MOST):
        raise ValueError(f'read_at_s is {read_at_s!r}')
    disks = data.pop('disks')
    read: dict[str, ty.Any] = {
        'run': run, 'read_at_s': float(read_at_s),
        'interfaces': _devices(usage.InterfaceCounters,
                               data.pop('interfaces')),
        'disks': (None if disks is None
                  else _devices(usage.DiskCounters, disks))}
    read.update(_integers(data))
    return usage.Usage(**read)


_Counters = ty.TypeVar('_Counters', usage.InterfaceCounters,
                       usage.DiskCounters)


def _devices(kind: type[_Counters], value: object) -> dict[str, _Counters]:
    return {name: kind(**_integers(_known(kind, counters)))
            for name, counters in _mapping(value).items()}


def _known(kind: type, value: object) -> dict[str, ty.Any]:
    """What is of this version; another one may have counted more."""
    names = {field.name for field in dataclasses.fields(kind)}
    return {name: found for name, found in _mapping(value).items()
            if name in names}


def _mapping(value: object) -> dict[str, ty.Any]:
    if not isinstance(value, dict):
        raise ValueError(f'{value!r:.40} is no mapping')
    return value


def _integers(data: dict[str, ty.Any]) -> dict[str, int]:
    for name, value in data.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ValueError(f'{name} is {value!r}')
    return data
