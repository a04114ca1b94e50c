# SPDX-License-Identifier: Apache-2.0
"""Bursts: servers spend what they saved, while their host has room.

What they saved is in their accounts, which billing keeps. Quotas change
seldom, since each write gives CPU time away: a server that saved something has
a larger quota whether it uses it or not.
"""

from collections.abc import Iterable, Mapping
import functools
import logging

from nova_vqos import units
from nova_vqos.agent import controller
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.billing import controller as billing
from nova_vqos.agent.burst import division
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.caps import unit_shares
from nova_vqos.agent.messages import enforcement
from nova_vqos.billing import account
from nova_vqos.billing import savings
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

_INTERVAL_S = 2.0
# What was read longer ago is not known any more: each server may use all
# that it can.
_STALE_S = 10.0
# Of what it may save, what a server saves before it bursts again.
_BEGIN_SHARE = 0.1
# How often a server gets more. It gets less at once.
_RAISES_AT_ONCE = 3
_RAISE_INTERVAL_S = 10.0


class _BurstState:
    """
    :ivar reading: the last; None: there was none
    :ivar used_cu: by its vCPUs between the last two, in CU of the host; None:
        not known
    :ivar io_cu: the same by its other threads
    :ivar spends: whether it has savings to spend
    :ivar extra_cu: what it may use beyond its units, in CU of the host
    :ivar most_extra_cu: the same by its flavor and the host's pCPUs, whatever
        the room is; 0: its vCPUs have whole pCPUs without a burst
    """

    def __init__(self, _server: servers.Server) -> None:
        self.reading: usage.VcpuTime | None = None
        self.used_cu: float | None = None
        self.io_cu = 0.0
        self.spends = False
        self.extra_cu = 0.0
        self.most_extra_cu = 0.0
        self.raises = retry.TokenBucket(_RAISES_AT_ONCE, _RAISE_INTERVAL_S)


