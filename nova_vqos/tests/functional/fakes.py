# SPDX-License-Identifier: Apache-2.0
"""What Nova's own fixtures lack: a libvirt that keeps caps and metadata.

Nova's fake libvirt writes a domain's XML from the few things that it knows,
and forgets quota, period, shares and metadata. Here a domain keeps them, as
libvirt does, and a live migration carries the XML to the other host, through
a hook where a test gives one. What the domain is started from there the next
time is the other XML that Nova sends, which no hook sees.
"""

import collections.abc
import contextlib
import threading
import time
from urllib import parse

import fixtures
from futurist import _thread
from lxml import etree
from nova.tests.fixtures import libvirt as fakelibvirt
from sqlalchemy import pool

#: Children of <cputune> that libvirt keeps and Nova's fake does not.
KEPT_TUNABLES = ('shares', 'period', 'quota')

# Between two looks at a transfer that is held.
_COPY_TURN_S = 0.02

#: hook(hostname, xml) -> xml, or raises MigrationRefused.
Hook = collections.abc.Callable[[str, str], str]


class Killed(BaseException):
    """A process was killed in the middle of its work: nothing handles it."""


class MigrationRefused(Exception):
    """What a libvirt hook that exits non-zero does: no migration."""


class KeptXMLFixture(fixtures.Fixture):
    """Domains keep tunables and metadata of the XML that defined them.

    One that came in runs with those of the XML that it came with.
    """

    def setUp(self):
        super().setUp()
        stock_init = fakelibvirt.Domain.__init__
        stock_create = fakelibvirt.Domain.createWithFlags
        stock_desc = fakelibvirt.Domain.XMLDesc

        def init(domain, connection, xml, *args, **kwargs):
            domain.defined_xml = xml
            domain.incoming_xml = None
            stock_init(domain, connection, xml, *args, **kwargs)

        def create(domain, flags):
            domain.incoming_xml = None
            stock_create(domain, flags)

        def xml_desc(domain, flags):
            described = etree.fromstring(stock_desc(domain, flags))
            xml = domain.defined_xml
            if domain.isActive() and not (
                    flags & fakelibvirt.VIR_DOMAIN_XML_INACTIVE):
                xml = domain.incoming_xml or xml
            _carry(etree.fromstring(xml), described)
            return etree.tostring(described, encoding='unicode')

        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.__init__', init))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.createWithFlags', create))
        self.useFixture(fixtures.MonkeyPatch(
            'nova.tests.fixtures.libvirt.Domain.XMLDesc', xml_desc))


def _carry(defined, described):
    """Copy what the fake forgets from the defining XML into its own."""
    metadata = defined.find('./metadata')
    if metadata is not None:
        described.insert(0, metadata)
    kept = [element for name in KEPT_TUNABLES
            for element in defined.findall('./cputune/' + name)]
    if not kept:
        return
    cputune = described.find('./cputune')
    if cputune is None:
        cputune = etree.SubElement(described, 'cputune')
    for element in kept:
        cputune.append(element)


