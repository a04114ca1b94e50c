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

"""What the agent does about I/O in each billing interval.

One round at a time, on a worker: it may block on the hypervisor and on the
disk. The loop gives it what it knows of the servers, and takes bills and
limits back; RPC leaves messages for it.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import logging
import queue
import time
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos.agent import decision
from nova_vqos.agent import notices
from nova_vqos.agent import server as servers
from nova_vqos.billing import account as accounts
from nova_vqos.billing import capacity
from nova_vqos.billing import charge
from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import meter
from nova_vqos.billing import usage as usages
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# When another host is asked for the account of a server, in seconds since it
# was first billed here: often of one that came, rarely of one that is new.
_CLAIM_AT_S = (0.0, 2.0, 5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0)
_CLAIM_NEW_AT_S = (0.0, 20.0)
# A claim that is older was replayed by a queue.
CLAIM_MAX_AGE_S = 900.0
# How long a claim waits for its server to end here.
_CLAIM_WAITS_S = 300.0
_MOST_MESSAGES = 10_000
_PRUNE_INTERVAL_S = 3600.0
# Without servers to bill there is only the word of other hosts to wait for.
_IDLE_INTERVAL_S = 60.0


class Messenger(ty.Protocol):
    """How other hosts, and people's bills, are told. Nothing here blocks."""

    def claim(self, server_uuid: str) -> None:
        """Ask all hosts for the account of a server that is here now."""

    def hand_over(self, host: str, statement: accounts.Statement) -> None:
        """Tell the host that a server went to."""

    def overdrawn(self, payload: Mapping[str, ty.Any]) -> None:
        """Tell that the I/O of a server is more than its entitlement."""

    def usage(self, payload: Mapping[str, ty.Any]) -> None:
        """Tell what a server used."""


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """See the options of the agent."""

    interval_s: float = 2.0
    floor_share: float = 0.1
    ceiling_s: float = 300.0
    dropped_packets: bool = False
    usage_interval_s: float = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """A server that is to be billed, as the loop knows it.

    :ivar origin: see :class:`nova_vqos.agent.server.Server`
    :ivar began_s: when its guest began to run here; None: unknown
    :ivar billed_since_s: what it did before is not to be billed; None: all is
    :ivar coefficient: of the slowest pCPU that it may run on
    :ivar entitlement_cu: None: it has none
    :ivar limit_share: in force; None: it pays for nothing
    """

    uuid: str
    name: str
    project_id: str
    billing: str
    origin: str
    began_s: float | None
    coefficient: float
    entitlement_cu: int | None
    limit_share: float | None
    devices: meter.Devices
    billed_since_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Billed:
    """What became of a server in a round.

    :ivar limit_share: wanted; None: it pays for nothing
    :ivar report: for people, in primitives
    """

    limit_share: float | None
    report: dict[str, ty.Any]


def subject_of(server: servers.Server,
               terms: decision.HostTerms) -> Subject | None:
    """A server as the biller has to know it; None: not to be billed now."""
    domain, profile = server.domain, terms.profile
    if server.dd_billing == 'off' or domain is None or profile is None:
        return None
    if server.is_arriving:
        # Its QEMU still takes in what is not the server's work.
        return None
    charged = servers.is_charged(server, terms)
    if charged and server.limit_share is None and server.honoured:
        # The loop has yet to look at it.
        return None
    try:
        coefficient = profile.slowest(
            profile.pcpus if domain.pcpus is None else domain.pcpus)
    except profiles.ProfileError:
        coefficient = profile.slowest(profile.pcpus)
    return Subject(
        uuid=server.uuid, name=server.name, project_id=domain.project_id,
        billing=server.dd_billing, origin=server.origin,
        began_s=server.runs_since_s, coefficient=coefficient,
        entitlement_cu=(None if server.policy is None
                        else server.policy.units),
        limit_share=server.limit_share if charged else None,
        devices=meter.Devices(domain.interfaces, domain.disks),
        billed_since_s=server.billed_since_s)


