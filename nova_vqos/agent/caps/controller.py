# SPDX-License-Identifier: Apache-2.0
"""Caps: what is in force is compared with what is wanted, and mended."""

from collections.abc import Callable, Collection
from concurrent import futures
import functools
import logging
import time

from nova_vqos.agent import controller
from nova_vqos.agent import informer as informers
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.billing import controller as billing
from nova_vqos.agent.caps import desired
from nova_vqos.agent.caps import pinning
from nova_vqos.agent.caps import state as states
from nova_vqos.agent.caps import unit_shares
from nova_vqos.hypervisor import base

LOG = logging.getLogger(__name__)

# How long the end of the agent is put off to end limits on I/O. NOTE: a write
# of libvirt takes milliseconds, but a busy host may stand still for seconds.
_GIVE_BACK_TIMEOUT_S = 8.0
# The second time is for a write that was under way at the first.
_GIVE_BACK_TIMES = 2


class CapsController(controller.Controller):
    """Keeps the caps of a host's servers."""

    def __init__(self, hypervisor: base.CapDriver, known: servers.Servers,
                 jobs: worker.ServerJobs, informer: informers.Informer,
                 limits: billing.Limits, ceilings: unit_shares.UnitShares,
                 bursts: unit_shares.UnitShares,
                 executor: futures.Executor,
                 clock: Callable[[], float]) -> None:
        """
        :param informer: keeps descriptions of servers
        :param limits: what servers are left that pay for their I/O
        :param ceilings: what the ceilings of their projects leave servers
        :param bursts: what servers may use beyond their units
        :param executor: runs the last writes, at the end of the agent
        :param clock: monotonic, in seconds
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._jobs = jobs
        self._informer = informer
        self._limits = limits
        self._ceilings = ceilings
        self._bursts = bursts
        self._executor = executor
        self._clock = clock
        self._states = known.states(states.CapState)
        self._terms: controller.HostTerms | None = None
        # Any member of the bus can have the line written.
        self._log_tokens = retry.log_tokens()
        self._writes = self._restored = self._tamperings = 0
        self._pinning = pinning.Pinning(hypervisor, known, jobs, informer,
                                        clock)

    # What the loop and other controllers call.

    def state(self, server: servers.Server) -> states.CapState:
        """What is known of a server; for reading."""
        return self._states[server]

    def tick(self, _now_s: float, _terms: controller.HostTerms) -> None:
        """Nothing is to be done for the host as a whole."""
        self.due_at_s = float('inf')

    def reconcile(self, server: servers.Server, now_s: float,
                  terms: controller.HostTerms) -> None:
        """Compare what is in force for a server, and begin to mend it.

        One that is not understood does not cost the others.
        """
        self._terms = terms
        if self._informer.is_current(server):
            try:
                self._reconcile(server, now_s, terms)
            except Exception as error:
                self._jobs.fail(server, error)
            self._states[server].record_look(
                now_s, self._pinning.choose_at_s(server))

    def is_settled(self, server: servers.Server) -> bool:
        """Whether nothing is left to be done before something changes."""
        return (self._informer.is_current(server)
                and self._jobs.is_idle(server)
                and self._states[server].is_settled)

    def changed(self, known: Collection[servers.Server], now_s: float
                ) -> set[servers.Server]:
        """Read anew what is in force for servers that are settled.

        :returns: those for which it is not what it was, or cannot be read, or
            that were not looked at for a while
        """
        in_force = self._hypervisor.read_anew([
            server.uuid for server in known
            if self._states[server].in_force is not None])

        def is_changed(server: servers.Server) -> bool:
            state = self._states[server]
            if (in_force.get(server.uuid) is state.in_force
                    and now_s < state.look_at_s):
                state.confirm_right(now_s)
                return False
            return True
        changed = self._servers.isolation.each('reading the cap of server',
                                               known, is_changed)
        return {server for server in known if changed.get(server.uuid)}

    def observe_event(self, server: servers.Server,
                      event: base.Event) -> None:
        """Remember what an event about a server says of its cap."""
        state = self._states[server]
        if event.kind is base.EventKind.TOUCHED:
            # This is the first write since it was last read.
            state.confirm_right(event.seen_at_s)
        elif event.kind is base.EventKind.TUNED:
            state.tampering.observe(
                event, None if state.desired is None else state.desired.tune)
        elif event.detail == base.DEFINED:
            state.persisted = None
        elif event.detail == base.JOB_COMPLETED:
            # A migration that failed, or another job: no need to know which.
            state.lifted_until_s = None

    def lift(self, server: servers.Server, for_s: float) -> bool:
        """Take the limit on a server's I/O away for a while.

        It comes back by itself, unless a migration begins: then with the end
        of that. Without an effect where it is asked for too often, or is
        lifted for most of that time.

        :returns: whether it is lifted, or is about to be
        """
        state, now_s = self._states[server], self._clock()
        until_s = state.lifted_until_s
        if until_s is not None and (state.migrates
                                    or until_s - now_s > for_s / 2):
            return True
        if not state.lift_tokens.acquire(now_s):
            if self._log_tokens.acquire(now_s):
                LOG.warning('Server %s (%s): the limit on its I/O is not '
                            'lifted, which was asked for too often lately',
                            server.uuid, server.name)
            return until_s is not None
        state.lifted_until_s = now_s + for_s
        state.migrates = False
        self._servers.mark(server)
        self._jobs.retry_now(server)
        return True

    def can_enforce(self, server: servers.Server) -> bool:
        """Whether a server's cap could be worked out, when it last was."""
        return self._states[server].is_enforceable

    def keeps_ceiling(self, server: servers.Server) -> bool:
        """Whether what its project's ceiling leaves a server is in force."""
        state = self._states[server]
        return (state.right and state.desired is not None
                and state.desired.inputs.ceiling
                == self._ceilings.share(server))

    def is_lifted(self, server: servers.Server) -> bool:
        """Whether nothing limits a server's I/O."""
        state = self._states[server]
        return state.desired is None or (
            state.desired.tune.domain is None and state.right)

    def status(self) -> controller.Status:
        """How caps are; problems of servers are in their own reports."""
        return controller.Status(
            counters={'writes': self._writes, 'pins': self._pinning.pins,
                      'restored': self._restored,
                      'tamperings': self._tamperings},
            alarms=self._alarms(), errors=self._jobs.errors,
            busy=self._jobs.any_busy())

    def _alarms(self) -> tuple[str, ...]:
        return tuple(
            f'server {server.uuid} ({server.name}): {problem}'
            for server, state in self._states.items()
            if (problem := state.tampering.problem))

    def close(self) -> None:
        """Give servers all that they are entitled to, and no more.

        Nothing ends a limit, or a burst, once this agent is gone. Debts and
        savings are in the ledger.
        """
        if self._terms is None:
            return
        until_s = time.monotonic() + _GIVE_BACK_TIMEOUT_S
        limited = self._limited(self._terms)
        for _ in range(_GIVE_BACK_TIMES):
            left_s = until_s - time.monotonic()
            if not limited or left_s <= 0:
                break
            futures.wait([
                self._executor.submit(self._hypervisor.write, server.uuid,
                                      changes)
                for server, changes in limited.items()], timeout=left_s)
            limited = self._limited(self._terms)
        for server in limited:
            LOG.warning('Server %s (%s) keeps the limit on its I/O, its part '
                        'of a ceiling, or its burst',
                        server.uuid, server.name)

    # One look at one server.

    def _reconcile(self, server: servers.Server, now_s: float,
                   terms: controller.HostTerms) -> None:
        state = self._states[server]
        if (state.lifted_until_s is not None and not state.migrates
                and now_s >= state.lifted_until_s):
            state.lifted_until_s = None
            self._servers.mark(server)
        if server.policy is None and state.desired is None:
            self._servers.unmark(server)
            self._jobs.retry_now(server)
            return
        try:
            in_force = self._hypervisor.read(server.uuid)
        except (base.DomainGone, base.Unavailable):
            # The bulk call will show it.
            self._informer.list_again()
            return
        except base.HypervisorError as error:
            server.set_problem(f'its cap cannot be read: {error}')
            return
        if self._pinning.begin(server, in_force, now_s, terms):
            return
        if (not self._servers.unmark(server) and state.right
                and in_force is state.in_force):
            state.confirm_right(now_s)
            if (state.tampering.problem
                    and state.tampering.expire_problem(now_s)):
                server.set_problem('')
            if state.lifted_until_s is not None:
                self._begin_watching(server, now_s)
            else:
                self._begin_persisting(server, now_s)
            return
        self._compare(server, in_force, now_s, terms)

    def _compare(self, server: servers.Server, in_force: base.InForce,
                 now_s: float, terms: controller.HostTerms) -> None:
        state = self._states[server]
        if server.policy is None:
            self._release(server, in_force, now_s, terms)
            return
        try:
            state.desired = self._desire(server, in_force, terms)
            state.is_enforceable = True
        except desired.Unenforceable as error:
            state.is_enforceable = False
            self._limits.waive(server)
            server.set_problem(f'its cap is left as it is: {error}')
            self._release(server, in_force, now_s, terms)
            return
        changes = desired.changes(state.desired.tune, in_force)
        if not changes:
            self._record_right(server, in_force, now_s)
            return
        self._record_wrong(server, in_force, changes, now_s)
        if self._jobs.is_waiting(server, now_s):
            return
        if not state.write_tokens.acquire(now_s):
            if state.tampering.open:
                self._exceed(server, now_s)
            return
        self._begin_write(server, changes, self._read_back)

    def _desire(self, server: servers.Server, in_force: base.InForce,
                terms: controller.HostTerms) -> desired.Desired:
        """:raises desired.Unenforceable: when it cannot be worked out"""
        state = self._states[server]
        charged = server.is_charged(terms)
        found = desired.desire(
            server, in_force, terms,
            limit_share=self._limits.limit_share(server) if charged else None,
            ceiling_share=self._ceilings.share(server),
            burst_share=self._bursts.share(server),
            lifted=state.lifted_until_s is not None, before=state.desired)
        if found.inputs.debt is not None:
            self._limits.adopt(server, found.inputs.debt)
        return found

    def _record_right(self, server: servers.Server, in_force: base.InForce,
                      now_s: float) -> None:
        state = self._states[server]
        self._jobs.retry_now(server)
        server.set_problem(state.tampering.problem)
        state.record_right(server, in_force, now_s)

    def _record_wrong(self, server: servers.Server, in_force: base.InForce,
                      left: tuple[base.Change, ...], now_s: float) -> None:
        state = self._states[server]
        before = state.tampering.count
        state.record_wrong(in_force, left, now_s)
        self._tamperings += state.tampering.count - before

    def _exceed(self, server: servers.Server, now_s: float) -> None:
        """Leave a cap wrong for now: it was written too often."""
        tampering = self._states[server].tampering
        tampering.exceed('another writer changes its cap faster than the '
                         f'{states.WRITES_PER_S} times a second for which it '
                         'is restored', now_s)
        server.set_problem(tampering.problem)

    def _release(self, server: servers.Server, in_force: base.InForce,
                 now_s: float, terms: controller.HostTerms) -> None:
        """End the limit on a server's I/O where it has no basis any more."""
        state = self._states[server]
        changes = desired.release_changes(
            state.desired, in_force, charged=server.is_charged(terms))
        state.record_unknown(in_force, changes)
        if not changes:
            state.desired = (None if server.policy is None
                             or state.desired is None
                             else state.desired.without_limit)
        elif (not self._jobs.is_waiting(server, now_s)
                and state.release_tokens.acquire(now_s)):
            self._begin_write(server, changes, self._finish_release)

    # Writes.

    def _begin_write(self, server: servers.Server,
                     changes: tuple[base.Change, ...],
                     then: Callable[[servers.Server], None]) -> None:
        self._jobs.begin(
            server, functools.partial(self._hypervisor.write, server.uuid,
                                      changes),
            functools.partial(self._count_write, server, changes, then))

    def _count_write(self, server: servers.Server,
                     changes: tuple[base.Change, ...],
                     then: Callable[[servers.Server], None],
                     _result: None) -> None:
        state = self._states[server]
        state.writes += 1
        self._writes += 1
        self._restored += state.tampering.open is not None
        LOG.debug('Wrote to server %s: %s', server.uuid, changes)
        then(server)

    def _read_back(self, server: servers.Server) -> None:
        """Compare with what was wanted when it was written."""
        state, now_s = self._states[server], self._clock()
        try:
            in_force = self._hypervisor.read(server.uuid)
        except base.HypervisorError as error:
            self._jobs.fail(server, error)
            return
        left = () if state.desired is None else desired.changes(
            state.desired.tune, in_force)
        if not left:
            self._record_right(server, in_force, now_s)
            return
        if in_force == state.in_force:
            server.set_problem(
                f'its cap was written, and is not in force: {left}')
            self._jobs.back_off(server)
        else:
            # Another vCPU was plugged in meanwhile, or another writer was
            # faster than this reading.
            self._servers.mark(server)
        self._record_wrong(server, in_force, left, now_s)

    def _finish_release(self, server: servers.Server) -> None:
        if server.policy is None:
            server.set_problem('')
        self._states[server].record_released()
        self._servers.mark(server)

    # Migrations.

    def _begin_watching(self, server: servers.Server, now_s: float) -> None:
        """Look whether the migration goes on for which a limit is lifted.

        NOTE: libvirt reports its end only where it succeeds.
        """
        if not self._jobs.is_waiting(server, now_s):
            self._jobs.begin(
                server, functools.partial(self._hypervisor.is_busy,
                                          server.uuid),
                functools.partial(self._record_busy, server))

    def _record_busy(self, server: servers.Server, busy: bool) -> None:
        state = self._states[server]
        if state.migrates and not busy:
            state.lifted_until_s = None
            self._servers.mark(server)
        state.migrates = busy

    # What a server starts with the next time.

    def _begin_persisting(self, server: servers.Server,
                          now_s: float) -> None:
        """Have a server that is right be so after its next start as well.

        One that came in by a live migration would start as its source had it,
        and one of a host that was calibrated anew as it was before.
        """
        state = self._states[server]
        tune = state.to_persist(now_s)
        # The definition of an arriving server comes last.
        if tune is None or server.is_arriving:
            return
        self._jobs.begin(
            server, functools.partial(self._hypervisor.persist, server.uuid,
                                      tune.cap, tune.shares),
            functools.partial(state.record_persisted, server, tune),
            functools.partial(self._fail_persisting, server))

    def _fail_persisting(self, server: servers.Server,
                         error: Exception) -> None:
        if isinstance(error, (base.DomainGone, base.Unavailable)):
            self._jobs.fail(server, error)
            return
        self._states[server].record_not_persisted(server, error,
                                                  self._clock())

    # The end of the agent.

    def _limited(self, terms: controller.HostTerms
                 ) -> dict[servers.Server, tuple[base.Change, ...]]:
        """What has to be written to servers that are limited, or burst.

        By what is in force: what is wanted may not have been written.
        """
        found = self._servers.isolation.each(
            'ending the limits of server', self._servers.values(),
            lambda server: self._changes_of(server, terms))
        return {self._servers[uuid]: changes
                for uuid, changes in found.items() if changes}

    def _changes_of(self, server: servers.Server, terms: controller.HostTerms
                    ) -> tuple[base.Change, ...]:
        wanted = self._states[server].desired
        if wanted is None or not (
                server.policy is None or server.is_charged(terms)
                or wanted.inputs.ceiling is not None
                or server.policy.project_ceiling_cu is not None
                or wanted.inputs.burst is not None
                or server.policy.burst_cu is not None):
            return ()
        try:
            return self._changes_without_limit(
                server, wanted, self._hypervisor.read(server.uuid), terms)
        except base.DomainGone:
            return ()
        except base.HypervisorError as error:
            LOG.warning('Server %s (%s) may keep its limit: %s',
                        server.uuid, server.name, error)
            return ()

    @staticmethod
    def _changes_without_limit(
            server: servers.Server, wanted: desired.Desired,
            in_force: base.InForce, terms: controller.HostTerms
            ) -> tuple[base.Change, ...]:
        if server.policy is not None:
            try:
                whole = desired.desire(server, in_force, terms,
                                       limit_share=1.0, before=wanted)
                return desired.changes(whole.tune, in_force)
            except desired.Unenforceable:
                pass
        return desired.release_changes(wanted, in_force,
                                       charged=server.is_charged(terms))
