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

"""The books of the servers that are billed, and the ledger behind them.

Nothing is lost while the ledger cannot be used: what cannot be stored is kept
in memory, and what could not be asked for is added when it can.
"""

from collections.abc import Collection, Mapping
import dataclasses
import logging
import typing as ty

from nova_vqos.billing import account as accounts
from nova_vqos.billing import charge
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import meter
from nova_vqos.billing import usage as usages

LOG = logging.getLogger(__name__)

_PRUNE_INTERVAL_S = 3600.0


class Book:
    """The account of a server that runs here and is billed.

    :ivar account: as it is now, stored or not
    :ivar origin: see :class:`nova_vqos.agent.server.Server`
    :ivar is_read: whether the ledger was asked for what it knows
    :ivar known: what that was; None: nothing
    :ivar ask_at_s: when other hosts are to be asked for what they know, on
        the monotonic clock; None: nobody has decided yet
    :ivar control: None: it pays for nothing
    :ivar lately: used in the last interval by component, in CU
    :ivar unmodelled: see :class:`nova_vqos.billing.meter.Bill`, so far
    :ivar report: the last one for people, in primitives
    """

    def __init__(self, account: accounts.Account, origin: str) -> None:
        self.account = account
        self.origin = origin
        self.is_read = False
        self.known: accounts.Account | None = None
        self.ask_at_s: list[float] | None = None
        self.control: charge.Charge | None = None
        self.lately: dict[str, float] = {}
        self.unmodelled: frozenset[str] = frozenset()
        self.report: dict[str, ty.Any] = {}

    @property
    def is_overdrawn(self) -> bool:
        """Whether its I/O alone is more than its entitlement."""
        return self.control is not None and self.control.overdrawn

    def note_known(self, known: accounts.Account | None) -> None:
        """The ledger has said what it knows."""
        self.is_read = True
        self.known = known
        self.ask_at_s = None

    def set_control(self, limit_share: float | None) -> None:
        """Begin or end to charge it, as its flavor wants.

        :param limit_share: in force; None: it pays for nothing
        """
        if limit_share is None:
            self.control = None
        elif self.control is None:
            self.control = charge.Charge(
                debt_cu_s=accounts.cu_s(self.account.debt_cu_us),
                limit_share=limit_share)

    def bill(self, used_cu_us: Mapping[str, int], baseline: usages.Usage,
             length_s: float) -> None:
        """Add what an interval cost.

        :param baseline: what the next reading is to be compared with
        """
        self.account = self.account.billed(used_cu_us, baseline)
        if length_s > 0:
            self.lately = {name: accounts.cu_s(used) / length_s
                           for name, used in used_cu_us.items()}

    def charge(self, terms: charge.Terms, used_cu_us: Mapping[str, int],
               length_s: float) -> None:
        """Have it pay for what an interval cost, if it pays at all."""
        control = self.control
        if control is None:
            return
        written_off_cu_s = control.step(terms, charge.Interval(
            length_s, accounts.cu_s(used_cu_us['vcpu']),
            accounts.cu_s(meter.measured_io(used_cu_us)),
            accounts.cu_s(meter.modelled_io(used_cu_us))))
        self.account = dataclasses.replace(
            self.account, debt_cu_us=accounts.cu_us(control.debt_cu_s),
            written_off_cu_us=min(
                accounts.MOST, self.account.written_off_cu_us
                + accounts.cu_us(written_off_cu_s)))

    def inherit(self, statement: accounts.Statement) -> bool:
        """Take in what another host tells.

        :returns: whether it was news
        """
        told = self.account.with_statement(statement)
        if told is self.account:
            return False
        self.ask_at_s = []
        self.replace(told)
        return True

    def replace(self, account: accounts.Account) -> None:
        """Let the account be another one; what it owes more is owed."""
        owed_cu_us = account.debt_cu_us - self.account.debt_cu_us
        self.account = account
        if self.control is not None:
            self.control.add_debt(accounts.cu_s(owed_cu_us))