class _Book:
    """A server that runs here and is billed.

    :ivar origin: of the subject that it was begun for
    :ivar claims_at_s: when other hosts are to be asked for it
    :ivar unmodelled: see :class:`nova_vqos.billing.meter.Bill`, so far
    :ivar lately: used in the last interval by component, in CU
    :ivar report: the last one, in primitives
    """

    def __init__(self, account: accounts.Account, origin: str) -> None:
        self.account = account
        self.origin = origin
        self.claims_at_s: list[float] = []
        self.control: charge.Charge | None = None
        self.unmodelled: frozenset[str] = frozenset()
        self.overdrawn = False
        self.lately: dict[str, float] = {}
        self.report: dict[str, ty.Any] = {}

    def set_control(self, subject: Subject) -> None:
        """Begin or end to charge it, as its flavor wants."""
        if subject.limit_share is None:
            self.control = None
        elif self.control is None:
            self.control = charge.Charge(
                debt_cu_s=_cu_s(self.account.debt_cu_us),
                limit_share=subject.limit_share)

    def inherit(self, statement: accounts.Statement) -> bool:
        """Take in what another host tells.

        :returns: whether it was news
        """
        before = self.account
        self.account = before.with_statement(statement)
        if self.account is before:
            return False
        self.claims_at_s = []
        if self.control is not None:
            self.control.add_debt(_cu_s(
                self.account.debt_cu_us - before.debt_cu_us))
        return True


