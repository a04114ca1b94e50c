# SPDX-License-Identifier: Apache-2.0
"""Billing: all servers that are to be billed are, in each interval.

It decides what servers are left that pay for their I/O; caps enforces it.
"""

from collections.abc import Callable, Mapping
import functools
import logging

from nova_vqos import files
from nova_vqos import units
from nova_vqos.agent import charging
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.billing import biller as billers
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.messages import server_report
from nova_vqos.billing import costs
from nova_vqos.billing import host_load
from nova_vqos.billing import meter
from nova_vqos.billing import savings
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

# How long a server is limited by what it used when that could last be read.
_LONGEST_UNREAD_S = 60.0
# Accounts by default are brought up to date in the first interval afterwards.
# What costs is to touch a server (doc/source/contributor/flows.rst): so no
# other interval touches these, but those that were not billed yet.
_ACCOUNTS_INTERVAL_S = 31.0


class _Limit:
    """
    :ivar share: None: not known yet, or the server pays for nothing
    :ivar waived: whether it pays for nothing as long as its entitlement
        cannot be worked out
    """

    def __init__(self, _server: servers.Server) -> None:
        self.share: float | None = None
        self.waived = False


class Limits:
    """The limit_share of each server, see :mod:`nova_vqos.billing.charge`."""

    def __init__(self, known: servers.Servers) -> None:
        self._servers = known
        self._states = known.states(_Limit)

    def limit_share(self, server: servers.Server) -> float | None:
        """What a server is left; None: not known, or it pays for nothing."""
        return self._states[server].share

    def is_waived(self, server: servers.Server) -> bool:
        """Whether its entitlement could not be worked out lately."""
        return self._states[server].waived

    def adopt(self, server: servers.Server, share: float) -> None:
        """Begin with the limit that is in force for a server that pays.

        One that is known already stays.
        """
        state = self._states[server]
        state.waived = False
        if state.share is None:
            state.share = share

    def forget(self, server: servers.Server) -> None:
        """Forget the limit of a server that pays for nothing."""
        self._states.drop(server)

    def waive(self, server: servers.Server) -> None:
        """Limit a server no more: its entitlement cannot be worked out."""
        state = self._states[server]
        state.share, state.waived = None, True

    def change(self, server: servers.Server, share: float) -> None:
        """Leave a server more, or less, if it pays; its cap follows."""
        state = self._states[server]
        if state.share not in (None, share):
            state.share = share
            self._servers.mark(server)


class BillState:
    """What the billing controller knows of one server.

    :ivar bill: the latest, for people; None: it is not billed
    :ivar is_off: whether it is not billed, as far as known
    :ivar is_default: whether its account is one by default: its flavor has no
        ``vqos:dd_billing``, and the host accounts all servers with units; or
        it has bursts, and no billing
    :ivar unread: why it is not billed, though it should be; '': it is
    :ivar billed_at_s: when it was last billed, or did not have to be; None:
        not looked at yet
    :ivar since_s: when billing was switched on in this run; None: it was on,
        or is off, from the first look on
    :ivar billable: as the biller has to know it; None: it is not to be billed
    :ivar billable_of: what that follows from
    """

    def __init__(self, _server: servers.Server) -> None:
        self.bill: server_report.Bill | None = None
        self.is_off = True
        self.is_default = False
        self.unread = ''
        self.billed_at_s: float | None = None
        self.since_s: float | None = None
        self.billable: billers.Billable | None = None
        self.billable_of: tuple[object, ...] = ()
        self._was_off = False

    def follow(self, server: servers.Server, now_s: float, *,
               accounts_all: bool) -> None:
        """Follow the billing policy of a server.

        :param accounts_all: whether this host keeps accounts by default
        """
        if server.domain is None:
            return
        is_off = server.dd_billing == servers.NO_BILLING
        self.is_default = is_off and (
            savings.terms(server.policy) is not None
            or accounts_all and server.may_be_accounted)
        self.is_off = is_off and not self.is_default
        if self.is_off:
            self.bill = self.billed_at_s = None
            self.record_unread(server, '')
        elif self._was_off:
            self.since_s = now_s
        if self.is_default and savings.terms(server.policy) is None:
            # No limit follows from its bill: no alarm either.
            self.unread = ''
        self._was_off = self.is_off

    def record_bill(self, server: servers.Server, bill: server_report.Bill,
                    now_s: float) -> None:
        """Record that a server was billed."""
        self.billed_at_s = now_s
        self.record_unread(server, '')
        # Unless it was switched off in the meantime.
        if not self.is_off:
            self.bill = bill

    def record_unread(self, server: servers.Server, reason: str) -> None:
        """Log once that what a server uses cannot be read.

        :param reason: empty: it can
        """
        if reason and not self.unread:
            LOG.warning('Server %s (%s): %s', server.uuid, server.name,
                        reason)
        elif self.unread and not reason:
            LOG.info('Server %s (%s) is billed again', server.uuid,
                     server.name)
        self.unread = reason


