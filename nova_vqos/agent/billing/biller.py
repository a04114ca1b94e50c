# SPDX-License-Identifier: Apache-2.0
"""Bills the I/O of a host's servers, once in each billing interval.

It runs on a worker, since it may block on the hypervisor and on the disk. Its
input is one Billable for each server, its result one Billed.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import functools
import logging
import time
import types
import typing as ty
import zlib

from nova_vqos import units
from nova_vqos.agent import charging
from nova_vqos.agent import isolation
from nova_vqos.agent import outbox
from nova_vqos.agent.billing import books
from nova_vqos.agent.billing import notifications
from nova_vqos.agent.billing import transfer
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import account as accounts
from nova_vqos.billing import charge
from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import host_load
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import meter
from nova_vqos.billing import plausible
from nova_vqos.billing import rolling
from nova_vqos.billing import savings
from nova_vqos.billing import throttle
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Without servers to bill, only other hosts may need an answer.
_IDLE_INTERVAL_S = 60.0
# A server that uses less of a pCPU, and less of its entitlement where it is
# charged, is nearly idle: it is not billed in each interval. If it stops, less
# of its use stays unbilled than of a busy server that stops.
_IDLE = base.Idle(share=0.02, most_s=30.0)
_IDLE_CHARGED = 0.01
# One with an account by default waits for its turn. So the bills of idle
# servers, which are part of the host's load, are not all in the same minute.
_TURN_S = 120.0
# Rounds that are more intervals apart have a gap between them: there was no
# agent, or it could not read. No limit held servers within their units then.
# So a gap is billed, and this many intervals of it are charged.
_CHARGED_INTERVALS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """See the options of the agent."""

    interval_s: float = 2.0
    floor_share: float = 0.5
    received_floor_share: float = 0.5
    ceiling_s: float = 300.0
    dropped_packets: bool = False
    charge_received: bool = False
    throttles: bool = False
    usage_interval_s: float = 60.0
    accounts_all: bool = True


@dataclasses.dataclass(frozen=True, slots=True)
class Billable:
    """A server to bill.

    :ivar is_default: whether its account is one by default: it stays on this
        host, is updated rarely, and causes no notifications
    :ivar burst: None: it does not burst. One that does is updated in each
        interval, and its account follows it to other hosts, in any case
    :ivar origin: see :class:`nova_vqos.agent.server.Server`
    :ivar began_s: when its guest began to run here; None: unknown
    :ivar billed_since_s: earlier use is not billed; None: all is
    :ivar coefficient: of the slowest pCPU that it may run on, by its kind of
        work: its bills are in units of that
    :ivar host_coefficient: the same by the mean of all kinds
    :ivar entitlement_cu: None: it has none
    :ivar limit_share: in effect; None: the server is not charged
    :ivar backend: what holds it to that
    :ivar disk_limit: that is in force; None: none is
    :ivar private_ram_bytes: see :class:`nova_vqos.hypervisor.base.Domain`
    """

    uuid: str
    name: str
    project_id: str
    billing: str
    origin: str
    began_s: float | None
    coefficient: float
    host_coefficient: float
    entitlement_cu: int | None
    limit_share: float | None
    devices: meter.Devices
    billed_since_s: float | None = None
    backend: charging.Backend = charging.DOMAIN_QUOTA
    private_ram_bytes: int | None = None
    is_default: bool = False
    disk_limit: throttle.DiskLimit | None = None
    burst: savings.Terms | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Billed:
    """The result for one server.

    :ivar limit_share: wanted; None: the server is not charged
    :ivar report: its bill
    :ivar disk_limit: wanted; None: none
    """

    limit_share: float | None
    report: server_report.Bill
    disk_limit: throttle.DiskLimit | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Round:
    """What is the same for all servers in a round.

    :ivar charged_s: of a longer interval no more than so long a part is
        charged
    :ivar bridges: what the bridges of interfaces have passed, by interface
    :ivar pcpus: of the host; None: unknown
    """

    costs: io_costs.IoCosts | None
    charged_s: float
    pcpus: int | None
    bridges: Mapping[str, usage.BridgeTraffic]


class Biller:
    """Bills the servers of a host.

    :ivar next_at_s: when the next bills are due at the earliest, on the
        monotonic clock
    :ivar transfer: receives the messages of other hosts
    """

    def __init__(self, hypervisor: base.UsageDriver, ledger: ledgers.Ledger,
                 sender: outbox.Outbox, options: Options, *, host: str = '',
                 reserve_cu: int = 0,
                 clock: Callable[[], float] = time.monotonic,
                 utc: Callable[[], float] = time.time) -> None:
        """Prepare; nothing is read or opened yet.

        :param host: name of this host
        :param reserve_cu: that an agent before this one had measured
        :param clock: monotonic, in seconds
        :param utc: in seconds since 1970
        """
        self.options = options
        self.next_at_s = float('-inf')
        self._hypervisor = hypervisor
        self._outbox = sender
        self._clock = clock
        self._isolation = isolation.Isolation(clock)
        self._books = books.Books(ledger, self._isolation)
        # Servers with an account by default that are billed.
        self._accounted: frozenset[str] = frozenset()
        self.transfer = transfer.AccountTransfer(
            self._books, sender, host, clock=clock, utc=utc)
        self._capacity = host_load.HostLoad(reserve_cu)
        self._rolling = rolling.RollingUses()
        self._notifications = notifications.UsageNotifications(
            host, options.usage_interval_s, clock=clock, utc=utc)
        self._began = False
        self._last_round_s = float('-inf')
        # By server, what its counters said that no server can use.
        self._implausible: dict[str, str] = {}
        self._host_problem = ''

    @property
    def errors(self) -> int:
        """How often something failed for a server, unexpectedly."""
        return self._isolation.errors

    @property
    def alarms(self) -> tuple[str, ...]:
        """Problems that an operator has to look at."""
        return (*self._books.alarms, *self.transfer.alarms,
                *self._capacity.alarms, *(
                    f'server {uuid} was not billed for what its counters '
                    f'said: {objection}'
                    for uuid, objection in list(self._implausible.items())))

    @property
    def offers(self) -> tuple[str, ...]:
        """The values of ``vqos:dd_billing`` that work on this host now."""
        if not self._books.problem:
            return ('off', 'account', 'charge')
        return ('off',)

    @property
    def capacity(self) -> host_load.LoadReport | None:
        """See :meth:`nova_vqos.billing.host_load.HostLoad.report`."""
        return self._capacity.report()

    @property
    def reserve_cu(self) -> int:
        """See :class:`nova_vqos.billing.reserve.Reserve`."""
        return self._capacity.reserve_cu

    @property
    def outside_cu(self) -> float | None:
        """See :class:`nova_vqos.billing.host_load.HostLoad`."""
        return self._capacity.outside_cu

    def begin_interval(self, now_s: float, wanted: Collection[Billable], *,
                       is_whole: bool = True) -> bool:
        """Begin the next interval, if it is due.

        A host without servers to bill only writes to its ledger now and then.

        :param is_whole: see :meth:`bill_all`
        :returns: whether it has begun, and :meth:`bill_all` is to run
        """
        needed = (not self._began or wanted or self._books.has_unstored
                  or self._books.running.keys() - (
                      frozenset() if is_whole else self._accounted)
                  or self.transfer.has_work)
        if not needed and now_s < self.next_at_s + _IDLE_INTERVAL_S:
            return False
        if now_s < self.next_at_s:
            return False
        # Missed intervals are skipped.
        interval_s = self.options.interval_s
        self.next_at_s = interval_s + (
            max(self.next_at_s, now_s - interval_s / 2) if self._began
            else now_s)
        self._began = True
        return True

    # All below is called by one thread at a time.

    def bill_all(self, to_bill: Collection[Billable],
                 costs: io_costs.IoCosts | None,
                 running: Collection[str],
                 pcpu_cu: float = 0.0, pcpus: int | None = None,
                 off: Collection[str] = (),
                 sources: Mapping[str, str] = types.MappingProxyType({}), *,
                 is_whole: bool = True) -> dict[str, Billed]:
        """Bill all servers once, on a worker: it blocks.

        :param running: UUIDs of all domains of the host
        :param pcpu_cu: mean speed of the host's pCPUs; 0: unknown
        :param pcpus: how many the host has; None: unknown
        :param off: UUIDs of servers whose flavor ended billing
        :param sources: by UUID, the hosts that servers came from
        :param is_whole: False: of servers with an account by default to_bill
            has only some; the others stay as they are
        :returns: by UUID; without servers that could not be read now
        :raises nova_vqos.hypervisor.base.HypervisorError: when nothing could
            be read
        """
        self._books.open()
        self.transfer.sources = sources
        wanted = {subject.uuid: subject for subject in to_bill}
        by_default = frozenset(uuid for uuid, subject in wanted.items()
                               if subject.is_default)
        self._accounted = (by_default if is_whole else by_default.union(
            self._accounted.intersection(running).difference(off)))
        kept = wanted.keys() | self._accounted
        self._isolation.each(
            'ending the bills of server',
            map(isolation.Named, self._books.running.keys() - kept),
            lambda one: self._send_last(one.uuid, self._books.end(
                one.uuid, off=one.uuid in off)))
        self._implausible = {
            uuid: objection for uuid, objection in self._implausible.items()
            if uuid in kept}
        now_s = self._clock()
        longest_s = _CHARGED_INTERVALS * self.options.interval_s
        charged_s = (longest_s if now_s - self._last_round_s > longest_s
                     else float('inf'))
        try:
            readings = (self._hypervisor.usages(wanted, self._idle(wanted))
                        if wanted else {})
            self._last_round_s = now_s
            this_round = _Round(
                costs, charged_s, pcpus,
                self._hypervisor.bridge_traffic() if readings else {})
            billed = self._isolation.each(
                'billing server',
                [wanted[uuid] for uuid in readings if uuid in wanted],
                lambda subject: self._bill(subject, readings[subject.uuid],
                                           this_round))
        finally:
            if self.transfer.has_work:
                self.transfer.answer_claims(running)
            if self._clock() >= self.transfer.next_claim_at_s:
                self.transfer.send_claims()
            self._books.store()
            self.transfer.send_answers()
        self._books.prune(running, self._clock())
        # What accounts by default add is of the time since the last whole
        # round: so is what they are compared with.
        if pcpu_cu and is_whole:
            self._read_host(pcpu_cu)
        return billed

    def close(self) -> None:
        """Send and store what is left, and close the ledger. Never raises."""
        self._isolation.each(
            'ending the bills of server',
            map(isolation.Named, self._books.running),
            lambda one: self._send_last(one.uuid,
                                        self._books.running[one.uuid]))
        self._books.close()

    def _idle(self, wanted: Mapping[str, Billable]) -> dict[str, base.Idle]:
        """Which servers need not be billed now, if they do so little.

        A server that pays for something is always billed: its limit follows
        from the bill.
        """
        found = self._isolation.each('judging the idleness of server',
                                     wanted.values(), self._idle_one)
        return {uuid: idle for uuid, idle in found.items()
                if idle is not None}

    def _idle_one(self, subject: Billable) -> base.Idle | None:
        """:returns: None: it is billed in any case"""
        book = self._books.running.get(subject.uuid)
        if book is None:
            return None
        baseline = book.account.baseline
        if (subject.is_default and subject.burst is None
                and baseline is not None):
            return _IDLE._replace(most_s=_TURN_S - (
                baseline.read_at_s + zlib.crc32(subject.uuid.encode()))
                % _TURN_S)
        if subject.limit_share is None:
            return _IDLE
        if (subject.limit_share == 1.0 and not book.account.debt_cu_us
                and subject.entitlement_cu):
            return _IDLE._replace(share=min(
                _IDLE.share, _IDLE_CHARGED * subject.entitlement_cu / (
                    units.CU_PER_REFERENCE_PCPU * subject.coefficient)))
        return None

    def _send_last(self, uuid: str, book: books.Book) -> None:
        last = self._notifications.end(uuid, book.report)
        if last is not None:
            self._outbox.notify(outbox.USAGE, last)

    def _bill(self, subject: Billable, reading: usage.Usage,
              this_round: _Round) -> Billed:
        book = self._books.running.get(subject.uuid)
        # What it used before its flavor had it pay.
        is_free = book is not None and book.control is None
        if book is None:
            book = self._books.begin(subject.uuid, subject.origin)
        if subject.is_default:
            self._send_last(subject.uuid, book)
        burst = subject.burst
        if not book.is_claimed and (not subject.is_default
                                    or burst is not None):
            book.is_claimed = True
            self.transfer.begin(
                subject.uuid, accounts.cu_us(
                    self.options.ceiling_s * (subject.entitlement_cu or 0)),
                (0, 0) if burst is None
                else (burst.least_cu_us, burst.most_cu_us))
        book.set_control(subject.limit_share, subject.backend.control,
                         throttles=self.options.throttles,
                         disk_limit=subject.disk_limit)
        last, bill = self._bill_of(book, subject, reading, this_round)
        used_cu_us = {
            name: accounts.to_cu_us(used_ns, subject.coefficient)
            for name, used_ns in bill.used_ns.items()}
        book.bill(used_cu_us,
                  meter.baseline(last, reading, subject.devices),
                  bill.length_s, burst)
        book.rolling = self._rolling.add(
            subject.uuid, reading.read_at_s, bill.length_s,
            sum(used_cu_us.values()))
        if not is_free:
            self._charge(book, subject, used_cu_us, bill,
                         this_round.charged_s)
        self._log_unmodelled(book, subject, bill, this_round.costs)
        self._books.store_later(book.account)
        book.report = self._report(book, subject)
        of_host_cu_us = (
            used_cu_us if subject.host_coefficient == subject.coefficient
            else {name: accounts.to_cu_us(used_ns, subject.host_coefficient)
                  for name, used_ns in bill.used_ns.items()})
        self._capacity.add_server(
            meter.modelled_io(of_host_cu_us),
            unpaid_cu_us=self._unpaid_cu_us(book, of_host_cu_us))
        self._capacity.add_packets(
            subject.uuid, subject.entitlement_cu, bill.length_s,
            bill.received, bill.dropped)
        notification = None if subject.is_default else (
            self._notifications.add(
                subject.uuid, used_cu_us, bill.throttled_ns, book.report,
                bill.length_s))
        if notification is not None:
            self._outbox.notify(outbox.USAGE, notification
                                | self._memory(subject))
        return Billed(
            None if book.control is None else book.control.limit_share,
            book.report,
            None if book.throttle is None else book.throttle.limit)

    def _bill_of(self, book: books.Book, subject: Billable,
                 reading: usage.Usage, this_round: _Round
                 ) -> tuple[usage.Usage, meter.Bill]:
        """What a server used since an earlier reading, and that reading.

        Of what it cannot have used nothing is billed: then its counters are
        compared with this reading from now on.
        """
        make = functools.partial(
            meter.bill, reading=reading, devices=subject.devices,
            costs=this_round.costs,
            dropped_packets=self.options.dropped_packets,
            local_shares=book.local_shares({
                name: this_round.bridges[name] for name in reading.interfaces
                if name in this_round.bridges}))
        last = _last(book.account.baseline, reading, subject)
        bill = make(last)
        # The start of some servers is not known: it was after the host's.
        objection = '' if this_round.pcpus is None else plausible.objection(
            bill, bill.length_s or reading.read_at_s, this_round.pcpus)
        if not objection:
            return last, bill
        if subject.uuid not in self._implausible:
            LOG.error('Server %s (%s) is not billed for what its counters '
                      'say: %s', subject.uuid, subject.name, objection)
        self._implausible[subject.uuid] = objection
        return reading, make(reading)

    def _memory(self, subject: Billable) -> dict[str, ty.Any]:
        """What a notification says of the memory of a server's emulator."""
        found = server_report.EmulatorMemory.of(
            self._hypervisor.emulator_memory([subject.uuid]).get(
                subject.uuid), subject.private_ram_bytes)
        return {'emulator_memory_bytes': None if found is None else {
            'low': found.low_bytes, 'high': found.high_bytes}}

    def _unpaid_cu_us(self, book: books.Book,
                      used_cu_us: Mapping[str, int]) -> int:
        """I/O that the server does not pay for."""
        if book.control is None:
            return (meter.measured_io(used_cu_us)
                    + meter.modelled_io(used_cu_us))
        return (0 if self.options.charge_received
                else used_cu_us[meter.RECEIVED])

    def _charge(self, book: books.Book, subject: Billable,
                used_cu_us: Mapping[str, int], bill: meter.Bill,
                charged_s: float) -> None:
        """:param charged_s: see :class:`_Round`"""
        control = book.control
        if control is None or not subject.entitlement_cu:
            return
        before = book.is_overdrawn
        book.charge(
            charge.Terms(entitlement_cu=subject.entitlement_cu,
                         floor_share=self.options.floor_share,
                         ceiling_s=self.options.ceiling_s,
                         received_floor_share=(
                             self.options.received_floor_share)),
            used_cu_us, bill.length_s, charged_s,
            received=self.options.charge_received,
            limits_threads=subject.backend.limits_threads,
            disk_requests=bill.disk_requests, disk_bytes=bill.disk_bytes)
        if book.is_overdrawn and not before:
            LOG.warning('I/O of server %s (%s) exceeds what its %d CU can pay '
                        'for; it is limited to %.0f %% of them', subject.uuid,
                        subject.name, subject.entitlement_cu,
                        100 * control.limit_share)
            self._outbox.notify(
                outbox.OVERDRAWN,
                self._notifications.payload(self._report(book, subject)))

    @staticmethod
    def _log_unmodelled(book: books.Book, subject: Billable,
                        bill: meter.Bill,
                        costs: io_costs.IoCosts | None) -> None:
        book.unmodelled |= bill.unmodelled
        new = book.unmodelled - book.warned
        # What has an account by default gets no charge that could be wrong.
        if subject.is_default or not new:
            return
        book.warned |= new
        reason = ('the profile has no I/O costs' if costs is None else
                  'the profile has no costs for these')
        LOG.warning(
            "Server %s (%s) is billed for its threads' CPU time, but not for "
            'the kernel time of: %s: %s', subject.uuid, subject.name,
            '; '.join(sorted(new)), reason)

    def _report(self, book: books.Book,
                subject: Billable) -> server_report.Bill:
        account, control = book.account, book.control
        return server_report.Bill(
            server_uuid=subject.uuid, project_id=subject.project_id,
            billing=subject.billing,
            used_cu_s={name: accounts.cu_s(used) for name, used
                       in account.total_cu_us.items()},
            used_here_cu_s={name: accounts.cu_s(used) for name, used
                            in account.own_cu_us.items()},
            used_lately_cu=dict(book.lately),
            debt_cu_s=accounts.cu_s(account.debt_cu_us),
            written_off_cu_s=accounts.cu_s(account.written_off_cu_us),
            written_off_here_cu_s=accounts.cu_s(max(
                0, account.written_off_cu_us
                - account.inherited.written_off_cu_us)),
            entitlement_cu=subject.entitlement_cu,
            limit_cu=(
                None if control is None or subject.entitlement_cu is None
                else control.limit_share * subject.entitlement_cu),
            overdrawn=book.is_overdrawn,
            not_modelled=tuple(sorted(book.unmodelled)),
            inherited=(bool(account.inherited.server_uuid)
                       and not account.awaits_statement),
            stored=not self._books.problem, rolling_4h=book.rolling,
            saved_cu_s=(None if subject.burst is None
                        else accounts.cu_s(account.saved_cu_us)))

    def _read_host(self, pcpu_cu: float) -> None:
        if not self._capacity.is_due(self._clock()):
            return
        try:
            self._capacity.add_host(self._hypervisor.host_usage(), pcpu_cu)
            self._host_problem = ''
        except base.HypervisorError as error:
            if str(error) != self._host_problem:
                LOG.warning("The host's CPU time cannot be read: %s", error)
            self._host_problem = str(error)


def _last(baseline: usage.Usage | None, reading: usage.Usage,
          subject: Billable) -> usage.Usage:
    """The earlier reading that this one is compared with.

    A server that was started here, or that has an account and was started
    while the agent did not run, is billed from its start. One that came, or
    that ran unbilled before, is billed from now on.
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