class Books:
    """Keeps the accounts of a host's servers.

    :ivar running: books of the servers that are billed here, by UUID
    :ivar problem: why accounts are in memory alone; empty: they are not;
        None: nothing was written yet
    """

    def __init__(self, ledger: ledgers.Ledger) -> None:
        """Prepare; nothing is opened yet."""
        self.running: dict[str, Book] = {}
        self.problem: str | None = None
        self._ledger = ledger
        self._unstored: dict[str, accounts.Account] = {}
        # Servers whose account in memory lacks what the ledger says, since
        # that could not be asked.
        self._unread: set[str] = set()
        self._prune_at_s = float('-inf')

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should look at."""
        return tuple(filter(None, (self.problem, self._ledger.alarm)))

    @property
    def is_empty(self) -> bool:
        """Whether nobody is billed, and all is stored."""
        return not self.running and not self._unstored

    def open(self) -> None:
        """Open the ledger, if it is not open."""
        try:
            self._ledger.open()
        except ledgers.LedgerError as error:
            self._complain(str(error))

    def close(self) -> None:
        """Store what is left, and close the ledger. Never raises."""
        self.store()
        self._ledger.close()

    def of(self, uuid: str, origin: str) -> Book:
        """The book of a server, begun where there is none."""
        book = self.running.get(uuid)
        if book is None:
            book = self.running[uuid] = self._new_book(uuid, origin)
        return book

    def end(self, uuid: str, *, off: bool) -> Book:
        """Close the book of a server that is billed here no more.

        :param off: by its flavor: what it uses until it is billed again is
            not to be billed then, not even by an agent that starts later
        """
        book = self.running.pop(uuid)
        if off:
            self.keep(dataclasses.replace(book.account, baseline=None))
        return book

    def account(self, uuid: str) -> accounts.Account | None:
        """The account of any server; None: it has none here.

        :raises nova_vqos.billing.ledger.LedgerError: when the ledger cannot
            be asked, which is told of
        """
        try:
            if uuid in self._unread:
                self._read_late(uuid)
            account = self._unstored.get(uuid)
            return self._ledger.get(uuid) if account is None else account
        except ledgers.LedgerError as error:
            self._complain(str(error))
            raise

    def keep(self, account: accounts.Account) -> None:
        """Have an account stored, sooner or later."""
        self._unstored[account.server_uuid] = account

    def store(self) -> None:
        """Store what is new; what cannot be stored now is kept for later.

        Nothing but this tells whether the ledger can be used: one that can
        be opened, and read, may still be on a full disk.
        """
        ready: list[accounts.Account] = []
        try:
            for uuid in tuple(self._unread):
                self._read_late(uuid)
            ready.extend(self._unstored.values())
            if ready or self.problem != '':
                self._ledger.store(ready)
        except ledgers.LedgerError as error:
            self._complain(str(error))
            return
        self._complain('')
        for account in ready:
            del self._unstored[account.server_uuid]

    def prune(self, here: Collection[str], now_s: float) -> None:
        """Drop accounts that nobody will ask for, now and then.

        :param here: UUIDs of all domains of the host
        :param now_s: on the monotonic clock
        """
        if now_s < self._prune_at_s or self.problem:
            return
        self._prune_at_s = now_s + _PRUNE_INTERVAL_S
        try:
            dropped = self._ledger.prune(frozenset(here))
        except ledgers.LedgerError as error:
            self._complain(str(error))
            return
        if dropped:
            LOG.info('Dropped %d servers from the ledger, which have not run '
                     'for long', dropped)

    def _new_book(self, uuid: str, origin: str) -> Book:
        try:
            account = self.account(uuid)
        except ledgers.LedgerError:
            self._unread.add(uuid)
            return Book(self._unstored.get(uuid, accounts.Account(uuid)),
                        origin)
        book = Book((account or accounts.Account(uuid)).adopted(), origin)
        book.note_known(account)
        return book

    def _read_late(self, uuid: str) -> None:
        """Add what the ledger says, which could not be asked before.

        :raises nova_vqos.billing.ledger.LedgerError: when it still cannot
        """
        known = self._ledger.get(uuid)
        self._unread.discard(uuid)
        book = self.running.get(uuid)
        now = self._unstored.get(uuid) if book is None else book.account
        if now is None:
            return
        account = now if known is None else known.adopted().followed_by(now)
        self.keep(account)
        if book is not None:
            book.replace(account)
            book.note_known(known)

    def _complain(self, problem: str) -> None:
        if problem and problem != self.problem:
            LOG.error('%s. Bills are kept in memory until it can', problem)
        elif self.problem and not problem:
            LOG.info('The ledger can be used again')
        self.problem = problem