class Biller:
    """Bills the servers of a host.

    :ivar next_at_s: when the next round is due at the earliest, on the
        monotonic clock
    :ivar offers: what of ``vqos:dd_billing`` works on this host now
    :ivar errors: how often a server could not be billed, unexpectedly
    """

    def __init__(self, hypervisor: base.Hypervisor, ledger: ledgers.Ledger,
                 messenger: Messenger, options: Options, *, host: str = '',
                 clock: Callable[[], float] = time.monotonic,
                 utc: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is read or opened yet.

        :param host: name of this host
        :param clock: monotonic, in seconds
        :param utc: in seconds since 1970
        """
        self.options = options
        self.offers: tuple[str, ...] = ('off',)
        self.errors = 0
        self._failing: set[str] = set()
        self._hypervisor = hypervisor
        self._ledger = ledger
        self._messenger = messenger
        self._host = host
        self._clock = clock
        self._utc = utc
        self._inbox: queue.SimpleQueue[Callable[[], None]] = (
            queue.SimpleQueue())
        self.next_at_s = float('-inf')
        self._prune_at_s = float('-inf')
        self._began = False
        self._books: dict[str, _Book] = {}
        self._unstored: dict[str, accounts.Account] = {}
        # Servers whose account in memory lacks what the ledger says, since
        # that could not be asked.
        self._unread: set[str] = set()
        # By server: the host that wants its account, and until when.
        self._claims: dict[str, tuple[str, float]] = {}
        # None: nothing was written yet.
        self._ledger_problem: str | None = None
        self._host_problem = ''
        self._capacity = capacity.Capacity()
        self._notices = notices.Notices(
            host, options.usage_interval_s, clock=clock, utc=utc)

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should look at."""
        return tuple(filter(None, (self._ledger_problem, self._ledger.alarm)))

    @property
    def can_read(self) -> bool:
        """Whether the hypervisor's driver can tell what servers used."""
        return type(self._hypervisor).usages is not base.Hypervisor.usages

    @property
    def capacity(self) -> dict[str, ty.Any] | None:
        """See :meth:`nova_vqos.billing.capacity.Capacity.report`."""
        return self._capacity.report()

    def is_due(self, now_s: float, subjects: Collection[Subject]) -> bool:
        """Whether a round is to begin; it is begun if so.

        A host without servers to bill costs nothing, but for a look at the
        ledger now and then.
        """
        needed = (not self._began or subjects or self._books or self._unstored
                  or self._claims or not self._inbox.empty())
        if not needed and now_s < self.next_at_s + _IDLE_INTERVAL_S:
            return False
        if now_s < self.next_at_s:
            return False
        # Rounds that were missed are not made up for.
        interval_s = self.options.interval_s
        self.next_at_s = interval_s + (
            max(self.next_at_s, now_s - interval_s / 2) if self._began
            else now_s)
        self._began = True
        return True

    # What RPC calls.

    def take_claim(self, server_uuid: str, host: str,
                   claimed_at: float) -> None:
        """Another host says that a server runs there now."""
        if host == self._host or abs(
                self._utc() - claimed_at) > CLAIM_MAX_AGE_S:
            return
        self._post(lambda: self._note_claim(server_uuid, host))

    def take_statement(self, statement: accounts.Statement) -> None:
        """Another host tells of a server that came from there."""
        self._post(lambda: self._note_statement(statement))

    # A round. All below is called by one thread at a time.

    def round(self, subjects: Collection[Subject],
              costs: io_costs.IoCosts | None,
              running: Collection[str],
              pcpu_cu: float = 0.0,
              off: Collection[str] = ()) -> dict[str, Billed]:
        """Bill all servers once.

        :param running: UUIDs of all domains of the host
        :param pcpu_cu: mean speed of the host's pCPUs; 0: unknown
        :param off: UUIDs of those that are not billed, by their flavor
        :returns: by UUID; without those that could not be read now
        :raises nova_vqos.hypervisor.base.HypervisorError: when nothing could
            be read
        """
        self._open_ledger()
        wanted = {subject.uuid: subject for subject in subjects}
        for uuid in self._books.keys() - wanted.keys():
            book = self._books.pop(uuid)
            if uuid in off:
                # Not even by an agent that starts after it is on again.
                self._unstored[uuid] = dataclasses.replace(
                    book.account, baseline=None)
            self._tell_last(uuid, book)
        self._failing.intersection_update(wanted)
        try:
            readings = (self._hypervisor.usages(wanted) if wanted else {})
            billed = {
                uuid: bill for uuid, reading in readings.items()
                if uuid in wanted and (bill := self._try_to_bill(
                    wanted[uuid], reading, costs)) is not None}
        finally:
            self._take_messages()
            self._answer_claims(running)
            self._store()
        self._prune(running)
        if pcpu_cu:
            self._look_at_host(pcpu_cu)
        return billed

    def close(self) -> None:
        """Tell and store what is left, and close the ledger. Never raises."""
        for uuid, book in self._books.items():
            self._tell_last(uuid, book)
        self._store()
        self._ledger.close()

    def _tell_last(self, uuid: str, book: _Book) -> None:
        last = self._notices.end(uuid, book.report)
        if last is not None:
            self._messenger.usage(last)

    def _try_to_bill(self, subject: Subject, reading: usages.Usage,
                     costs: io_costs.IoCosts | None) -> Billed | None:
        try:
            billed = self._bill(subject, reading, costs)
        except Exception:
            # One server that is not understood must not cost the others.
            self.errors += 1
            if subject.uuid not in self._failing:
                self._failing.add(subject.uuid)
                LOG.exception('Server %s (%s) cannot be billed', subject.uuid,
                              subject.name)
            return None
        self._failing.discard(subject.uuid)
        return billed

    def _bill(self, subject: Subject, reading: usages.Usage,
              costs: io_costs.IoCosts | None) -> Billed:
        book = self._book_of(subject)
        book.set_control(subject)
        last = _last(book.account.baseline, reading, subject)
        bill = meter.bill(last, reading, subject.devices, costs,
                          dropped_packets=self.options.dropped_packets)
        used_cu_us = {
            name: accounts.to_cu_us(used_ns, subject.coefficient)
            for name, used_ns in bill.used_ns.items()}
        book.account = book.account.billed(
            used_cu_us, meter.baseline(last, reading))
        if bill.length_s > 0:
            book.lately = {name: _cu_s(used) / bill.length_s
                           for name, used in used_cu_us.items()}
        self._charge(book, subject, bill.length_s, used_cu_us)
        self._note_unmodelled(book, subject, bill, costs)
        self._claim(book, subject)
        self._unstored[subject.uuid] = book.account
        book.report = self._report(book, subject)
        self._capacity.add_server(
            sum(used_cu_us[name] for name in meter.MEASURED_IO),
            sum(used_cu_us[name] for name in meter.MODELLED_IO),
            charged=book.control is not None)
        notice = self._notices.add(subject.uuid, used_cu_us,
                                   bill.throttled_ns, book.report,
                                   bill.length_s)
        if notice is not None:
            self._messenger.usage(notice)
        return Billed(
            None if book.control is None else book.control.limit_share,
            book.report)

    def _look_at_host(self, pcpu_cu: float) -> None:
        if not self._capacity.is_due(self._clock()):
            return
        try:
            self._capacity.add_host(self._hypervisor.host_usage(), pcpu_cu)
            self._host_problem = ''
        except base.HypervisorError as error:
            if str(error) != self._host_problem:
                LOG.warning('Where the CPU time of this host goes is not '
                            'known: %s', error)
            self._host_problem = str(error)

    def _charge(self, book: _Book, subject: Subject, length_s: float,
                used_cu_us: Mapping[str, int]) -> None:
        control = book.control
        if control is None or not subject.entitlement_cu:
            return
        terms = charge.Terms(
            entitlement_cu=subject.entitlement_cu,
            floor_share=self.options.floor_share,
            ceiling_s=self.options.ceiling_s)
        written_off_cu_s = control.step(terms, charge.Interval(
            length_s, _cu_s(used_cu_us['vcpu']),
            _cu_s(sum(used_cu_us[name] for name in meter.MEASURED_IO)),
            _cu_s(sum(used_cu_us[name] for name in meter.MODELLED_IO))))
        book.account = dataclasses.replace(
            book.account, debt_cu_us=_cu_us(control.debt_cu_s),
            written_off_cu_us=min(
                accounts.MOST, book.account.written_off_cu_us
                + _cu_us(written_off_cu_s)))
        before, book.overdrawn = book.overdrawn, control.overdrawn
        if book.overdrawn and not before:
            LOG.warning('The I/O of server %s (%s) alone costs more than its '
                        '%d CU: it is left %.0f %% of them', subject.uuid,
                        subject.name, subject.entitlement_cu,
                        100 * control.limit_share)
            self._messenger.overdrawn(self._notices.payload(
                self._report(book, subject)))

    @staticmethod
    def _note_unmodelled(book: _Book, subject: Subject, bill: meter.Bill,
                         costs: io_costs.IoCosts | None) -> None:
        new = bill.unmodelled - book.unmodelled
        if not new:
            return
        book.unmodelled |= new
        reason = ('the profile knows no costs of I/O' if costs is None else
                  'the profile knows no costs of them')
        LOG.warning('Server %s (%s) is billed for what its threads use, but '
                    'not for what these cost the kernel: %s: %s',
                    subject.uuid, subject.name, '; '.join(sorted(new)),
                    reason)

    def _report(self, book: _Book, subject: Subject) -> dict[str, ty.Any]:
        account, control = book.account, book.control
        return {
            'server_uuid': subject.uuid,
            'project_id': subject.project_id,
            'billing': subject.billing,
            'used_cu_s': {name: _cu_s(used) for name, used
                          in account.total_cu_us.items()},
            'used_lately_cu': dict(book.lately),
            'debt_cu_s': _cu_s(account.debt_cu_us),
            'written_off_cu_s': _cu_s(account.written_off_cu_us),
            'entitlement_cu': subject.entitlement_cu,
            'limit_cu': (
                None if control is None or subject.entitlement_cu is None
                else control.limit_share * subject.entitlement_cu),
            'overdrawn': book.overdrawn,
            'not_modelled': sorted(book.unmodelled),
            'inherited': bool(account.inherited.server_uuid),
            'stored': not self._ledger_problem,
        }

    # Accounts.

    def _book_of(self, subject: Subject) -> _Book:
        book = self._books.get(subject.uuid)
        if book is None:
            book = self._books[subject.uuid] = self._new_book(subject)
        return book

    def _new_book(self, subject: Subject) -> _Book:
        uuid = subject.uuid
        try:
            account = self._account(uuid)
        except ledgers.LedgerError as error:
            self._complain(str(error))
            self._unread.add(uuid)
            return _Book(self._unstored.get(uuid, accounts.Account(uuid)),
                         subject.origin)
        book = _Book((account or accounts.Account(uuid)).adopted(),
                     subject.origin)
        self._plan_claims(book, account)
        return book

    def _plan_claims(self, book: _Book,
                     known: accounts.Account | None) -> None:
        """Have other hosts asked for what they know of a server.

        :param known: what was known here before it began to run here
        """
        came = book.origin == 'migrated'
        at_s: tuple[float, ...] = ()
        if known is None:
            at_s = (_CLAIM_NEW_AT_S if book.origin == 'booted'
                    else _CLAIM_AT_S)
        elif came or known.awaits_statement:
            at_s = _CLAIM_AT_S
        elif book.origin == 'booted' and not known.inherited.server_uuid:
            # It may have come when nobody could tell, and have stopped.
            at_s = _CLAIM_NEW_AT_S
        now_s = self._clock()
        book.claims_at_s = [now_s + later_s for later_s in at_s]

    def _read_late(self, uuid: str) -> None:
        """Add what the ledger says, which could not be asked before.

        :raises nova_vqos.billing.ledger.LedgerError: when it still cannot
        """
        before = self._ledger.get(uuid)
        self._unread.discard(uuid)
        book = self._books.get(uuid)
        now = self._unstored.get(uuid) if book is None else book.account
        if now is None:
            return
        merged = now if before is None else before.adopted().followed_by(now)
        self._unstored[uuid] = merged
        if book is None:
            return
        book.account = merged
        self._plan_claims(book, before)
        if book.control is not None:
            book.control.add_debt(_cu_s(merged.debt_cu_us - now.debt_cu_us))

    def _account(self, uuid: str) -> accounts.Account | None:
        if uuid in self._unread:
            self._read_late(uuid)
        account = self._unstored.get(uuid)
        return self._ledger.get(uuid) if account is None else account

    def _open_ledger(self) -> None:
        try:
            self._ledger.open()
        except ledgers.LedgerError as error:
            self._complain(str(error))

    def _store(self) -> None:
        """Store what is new; what cannot be stored now is kept for later.

        Nothing but this tells whether the ledger can be used: one that can
        be opened, and read, may still be on a full disk.
        """
        ready: list[accounts.Account] = []
        try:
            for uuid in tuple(self._unread):
                self._read_late(uuid)
            ready.extend(self._unstored.values())
            if ready or self._ledger_problem != '':
                self._ledger.store(ready)
        except ledgers.LedgerError as error:
            self._complain(str(error))
            return
        self._complain('')
        for account in ready:
            del self._unstored[account.server_uuid]

    def _prune(self, running: Collection[str]) -> None:
        now_s = self._clock()
        if now_s < self._prune_at_s or self._ledger_problem:
            return
        self._prune_at_s = now_s + _PRUNE_INTERVAL_S
        try:
            dropped = self._ledger.prune(frozenset(running))
        except ledgers.LedgerError as error:
            self._complain(str(error))
            return
        if dropped:
            LOG.info('Dropped %d servers from the ledger, which have not run '
                     'for long', dropped)

    def _complain(self, problem: str) -> None:
        if problem and problem != self._ledger_problem:
            LOG.error('%s. Bills are kept in memory until it can', problem)
        elif self._ledger_problem and not problem:
            LOG.info('The ledger can be used again')
        self._ledger_problem = problem
        self.offers = (('off', 'account', 'charge')
                       if self.can_read and not problem else ('off',))

    # What other hosts say, and are told.

    def _claim(self, book: _Book, subject: Subject) -> None:
        now_s = self._clock()
        if book.claims_at_s and now_s >= book.claims_at_s[0]:
            book.claims_at_s = [at_s for at_s in book.claims_at_s
                                if at_s > now_s]
            self._messenger.claim(subject.uuid)

    def _post(self, message: Callable[[], None]) -> None:
        if self._inbox.qsize() < _MOST_MESSAGES:
            self._inbox.put(message)

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
        book = self._books.get(statement.server_uuid)
        if book is None:
            self._note_late(statement)
        elif book.inherit(statement):
            LOG.info('Server %s came with %.3f CU seconds of debt',
                     statement.server_uuid, _cu_s(statement.debt_cu_us))
            self._unstored[statement.server_uuid] = book.account

    def _note_late(self, statement: accounts.Statement) -> None:
        """Take in what was asked for a server that has stopped since.

        One that has no account here, or whose account is with another host
        again, is not ours to keep. Where the ledger cannot be asked, the
        statement is asked for again when the server starts.
        """
        uuid = statement.server_uuid
        try:
            account = self._account(uuid)
        except ledgers.LedgerError as error:
            self._complain(str(error))
            return
        if account is None or account.handed_to:
            return
        told = account.with_statement(statement)
        if told is not account:
            LOG.info('Server %s, which has stopped since, came with %.3f CU '
                     'seconds of debt', uuid, _cu_s(statement.debt_cu_us))
            self._unstored[uuid] = told

    def _answer_claims(self, running: Collection[str]) -> None:
        now_s = self._clock()
        readable = True
        for uuid, (host, until_s) in list(self._claims.items()):
            if uuid not in running and readable:
                try:
                    account = self._account(uuid)
                except ledgers.LedgerError as error:
                    # Each attempt may take its time: the next one is in the
                    # next round.
                    self._complain(str(error))
                    readable = False
                else:
                    del self._claims[uuid]
                    self._answer(host, account)
                    continue
            if now_s >= until_s:
                del self._claims[uuid]

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
        self._unstored[account.server_uuid] = account
        self._messenger.hand_over(host, account.statement())
        LOG.info('Handed the account of server %s over to host %s',
                 account.server_uuid, host)


def _last(baseline: usages.Usage | None, reading: usages.Usage,
          subject: Subject) -> usages.Usage:
    """What a reading is to be compared with.

    One that was started here, or that has an account and was started while
    the agent was away, is billed from its first moment; one that came, or
    ran before anybody billed it, from now on.
    """
    since_s = subject.billed_since_s
    if baseline is not None and baseline.run == reading.run and (
            since_s is None or baseline.read_at_s >= since_s):
        return baseline
    if since_s is not None:
        return reading
    if subject.origin == 'booted' or (
            subject.origin == 'found' and baseline is not None):
        began = meter.from_nothing(reading)
        if subject.began_s is not None:
            began = dataclasses.replace(began, read_at_s=min(
                subject.began_s, reading.read_at_s))
        return began
    return reading


def _cu_s(cu_us: int) -> float:
    return cu_us / accounts.CU_US_PER_CU_S


def _cu_us(cu_s: float) -> int:
    return round(cu_s * accounts.CU_US_PER_CU_S)
