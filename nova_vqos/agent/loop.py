# SPDX-License-Identifier: Apache-2.0
"""The loop that looks after a host's servers.

One thread owns all state. Whatever may block (a description, a write, a
connection) is done by a few workers, at most one job for a server at a time;
they, libvirt's events and RPC only leave messages for the loop.

What is done is the work of controllers, which the loop calls in turn: it is
here that their order can be read.
"""

import collections
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
import dataclasses
import datetime
import functools
import logging
import time
import typing as ty

from nova_vqos import agent_state
from nova_vqos import cputune
from nova_vqos import policy_override
from nova_vqos import speeds as records
from nova_vqos import utc
from nova_vqos.agent import compute_watch
from nova_vqos.agent import connection
from nova_vqos.agent import controller
from nova_vqos.agent import heartbeat as heartbeats
from nova_vqos.agent import informer
from nova_vqos.agent import outbox
from nova_vqos.agent import process
from nova_vqos.agent import profile_watch
from nova_vqos.agent import replies
from nova_vqos.agent import retry
from nova_vqos.agent import sampler
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.billing import biller as billers
from nova_vqos.agent.billing import controller as billing
from nova_vqos.agent.billing import disk_limits
from nova_vqos.agent.burst import controller as bursts
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.caps import unit_shares
from nova_vqos.agent.ceiling import controller as ceilings
from nova_vqos.agent.correction import controller as corrections
from nova_vqos.agent.correction import store as correction_stores
from nova_vqos.agent.guarantee import controller as guarantees
from nova_vqos.agent.messages import host_report as host_reports
from nova_vqos.agent.messages import moves
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.messages import server_report as server_reports
from nova_vqos.agent.overrides import controller as overrides
from nova_vqos.agent.overrides import store as stores
from nova_vqos.agent.quantum import controller as quantum
from nova_vqos.agent.quantum import enforcer as enforcers
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

WORKERS = 8

# How long the end of the agent is put off for jobs that are under way. With
# what it takes to end limits on I/O it has to be less than the service waits
# for the loop.
_SETTLE_TIMEOUT_S = 2.0
# Of ticks that others ask for.
_SOON_BURST, _SOON_INTERVAL_S = 10, 0.1

_Report = ty.TypeVar('_Report', bound=server_reports.Server)