class LiveMigrationFixture(fixtures.Fixture):
    """Carry a domain to the connection of the host that the URI names.

    One that was saved is restored by its next start, which needs the hook,
    too.

    :ivar hook: applied to the XML on its way in, as libvirt applies
        hooks/qemu to ``migrate begin`` and ``restore begin``; None: passed
        unchanged
    :ivar arrived: (hostname, xml before the hook, xml after it) of each
    :ivar fail: the transfer breaks after the hook has run
    :ivar switched: UUIDs of domains that were switched to post-copy
    """

    def __init__(self, computes):
        """:param computes: hostname to compute service, read when needed"""
        super().__init__()
        self._computes = computes
        self._lock = threading.Lock()
        self.hook: Hook | None = None
        self.arrived: list[tuple[str, str, str]] = []
        self.fail = False
        self.switched: list[str] = []
        self._held = False
        self._aborted: set[str] = set()
        # UUIDs of domains whose migration nova-compute watches no longer.
        self._unwatched: set[str] = set()
        # By UUID, the XML of domains that were saved.
        self._saved: dict[str, str] = {}

    def setUp(self):
        super().setUp()
        this = self

        def migrate(domain, destination, params, flags):
            this._migrate(domain, destination, params, flags)

        def abort(domain):
            this._aborted.add(domain.UUIDString())

        def switch(domain):
            this.switched.append(domain.UUIDString())

        def stats(domain, flags=0):
            uuid = domain.UUIDString()
            if uuid in this._unwatched:
                this._unwatched.remove(uuid)
                raise Killed
            return {'type': domain._job_type}

        stock_save = fakelibvirt.Domain.managedSave
        stock_create = fakelibvirt.Domain.createWithFlags
        stock_undefine = fakelibvirt.Domain.undefine

        def save(domain, flags):
            this._saved[domain.UUIDString()] = domain.XMLDesc(0)
            stock_save(domain, flags)

        def create(domain, flags):
            saved = this._saved.pop(domain.UUIDString(), None)
            stock_create(domain, flags)
            if saved is not None:
                domain.incoming_xml = this._received(
                    domain._connection.getHostname(), saved)

        def undefine(domain):
            this._saved.pop(domain.UUIDString(), None)
            stock_undefine(domain)

        for name, replacement in (
                ('managedSave', save), ('createWithFlags', create),
                ('undefine', undefine),
                ('migrateToURI3', migrate), ('abortJob', abort),
                ('jobStats', stats),
                ('controlInfo', lambda _domain: [0, 0, 0]),
                ('migrateStartPostCopy', switch),
                ('migrateSetMaxDowntime', lambda *_arguments: None)):
            self.useFixture(fixtures.MonkeyPatch(
                f'nova.tests.fixtures.libvirt.Domain.{name}', replacement))

    @contextlib.contextmanager
    def held(self):
        """Transfers last until the end of this.

        As in libvirt one ends earlier when it is aborted, when its guest is
        destroyed, and when it is paused or switched to post-copy: then there
        is nothing more to copy first.
        """
        self._held = True
        try:
            yield
        finally:
            self._held = False

    def kill_watcher(self, uuid):
        """End the thread of nova-compute that watches a migration.

        :returns: callable that tells whether it has ended
        """
        self._unwatched.add(uuid)
        return lambda: uuid not in self._unwatched

    def _migrate(self, domain, destination, params, flags):
        try:
            self._transfer(domain, destination, params)
        except fakelibvirt.libvirtError:
            # As in libvirt no job is left behind by a call that failed: so
            # Nova sees that it ended, and that the domain still runs here.
            domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_NONE
            raise
        if flags & fakelibvirt.VIR_MIGRATE_UNDEFINE_SOURCE:
            domain.destroy()
            domain.undefine()
        domain.complete_job()

    def _transfer(self, domain, destination, params):
        hostname = parse.urlsplit(destination).hostname
        sent = params['destination_xml']
        try:
            received = self._received(hostname, sent)
        except MigrationRefused as exc:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'Hook script failed: %s' % exc,
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
                error_domain=fakelibvirt.VIR_FROM_QEMU) from exc
        with self._lock:
            self.arrived.append((hostname, sent, received))
        self._copy(domain)
        if self.fail:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'the connection broke',
                error_code=fakelibvirt.VIR_ERR_INTERNAL_ERROR,
                error_domain=fakelibvirt.VIR_FROM_QEMU)
        connection = self._computes[hostname].driver._host.get_connection()
        # As libvirt does by VIR_MIGRATE_PERSIST_DEST, which Nova sets.
        arrived = connection.defineXML(params['persistent_xml'])
        arrived.create()
        arrived.incoming_xml = received

    def _received(self, hostname, xml):
        return self.hook(hostname, xml) if self.hook else xml

    def _copy(self, domain):
        uuid = domain.UUIDString()
        self._aborted.discard(uuid)
        domain._job_type = fakelibvirt.VIR_DOMAIN_JOB_UNBOUNDED
        while (self._held and domain.isActive() and uuid not in self._aborted
               and uuid not in self.switched):
            time.sleep(_COPY_TURN_S)
        is_gone = domain._state == fakelibvirt.VIR_DOMAIN_SHUTOFF
        if is_gone or uuid in self._aborted:
            raise fakelibvirt.make_libvirtError(
                fakelibvirt.libvirtError, 'the migration was aborted',
                error_code=fakelibvirt.VIR_ERR_OPERATION_FAILED,
                error_domain=fakelibvirt.VIR_FROM_QEMU)


class ExecutorShutdownFixture(fixtures.Fixture):
    """Executors that end without a deadlock, and at once.

    NOTE: futurist (3.5) waits for its work with the lock held that work
    needs to submit more work, as some of Nova's does: then neither goes on,
    and a test hangs in Nova's clean-up. Here late work is refused instead,
    which is what futurist means to do.

    An idle worker of it looks every now and then whether it is to end; so that
    this takes no time, Nova's tests have it look each 10 ms, and a third of
    all CPU time goes into that. Here it is woken, and need not look.
    """

    def setUp(self):
        super().setUp()

        def shutdown(executor, wait=True, *, cancel_futures=False):
            with executor._shutdown_lock:
                executor._shutdown = True
            if wait:
                executor._work_queue.join()
            for worker in executor._workers:
                worker.stop()
            for _worker in executor._workers:
                executor._work_queue.put(_NothingToDo)
            if wait:
                for worker in executor._workers:
                    worker.join()

        self.useFixture(fixtures.MonkeyPatch(
            'futurist.ThreadPoolExecutor.shutdown', shutdown))

    @staticmethod
    def look_seldom():
        """Undo what Nova's set-up does."""
        _thread.ThreadWorker.MAX_IDLE_FOR = 1


class _NothingToDo:
    """Work of a worker that is to see that it ends."""

    @staticmethod
    def run():
        pass


class _Pool(pool.QueuePool):
    """A pool without a bound, as NullPool has none."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **{**kwargs, 'max_overflow': -1})


class ConnectionPoolFixture(fixtures.Fixture):
    """Connections to SQLite that are used again.

    oslo.db opens one for each transaction, and SQLite then reads the whole
    schema: a fifth of the CPU time of these tests.
    """

    def setUp(self):
        super().setUp()
        self.useFixture(fixtures.MonkeyPatch('sqlalchemy.pool.NullPool',
                                             _Pool))
