# SPDX-License-Identifier: Apache-2.0
"""What the fixtures of Nova 33 lack for computes that run threaded.

Those of Nova 34 have it.
"""

import collections
import contextlib
import itertools
import os
import sqlite3
import threading

import fixtures
from oslo_db.sqlalchemy import enginefacade
from oslo_db.sqlalchemy import engines
from placement import handler
import sqlalchemy

_IN_MEMORY = 'sqlite://'
# For which a connection waits for another one, on a machine that does much
# else.
_TIMEOUT_S = 60


class ThreadsFixture(fixtures.Fixture):
    """Fixtures of eventlet become fit for threads, whichever come after it."""

    def __init__(self, test_id):
        """:param test_id: what the test's ``id()`` is"""
        super().__init__()
        self._test_id = test_id

    def setUp(self):
        super().setUp()
        self.useFixture(FileDatabases())
        self._queue_for_placement()
        # NOTE: it looks for the test that a notification comes from among the
        # parents of a greenlet.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.notifications.FakeVersionedNotifier.'
            '_get_sender_test_case_id', lambda: self._test_id))

    def _queue_for_placement(self):
        """Its database stays in memory, with one connection for all."""
        stock = handler.PlacementHandler.__call__
        turn = threading.Lock()

        def call(placement, environ, start_response):
            with turn:
                return stock(placement, environ, start_response)

        self.useFixture(fixtures.MonkeyPatch(
            'placement.handler.PlacementHandler.__call__', call))


class FileDatabases(fixtures.Fixture):
    """Each database in memory becomes a file, and has one writer at a time.

    In memory, all threads would share one connection.
    """

    def setUp(self):
        super().setUp()
        self._directory = self.useFixture(fixtures.TempDir()).path
        self._numbers = itertools.count()
        self._kept = {}
        self.addCleanup(self._close)
        self._create_engine = engines.create_engine
        self.useFixture(fixtures.MonkeyPatch(
            'oslo_db.sqlalchemy.engines.create_engine', self._create))
        self._take_turns()

    def _create(self, sql_connection, *args, **kwargs):
        if sql_connection != _IN_MEMORY:
            return self._create_engine(sql_connection, *args, **kwargs)
        path = os.path.join(self._directory, f'{next(self._numbers)}.sqlite')
        self._make(path)
        engine = self._create_engine(
            f'{_IN_MEMORY}/{path}?timeout={_TIMEOUT_S}', *args, **kwargs)

        @sqlalchemy.event.listens_for(engine, 'engine_disposed')
        def forget(_engine):
            # As one in memory does: the fixtures rely on it.
            if path not in self._kept:
                return
            self._kept.pop(path).close()
            for end in '', '-wal', '-shm':
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path + end)
            self._make(path)

        return engine

    def _make(self, path):
        """Make an empty database, in which one writes while others read.

        The connection stays open: oslo.db opens one for each transaction, and
        SQLite locks all others out while it puts away the log of a database
        that nothing has open any more. On a busy machine that takes long.
        """
        kept = sqlite3.connect(path, check_same_thread=False)
        kept.execute('PRAGMA journal_mode=WAL').fetchall()
        self._kept[path] = kept

    def _close(self):
        while self._kept:
            self._kept.popitem()[1].close()

    def _take_turns(self):
        """SQLite refuses a writer whose view another one has outdated."""
        stock = enginefacade._TransactionContextManager._transaction_scope
        locks = collections.defaultdict(threading.RLock)

        @contextlib.contextmanager
        def scope(manager, context):
            turn = contextlib.nullcontext()
            if manager._mode is enginefacade._WRITER:
                turn = locks[manager._root]
            with turn, stock(manager, context) as resource:
                yield resource

        self.useFixture(fixtures.MonkeyPatch(
            'oslo_db.sqlalchemy.enginefacade._TransactionContextManager.'
            '_transaction_scope', scope))
