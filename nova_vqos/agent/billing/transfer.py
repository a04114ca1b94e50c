# SPDX-License-Identifier: Apache-2.0
"""Transfers the accounts of servers that moved, between two agents.

The agent of the new host claims the account from the old host, if nova-compute
knows that, and from all hosts otherwise. The agent of the old host answers
with a statement when the server has ended there, and keeps a copy. Another
host that claims the account later gets the copy: so a host that claimed it
without a right, or died, has taken nothing away. Any message may be lost,
late, or come twice.

All members of the bus can send any message, and see what is sent to all. So a
statement counts only if it answers an open claim of this host, has the nonce
of that claim, and is within bounds.
"""

from collections.abc import Callable, Collection, Mapping
import contextlib
import dataclasses
import functools
import logging
import queue
import secrets

from nova_vqos.agent import isolation
from nova_vqos.agent import outbox
from nova_vqos.agent.billing import books as bookkeeping
from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger

LOG = logging.getLogger(__name__)

# When an account is claimed, in seconds since the server was first billed
# here: often for a server that came, rarely for a new one.
_CLAIM_AFTER_S = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_CLAIM_NEW_AFTER_S = (0.0, 20.0)
# So many of the last are sent to all hosts in any case: the one that the
# server came from may be gone.
_CLAIMS_TO_ALL = 2
# An older claim was repeated by a queue of the bus.
_CLAIM_MAX_AGE_S = 900.0
# How long a claim of another host waits until its server has ended here.
_CLAIM_WAITS_S = 300.0
# How long after the last claim statements are accepted: it may have waited.
_ANSWERS_S = _CLAIM_WAITS_S + 60.0
_MAX_MESSAGES = 10_000
# A claim that could not be sent is tried again so much later.
_RETRY_S = 1.0


@dataclasses.dataclass(slots=True)
class _OpenClaim:
    """A claim of this host.

    :ivar nonce: that answers have
    :ivar most_debt_cu_us: above which this host writes debt off
    :ivar savings_cu_us: the least and the most that the server may have saved
    :ivar source: host that the server came from; '': not known
    :ivar at_s: when it is sent, on the monotonic clock; None: not known until
        the ledger could be read
    :ivar until_s: when it expires, likewise
    """

    nonce: str
    most_debt_cu_us: int
    savings_cu_us: tuple[int, int]
    source: str
    at_s: list[float] | None = None
    until_s: float = float('inf')


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A claim of another host.

    :ivar nonce: goes back with the answer; '': of an agent before 1.6
    :ivar most_debt_cu_us: above which that host writes debt off
    :ivar most_saved_cu_us: that the server may save there
    """

    server_uuid: str
    host: str
    nonce: str = ''
    most_debt_cu_us: int = accounts.MOST
    most_saved_cu_us: int = 0

    @property
    def uuid(self) -> str:
        """The server's."""
        return self.server_uuid

    @property
    def name(self) -> str:
        """Not known here."""
        return ''


