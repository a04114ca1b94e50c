# SPDX-License-Identifier: Apache-2.0
"""Ceilings: the servers of a project share one, each below its own cap.

The sum of what they are left is never above it: some are left more only once
others have less. It is divided by what they use, which is read often; it is
divided anew seldom, since each write of a quota gives CPU time away.
"""

from collections.abc import Iterable, Mapping, Sequence
import functools
import logging
import typing as ty

from nova_vqos import units
from nova_vqos.agent import charging
from nova_vqos.agent import controller
from nova_vqos.agent import isolation
from nova_vqos.agent import retry
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.caps import unit_shares
from nova_vqos.agent.ceiling import division
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

_INTERVAL_S = 2.0
# A server that its part held back wants all of its units for so long.
_HELD_S = 30.0
# Of its part, in use; and of the time, for which a limit throttled it.
_HELD_USE = 0.9
_HELD_TIME = 0.05
# Of the units of one that wants more: for less a ceiling is not divided anew.
_DEAD_BAND = 0.05
# How often the ceiling of one project is divided anew.
_DIVISIONS_AT_ONCE = 3
_DIVISION_INTERVAL_S = 5.0
# Of a ceiling: an error of rounding.
_EPSILON = 1e-6


class _MemberState:
    """
    :ivar reading: the last; None: there was none
    :ivar used_cu: between the last two; None: not known
    :ivar wants_until_s: it wants all of its units until then
    """

    def __init__(self, _server: servers.Server) -> None:
        self.reading: usage.VcpuTime | None = None
        self.used_cu: float | None = None
        self.wants_until_s = float('-inf')


class _Project:
    """
    :ivar ceiling_cu: the smallest of its servers' flavors
    :ivar targets: what each of its servers is to be left, in CU
    """

    def __init__(self) -> None:
        self.ceiling_cu = 0
        self.targets: dict[servers.Server, float] = {}
        self.tokens = retry.TokenBucket(_DIVISIONS_AT_ONCE,
                                        _DIVISION_INTERVAL_S)


