# SPDX-License-Identifier: Apache-2.0
"""The books of the servers that are billed, and the ledger behind them.

Nothing is lost while the ledger cannot be used: accounts stay in memory, and
what the ledger has of them is added when it can be read.
"""

from collections.abc import Collection, Mapping
import dataclasses
from fractions import Fraction
import logging

from nova_vqos.agent import isolation
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import account as accounts
from nova_vqos.billing import charge
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import meter
from nova_vqos.billing import rolling
from nova_vqos.billing import savings
from nova_vqos.billing import throttle
from nova_vqos.billing import usage

LOG = logging.getLogger(__name__)

_PRUNE_INTERVAL_S = 3600.0


class Book:
    """The account of a server that runs here and is billed.

    :ivar account: as it is now, stored or not
    :ivar origin: see :class:`nova_vqos.agent.server.Server`
    :ivar is_claimed: whether other hosts were asked for the account
    :ivar is_read: whether the ledger could be read
    :ivar stored: the account that the ledger had; None: it had none
    :ivar control: None: the server is not charged
    :ivar throttle: holds its disks back; None: it is not charged, or that is
        switched off
    :ivar lately: used in the last interval by component, in CU
    :ivar rolling: mean use in the last four hours; None: there was no bill
    :ivar unmodelled: see :class:`nova_vqos.billing.meter.Bill`, so far
    :ivar warned: what of that was logged
    :ivar bridges: what the bridges of its interfaces had passed at the latest
        bill, by interface
    :ivar report: the latest bill; None: there was none
    """

    def __init__(self, account: accounts.Account, origin: str) -> None:
        self.account = account
        self.origin = origin
        self.is_claimed = False
        self.is_read = False
        self.stored: accounts.Account | None = None
        self.control: charge.Control | None = None
        self.throttle: throttle.Throttle | None = None
        self.lately: dict[str, float] = {}
        self.rolling: rolling.Mean | None = None
        self.unmodelled: frozenset[str] = frozenset()
        self.warned: frozenset[str] = frozenset()
        self.bridges: Mapping[str, usage.BridgeTraffic] = {}
        self.report: server_report.Bill | None = None

    @property
    def is_overdrawn(self) -> bool:
        """Whether its I/O is more than it can pay for."""
        return self.control is not None and self.control.overdrawn

    def record_stored(self, stored: accounts.Account | None) -> None:
        """Record what the ledger had; None: no account."""
        self.is_read = True
        self.stored = stored

    def set_control(self, limit_share: float | None,
                    kind: type[charge.Control] = charge.Charge, *,
                    throttles: bool = False,
                    disk_limit: throttle.DiskLimit | None = None) -> None:
        """Begin or end to charge the server, as its flavor wants.

        :param limit_share: in effect; None: the server is not charged
        :param kind: what decides its limit
        :param throttles: whether its disks are held back when overdrawn
        :param disk_limit: that an agent before this one left in force
        """
        if limit_share is None:
            self.control = self.throttle = None
        elif type(self.control) is not kind:
            self.control = kind(
                debt_cu_s=accounts.cu_s(self.account.debt_cu_us),
                limit_share=limit_share)
            if throttles:
                self.throttle = throttle.Throttle(disk_limit)

    def bill(self, used_cu_us: Mapping[str, int], baseline: usage.Usage,
             length_s: float, burst: savings.Terms | None = None) -> None:
        """Add what an interval cost.

        :param baseline: what the next reading is to be compared with
        :param burst: by which it saves units; None: it saves none
        """
        account = self.account.billed(used_cu_us, baseline)
        self.account = (
            account.with_savings(account.saved_cu_us) if burst is None
            else account.with_savings(
                account.saved_cu_us + burst.gained_cu_us(
                    length_s, used_cu_us['vcpu']),
                burst.least_cu_us, burst.most_cu_us))
        if length_s > 0:
            self.lately = {name: accounts.cu_s(used) / length_s
                           for name, used in used_cu_us.items()}

    def local_shares(self, bridges: Mapping[str, usage.BridgeTraffic]
                     ) -> dict[str, Fraction]:
        """What servers of this host sent of what it received, since its bill.

        :param bridges: what they have passed by now
        :returns: parts, by interface; others are not known
        """
        before, self.bridges = self.bridges, bridges
        return {name: now.local_share(before[name])
                for name, now in bridges.items() if name in before}

    def charge(self, terms: charge.Terms, used_cu_us: Mapping[str, int],
               length_s: float, charged_s: float, *, received: bool,
               limits_threads: bool = True,
               disk_requests: int = 0, disk_bytes: int = 0) -> None:
        """Charge the cost of an interval, if the server is charged.

        :param charged_s: of a longer interval no more than so long a part
        :param received: whether the kernel's work to deliver packets to it is
            charged too, without debt
        :param limits_threads: see :class:`charge.Interval`
        :param disk_requests: see :class:`meter.Bill`, like the next
        """
        control = self.control
        if control is None:
            return
        before = self.account
        received_cu_us = used_cu_us[meter.RECEIVED]
        written_off_cu_s = control.step(terms, charge.Interval(
            length_s, accounts.cu_s(used_cu_us['vcpu']),
            accounts.cu_s(meter.measured_io(used_cu_us)),
            accounts.cu_s(meter.modelled_io(used_cu_us) - received_cu_us),
            limits_threads, accounts.cu_s(received_cu_us if received else 0),
        ).at_most(charged_s))
        self.account = dataclasses.replace(
            self.account, debt_cu_us=accounts.cu_us(control.debt_cu_s),
            written_off_cu_us=self.account.written_off_cu_us
            + accounts.cu_us(written_off_cu_s))
        if self.throttle is not None:
            owed_cu_us = (
                self.account.debt_cu_us + self.account.written_off_cu_us
                - before.debt_cu_us - before.written_off_cu_us)
            self.throttle.step(terms, throttle.Interval(
                length_s, accounts.cu_s(used_cu_us['disk']),
                accounts.cu_s(used_cu_us['net_tx']), disk_requests,
                disk_bytes, accounts.cu_s(owed_cu_us)),
                limit_share=control.limit_share,
                debt_cu_s=control.debt_cu_s)

    def replace(self, account: accounts.Account) -> None:
        """Replace the account, and charge the debt that it has more."""
        owed_cu_us = account.debt_cu_us - self.account.debt_cu_us
        self.account = account
        if self.control is not None:
            self.control.add_debt(accounts.cu_s(owed_cu_us))


