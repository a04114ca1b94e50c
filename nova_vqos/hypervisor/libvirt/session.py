# SPDX-License-Identifier: Apache-2.0
"""A connection to a libvirt daemon, whose errors are those of the contract."""

from collections.abc import Callable, Mapping
import logging
import threading
import time
import typing as ty

import libvirt  # type: ignore[import-untyped]

from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# A daemon that does not answer for this long counts as dead.
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3

# The errors of a write while another job holds the domain.
_BUSY = (libvirt.VIR_ERR_OPERATION_TIMEOUT, libvirt.VIR_ERR_OPERATION_ABORTED)

# States in which libvirt's destination side (src/qemu/qemu_migration.c,
# qemuMigrationJobStart with no job allowed beside it) answers nothing that
# needs a job: even to ask for the job would block.
STARTING = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP)
# Also that of the source, in the moment in which its guest leaves.
INCOMING = (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION)
_MIGRATING_STATES = (
    STARTING,
    INCOMING,
    (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_POSTCOPY),
    (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
)
# Jobs beside which libvirt takes writes.
_HARMLESS_JOBS = (libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP,)
# How long the last step of an incoming migration is waited for. Its guest runs
# already, maybe with a wrong cap.
_ARRIVAL_TIMEOUT_S = 1.0
# From when on a QEMU that does not answer its monitor is taken to hang: an
# answer takes milliseconds.
_HANGS_AFTER_MS = 2000
# Between two looks at what is waited for.
_WAIT_INTERVAL_S = 0.01

_event_loop_lock = threading.Lock()
_event_loop: threading.Thread | None = None


def _run_event_loop() -> None:
    while True:
        # NOTE: fails only when it is not registered, or out of memory.
        if libvirt.virEventRunDefaultImpl() < 0:
            time.sleep(1)


def start_event_loop() -> None:
    """Start libvirt's event loop, one for the whole process.

    It must be registered before the first connection is made, and ends with
    the process: libvirt cannot unregister it.
    """
    global _event_loop
    with _event_loop_lock:
        if _event_loop is not None:
            return
        # libvirt would also print each error to stderr.
        libvirt.registerErrorHandler(lambda _context, _error: None, None)
        libvirt.virEventRegisterDefaultImpl()
        _event_loop = threading.Thread(
            target=_run_event_loop, name='libvirt-events', daemon=True)
        _event_loop.start()


class Session:
    """A connection that is made, lost, and made again."""

    def __init__(self, uri: str, run_path: str = '', *,
                 read_only: bool = False) -> None:
        """Prepare; nothing is connected yet.

        :param uri: libvirt's name of the daemon
        :param run_path: where libvirt leaves the process id of each domain
        :param read_only: whether libvirt is to refuse all that changes
            anything; it grants such a connection to any user
        """
        self._uri = uri
        self._run_path = run_path
        self._read_only = read_only
        self._connection: ty.Any = None
        self._callbacks: list[int] = []

    def open(self, callbacks: Mapping[int, Callable[..., None]],
             on_close: Callable[[int], None]) -> None:
        """Connect, or connect again.

        :param callbacks: by number of the event, called from libvirt's thread
        :param on_close: called with libvirt's reason when the daemon is lost
        :raises base.Unavailable: when the daemon cannot be reached
        """
        start_event_loop()
        self.close()
        try:
            connect = (libvirt.openReadOnly if self._read_only
                       else libvirt.open)
            self._connection = connect(self._uri)
            self._set_keepalive(on_close)
            for event, callback in callbacks.items():
                self._callbacks.append(
                    self._connection.domainEventRegisterAny(
                        None, event, callback, None))
        except libvirt.libvirtError as error:
            self.close()
            raise base.Unavailable(
                f'libvirt at {self._uri} cannot be reached: {error}'
            ) from error

    def close(self) -> None:
        """Disconnect; never raises."""
        connection, self._connection = self._connection, None
        callbacks, self._callbacks = self._callbacks, []
        if connection is None:
            return
        # NOTE: what is registered keeps the connection open.
        for release, *args in (
                *((connection.domainEventDeregisterAny, callback)
                  for callback in callbacks),
                (connection.unregisterCloseCallback,),
                (connection.close,)):
            try:
                release(*args)
            except libvirt.libvirtError as error:
                LOG.debug('Closing the connection to %s: %s', self._uri, error)

    @property
    def connection(self) -> ty.Any:
        """libvirt's own connection, lost or not; None: there is none."""
        return self._connection

    def connected(self) -> ty.Any:
        """Return libvirt's own connection.

        :raises base.Unavailable: when there is none
        """
        connection = self._connection
        if connection is None:
            raise base.Unavailable(f'not connected to {self._uri}')
        return connection

    def lookup(self, uuid: str) -> ty.Any:
        """Look up libvirt's own domain.

        :raises base.DomainGone: when it is not there
        """
        return self.call(self.connected().lookupByUUIDString, uuid)

    def call(self, method: Callable[..., ty.Any], *args: ty.Any) -> ty.Any:
        """Call libvirt; its errors become those of the contract."""
        try:
            return method(*args)
        except libvirt.libvirtError as error:
            code = error.get_error_code()
            if code == libvirt.VIR_ERR_NO_DOMAIN:
                raise base.DomainGone(str(error)) from error
            if code in _BUSY:
                raise base.DomainBusy(str(error)) from error
            if not self.is_alive():
                raise base.Unavailable(str(error)) from error
            raise base.HypervisorError(str(error)) from error

    def check_writable(self, domain: ty.Any) -> None:
        """Refuse where libvirt would let a write wait for 30 s, and fail.

        It waits, for two seconds at the most, for a QEMU that is just being
        asked, and for one second for a domain that has just arrived.

        :raises base.DomainBusy: when a migration or another job goes on
        """
        until_s = time.monotonic() + _ARRIVAL_TIMEOUT_S
        while True:
            state = tuple(self.call(domain.state))
            if state in _MIGRATING_STATES:
                raise base.DomainBusy('it is being migrated or started')
            self._wait_monitor(domain)
            job = self._job(domain)
            if job is not None:
                break
            if time.monotonic() >= until_s:
                raise base.DomainBusy('it arrives')
            time.sleep(_WAIT_INTERVAL_S)
        operation = job.get('operation')
        # NOTE: also one that is 'completed': its last part holds the domain.
        if (job['type'] != libvirt.VIR_DOMAIN_JOB_NONE
                and operation not in _HARMLESS_JOBS):
            raise base.DomainBusy(f'a job runs on it, operation {operation}')

    def read_pid(self, name: str) -> int:
        """Read the process id of a domain's emulator, by the domain's name.

        :raises base.HypervisorError: when it is unknown
        """
        path = f'{self._run_path}/{name}.pid'
        try:
            with open(path) as file:
                return int(file.read())
        except (OSError, ValueError) as error:
            raise base.HypervisorError(
                f'the process of domain {name} is unknown: {error}'
            ) from error

    def _wait_monitor(self, domain: ty.Any) -> None:
        """Wait until a QEMU's monitor is free; raise where the QEMU hangs.

        NOTE: libvirt answers this from memory. Even to ask for the job would
        wait for the call that asks the QEMU's monitor, and would occupy this
        connection meanwhile.

        :raises base.DomainBusy: when it has not answered for a while
        """
        until_s = time.monotonic() + _HANGS_AFTER_MS / 1000
        while True:
            control, _details, since_ms = self.call(domain.controlInfo)
            if control != libvirt.VIR_DOMAIN_CONTROL_OCCUPIED:
                return
            if since_ms >= _HANGS_AFTER_MS:
                raise base.DomainBusy(
                    f'its QEMU has not answered for {since_ms / 1000:.0f} s')
            if time.monotonic() >= until_s:
                raise base.DomainBusy('its QEMU is being asked all the time')
            time.sleep(_WAIT_INTERVAL_S)

    def _job(self, domain: ty.Any) -> dict[str, ty.Any] | None:
        """The job of a domain; None: an incoming migration.

        NOTE: libvirt tells only the source of a migration about it
        (src/qemu/qemu_driver.c, qemuDomainGetJobStatsInternal).
        """
        try:
            return dict(self.call(domain.jobStats))
        except base.HypervisorError as error:
            cause = error.__cause__
            if (isinstance(cause, libvirt.libvirtError)
                    and cause.get_error_code()
                    == libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
                return None
            raise

    def is_alive(self) -> bool:
        """Whether there is a connection, as far as libvirt knows at once."""
        connection = self._connection
        try:
            return connection is not None and bool(connection.isAlive())
        except libvirt.libvirtError:
            return False

    def _set_keepalive(self, on_close: Callable[[int], None]) -> None:
        """Have libvirt close the connection when the daemon hangs."""
        opened = self._connection

        def closed(connection: ty.Any, reason: int, _opaque: object) -> None:
            # Not of a connection that was closed before.
            if connection is self._connection:
                on_close(reason)

        try:
            opened.setKeepAlive(KEEPALIVE_INTERVAL_S, KEEPALIVE_COUNT)
            opened.registerCloseCallback(closed, None)
        except libvirt.libvirtError as error:
            # A driver without a daemon, which cannot be lost. NOTE: None where
            # Python freed an object of libvirt's before the error was read.
            if error.get_error_code() not in (
                    None, libvirt.VIR_ERR_NO_SUPPORT):
                raise