class BurstController(controller.Controller):
    """Lets servers use more than their units, by what they saved."""

    def __init__(self, hypervisor: base.UsageDriver, known: servers.Servers,
                 job: worker.PeriodicJob, server_caps: caps.CapsController,
                 bills: billing.BillingController,
                 shares: unit_shares.UnitShares) -> None:
        """
        :param job: reads what servers use
        :param bills: what servers saved
        :param shares: what is decided; this alone changes it
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._job = job
        self._caps = server_caps
        self._bills = bills
        self._shares = shares
        self._states = known.states(_BurstState)
        # Those whose flavor has bursts.
        self._members: set[servers.Server] = set()
        self._read_at_s = self._recorded_at_s = float('-inf')
        self._room_cu: float | None = None

    @property
    def is_on(self) -> bool:
        """Whether servers can burst here: billing keeps what they save."""
        return self._bills.is_on

    @property
    def room_cu(self) -> float | None:
        """What servers may use beyond their units; None: not known."""
        return self._room_cu if self._members else None

    def reconcile(self, server: servers.Server) -> None:
        """Note whether a server has bursts, and runs here."""
        is_member = self.is_on and _has_bursts(server)
        if is_member == (server in self._members):
            return
        if is_member:
            self._members.add(server)
        else:
            self._members.discard(server)
            self._shares.change(server, None)
        self.expire()

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """End what is spent, and read what servers use."""
        self._drop_gone()
        self.due_at_s = now_s if self._members else float('inf')
        if not self._members:
            return
        is_stale = now_s - self._recorded_at_s > _STALE_S
        if is_stale:
            for state in self._states.values():
                state.reading = state.used_cu = None
        changed = self._servers.isolation.each(
            'following the savings of server', self._members,
            self._follow_savings)
        if is_stale or any(changed.values()):
            self._decide(now_s, terms)
        if now_s >= self._read_at_s and not self._job.busy:
            self._read_at_s = now_s + _INTERVAL_S
            known = tuple(self._servers.values())
            self._job.begin(
                functools.partial(self._hypervisor.vcpu_times, {
                    server.uuid: server.run_id for server in known}),
                functools.partial(self._record, known, terms, now_s))

    def status(self) -> controller.Status:
        """How readings are."""
        return controller.Status(errors=self._job.errors, busy=self._job.busy)

    def close(self) -> None:
        """Nothing is open; caps take back what servers have too much."""

    def message(self, server: servers.Server) -> enforcement.Burst | None:
        """What a server saved, and may use; None: it has no bursts."""
        terms = savings.terms(server.policy)
        if terms is None:
            return None
        share = self._shares.share(server)
        saved_cu_s = self._bills.saved_cu_s(server) if self.is_on else None
        return enforcement.Burst(
            burst_cu=terms.burst_cu,
            left_cu=terms.units * (1.0 if share is None else share),
            saved_cu_s=saved_cu_s,
            most_saved_cu_s=account.cu_s(terms.most_cu_us),
            problem=self._problem(server, saved_cu_s))

    def _problem(self, server: servers.Server,
                 saved_cu_s: float | None) -> str:
        if not self.is_on:
            return 'this host does not bill: nothing is saved or spent here'
        if not self._caps.can_enforce(server):
            return 'its cap is left as it is, see its problem'
        if saved_cu_s is None:
            return 'what it saved is not known now'
        state = self._states.get(server)
        if state is not None and state.spends and (
                self._shares.share(server) is None):
            return ('the host has no room' if state.most_extra_cu else
                    'each of its vCPUs has a whole pCPU without a burst')
        return ''

    def _drop_gone(self) -> None:
        """Forget members that do not run here any more."""
        self._members = set(filter(self._servers.runs, self._members))

    # What they may use.

    def _follow_savings(self, server: servers.Server) -> bool:
        """Note whether a server has something to spend.

        :returns: whether that changed
        """
        state, terms = self._states[server], savings.terms(server.policy)
        saved_cu_s = self._bills.saved_cu_s(server)
        before = state.spends
        if (terms is None or saved_cu_s is None
                or not self._caps.can_enforce(server)):
            state.spends = False
        elif state.spends:
            state.spends = saved_cu_s > 0
        else:
            state.spends = saved_cu_s >= _BEGIN_SHARE * account.cu_s(
                terms.most_cu_us)
        return state.spends != before

    def _decide(self, now_s: float, terms: controller.HostTerms) -> None:
        """Divide the host's room among those that have savings."""
        profile = terms.profile
        uses: dict[servers.Server, division.Use] = {}
        found: dict[servers.Server, division.Member] = {}
        self._room_cu = None
        if profile is not None:
            known = self._servers.isolation.each(
                'expecting the use of server', self._servers.values(),
                lambda server: self._use(server, profile))
            # Of one that this fails for nothing is known but its units.
            uses = {server: known.get(server.uuid) or division.Use(float(
                0 if server.policy is None else server.policy.units or 0))
                for server in self._servers.values()}
            self._room_cu = division.room_cu(
                units.capacity_cu(map(profile.coefficient, profile.pcpus))
                - max(terms.reserved_cu, self._bills.outside_cu or 0.0),
                uses.values())
            most_extra_cu = self._servers.isolation.each(
                'finding the burst of server',
                sorted(self._members, key=lambda one: one.uuid),
                lambda server: _most_extra_cu(server, profile))
            for uuid, extra_cu in most_extra_cu.items():
                server = self._servers[uuid]
                state = self._states[server]
                state.most_extra_cu = extra_cu
                if state.spends and extra_cu:
                    found[server] = division.Member(extra_cu,
                                                    uses[server].wants)
        shared = self._shared(found, now_s)
        self._servers.isolation.each(
            'changing the burst of server', self._members,
            lambda server: self._change(server, shared[server],
                                        uses[server].most_cu)
            if server in shared else self._change(server, 0.0))

    def _shared(self, members: Mapping[servers.Server, division.Member],
                now_s: float) -> dict[servers.Server, float]:
        """What each gets: less where others need it, or by another flavor;
        more if it did not get more too often lately.
        """
        targets = dict(zip(members, division.divide(
            self._room_cu or 0.0, list(members.values())), strict=True))
        now = {server: self._states[server].extra_cu for server in members}
        is_short = sum(now.values()) > (self._room_cu or 0.0) or any(
            one.wants and targets[server] > now[server]
            for server, one in members.items())
        return {
            server: target_cu if (
                target_cu < now[server] and (
                    is_short or now[server] > members[server].extra_cu)
                or target_cu > now[server]
                and self._states[server].raises.acquire(now_s))
            else now[server] for server, target_cu in targets.items()}

    def _change(self, server: servers.Server, extra_cu: float,
                units_cu: float = 0.0) -> None:
        """
        :param extra_cu: beyond its units
        :param units_cu: in CU of the host, as the former
        """
        self._states[server].extra_cu = extra_cu
        self._shares.change(server, 1 + extra_cu / units_cu
                            if extra_cu > 0 else None)

    # What they use.

    def _record(self, known: Iterable[servers.Server],
                terms: controller.HostTerms, now_s: float,
                found: Mapping[str, usage.VcpuTime]) -> None:
        self._servers.isolation.each(
            'recording, for bursts, server',
            filter(self._servers.runs, known),
            lambda server: self._record_use(server, found.get(server.uuid),
                                            terms.profile))
        self._recorded_at_s = now_s
        # One may have started again since the last tick.
        self._drop_gone()
        self._decide(now_s, terms)

    def _record_use(self, server: servers.Server,
                    now: usage.VcpuTime | None,
                    profile: model.Profile | None) -> None:
        state = self._states[server]
        before, state.reading = state.reading, now
        if (profile is None or before is None or now is None
                or before.run != now.run
                or before.read_at_s >= now.read_at_s):
            state.used_cu = None
            return
        cu_per_ns = float(units.pcpu_cu(server.host_coefficient(profile))) / (
            1e9 * (now.read_at_s - before.read_at_s))
        used_ns = max(0, now.vcpu_ns - before.vcpu_ns)
        state.used_cu = used_ns * cu_per_ns
        state.io_cu = cu_per_ns * max(
            0, now.total_ns - before.total_ns - used_ns)

    def _use(self, server: servers.Server,
             profile: model.Profile) -> division.Use:
        state = self._states[server]
        return division.Use(_most_cu(server, profile), state.used_cu,
                            state.io_cu)


