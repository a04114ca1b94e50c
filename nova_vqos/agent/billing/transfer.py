# SPDX-License-Identifier: Apache-2.0
"""Transfers the accounts of servers that moved, between two agents.

The agent of the new host claims the account from all hosts. The agent of the
old host answers with a statement when the server has ended there. Any message
may be lost, late, or come twice.
"""

from collections.abc import Callable, Collection
import logging
import queue

from nova_vqos.agent import outbox
from nova_vqos.agent.billing import books as bookkeeping
from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger

LOG = logging.getLogger(__name__)

# When an account is claimed, in seconds since the server was first billed
# here: often for a server that came, rarely for a new one.
_CLAIM_AFTER_S = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_CLAIM_NEW_AFTER_S = (0.0, 20.0)
# An older claim was repeated by a queue of the bus.
_CLAIM_MAX_AGE_S = 900.0
# How long a claim of another host waits until its server has ended here.
_CLAIM_WAITS_S = 300.0
_MAX_MESSAGES = 10_000


class AccountTransfer:
    """Claims the accounts of servers that came, answers for those that left.

    Messages are received by any thread; all else runs with the bills.

    :ivar has_work: whether :meth:`answer_claims` has something to do
    :ivar next_claim_at_s: when :meth:`send_claims` has something to do, on
        the monotonic clock
    """

    def __init__(self, books: bookkeeping.Books, sender: outbox.Outbox,
                 host: str, *, clock: Callable[[], float],
                 utc: Callable[[], float]) -> None:
        """
        :param host: name of this host
        :param clock: monotonic, in seconds
        :param utc: in seconds since 1970
        """
        self.has_work = False
        self.next_claim_at_s = float('inf')
        self._books = books
        self._outbox = sender
        self._host = host
        self._clock = clock
        self._utc = utc
        self._inbox: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        # By server: the host that claims its account, and until when.
        self._claims: dict[str, tuple[str, float]] = {}
        # By server: when this host claims its account; None: not known until
        # the ledger could be read.
        self._claim_at_s: dict[str, list[float] | None] = {}

    # Called by RPC, in any thread.

    def receive_claim(self, server_uuid: str, host: str,
                      claimed_at: float) -> None:
        """Receive the claim of the host on which a server runs now."""
        if host == self._host or abs(
                self._utc() - claimed_at) > _CLAIM_MAX_AGE_S:
            return
        self._post(lambda: self._add_claim(server_uuid, host))

    def receive_statement(self, statement: accounts.Statement) -> None:
        """Receive the statement of the host that a server left."""
        self._post(lambda: self._add_statement(statement))

    def _post(self, message: Callable[[], None]) -> None:
        if self._inbox.qsize() < _MAX_MESSAGES:
            self._inbox.put(message)
            self.has_work = True

    # Called with the bills, by one thread at a time.

    def begin(self, uuid: str) -> None:
        """Begin to claim the account of a server that is new in the books."""
        self._claim_at_s[uuid] = None
        self.next_claim_at_s = float('-inf')

    def send_claims(self) -> None:
        """Claim the accounts whose claim is due."""
        now_s = self._clock()
        self.next_claim_at_s = float('inf')
        for uuid, at_s in list(self._claim_at_s.items()):
            book = self._books.running.get(uuid)
            if at_s is None and book is not None and book.is_read:
                at_s = [now_s + after_s for after_s in _claim_after_s(book)]
            if at_s and book is not None and now_s >= at_s[0]:
                self._outbox.claim(uuid)
                at_s = [later_s for later_s in at_s if later_s > now_s]
            if book is None or at_s == []:
                del self._claim_at_s[uuid]
                continue
            self._claim_at_s[uuid] = at_s
            self.next_claim_at_s = min(self.next_claim_at_s,
                                       at_s[0] if at_s else now_s)

    def answer_claims(self, here: Collection[str]) -> None:
        """Read the messages of other hosts, and answer what is possible now.

        :param here: UUIDs of all domains of the host
        """
        # Before the messages are read: another thread may add one.
        self.has_work = False
        self._read_messages()
        now_s = self._clock()
        readable = True
        for uuid, (host, until_s) in list(self._claims.items()):
            if uuid not in here and readable:
                try:
                    account = self._books.account(uuid)
                except ledger.LedgerError:
                    # Each attempt may block for long: one per interval.
                    readable = False
                else:
                    del self._claims[uuid]
                    self._answer(host, account)
                    continue
            if now_s >= until_s:
                del self._claims[uuid]
        if self._claims:
            self.has_work = True

    def _read_messages(self) -> None:
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            message()

    def _add_claim(self, server_uuid: str, host: str) -> None:
        if server_uuid in self._claims or len(self._claims) < _MAX_MESSAGES:
            self._claims[server_uuid] = (host, self._clock() + _CLAIM_WAITS_S)

    def _add_statement(self, statement: accounts.Statement) -> None:
        book = self._books.running.get(statement.server_uuid)
        if book is None:
            self._add_late_statement(statement)
        elif book.inherit(statement):
            self._claim_at_s.pop(statement.server_uuid, None)
            LOG.info('Server %s came with %.3f CU seconds of debt',
                     statement.server_uuid,
                     accounts.cu_s(statement.debt_cu_us))
            self._books.store_later(book.account)

    def _add_late_statement(self, statement: accounts.Statement) -> None:
        """Add the statement of a server that has stopped here since.

        Without an account here, or with one that is at another host again,
        it is dropped. While the ledger cannot be read it is dropped, too: the
        account is claimed again when the server starts.
        """
        uuid = statement.server_uuid
        try:
            account = self._books.account(uuid)
        except ledger.LedgerError:
            return
        if account is None or account.handed_to:
            return
        changed = account.with_statement(statement)
        if changed is not account:
            LOG.info('Server %s, which has stopped since, came with %.3f CU '
                     'seconds of debt', uuid,
                     accounts.cu_s(statement.debt_cu_us))
            self._books.store_later(changed)

    def _answer(self, host: str, account: accounts.Account | None) -> None:
        """Hand an account over, if it is at this host.

        After a transfer only the receiver may answer; a second answer from
        here would end the claim too early. If the receiver never got it, or
        is gone for good, this part is lost for later hosts of the server.
        """
        if account is None or account.handed_to not in ('', host):
            return
        account = account.handed_over(host, self._utc())
        self._books.store_later(account)
        self._outbox.hand_over(host, account.statement())
        LOG.info('Handed the account of server %s over to host %s, with %.3f '
                 'CU seconds of debt', account.server_uuid, host,
                 accounts.cu_s(account.debt_cu_us))


def _claim_after_s(book: bookkeeping.Book) -> tuple[float, ...]:
    stored = book.stored
    if stored is None:
        return (_CLAIM_NEW_AFTER_S if book.origin == 'booted'
                else _CLAIM_AFTER_S)
    if book.origin == 'migrated' or stored.awaits_statement:
        return _CLAIM_AFTER_S
    if book.origin == 'booted' and not stored.inherited.server_uuid:
        # It may have come when no host could answer, and have stopped.
        return _CLAIM_NEW_AFTER_S
    return ()