class BillingController(controller.Controller):
    """Bills the servers of a host; None as biller: billing is off."""

    def __init__(self, biller: billers.Biller | None, known: servers.Servers,
                 job: worker.PeriodicJob, limits: Limits,
                 disks: disk_limits.DiskLimitController,
                 sources: Callable[[], Mapping[str, str]]) -> None:
        """
        :param job: runs the biller
        :param limits: what servers are left that pay for their I/O
        :param disks: holds back the disks of those that are overdrawn
        :param sources: finds by UUID the hosts that servers came from
        """
        self._biller = biller
        self._servers = known
        self._job = job
        self._limits = limits
        self._disks = disks
        self._sources = sources
        self._states = known.states(BillState)
        self._now_s = float('-inf')
        # Those that are billed, or charged, those with an account by default,
        # and what of these has no bill yet.
        self._billed: set[servers.Server] = set()
        self._accounted: set[servers.Server] = set()
        self._unbilled: set[servers.Server] = set()
        self._accounts_at_s = float('-inf')
        # The profile whose costs of I/O were found to be nonsense.
        self._refused_id = ''

    def state(self, server: servers.Server) -> BillState:
        """What is known of a server; for reading."""
        return self._states[server]

    @property
    def is_on(self) -> bool:
        """Whether servers are billed here."""
        return self._biller is not None

    def saved_cu_s(self, server: servers.Server) -> float | None:
        """What a server saved for bursts; None: not known now."""
        state = self._states[server]
        return (None if state.bill is None or state.unread
                else state.bill.saved_cu_s)

    @property
    def capacity(self) -> host_load.LoadReport | None:
        """Where the CPU time of the host goes; None: not known."""
        return None if self._biller is None else self._biller.capacity

    @property
    def reserve_cu(self) -> int | None:
        """See :class:`nova_vqos.billing.reserve.Reserve`; None: not known."""
        return None if self._biller is None else self._biller.reserve_cu

    @property
    def outside_cu(self) -> float | None:
        """What ran outside of servers in the last minute; None: not known."""
        return None if self._biller is None else self._biller.outside_cu

    def reconcile(self, server: servers.Server, now_s: float,
                  terms: controller.HostTerms) -> None:
        """Follow the billing policy of a server."""
        if self._biller is None:
            return
        state = self._states[server]
        state.follow(server, now_s, accounts_all=(
            self._biller.options.accounts_all
            and self._costs(terms.profile) is not None))
        if not server.is_charged(terms):
            self._limits.forget(server)
        if not (server.is_charged(terms) and self._biller.options.throttles):
            self._disks.want(server, None)
        was_billed = server in self._billed
        for each in self._billed, self._accounted, self._unbilled:
            each.discard(server)
        if state.is_default and savings.terms(server.policy) is None:
            self._accounted.add(server)
            if state.bill is None:
                self._unbilled.add(server)
        elif not state.is_off:
            self._billed.add(server)
        if was_billed != (server in self._billed):
            state.billed_at_s = None

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Bill all servers that are to be, if it is time to."""
        biller = self._biller
        if biller is None:
            self.due_at_s = float('inf')
            return
        if now_s < biller.next_at_s:
            return
        self._billed = set(filter(self._servers.runs, self._billed))
        # Also while a reading hangs.
        self._end_unread_limits(biller, now_s, terms)
        if self._job.busy:
            return
        is_whole = now_s >= self._accounts_at_s
        self._unbilled = set(filter(self._servers.runs, self._unbilled))
        if is_whole:
            self._accounted = set(filter(self._servers.runs, self._accounted))
        known = self._servers.isolation.each(
            'preparing the bill of server', (*self._billed, *(
                self._accounted if is_whole else self._unbilled)),
            lambda server: self._billable(server, terms))
        to_bill = {self._servers[uuid]: billable
                   for uuid, billable in known.items()
                   if billable is not None}
        if not biller.begin_interval(now_s, to_bill.values(),
                                     is_whole=is_whole):
            return
        self._job.begin(
            functools.partial(
                biller.bill_all, tuple(to_bill.values()),
                self._costs(terms.profile), frozenset(self._servers),
                _mean_cu(terms.profile),
                None if terms.profile is None else len(terms.profile.pcpus),
                frozenset(
                    server.uuid for server in self._servers.values()
                    if server.domain is not None
                    and server.dd_billing == servers.NO_BILLING
                    and self._states[server].is_off),
                self._sources(), is_whole=is_whole),
            functools.partial(self._apply_bills, tuple(to_bill), is_whole))

    def status(self) -> controller.Status:
        """What of ``vqos:dd_billing`` works, and what is wrong."""
        biller = self._biller
        if biller is None:
            return controller.Status(offers=(servers.NO_BILLING,),
                                     counters={'bills': 0})
        unread = sum(bool(state.unread) for state in self._states.values())
        return controller.Status(
            offers=biller.offers,
            alarms=(*biller.alarms, *([
                f'{unread} servers are not billed now: what they use cannot '
                'be read'] if unread else [])),
            counters={'bills': self._job.runs,
                      'refused_statements': biller.transfer.refused},
            errors=self._job.errors + biller.errors, busy=self._job.busy)

    def close(self) -> None:
        """Store what is left."""
        if self._biller is not None and not self._job.busy:
            self._biller.close()

    def _billable(self, server: servers.Server, terms: controller.HostTerms
                  ) -> billers.Billable | None:
        """A server as the biller has to know it; None: not billed now.

        Made again only when what it follows from changed.
        """
        state = self._states[server]
        limit_share, is_known = None, True
        backend: charging.Backend = charging.DOMAIN_QUOTA
        if server.is_charged(terms):
            backend = charging.backend(server, terms)
            limit_share = self._limits.limit_share(server)
            is_known = (limit_share is not None
                        or self._limits.is_waived(server))
        if not is_known:
            # Its cap was not looked at yet.
            return None
        billable_of = (
            server.revision, server.origin, server.runs_since_s, terms.profile,
            state.since_s, state.is_default, limit_share, backend)
        if billable_of != state.billable_of:
            state.billable = self._make_billable(
                server, terms.profile, limit_share, backend)
            state.billable_of = billable_of
        return state.billable

    def _make_billable(self, server: servers.Server,
                       profile: model.Profile | None,
                       limit_share: float | None, backend: charging.Backend
                       ) -> billers.Billable | None:
        domain = server.domain
        if domain is None or profile is None:
            return None
        if server.is_arriving:
            # Its QEMU still receives what is not the server's work.
            return None
        state = self._states[server]
        return billers.Billable(
            uuid=server.uuid, name=server.name, project_id=domain.project_id,
            billing='account' if state.is_default else server.dd_billing,
            is_default=state.is_default, origin=server.origin,
            began_s=server.runs_since_s,
            coefficient=server.coefficient(profile),
            host_coefficient=server.host_coefficient(profile),
            entitlement_cu=(None if server.policy is None
                            else server.policy.units),
            limit_share=limit_share,
            devices=meter.Devices(domain.interfaces, domain.disks),
            billed_since_s=state.since_s,
            backend=backend,
            disk_limit=disk_limits.in_force(domain),
            private_ram_bytes=domain.private_ram_bytes,
            burst=savings.terms(server.policy))

    def _end_unread_limits(self, biller: billers.Biller, now_s: float,
                           terms: controller.HostTerms) -> None:
        """End the limit of servers that could not be billed for long."""
        longest_s = max(_LONGEST_UNREAD_S, 3 * biller.options.interval_s)
        # There was no connection, so none could have been read.
        paused = now_s - self._now_s > longest_s / 2
        self._now_s = now_s

        def end_unread(server: servers.Server) -> None:
            state = self._states[server]
            if state.billed_at_s is None or paused:
                state.billed_at_s = now_s
            if now_s - state.billed_at_s < longest_s:
                return
            if self._billable(server, terms) is None:
                state.billed_at_s = now_s
                state.record_unread(server, '')
                return
            state.record_unread(
                server, f'what it uses could not be read for '
                f'{longest_s:.0f} s: it pays for nothing')
            self._limits.change(server, 1.0)
            self._disks.want(server, None)
        self._servers.isolation.each('ending the unread limit of server',
                                     self._billed, end_unread)

    def _costs(self, held: model.Profile | None) -> costs.IoCosts | None:
        """What the kernel's part is billed by; None: it is not billed."""
        try:
            return None if held is None else held.io_costs
        except files.FileInvalid as error:
            # The rest of the profile can be used, and was.
            if held is not None and held.id != self._refused_id:
                self._refused_id = held.id
                LOG.warning('I/O costs in the profile are invalid, kernel I/O '
                            'time is not billed; run nova-vqos-calibrate io: '
                            '%s', error)
            return None

    def _apply_bills(self, billed: tuple[servers.Server, ...], is_whole: bool,
                     bills: dict[str, billers.Billed]) -> None:
        if is_whole:
            self._accounts_at_s = self._now_s + _ACCOUNTS_INTERVAL_S

        def apply(server: servers.Server) -> None:
            bill = bills[server.uuid]
            self._states[server].record_bill(server, bill.report, self._now_s)
            self._unbilled.discard(server)
            if bill.limit_share is not None:
                self._limits.change(server, bill.limit_share)
            self._disks.want(server, bill.disk_limit)
        self._servers.isolation.each(
            'applying the bill of server',
            [server for server in filter(self._servers.runs, billed)
             if server.uuid in bills], apply)


def _mean_cu(profile: model.Profile | None) -> float:
    """Mean speed of a host's pCPUs in CU, 0 where it is not known."""
    if profile is None:
        return 0.0
    return float(units.CU_PER_REFERENCE_PCPU * sum(
        len(cpu_class.pcpus) * cpu_class.busy.coefficient
        for cpu_class in profile.cpu_classes) / len(profile.pcpus))
