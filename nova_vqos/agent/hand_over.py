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

"""What the agents of two hosts say to each other of a server that moved.

The one that it came to claims its account, by asking all hosts; the one that
it left answers with a statement once it has ended there. Any message may be
lost, late, or come twice.
"""

from collections.abc import Callable, Collection
import logging
import queue
import typing as ty

from nova_vqos.agent import bookkeeping
from nova_vqos.billing import account as accounts
from nova_vqos.billing import ledger as ledgers

LOG = logging.getLogger(__name__)

# When another host is asked for the account of a server, in seconds since it
# was first billed here: often of one that came, rarely of one that is new.
_ASK_AT_S = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_ASK_NEW_AT_S = (0.0, 20.0)
# A claim that is older was replayed by a queue.
_CLAIM_MAX_AGE_S = 900.0
# How long a claim waits for its server to end here.
_CLAIM_WAITS_S = 300.0
_MOST_MESSAGES = 10_000


class OtherHosts(ty.Protocol):
    """How other hosts are told. Nothing here blocks."""

    def claim(self, server_uuid: str) -> None:
        """Ask all hosts for the account of a server that is here now."""

    def hand_over(self, host: str, statement: accounts.Statement) -> None:
        """Tell the host that a server went to."""


class HandOver:
    """Asks for the accounts of servers that came, tells of those that left.

    Other hosts are heard by any thread; all else is done in the rounds.
    """

    def __init__(self, books: bookkeeping.Books, others: OtherHosts,
                 host: str, *, clock: Callable[[], float],
                 utc: Callable[[], float]) -> None:
        """
        :param host: name of this host
        :param clock: monotonic, in seconds
        :param utc: in seconds since 1970
        """
        self._books = books
        self._others = others
        self._host = host
        self._clock = clock
        self._utc = utc
        self._inbox: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        # By server: the host that wants its account, and until when.
        self._claims: dict[str, tuple[str, float]] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no other host waits for anything."""
        return not self._claims and self._inbox.empty()

    # What RPC calls.

    def take_claim(self, server_uuid: str, host: str,
                   claimed_at: float) -> None:
        """Another host says that a server runs there now."""
        if host == self._host or abs(
                self._utc() - claimed_at) > _CLAIM_MAX_AGE_S:
            return
        self._post(lambda: self._note_claim(server_uuid, host))

    def take_statement(self, statement: accounts.Statement) -> None:
        """Another host tells of a server that came from there."""
        self._post(lambda: self._note_statement(statement))

    def _post(self, message: Callable[[], None]) -> None:
        if self._inbox.qsize() < _MOST_MESSAGES:
            self._inbox.put(message)

    # What a round calls.

    def ask(self, uuid: str, book: bookkeeping.Book) -> None:
        """Ask other hosts what they know of a server, if it is time to."""
        if not book.is_read:
            # Nobody knows yet whether there is anything to ask for.
            return
        now_s = self._clock()
        if book.ask_at_s is None:
            book.ask_at_s = [now_s + later_s for later_s in _to_ask(book)]
        if book.ask_at_s and now_s >= book.ask_at_s[0]:
            book.ask_at_s = [at_s for at_s in book.ask_at_s if at_s > now_s]
            self._others.claim(uuid)

    def answer(self, here: Collection[str]) -> None:
        """Take in what other hosts said, and answer what can be answered.

        :param here: UUIDs of all domains of the host
        """
        self._take_messages()
        now_s = self._clock()
        readable = True
        for uuid, (host, until_s) in list(self._claims.items()):
            if uuid not in here and readable:
                try:
                    account = self._books.account(uuid)
                except ledgers.LedgerError:
                    # Each attempt may take its time: the next one is in the
                    # next round.
                    readable = False
                else:
                    del self._claims[uuid]
                    self._answer(host, account)
                    continue
            if now_s >= until_s:
                del self._claims[uuid]

    def _take_messages(self) -> None:
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                return
            message()

    def _note_claim(self, server_uuid: str, host: str) -> None:
        if server_uuid in self._claims or len(self._claims) < _MOST_MESSAGES:
            self._claims[server_uuid] = (host, self._clock() + _CLAIM_WAITS_S)

    def _note_statement(self, statement: accounts.Statement) -> None:
        book = self._books.running.get(statement.server_uuid)
        if book is None:
            self._note_late(statement)
        elif book.inherit(statement):
            LOG.info('Server %s came with %.3f CU seconds of debt',
                     statement.server_uuid,
                     accounts.cu_s(statement.debt_cu_us))
            self._books.keep(book.account)

    def _note_late(self, statement: accounts.Statement) -> None:
        """Take in what was asked for a server that has stopped since.

        One that has no account here, or whose account is with another host
        again, is not ours to keep. Where the ledger cannot be asked, the
        statement is asked for again when the server starts.
        """
        uuid = statement.server_uuid
        try:
            account = self._books.account(uuid)
        except ledgers.LedgerError:
            return
        if account is None or account.handed_to:
            return
        told = account.with_statement(statement)
        if told is not account:
            LOG.info('Server %s, which has stopped since, came with %.3f CU '
                     'seconds of debt', uuid,
                     accounts.cu_s(statement.debt_cu_us))
            self._books.keep(told)

    def _answer(self, host: str, account: accounts.Account | None) -> None:
        """Hand an account over, if it is this host's to tell.

        What another host was told is that one's: its answer holds it, and a
        second one from here would end the question before it came. Where
        that host never got it, or is gone for good, this part is lost to
        those that the server goes to.
        """
        if account is None or account.handed_to not in ('', host):
            return
        account = account.handed_over(host, self._utc())
        self._books.keep(account)
        self._others.hand_over(host, account.statement())
        LOG.info('Handed the account of server %s over to host %s, with %.3f '
                 'CU seconds of debt', account.server_uuid, host,
                 accounts.cu_s(account.debt_cu_us))


def _to_ask(book: bookkeeping.Book) -> tuple[float, ...]:
    """When other hosts are to be asked for what they know of a server."""
    known = book.known
    if known is None:
        return _ASK_NEW_AT_S if book.origin == 'booted' else _ASK_AT_S
    if book.origin == 'migrated' or known.awaits_statement:
        return _ASK_AT_S
    if book.origin == 'booted' and not known.inherited.server_uuid:
        # It may have come when nobody could tell, and have stopped.
        return _ASK_NEW_AT_S
    return ()