class Books:
    """The accounts of a host's servers.

    :ivar running: books of the servers that are billed here, by UUID
    :ivar problem: why the ledger is not writable; '': it is; None: nothing
        was written yet
    :ivar isolation: through which all that is done for several servers goes
    """

    def __init__(self, ledger: ledgers.Ledger,
                 isolated: isolation.Isolation) -> None:
        """Prepare; nothing is opened yet."""
        self.isolation = isolated
        self.running: dict[str, Book] = {}
        self.problem: str | None = None
        self._ledger = ledger
        self._unstored: dict[str, accounts.Account] = {}
        # Servers whose account in memory lacks what the ledger has, since
        # that could not be read.
        self._unread: set[str] = set()
        # By server, why its account cannot be stored.
        self._refused: dict[str, str] = {}
        self._prune_at_s = float('-inf')

    @property
    def alarms(self) -> tuple[str, ...]:
        """Problems that an operator has to look at."""
        refused = [
            f'the accounts of {len(self._refused)} servers cannot be stored, '
            f'as that of {uuid}: {reason}'
            for uuid, reason in list(self._refused.items())[:1]]
        return (*filter(None, (self.problem, self._ledger.alarm)), *refused,
                *self.isolation.alarms)

    @property
    def has_unstored(self) -> bool:
        """Whether the ledger lacks something."""
        return bool(self._unstored)

    def open(self) -> None:
        """Open the ledger, if it is not open."""
        try:
            self._ledger.open()
        except ledgers.LedgerError as error:
            self._record_problem(str(error))

    def close(self) -> None:
        """Store what is left, and close the ledger. Never raises."""
        self.store()
        self._ledger.close()

    def begin(self, uuid: str, origin: str) -> Book:
        """Begin the book of a server that is billed here from now on."""
        book = self.running[uuid] = self._new_book(uuid, origin)
        return book

    def end(self, uuid: str, *, off: bool) -> Book:
        """End the book of a server that is billed here no more.

        :param off: its flavor ended billing: its use until it is billed
            again is not billed then, not even by an agent that starts later
        """
        book = self.running.pop(uuid)
        if off:
            self.store_later(dataclasses.replace(book.account, baseline=None))
        return book

    def account(self, uuid: str) -> accounts.Account | None:
        """Find the account of any server; None: it has none here.

        :raises nova_vqos.billing.ledger.LedgerError: when the ledger cannot
            be read; this is logged
        """
        try:
            if uuid in self._unread:
                self._read_late(uuid)
            account = self._unstored.get(uuid)
            return self._ledger.get(uuid) if account is None else account
        except ledgers.LedgerError as error:
            self._record_problem(str(error))
            raise

    def is_stored(self, uuid: str) -> bool:
        """Whether the ledger has the account of a server as it is now."""
        return uuid not in self._unstored

    def store_later(self, account: accounts.Account) -> None:
        """Have an account stored by the next :meth:`store` that can."""
        self._unstored[account.server_uuid] = account

    def store(self) -> None:
        """Store what is new; what cannot be stored now stays in memory.

        Only this shows whether the ledger is writable: one that can be
        opened, and read, may still be on a full disk.
        """
        ready: list[accounts.Account] = []
        try:
            self.isolation.each(
                'reading the account of server',
                map(isolation.Named, self._unread.copy()),
                lambda one: self._read_late(one.uuid),
                passes=(ledgers.LedgerError,))
            ready.extend(self._unstored.values())
            refused = (self._ledger.store(ready)
                       if ready or self.problem != '' else {})
        except ledgers.LedgerError as error:
            self._record_problem(str(error))
            return
        self._record_problem('')
        for account in ready:
            del self._unstored[account.server_uuid]
        if refused or self._refused:
            self.isolation.each(
                'storing the account of server',
                (isolation.Named(account.server_uuid) for account in ready),
                lambda one: self._record_refused(one.uuid,
                                                 refused.get(one.uuid)))

    def prune(self, here: Collection[str], now_s: float) -> None:
        """Drop accounts that will not be needed again, once an hour.

        :param here: UUIDs of all domains of the host
        :param now_s: on the monotonic clock
        """
        if now_s < self._prune_at_s or self.problem:
            return
        self._prune_at_s = now_s + _PRUNE_INTERVAL_S
        try:
            dropped = self._ledger.prune(frozenset(here))
        except ledgers.LedgerError as error:
            self._record_problem(str(error))
            return
        if dropped:
            LOG.info('Dropped the accounts of %d servers, which have not run '
                     'for long', dropped)

    def _new_book(self, uuid: str, origin: str) -> Book:
        try:
            account = self.account(uuid)
        except ledgers.LedgerError:
            self._unread.add(uuid)
            return Book(self._unstored.get(uuid, accounts.Account(uuid)),
                        origin)
        book = Book((account or accounts.Account(uuid)).adopted(), origin)
        book.record_stored(account)
        return book

    def _read_late(self, uuid: str) -> None:
        """Add the account in the ledger, which could not be read before.

        :raises nova_vqos.billing.ledger.LedgerError: when it still cannot
        """
        stored = self._ledger.get(uuid)
        self._unread.discard(uuid)
        book = self.running.get(uuid)
        now = self._unstored.get(uuid) if book is None else book.account
        if now is None:
            return
        account = (now if stored is None
                   else stored.adopted().followed_by(now))
        self.store_later(account)
        if book is not None:
            book.replace(account)
            book.record_stored(stored)

    def _record_refused(self, uuid: str, reason: str | None) -> None:
        if reason is None:
            self._refused.pop(uuid, None)
            return
        if uuid not in self._refused:
            LOG.error('The account of server %s cannot be stored: %s', uuid,
                      reason)
        self._refused[uuid] = reason

    def _record_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            LOG.error('%s; accounts are kept in memory until the ledger is '
                      'writable', problem)
        elif self.problem and not problem:
            LOG.info('The ledger is writable again')
        self.problem = problem
