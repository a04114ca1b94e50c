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
limits back.
"""

from collections.abc import Callable, Collection, Mapping
import dataclasses
import logging
import time
import typing as ty

from nova_vqos.agent import bookkeeping
from nova_vqos.agent import hand_over as hand_overs
from nova_vqos.agent import notices
from nova_vqos.agent import subject as subjects
from nova_vqos.billing import account as accounts
from nova_vqos.billing import capacity
from nova_vqos.billing import charge
from nova_vqos.billing import costs as io_costs
from nova_vqos.billing import ledger as ledgers
from nova_vqos.billing import meter
from nova_vqos.billing import usage as usages
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# Without servers to bill there is only the word of other hosts to wait for.
_IDLE_INTERVAL_S = 60.0


class Messenger(hand_overs.OtherHosts, ty.Protocol):
    """How other hosts, and people's bills, are told. Nothing here blocks."""

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
class Billed:
    """What became of a server in a round.

    :ivar limit_share: wanted; None: it pays for nothing
    :ivar report: for people, in primitives
    """

    limit_share: float | None
    report: dict[str, ty.Any]


class Biller:
    """Bills the servers of a host.

    :ivar next_at_s: when the next round is due at the earliest, on the
        monotonic clock
    :ivar errors: how often a server could not be billed, unexpectedly
    :ivar hand_over: hears what other hosts say
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
        self.errors = 0
        self.next_at_s = float('-inf')
        self._hypervisor = hypervisor
        self._messenger = messenger
        self._clock = clock
        self._books = bookkeeping.Books(ledger)
        self.hand_over = hand_overs.HandOver(
            self._books, messenger, host, clock=clock, utc=utc)
        self._capacity = capacity.Capacity()
        self._notices = notices.Notices(
            host, options.usage_interval_s, clock=clock, utc=utc)
        self._began = False
        self._failing: set[str] = set()
        self._host_problem = ''

    @property
    def alarms(self) -> tuple[str, ...]:
        """What an operator should look at."""
        return self._books.alarms

    @property
    def can_read(self) -> bool:
        """Whether the hypervisor's driver can tell what servers used."""
        return type(self._hypervisor).usages is not base.Hypervisor.usages

    @property
    def offers(self) -> tuple[str, ...]:
        """What of ``vqos:dd_billing`` works on this host now."""
        if self.can_read and self._books.problem == '':
            return ('off', 'account', 'charge')
        return ('off',)

    @property
    def capacity(self) -> dict[str, ty.Any] | None:
        """See :meth:`nova_vqos.billing.capacity.Capacity.report`."""
        return self._capacity.report()

    def is_due(self, now_s: float,
               wanted: Collection[subjects.Subject]) -> bool:
        """Whether a round is to begin; it is begun if so.

        A host without servers to bill costs nothing, but for a look at the
        ledger now and then.
        """
        needed = (not self._began or wanted or not self._books.is_empty
                  or not self.hand_over.is_idle)
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

    # A round. All below is called by one thread at a time.

    def round(self, to_bill: Collection[subjects.Subject],
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
        self._books.open()
        wanted = {subject.uuid: subject for subject in to_bill}
        for uuid in self._books.running.keys() - wanted.keys():
            self._tell_last(uuid, self._books.end(uuid, off=uuid in off))
        self._failing.intersection_update(wanted)
        try:
            readings = (self._hypervisor.usages(wanted) if wanted else {})
            billed = {
                uuid: bill for uuid, reading in readings.items()
                if uuid in wanted and (bill := self._try_to_bill(
                    wanted[uuid], reading, costs)) is not None}
        finally:
            self.hand_over.answer(running)
            self._books.store()
        self._books.prune(running, self._clock())
        if pcpu_cu:
            self._look_at_host(pcpu_cu)
        return billed

    def close(self) -> None:
        """Tell and store what is left, and close the ledger. Never raises."""
        for uuid, book in self._books.running.items():
            self._tell_last(uuid, book)
        self._books.close()

    def _tell_last(self, uuid: str, book: bookkeeping.Book) -> None:
        last = self._notices.end(uuid, book.report)
        if last is not None:
            self._messenger.usage(last)

    def _try_to_bill(self, subject: subjects.Subject, reading: usages.Usage,
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

    def _bill(self, subject: subjects.Subject, reading: usages.Usage,
              costs: io_costs.IoCosts | None) -> Billed:
        book = self._books.of(subject.uuid, subject.origin)
        book.set_control(subject.limit_share)
        last = _last(book.account.baseline, reading, subject)
        bill = meter.bill(last, reading, subject.devices, costs,
                          dropped_packets=self.options.dropped_packets)
        used_cu_us = {
            name: accounts.to_cu_us(used_ns, subject.coefficient)
            for name, used_ns in bill.used_ns.items()}
        book.bill(used_cu_us, meter.baseline(last, reading), bill.length_s)
        self._charge(book, subject, used_cu_us, bill.length_s)
        self._note_unmodelled(book, subject, bill, costs)
        self.hand_over.ask(subject.uuid, book)
        self._books.keep(book.account)
        book.report = self._report(book, subject)
        self._capacity.add_server(
            meter.measured_io(used_cu_us), meter.modelled_io(used_cu_us),
            charged=book.control is not None)
        notice = self._notices.add(subject.uuid, used_cu_us,
                                   bill.throttled_ns, book.report,
                                   bill.length_s)
        if notice is not None:
            self._messenger.usage(notice)
        return Billed(
            None if book.control is None else book.control.limit_share,
            book.report)

    def _charge(self, book: bookkeeping.Book, subject: subjects.Subject,
                used_cu_us: Mapping[str, int], length_s: float) -> None:
        control = book.control
        if control is None or not subject.entitlement_cu:
            return
        before = book.is_overdrawn
        book.charge(
            charge.Terms(entitlement_cu=subject.entitlement_cu,
                         floor_share=self.options.floor_share,
                         ceiling_s=self.options.ceiling_s),
            used_cu_us, length_s)
        if book.is_overdrawn and not before:
            LOG.warning('The I/O of server %s (%s) alone costs more than its '
                        '%d CU: it is left %.0f %% of them', subject.uuid,
                        subject.name, subject.entitlement_cu,
                        100 * control.limit_share)
            self._messenger.overdrawn(self._notices.payload(
                self._report(book, subject)))

    @staticmethod
    def _note_unmodelled(book: bookkeeping.Book, subject: subjects.Subject,
                         bill: meter.Bill,
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

    def _report(self, book: bookkeeping.Book,
                subject: subjects.Subject) -> dict[str, ty.Any]:
        account, control = book.account, book.control
        return {
            'server_uuid': subject.uuid,
            'project_id': subject.project_id,
            'billing': subject.billing,
            'used_cu_s': {name: accounts.cu_s(used) for name, used
                          in account.total_cu_us.items()},
            'used_here_cu_s': {name: accounts.cu_s(used) for name, used
                               in account.own_cu_us.items()},
            'used_lately_cu': dict(book.lately),
            'debt_cu_s': accounts.cu_s(account.debt_cu_us),
            'written_off_cu_s': accounts.cu_s(account.written_off_cu_us),
            'written_off_here_cu_s': accounts.cu_s(max(
                0, account.written_off_cu_us
                - account.inherited.written_off_cu_us)),
            'entitlement_cu': subject.entitlement_cu,
            'limit_cu': (
                None if control is None or subject.entitlement_cu is None
                else control.limit_share * subject.entitlement_cu),
            'overdrawn': book.is_overdrawn,
            'not_modelled': sorted(book.unmodelled),
            'inherited': bool(account.inherited.server_uuid),
            'stored': not self._books.problem,
        }

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


def _last(baseline: usages.Usage | None, reading: usages.Usage,
          subject: subjects.Subject) -> usages.Usage:
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