class Loop:
    """Looks at servers as soon as they change, and at all in turn.

    A look costs as much for one that did not change: Python finds nothing of
    a server in the CPU's caches that it last looked at a second ago. So each
    tick is for those that are not settled, and what is in force is read for a
    ninth of all others.
    """

    def __init__(self, hypervisor: base.Hypervisor,
                 profiles_in_use: profile_watch.ProfileWatch,
                 heartbeat: heartbeats.Heartbeat,
                 manager: process.ServiceManager, *,
                 periods: cputune.Periods,
                 reserved_cu: Callable[[int | None], int] = lambda _cu: 0,
                 allocation_ratio: float = 1.0,
                 biller: billers.Biller | None = None,
                 limits_vhost: bool = True,
                 enforcer: enforcers.Enforcer | None = None,
                 store: stores.OverrideStore | None = None,
                 speeds: correction_stores.Store | None = None,
                 sender: outbox.Outbox | None = None,
                 correction_reserve_cu: int = 0,
                 compute_state_path: str = '',
                 guarantees_speed: bool = False,
                 guaranteed_share: float | None = None,
                 least_frequency_scale: float = 0.0,
                 tick_interval_s: float = 1.0,
                 sample_interval_s: float = 10.0,
                 executor: futures.Executor | None = None,
                 clock: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is read or connected yet.

        :param reserved_cu: see :class:`controller.HostTerms`, by the reserve
            that follows the load
        :param allocation_ratio: see there
        :param biller: bills servers for their I/O; None: billing is off
        :param limits_vhost: see :class:`controller.HostTerms`
        :param enforcer: enforces slices; None: none are
        :param store: has what was pushed of flavors; None: nothing can be
        :param speeds: has what was measured of servers with
            ``vqos:work=auto``; None: it is kept in memory alone
        :param sender: sends that to other hosts; None: nothing is sent
        :param correction_reserve_cu: see the option; part of reserved_cu
        :param compute_state_path: see :mod:`nova_vqos.compute_state`
        :param guarantees_speed: whether CPU time is reserved for servers
        :param guaranteed_share: see the option; None: as much as the kernel
            reserves
        :param least_frequency_scale: see the option; 0: not known
        :param executor: runs what may block; tests bring their own
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._profiles = profiles_in_use
        self._compute = compute_watch.ComputeWatch(compute_state_path)
        self._heartbeat = heartbeat
        self._manager = manager
        self._make_terms = functools.partial(
            controller.HostTerms, periods=periods,
            allocation_ratio=allocation_ratio, charges=biller is not None,
            limits_vhost=limits_vhost)
        self._reserved_cu = reserved_cu
        self._tick_interval_s = tick_interval_s
        self._soon_tokens = retry.TokenBucket(_SOON_BURST, _SOON_INTERVAL_S)
        self._clock = clock
        self._stopping = False
        self._tick_at_s = float('-inf')
        self._ticks = self._errors = 0
        self._last_tick_ms = 0.0
        self._started_at = utc.text()
        self._servers = known = servers.Servers(clock)
        self._failed_fields: servers.ServerStates[set[str]] = known.states(
            lambda _server: set())
        self._mailbox = worker.Mailbox()
        self._executor = executor or futures.ThreadPoolExecutor(
            WORKERS, thread_name_prefix='worker')
        work = worker.Worker(self._executor, self._mailbox.post)
        self._connection = connection.Connection(
            hypervisor, work, clock, on_event=self.on_event,
            on_up=self._refresh)
        self._jobs = worker.ServerJobs(work, known, clock,
                                       self._lose_connection)

        def job(purpose: str, name: str) -> worker.PeriodicJob:
            return worker.PeriodicJob(
                work, purpose, lambda: self._stale.add(getattr(self, name)))

        def expire() -> None:
            self._corrections.expire()
            self._guarantees.expire()
            self._quantum.expire()
        self._overrides = overrides.OverridesController(
            store, known, self._jobs, expire)
        self._informer = informer.Informer(
            hypervisor, known, self._jobs, clock, self._overrides, expire)
        io_limits = billing.Limits(known)
        self._disk_limits = disk_limits.DiskLimitController(
            hypervisor, known, self._jobs, self._informer, self._executor,
            clock)
        self._billing = billing.BillingController(
            biller, known, job('Billing', '_billing'), io_limits,
            self._disk_limits, lambda: self._compute.sources)
        left_by_ceilings = unit_shares.UnitShares(known)
        in_bursts = unit_shares.UnitShares(known)
        self._caps = caps.CapsController(
            hypervisor, known, self._jobs, self._informer, io_limits,
            left_by_ceilings, in_bursts, self._executor, clock)
        self._bursts = bursts.BurstController(
            hypervisor, known, job('Reading of CPU time for bursts',
                                   '_bursts'), self._caps, self._billing,
            in_bursts)
        self._ceilings = ceilings.CeilingController(
            hypervisor, known, job('Reading of CPU time for ceilings',
                                   '_ceilings'), self._caps, left_by_ceilings)
        self._corrections = corrections.CorrectionController(
            hypervisor, known, job('Measuring the speed of servers',
                                   '_corrections'), self._caps,
            speeds or correction_stores.Store(''), sender or outbox.Outbox(''),
            correction_reserve_cu, clock)
        self._guarantees = guarantees.GuaranteeController(
            hypervisor, guarantees_speed, guaranteed_share,
            least_frequency_scale, known, self._jobs,
            job('Measuring what can be reserved', '_guarantees'), self._caps,
            self._executor, clock, lambda: self._stale.add(self._guarantees))
        self._quantum = quantum.QuantumController(
            enforcer, known, job('Enforcement of slices', '_quantum'),
            self._caps, self._guarantees)
        self._sampler = sampler.Sampler(
            hypervisor, known, job('Reading of CPU time', '_sampler'),
            sample_interval_s)
        # What the looks at servers follow from comes before them, and what
        # follows from these comes after.
        self._before: tuple[controller.Controller, ...] = (
            self._overrides, self._corrections, self._guarantees,
            self._ceilings, self._bursts)
        self._after: tuple[controller.Controller, ...] = (
            self._caps, self._billing, self._disk_limits, self._quantum,
            self._sampler)
        self._controllers = (*self._before, *self._after)
        # Whose status has to be asked for again.
        self._stale = set(self._controllers)
        self._statuses: dict[controller.Controller, controller.Status] = {}

    # What other threads call.

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopping:
            try:
                self.step()
            except Exception:
                # The caps of all servers depend on this loop: one that it
                # cannot cope with must not end it.
                self._errors += 1
                LOG.exception('A step of the loop failed')
            self._mailbox.wait(max(0.0, min(
                self._tick_at_s, self._heartbeat.next_at_s) - self._clock()))
        if self._connection.up:
            self._settle()
            self._close(self._caps)
            self._close(self._disk_limits)
            self._close(self._guarantees)
        self._executor.shutdown(wait=False, cancel_futures=True)
        for each in (self._billing, self._quantum, self._corrections):
            self._close(each)
        self._hypervisor.close()

    def stop(self) -> None:
        """Make :meth:`run` return soon.

        Caps stay as they are; a server that paid for its I/O gets its whole
        entitlement back.
        """
        self._stopping = True
        self._mailbox.wake()

    def wake(self, uuid: str) -> None:
        """Look at a server now, if it runs here."""
        self._mailbox.post(functools.partial(self._wake, uuid))

    def refresh(self) -> None:
        """Read everything again."""
        self._mailbox.post(self._refresh)

    def on_event(self, event: base.Event) -> None:
        """Apply an event of the hypervisor."""
        self._mailbox.post(functools.partial(self._apply_event, event))

    def lift(self, uuid: str, for_s: float,
             timeout_s: float = worker.ASK_TIMEOUT_S) -> moves.Lifted:
        """Begin to lift the limit on a server's I/O.

        See :meth:`caps.CapsController.lift`. One that is not known here has
        none.

        :param timeout_s: for how long to wait for the loop
        :raises TimeoutError: when the loop is held up
        """
        def lift() -> moves.Lifted:
            server = self._servers.get(uuid)
            if server is None:
                return moves.Lifted(lifted=True)
            is_pending = self._caps.lift(server, for_s)
            return moves.Lifted(self._caps.is_lifted(server), is_pending)
        return self._mailbox.ask(lift, timeout_s)

    def answer_speeds(self, uuid: str, host: str, nonce: str) -> None:
        """See :meth:`corrections.CorrectionController.answer`."""
        self._mailbox.post(functools.partial(
            self._corrections.answer, uuid, host, nonce))

    def receive_speeds(self, uuid: str, nonce: str,
                       received: records.Speeds) -> None:
        """See :meth:`corrections.CorrectionController.receive`."""
        self._mailbox.post(functools.partial(
            self._corrections.receive, uuid, nonce, received))

    def follow_pushed(self) -> tuple[int, pushes.Following]:
        """Have all servers follow what was pushed, from now on.

        :returns: see :meth:`overrides.OverridesController.apply`
        :raises TimeoutError: when the loop is held up; it does so later
        """
        return self._mailbox.ask(self._overrides.apply)

    def pushed_report(self) -> pushes.Following:
        """How servers follow what was pushed.

        :returns: see :meth:`overrides.OverridesController.report`
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(self._overrides.report)

    def server_report(self, uuid: str) -> server_reports.ServerDetail | None:
        """What is known of a server; None: it does not run here.

        The memory of its emulator is read for it.

        :raises TimeoutError: when the loop is held up
        """
        found = self._mailbox.ask(
            lambda: [(replies.in_detail(self._view(server)), server.domain)
                     for server in self._known([uuid])])
        return next(iter(self._with_memory(found)), None)

    def servers_report(self, timeout_s: float = worker.ASK_TIMEOUT_S, *,
                       memory: bool = False) -> list[server_reports.Server]:
        """What is known of each server that runs here, sorted by UUID.

        :param timeout_s: for how long to wait for the loop
        :param memory: whether to read the memory of the emulators
        :raises TimeoutError: when the loop is held up
        """
        found = list(self._mailbox.ask(
            lambda: self._servers.isolation.each(
                'reporting on server', self._known(sorted(self._servers)),
                lambda server: (replies.of_server(self._view(server)),
                                server.domain)),
            timeout_s).values())
        return (self._with_memory(found) if memory
                else [report for report, _domain in found])

    def _known(self, uuids: Iterable[str]) -> list[servers.Server]:
        return [self._servers[uuid] for uuid in uuids
                if uuid in self._servers]

    def _with_memory(self, found: Sequence[tuple[
            _Report, base.Domain | None]]) -> list[_Report]:
        """Add the memory of emulators to reports, in the caller's thread."""
        resident_bytes = self._hypervisor.emulator_memory(
            [report.server_uuid for report, _domain in found])
        return [dataclasses.replace(
            report, emulator_memory=server_reports.EmulatorMemory.of(
                resident_bytes.get(report.server_uuid),
                None if domain is None else domain.private_ram_bytes))
            for report, domain in found]

    def host_report(self, timeout_s: float = worker.ASK_TIMEOUT_S
                    ) -> host_reports.LoopReport:
        """What is known of the host and the agent.

        :param timeout_s: for how long to wait for the loop
        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(self._host_report, timeout_s)

    def profile_in_use(self) -> tuple[model.Profile | None,
                                      tuple[str, ...]]:
        """The host's profile, if there is one, and what is wrong with it.

        :raises TimeoutError: when the loop is held up
        """
        return self._mailbox.ask(
            lambda: (self._profiles.profile, self._profiles.alarms))

    # The loop.

    def step(self) -> None:
        """Handle all messages; look at all servers if it is time to."""
        self._errors += self._mailbox.handle()
        now_s = self._clock()
        if now_s >= self._tick_at_s:
            # Ticks that were missed are not made up for.
            self._tick_at_s = max(self._tick_at_s + self._tick_interval_s,
                                  now_s + self._tick_interval_s / 2)
            self._tick(now_s)
            self._last_tick_ms = (self._clock() - now_s) * 1000
        elif self._connection.up:
            self._look_at(self._servers.marked(), now_s, self._terms())
        self._beat(now_s)
        if now_s >= self._manager.alive_due_at_s:
            self._manager.alive(now_s)

    def _tick(self, now_s: float) -> None:
        self._ticks += 1
        if self._profiles.poll(now_s):
            self._stale.update(self._controllers)
            for server in self._servers.values():
                self._servers.mark(server)
                self._jobs.retry_now(server)
        self._compute.poll()
        terms = self._terms()
        if not self._connection.up:
            self._connection.connect(now_s)
            # What was read before can be read all the same.
            if now_s >= self._sampler.due_at_s:
                self._sampler.tick(now_s, terms)
            return
        try:
            self._informer.tick(now_s)
        except base.HypervisorError as error:
            self._lose_connection(str(error))
            return
        self._tick_controllers(self._before, now_s, terms)
        turn = self._servers.next_turn()
        # What is reserved for a server is not among what is in force.
        due = self._servers.due() | {
            server for server in turn if server.is_guaranteed}
        self._look_at(due | self._caps.changed(turn - due, now_s), now_s,
                      terms)
        self._tick_controllers(self._after, now_s, terms)

    def _tick_controllers(self, controllers: Iterable[controller.Controller],
                          now_s: float, terms: controller.HostTerms) -> None:
        for each in controllers:
            if now_s >= each.due_at_s:
                try:
                    each.tick(now_s, terms)
                except Exception:
                    # The others have their own work.
                    self._errors += 1
                    LOG.exception('A tick of %s failed', type(each).__name__)

    def _look_at(self, some: Iterable[servers.Server], now_s: float,
                 terms: controller.HostTerms) -> None:
        self._servers.isolation.each(
            'looking at server', some,
            lambda server: self._look(server, now_s, terms))

    def _look(self, server: servers.Server, now_s: float,
              terms: controller.HostTerms) -> None:
        """Begin whatever a server needs; see whether anything is left."""
        self._informer.refresh(server, now_s)
        self._corrections.reconcile(server, now_s, terms)
        self._ceilings.reconcile(server)
        self._bursts.reconcile(server)
        self._caps.reconcile(server, now_s, terms)
        self._guarantees.reconcile(server, now_s, terms)
        self._billing.reconcile(server, now_s, terms)
        self._disk_limits.reconcile(server, now_s)
        self._servers.settle(
            server, is_settled=(not server.is_arriving
                                and self._caps.is_settled(server)
                                and self._disk_limits.is_settled(server)
                                and self._guarantees.is_settled(server)))

    def _settle(self) -> None:
        """Let jobs end that are under way, for a while; begin no others.

        A write that came after the last one of all would undo it.
        """
        until_s = time.monotonic() + _SETTLE_TIMEOUT_S
        while True:
            self._errors += self._mailbox.handle()
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not any(
                    each.status().busy for each in self._controllers):
                return
            self._mailbox.wait(left_s)

    @staticmethod
    def _close(each: controller.Controller) -> None:
        try:
            each.close()
        except Exception:
            # The rest has to be closed all the same.
            LOG.exception('%s was not closed', type(each).__name__)

    def _terms(self) -> controller.HostTerms:
        return self._make_terms(
            profile=self._profiles.profile,
            reserved_cu=self._reserved_cu(self._billing.reserve_cu),
            stock_cu=self._compute.stock_cu,
            work_cu=self._compute.work_cu,
            cgroup_version=self._hypervisor.cgroup_version)

    # Messages.

    def _apply_event(self, event: base.Event) -> None:
        if event.kind is base.EventKind.CONNECTION_LOST:
            self._lose_connection(event.detail)
            return
        if event.kind is base.EventKind.STOPPED:
            # The list shows whether it is gone, or has started again.
            self._tick_soon()
        server = self._informer.apply_event(event)
        if server is not None:
            self._caps.observe_event(server, event)

    def _lose_connection(self, reason: str) -> None:
        self._connection.lose(reason)
        self._stale.update(self._controllers)

    def _wake(self, uuid: str) -> None:
        if uuid in self._servers:
            self._informer.expire(self._servers[uuid])
        # It may just have started, or started again.
        self._informer.list_again()
        self._tick_soon()

    def _refresh(self) -> None:
        for server in self._servers.values():
            self._informer.expire(server)
        self._informer.list_again()
        self._stale.update(self._controllers)
        self._tick_soon()

    def _tick_soon(self) -> None:
        """Tick at once; where others ask for that too often, ten times a
        second.
        """
        now_s = self._clock()
        self._tick_at_s = min(self._tick_at_s, now_s if (
            self._soon_tokens.acquire(now_s)) else now_s + _SOON_INTERVAL_S)

    # What others are to know.

    def _beat(self, now_s: float) -> None:
        """Write a heartbeat if it is due, or the host's status changed."""
        due = now_s >= self._heartbeat.next_at_s
        if due:
            self._stale.update(self._controllers)
        elif not self._stale:
            return
        status = self._status()
        if due or status != self._heartbeat.status:
            self._heartbeat.beat(now_s, status)

    def _status(self) -> agent_state.AgentState:
        for each in self._stale:
            self._statuses[each] = each.status()
        self._stale.clear()
        profile, guaranteed = self._profiles.profile, self._guarantees.host
        return agent_state.AgentState(
            profile_id=None if profile is None else profile.id,
            connected=self._connection.up,
            dd_billing=self._statuses[self._billing].offers,
            quantum_classes=self._statuses[self._quantum].offers,
            occupancy=self._quantum.occupancy,
            guarantee_pcpus=(None if guaranteed is None
                             else guaranteed.free_pcpus),
            guarantee_total_pcpus=self._guarantees.total_pcpus,
            keeps_ceilings=True, reserve_cu=self._billing.reserve_cu,
            alarms=(*self._profiles.alarms, *self._servers.isolation.alarms, *(
                alarm for status in self._statuses.values()
                for alarm in status.alarms)))

    def _view(self, server: servers.Server) -> replies.ServerView:
        now_s = self._clock()
        self._sampler.ask(now_s)
        return replies.ServerView(
            server, self._caps.state(server), self._billing.state(server),
            self._disk_limits.state(server),
            self._quantum.state(server), self._guarantees.state(server),
            self._corrections.message(server), self._ceilings.message(server),
            self._bursts.message(server),
            self._sampler.history(server), self._sampler.clocks(now_s),
            self._profiles.profile,
            now_s, self._failed_fields[server])

    def _host_report(self) -> host_reports.LoopReport:
        self._stale.update(self._controllers)
        terms, status = self._terms(), self._status()
        with_units = sorted(
            (server for server in self._servers.values()
             if server.policy is not None), key=lambda server: server.uuid)
        units = replies.of_units(terms, with_units,
                                 self._guarantees.total_pcpus or 0.0)
        counters = collections.Counter(
            policy_errors=self._informer.policy_errors)
        for one in self._statuses.values():
            counters.update(one.counters)
        return host_reports.LoopReport(
            at=utc.text(), started_at=self._started_at,
            connected=status.connected, cgroup_version=terms.cgroup_version,
            profile_id=status.profile_id,
            profile=replies.of_profile(
                terms.profile, datetime.datetime.now(datetime.UTC)),
            problem=self._profiles.problem,
            units=units,
            proof=replies.of_proof(self._quantum.probe_result),
            alarms=(*status.alarms, *replies.oversold(units)),
            domains=len(self._servers),
            servers=tuple(server.uuid for server in with_units),
            wrong=tuple(server.uuid for server in with_units
                        if not self._caps.state(server).right),
            last_tick_ms=round(self._last_tick_ms, 3),
            dd_billing=status.dd_billing, capacity=self._billing.capacity,
            quantum_classes=status.quantum_classes,
            quantum=self._quantum.pools, guarantee=self._guarantees.host,
            project_ceilings=self._ceilings.host,
            burst_room_cu=self._bursts.room_cu,
            keeps_bursts=self._bursts.is_on,
            pushed_generation=policy_override.generation_of(
                self._overrides.overrides),
            ticks=self._ticks,
            errors=self._errors + self._servers.isolation.errors + sum(
                one.errors for one in self._statuses.values()), **counters)
