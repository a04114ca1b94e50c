# SPDX-License-Identifier: Apache-2.0
"""The quantum classes of servers: when their slices are enforced."""

from fractions import Fraction
import functools

from nova_vqos import units
from nova_vqos.agent import controller
from nova_vqos.agent import server as servers
from nova_vqos.agent import worker
from nova_vqos.agent.caps import controller as caps
from nova_vqos.agent.guarantee import controller as guarantees
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.quantum import enforced_server
from nova_vqos.agent.quantum import enforcer as enforcers
from nova_vqos.profile import model
from nova_vqos.quantum import occupancy
from nova_vqos.quantum import probe_result


class QuantumState:
    """One server, to the quantum controller.

    :ivar slices: after the last enforcement; None: there was none
    :ivar seen_revision: of the server, at the last enforcement
    :ivar target: of the last enforcement; None: there was none
    :ivar target_of: what it follows from
    """

    def __init__(self, _server: servers.Server) -> None:
        self.slices: enforcement.Slices | None = None
        self.seen_revision: int | None = None
        self.target: enforced_server.Target | None = None
        self.target_of: tuple[object, ...] = ()


class QuantumController(controller.Controller):
    """Has slices and pools enforced; without an enforcer, none are.

    :ivar occupancy: of the pools of this host
    :ivar probe_result: of this boot; None: slices were not measured
    :ivar pools: of this host; None: there was no enforcement yet
    """

    def __init__(self, enforcer: enforcers.Enforcer | None,
                 known: servers.Servers, job: worker.PeriodicJob,
                 server_caps: caps.CapsController,
                 server_guarantees: guarantees.GuaranteeController) -> None:
        """
        :param job: runs the enforcer
        """
        self._enforcer = enforcer
        self._servers = known
        self._job = job
        self._caps = server_caps
        self._guarantees = server_guarantees
        self._states = known.states(QuantumState)
        self.occupancy = occupancy.UNKNOWN
        self.probe_result: probe_result.ProbeResult | None = None
        self.pools: host_report.Pools | None = None
        self._offers: tuple[str, ...] = (servers.NO_CLASS,)
        self._alarms: tuple[str, ...] = ()
        self._next_at_s = float('-inf')

    def state(self, server: servers.Server) -> QuantumState:
        """The state of a server; for reading."""
        return self._states[server]

    def tick(self, now_s: float, terms: controller.HostTerms) -> None:
        """Begin an enforcement, if one is due or a server is new."""
        enforcer = self._enforcer
        if enforcer is None:
            self.due_at_s = float('inf')
            return
        if self._job.busy:
            return
        if now_s < self._next_at_s and not any(
                self._states[server].seen_revision != server.revision
                and self._is_ready(server)
                for server in self._servers.values()):
            self.due_at_s = self._next_at_s
            return
        targets = self._servers.isolation.each(
            'choosing the slice of server', self._servers.values(),
            lambda server: self._ready_target(server, terms.profile))
        ready = {self._servers[uuid]: target
                 for uuid, target in targets.items() if target is not None}
        interval_s = enforcer.options.interval_s
        if ready and not any(map(self._has_class, ready)):
            interval_s = max(interval_s, enforcers.IDLE_INTERVAL_S)
        self._next_at_s = self.due_at_s = now_s + interval_s
        self._job.begin(
            functools.partial(enforcer.enforce, list(ready.values())),
            functools.partial(self._apply, tuple(ready)))

    def status(self) -> controller.Status:
        """Which classes work on this host now, and what is wrong."""
        return controller.Status(
            offers=self._offers, alarms=self._alarms,
            errors=self._job.errors + (
                0 if self._enforcer is None else self._enforcer.errors),
            busy=self._job.busy)

    def close(self) -> None:
        """Release what is open; slices and pools stay as they are."""
        if self._enforcer is not None and not self._job.busy:
            self._enforcer.close()

    def _is_ready(self, server: servers.Server) -> bool:
        """Whether a server is described, and its guest runs here.

        Not a server without units that never had a class. A push may have
        removed the class of a running server.
        """
        return (server.domain is not None and not server.is_arriving
                and (server.policy is not None
                     or server.quantum_class != servers.NO_CLASS
                     or self._states[server].slices is not None
                     or server.booted()['quantum_class'] != servers.NO_CLASS))

    def _has_class(self, server: servers.Server) -> bool:
        """Whether a server has a class, or its threads have slices by one."""
        slices = self._states[server].slices
        return server.quantum_class != servers.NO_CLASS or (
            slices is not None and any(
                vcpu.slice_us is not None for vcpu in slices.vcpus.values()))

    def _ready_target(self, server: servers.Server,
                      profile: model.Profile | None
                      ) -> enforced_server.Target | None:
        """:returns: None: it is not ready"""
        if not self._is_ready(server):
            return None
        self._states[server].seen_revision = server.revision
        return self._target(server, profile)

    def _target(self, server: servers.Server,
                profile: model.Profile | None) -> enforced_server.Target:
        """Its target, made again only when what that follows from changed."""
        state, cap = self._states[server], self._caps.state(server)
        target_of = (server.revision, profile, cap.desired, cap.in_force,
                     self._guarantees.concerns(server))
        if state.target is None or target_of != state.target_of:
            state.target = self._make_target(server, profile)
            state.target_of = target_of
        return state.target

    def _make_target(self, server: servers.Server,
                     profile: model.Profile | None) -> enforced_server.Target:
        state, policy = self._caps.state(server), server.policy
        pcpus = None if profile is None else server.eligible_pcpus(profile)
        share = Fraction(0)
        if (policy is not None and policy.units is not None
                and profile is not None):
            vcpus = policy.vcpus
            if state.in_force is not None:
                vcpus = max(vcpus, len(state.in_force.vcpus))
            share = min(
                Fraction(1), units.cu_per_vcpu(policy.units, vcpus)
                / units.pcpu_cu(server.coefficient(profile)))
        return enforced_server.Target(
            uuid=server.uuid, name=server.name,
            quantum_class=server.quantum_class, share=share,
            cap=None if state.desired is None else state.desired.tune.cap,
            pcpus=pcpus, is_guaranteed=self._guarantees.concerns(server),
            pinned=server.domain is not None and server.domain.pinned)

    def _apply(self, ready: tuple[servers.Server, ...],
               outcome: enforcers.Enforcement) -> None:
        self.occupancy = outcome.occupancy
        self.probe_result = outcome.probe_result
        self.pools = outcome.pools
        self._offers, self._alarms = outcome.classes, outcome.alarms
        for server in filter(self._servers.runs, ready):
            self._states[server].slices = outcome.slices.get(server.uuid)