class AccountTransfer:
    """Claims the accounts of servers that came, answers for those that left.

    Messages are received by any thread; all else runs with the bills.

    :ivar has_work: whether :meth:`answer_claims` has something to do
    :ivar next_claim_at_s: when :meth:`send_claims` has something to do, on
        the monotonic clock
    :ivar refused: how many statements were refused
    :ivar sources: by UUID, the hosts that servers came from
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
        self.refused = 0
        self.sources: Mapping[str, str] = {}
        self._books = books
        self._outbox = sender
        self._host = host
        self._clock = clock
        self._utc = utc
        self._began_s = clock()
        self._inbox: queue.SimpleQueue[
            tuple[str, Callable[[], None]]] = queue.SimpleQueue()
        # By server and host, oldest first: until when the claim waits.
        self._claims: dict[tuple[str, str], tuple[Claim, float]] = {}
        # Those whose answer waits for the ledger.
        self._answers: list[tuple[Claim, accounts.Account]] = []
        # Of this host, by server.
        self._open: dict[str, _OpenClaim] = {}
        # The first statement that was refused for each reason.
        self._alarms: dict[str, str] = {}

    @property
    def alarms(self) -> tuple[str, ...]:
        """Problems that an operator has to look at."""
        return tuple(self._alarms.values())

    # Called by RPC, in any thread.

    def receive_claim(self, claim: Claim, claimed_at: float) -> None:
        """Receive the claim of the host on which a server runs now."""
        if claim.host == self._host or abs(
                self._utc() - claimed_at) > _CLAIM_MAX_AGE_S:
            return
        self._post(claim.uuid, lambda: self._add_claim(claim))

    def receive_statement(self, statement: accounts.Statement, nonce: str, *,
                          is_copy: bool) -> None:
        """Receive the statement of a host that a server left.

        :param nonce: of this host's claim
        :param is_copy: whether that host had handed the account over before
        """
        self._post(statement.server_uuid, lambda: self._add_statement(
            statement, nonce, is_copy=is_copy))

    def _post(self, uuid: str, message: Callable[[], None]) -> None:
        if self._inbox.qsize() < _MAX_MESSAGES:
            self._inbox.put((uuid, message))
            self.has_work = True

    # Called with the bills, by one thread at a time.

    def begin(self, uuid: str, most_debt_cu_us: int,
              savings_cu_us: tuple[int, int] = (0, 0)) -> None:
        """Begin to claim the account of a server that is new in the books.

        :param most_debt_cu_us: above which this host writes debt off
        :param savings_cu_us: the least and the most that it may have saved
        """
        # NOTE: one that starts again may still get the answer.
        before = self._open.get(uuid)
        self._open[uuid] = _OpenClaim(
            secrets.token_hex(16) if before is None else before.nonce,
            most_debt_cu_us, savings_cu_us, self.sources.get(uuid, ''))
        self.next_claim_at_s = float('-inf')

    def send_claims(self) -> None:
        """Claim the accounts whose claim is due; forget expired claims."""
        now_s = self._clock()
        uuids = list(self._open)
        next_at_s = self._books.isolation.each(
            'claiming the account of server', map(isolation.Named, uuids),
            lambda one: self._send_claim(one.uuid, now_s))
        self.next_claim_at_s = min(
            *next_at_s.values(), float('inf'),
            now_s + _RETRY_S if len(next_at_s) < len(uuids) else float('inf'))

    def _send_claim(self, uuid: str, now_s: float) -> float:
        """:returns: when it is to be called again"""
        claim, book = self._open[uuid], self._books.running.get(uuid)
        if claim.at_s is None and book is not None and book.is_read:
            self._schedule(claim, book, now_s)
        if book is None:
            if claim.at_s is None:
                # It was never sent.
                claim.until_s = now_s
            claim.at_s = []
        if claim.at_s and now_s >= claim.at_s[0]:
            self._outbox.claim(
                uuid, claim.nonce, claim.most_debt_cu_us,
                claim.source if len(claim.at_s) > _CLAIMS_TO_ALL else '',
                claim.savings_cu_us[1])
            claim.at_s = [at_s for at_s in claim.at_s if at_s > now_s]
        if now_s >= claim.until_s:
            self._close(uuid)
            return float('inf')
        return now_s if claim.at_s is None else min(
            (*claim.at_s[:1], claim.until_s))

    def answer_claims(self, here: Collection[str]) -> None:
        """Read the messages of other hosts, and answer what is possible now.

        :param here: UUIDs of all domains of the host
        """
        # Before the messages are read: another thread may add one.
        self.has_work = False
        self._read_messages()
        self._answers.clear()
        now_s = self._clock()
        waiting = list(self._claims.values())
        for key, (_claim, until_s) in list(self._claims.items()):
            if now_s >= until_s:
                del self._claims[key]
        # Each attempt to read the ledger may block for long: one per interval.
        with contextlib.suppress(ledger.LedgerError):
            self._books.isolation.each(
                'answering a claim of server', [
                    claim for claim, _until_s in waiting
                    if claim.server_uuid not in here],
                self._answer, passes=(ledger.LedgerError,))
        if self._claims:
            self.has_work = True

    def _answer(self, claim: Claim) -> None:
        account = self._books.account(claim.server_uuid)
        if account is None:
            self._claims.pop((claim.server_uuid, claim.host), None)
        else:
            self._answers.append((claim, self._hand_over(account, claim)))

    def send_answers(self) -> None:
        """Send the statements of accounts that the ledger has as handed over.

        NOTE: an agent that ended between a statement and the ledger would
        find the account here again, and count it twice.
        """
        for claim, account in self._answers:
            self._books.isolation.each(
                'handing over the account of server', (claim,),
                functools.partial(self._send_answer, account))
        self._answers.clear()

    def _send_answer(self, account: accounts.Account, claim: Claim) -> None:
        if not self._books.is_stored(claim.server_uuid):
            return
        self._claims.pop((claim.server_uuid, claim.host), None)
        is_copy = account.handed_to != claim.host
        # NOTE: an agent before 1.6 takes a copy for the last word.
        if claim.nonce or not is_copy:
            self._outbox.hand_over(
                claim.host, account.statement(claim.most_debt_cu_us,
                                              claim.most_saved_cu_us),
                claim.nonce, is_copy=is_copy)

    def _read_messages(self) -> None:
        while True:
            try:
                uuid, message = self._inbox.get_nowait()
            except queue.Empty:
                return
            self._receive(uuid, message)

    def _receive(self, uuid: str, message: Callable[[], None]) -> None:
        self._books.isolation.each(
            'receiving the account of server', (isolation.Named(uuid),),
            lambda _one: message())

    def _schedule(self, claim: _OpenClaim, book: bookkeeping.Book,
                  now_s: float) -> None:
        after_s = _claim_after_s(book, claim.source)
        claim.at_s = [now_s + one_s for one_s in after_s]
        claim.until_s = now_s + (after_s[-1] + _ANSWERS_S if after_s else 0.0)
        if after_s:
            # So that an agent that ends before the answer asks again.
            book.account = book.account.awaiting()
            self._books.store_later(book.account)

    def _close(self, uuid: str) -> None:
        """Forget a claim that expired."""
        del self._open[uuid]
        book = self._books.running.get(uuid)
        if book is None:
            return
        before, book.account = book.account, book.account.unanswered()
        if book.account is not before:
            self._books.store_later(book.account)

    def _add_claim(self, claim: Claim) -> None:
        key = claim.server_uuid, claim.host
        self._claims.pop(key, None)
        self._claims[key] = claim, self._clock() + _CLAIM_WAITS_S
        if len(self._claims) > _MAX_MESSAGES:
            # Whoever lacks an answer asks again.
            del self._claims[next(iter(self._claims))]

    def _add_statement(self, statement: accounts.Statement, nonce: str, *,
                       is_copy: bool) -> None:
        """Add a statement to the account of a server, if it was asked for.

        The server may have stopped since. Without an account here, or with
        one that is at another host again, it is dropped. While the ledger
        cannot be read it is dropped, too: the account is claimed again when
        the server starts.
        """
        uuid = statement.server_uuid
        claim = self._open.get(uuid)
        if (claim is None or self._clock() >= claim.until_s
                or not secrets.compare_digest(claim.nonce, nonce)):
            if self._clock() < self._began_s + _ANSWERS_S:
                # The agent before this one asked, and the queue kept it.
                self.refused += 1
            else:
                self._refuse(uuid, 'unasked',
                             'this agent has not asked for it')
            return
        book = self._books.running.get(uuid)
        try:
            account = (self._books.account(uuid) if book is None
                       else book.account)
        except ledger.LedgerError:
            return
        if account is None or account.handed_to:
            return
        least_cu_us, most_cu_us = claim.savings_cu_us
        # It may have overspent more as another flavor: forgiven, as in a bill.
        statement = dataclasses.replace(statement, saved_cu_us=max(
            least_cu_us, statement.saved_cu_us))
        objection = account.objection(
            statement, claim.most_debt_cu_us, self._utc(), most_cu_us)
        if objection:
            self._refuse(uuid, 'implausible', objection)
            return
        changed = account.with_statement(statement, is_copy=is_copy)
        if changed is account:
            return
        if not is_copy:
            claim.at_s = []
        LOG.info('Server %s came with %.3f CU seconds of debt, and %.3f saved',
                 uuid, accounts.cu_s(statement.debt_cu_us),
                 accounts.cu_s(statement.saved_cu_us))
        if book is not None:
            book.replace(changed)
        self._books.store_later(changed)

    def _refuse(self, uuid: str, kind: str, reason: str) -> None:
        """Refuse a statement; of each kind only the first is logged."""
        self.refused += 1
        if kind not in self._alarms:
            self._alarms[kind] = (f'a statement of the account of server '
                                  f'{uuid} was refused: {reason}')
            LOG.warning('A statement of the account of server %s was refused, '
                        'further ones are only counted: %s', uuid, reason)

    def _hand_over(self, account: accounts.Account,
                   claim: Claim) -> accounts.Account:
        """Hand an account over, if it is at this host; it stays as a copy."""
        changed = account.handed_over(claim.host, self._utc())
        if changed is not account:
            self._books.store_later(changed)
            LOG.info('Handed the account of server %s over to host %s, with '
                     '%.3f CU seconds of debt, and %.3f saved',
                     claim.server_uuid, claim.host,
                     accounts.cu_s(changed.debt_cu_us),
                     accounts.cu_s(changed.saved_cu_us))
        return changed


def _claim_after_s(book: bookkeeping.Book, source: str) -> tuple[float, ...]:
    """
    :param source: host that the server came from; '': not known
    """
    stored = book.stored
    if book.origin == 'booted' and (stored is None or stored.sequence <= 1):
        # It may have come when no host could answer, and have stopped.
        return _CLAIM_AFTER_S if source else _CLAIM_NEW_AFTER_S
    if (stored is None or book.origin == 'migrated'
            or stored.awaits_statement):
        return _CLAIM_AFTER_S
    return ()