class CeilingController(controller.Controller):
    """Divides the ceilings of the projects that have servers here."""

    def __init__(self, hypervisor: base.UsageDriver, known: servers.Servers,
                 job: worker.PeriodicJob, server_caps: caps.CapsController,
                 server_shares: unit_shares.UnitShares) -> None:
        """
        :param job: reads what servers use
        :param server_shares: what is decided; this alone changes it
        """
        self._hypervisor = hypervisor
        self._servers = known
        self._job = job
        self._caps = server_caps
        self._shares = server_shares
        self._states = known.states(_MemberState)
        # As of the last look at each.
        self._members: set[servers.Server] = set()
        self._projects: dict[str, _Project] = {}
        self._read_at_s = float('-inf')
        self._alarms: tuple[str, ...] = ()

    def reconcile(self, server: servers.Server) -> None:
        """Note whether a server shares a ceiling."""
        if _shares_ceiling(server) == (server in self._members):
            return
        if server in self._members:
            self._members.discard(server)
            self._shares.change(server, None)
        else:
            self._members.add(server)
        self.expire()

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Read what servers use, and divide each ceiling."""
        members, unenforced = self._sharing()
        unknown = members.pop('', [])
        self._servers.isolation.each(
            'ending the ceiling of server', (*unknown, *unenforced),
            lambda server: self._shares.change(server, None))
        self._projects = {
            project_id: self._projects.get(project_id) or _Project()
            for project_id in members}
        alarms = [] if not unknown else [
            f'{len(unknown)} servers have a ceiling that is not kept: their '
            'domains name no project']
        if unenforced:
            alarms.append(
                f'{len(unenforced)} servers have a ceiling that is not kept: '
                'their caps are left as they are, see their problems')
        least_cu = self._servers.isolation.each(
            'dividing the ceiling of project',
            map(isolation.Named, members), lambda one: self._divide(
                self._projects[one.uuid], members[one.uuid], now_s, terms))
        alarms += [
            f'the {len(members[project_id])} servers of project {project_id} '
            f'exceed their ceiling of {self._projects[project_id].ceiling_cu} '
            f'CU: limits can leave them no less than {least:.1f} CU'
            for project_id, least in least_cu.items()
            if least > self._projects[project_id].ceiling_cu]
        self._alarms = tuple(alarms)
        self.due_at_s = now_s if self._members else float('inf')
        if members and now_s >= self._read_at_s and not self._job.busy:
            self._read_at_s = now_s + _INTERVAL_S
            known = tuple(server for group in members.values()
                          for server in group)
            self._job.begin(
                functools.partial(self._hypervisor.vcpu_times, {
                    server.uuid: server.run_id for server in known}),
                functools.partial(self._record, known, terms, now_s))

    def status(self) -> controller.Status:
        """Which ceilings cannot be kept."""
        return controller.Status(alarms=self._alarms, errors=self._job.errors,
                                 busy=self._job.busy)

    def close(self) -> None:
        """Nothing is open; caps give all servers back what they are due."""

    def message(self, server: servers.Server
                ) -> enforcement.ServerCeiling | None:
        """The ceiling of a server; None: it has none."""
        project = self._projects.get(_project_id(server))
        if project is None or server not in project.targets:
            return None
        return enforcement.ServerCeiling(
            ceiling_cu=project.ceiling_cu, left_cu=self._left_cu(server),
            servers=len(project.targets))

    @property
    def host(self) -> tuple[host_report.ProjectCeiling, ...]:
        """The ceilings of all projects, the largest project first."""
        return tuple(sorted((
            host_report.ProjectCeiling(
                project_id=project_id, ceiling_cu=project.ceiling_cu,
                servers=len(project.targets),
                units_cu=sum(map(_units, project.targets)),
                used_cu=self._used_cu(project.targets))
            for project_id, project in self._projects.items()),
            key=lambda one: (-one.units_cu, one.project_id)))

    # One ceiling.

    def _divide(self, project: _Project, sharing: Sequence[servers.Server],
                now_s: float, terms: controller.HostTerms) -> float:
        """Have the servers of a project share its ceiling.

        :returns: the least CU that limits can leave them together
        """
        project.ceiling_cu = _ceiling_cu(sharing)
        known = self._servers.isolation.each(
            'finding the part of server', sharing,
            lambda server: self._member(server, now_s, terms))
        # Of one that this fails for nothing is known but its units.
        members = [known.get(server.uuid) or division.Member(
            _units(server), float(_units(server))) for server in sharing]
        found = dict(zip(
            sharing, division.divide(project.ceiling_cu, members),
            strict=True))
        project.targets = {server: cu for server, cu in project.targets.items()
                           if server in found}
        if found != project.targets and (
                _has_to_change(project, found)
                or self._is_worth_it(found, members)
                and project.tokens.acquire(now_s)):
            project.targets = found
        self._follow(project.targets)
        return sum(one.least_cu for one in members)

    def _is_worth_it(self, found: Mapping[servers.Server, float],
                     members: Sequence[division.Member]) -> bool:
        """Whether those that are held back, if any, would get more.

        Or those that nothing holds: what they use the others must not.
        """
        held = [server for server, member in zip(found, members, strict=True)
                if member.is_held or member.is_free]
        return any(found[server] > self._left_cu(server)
                   + _DEAD_BAND * _units(server) for server in held or found)

    def _follow(self, targets: Mapping[servers.Server, float]) -> None:
        """Leave some less at once, and then others more."""
        raised = []
        for server, target_cu in targets.items():
            if target_cu < self._left_cu(server):
                self._leave(server, target_cu)
            elif target_cu > self._left_cu(server):
                raised.append(server)
        if raised and all(map(self._caps.keeps_ceiling, targets)):
            for server in raised:
                self._leave(server, targets[server])

    def _leave(self, server: servers.Server, left_cu: float) -> None:
        self._shares.change(server, None if left_cu >= _units(server)
                            else left_cu / _units(server))

    def _left_cu(self, server: servers.Server) -> float:
        share = self._shares.share(server)
        return _units(server) * (1.0 if share is None else share)

    def _member(self, server: servers.Server, now_s: float,
                terms: controller.HostTerms) -> division.Member:
        state, cap = self._states[server], self._caps.state(server)
        desired = cap.desired
        most_cu, least_cu = float(_units(server)), 0.0
        if desired is not None and desired.inputs.debt is not None:
            most_cu *= desired.inputs.debt
        if terms.profile is not None:
            least_cu = float(units.least_cu_per_vcpu(
                server.coefficient(terms.profile),
                tick_us=terms.profile.tick_us))
            if not charging.backend(server, terms).limits_threads:
                least_cu *= server.policy.vcpus if server.policy else 1
        return division.Member(
            units=_units(server), most_cu=most_cu, used_cu=state.used_cu,
            is_held=now_s < state.wants_until_s,
            is_free=cap.lifted_until_s is not None, least_cu=least_cu)

    # What they use.

    def _record(self, known: Iterable[servers.Server],
                terms: controller.HostTerms, now_s: float,
                found: Mapping[str, usage.VcpuTime]) -> None:
        self._servers.isolation.each(
            'recording the use of server',
            filter(self._servers.runs, known),
            lambda server: self._record_one(
                server, found.get(server.uuid), terms, now_s))

    def _record_one(self, server: servers.Server, now: usage.VcpuTime | None,
                    terms: controller.HostTerms, now_s: float) -> None:
        state = self._states[server]
        before, state.reading = state.reading, now
        if (terms.profile is None or before is None or now is None
                or before.run != now.run
                or before.read_at_s >= now.read_at_s):
            state.used_cu = None
            return
        self._record_use(server, before, now, terms.profile,
                         counts_all=charging.backend(
                             server, terms).limits_threads)
        if self._was_held(server, before, now):
            state.wants_until_s = now_s + _HELD_S

    def _record_use(self, server: servers.Server, before: usage.VcpuTime,
                    now: usage.VcpuTime, profile: model.Profile, *,
                    counts_all: bool) -> None:
        """:param counts_all: whether limits hold all its threads"""
        used_ns = (now.total_ns - before.total_ns if counts_all
                   else now.vcpu_ns - before.vcpu_ns)
        self._states[server].used_cu = max(0.0, (
            used_ns / 1e9 / (now.read_at_s - before.read_at_s)
            * float(units.pcpu_cu(server.coefficient(profile)))))

    def _was_held(self, server: servers.Server, before: usage.VcpuTime,
                  now: usage.VcpuTime) -> bool:
        """Whether a server used its part up, or was throttled by it.

        Not by its own cap: that of each vCPU, unless it was lowered. One whose
        limits are lifted is not held by any: what it uses is what it wants.
        """
        used_cu = self._states[server].used_cu
        if self._caps.state(server).lifted_until_s is not None:
            return False
        if (used_cu is not None
                and used_cu >= _HELD_USE * self._left_cu(server)):
            return True
        if self._shares.share(server) is None:
            return False
        throttled_ns = now.held_ns - before.held_ns
        desired = self._caps.state(server).desired
        if desired is not None and desired.tune.cap != desired.entitled.cap:
            throttled_ns = now.throttled_ns - before.throttled_ns
        return (throttled_ns / 1e9
                >= _HELD_TIME * (now.read_at_s - before.read_at_s))

    def _used_cu(self, sharing: Iterable[servers.Server]) -> float | None:
        # NOTE: no state of a server that has gone since the last tick.
        used_cu = [self._states[server].used_cu if server in self._states
                   else None for server in sharing]
        return None if None in used_cu else sum(
            ty.cast('list[float]', used_cu))

    def _sharing(self) -> tuple[dict[str, list[servers.Server]],
                                list[servers.Server]]:
        """The servers with a ceiling by project, and those that nothing holds.

        NOTE: others would wait for ever for the latter to get less.
        """
        self._members = set(filter(self._servers.runs, self._members))
        sharing: dict[str, list[servers.Server]] = {}
        unenforced = []

        def sort(server: servers.Server) -> None:
            # One that was described since the last look may share none now.
            if not _shares_ceiling(server):
                return
            if self._caps.can_enforce(server):
                sharing.setdefault(_project_id(server), []).append(server)
            else:
                unenforced.append(server)
        self._servers.isolation.each(
            'finding the ceiling of server',
            sorted(self._members, key=lambda one: one.uuid), sort)
        return sharing, unenforced


def _has_to_change(project: _Project,
                   found: Mapping[servers.Server, float]) -> bool:
    """Whether one came, the sum is too much, or the ceiling limits none."""
    return (found.keys() != project.targets.keys()
            or sum(project.targets.values())
            > project.ceiling_cu * (1 + _EPSILON)
            or all(cu >= _units(server) for server, cu in found.items()))


def _shares_ceiling(server: servers.Server) -> bool:
    """Whether a server has a ceiling, and runs here."""
    return (server.policy is not None
            and server.policy.project_ceiling_cu is not None
            and not server.is_arriving)


def _project_id(server: servers.Server) -> str:
    """The project that Nova's metadata names; '': unknown."""
    return '' if server.domain is None else server.domain.project_id


def _units(server: servers.Server) -> int:
    return (server.policy.units or 0) if server.policy is not None else 0


def _ceiling_cu(sharing: Iterable[servers.Server]) -> int:
    """The smallest of their flavors counts."""
    return min(server.policy.project_ceiling_cu for server in sharing
               if server.policy is not None
               and server.policy.project_ceiling_cu is not None)