def _has_bursts(server: servers.Server) -> bool:
    return (savings.terms(server.policy) is not None
            and not server.is_arriving)


def _most_cu(server: servers.Server, profile: model.Profile) -> float:
    """What its vCPUs can use without a burst, in CU of the host."""
    policy = server.policy
    if policy is not None and policy.units is not None and (
            policy.cap == 'hard'):
        return policy.units * _cost(server, profile)
    return _pcpus_cu(server, profile)


def _most_extra_cu(server: servers.Server, profile: model.Profile) -> float:
    """What it may use beyond its units here: no vCPU has two pCPUs."""
    terms = savings.terms(server.policy)
    if terms is None:
        return 0.0
    cost = _cost(server, profile)
    return max(0.0, min(terms.burst_cu * cost, _pcpus_cu(
        server, profile)) - terms.units * cost)


def _pcpus_cu(server: servers.Server, profile: model.Profile) -> float:
    """As many pCPUs as it has vCPUs."""
    vcpus = 0 if server.domain is None else server.domain.vcpus
    return max(1, vcpus) * float(units.pcpu_cu(
        server.host_coefficient(profile)))


def _cost(server: servers.Server, profile: model.Profile) -> float:
    """CU of the host that one of the server's own takes."""
    return (server.host_coefficient(profile)
            / server.coefficient(profile))
