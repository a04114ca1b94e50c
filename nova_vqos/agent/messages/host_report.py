# SPDX-License-Identifier: Apache-2.0
"""The state of an agent and of its host."""

from collections.abc import Mapping
import dataclasses
import math

from nova_vqos import primitives
from nova_vqos import room
from nova_vqos.agent.messages import calibration
from nova_vqos.billing import host_load
from nova_vqos.quantum import probe_result


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The CPU units of a host.

    :ivar capacity_cu: of all pCPUs in the profile
    :ivar reserved_cu: that are not sold: for the host and for servers without
        units, or since they cannot be reserved for servers
    :ivar stock_cu: what of it servers without units can use, as nova-compute
        counted it last
    :ivar work_cu: what of it servers take beyond their units, since their
        kind of work is slow here, likewise
    :ivar used_cu: entitlements of all servers
    :ivar slowest_cu: of one pCPU
    :ivar fastest_cu: of one pCPU
    """

    capacity_cu: int
    reserved_cu: int
    stock_cu: int = 0
    work_cu: int = 0
    allocation_ratio: float
    used_cu: int
    slowest_cu: float
    fastest_cu: float

    @property
    def sellable_cu(self) -> int:
        """What of the host may be sold."""
        return math.floor(room.sold_cu(
            self.capacity_cu, self.reserved_cu, self.allocation_ratio))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Which slices the kernel was seen to enforce.

    :ivar kernel: its release
    :ivar classes: by quantum class
    """

    kernel: str
    measured_at: str
    classes: Mapping[str, probe_result.Outcome]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """The pools of a host, and what the agent did for quantum classes.

    :ivar pools: number of pCPUs and of vCPUs, by quantum class
    :ivar left_alone: how many servers are in no pool
    :ivar sources: why a source of recognition is unavailable, '' where it is
        available, by name
    :ivar slices_written: how many slices of threads were set
    :ivar servers_placed: how often a server got other pCPUs
    :ivar undone: how often a server left its pool, since it got on better
        without
    :ivar polluters: vCPUs whose last-level cache is too small for them; None:
        unknown
    """

    pools: Mapping[str, tuple[int, int]] = dataclasses.field(
        default_factory=dict)
    left_alone: int = 0
    sources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    slices_written: int = 0
    servers_placed: int = 0
    undone: int = 0
    polluters: int | None = dataclasses.field(
        default=None, metadata=primitives.OMIT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostGuarantee:
    """The CPU time that a host reserves for servers, in pCPUs.

    :ivar total_pcpus: that the kernel was seen to reserve, less what is not
        sold
    :ivar reserved_pcpus: for servers that run here
    :ivar free_pcpus: for others
    """

    total_pcpus: float
    reserved_pcpus: float
    free_pcpus: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProjectCeiling:
    """The ceiling that servers of a project share on a host.

    :ivar ceiling_cu: the smallest of their flavors
    :ivar servers: how many share it
    :ivar units_cu: their own units together
    :ivar used_cu: by all of them, lately; None: not known
    """

    project_id: str
    ceiling_cu: int
    servers: int
    units_cu: int
    used_cu: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoopReport:
    """The state of an agent's loop and of its host.

    :ivar at: when it was so
    :ivar started_at: start of the agent
    :ivar connected: whether the hypervisor can be reached
    :ivar profile_id: None: there is no profile
    :ivar problem: what is wrong with the profile; '': nothing
    :ivar units: None: there is no profile
    :ivar proof: None: slices were not measured
    :ivar alarms: what an operator has to see to
    :ivar domains: how many run, servers or not
    :ivar servers: UUIDs of servers with units
    :ivar wrong: UUIDs of those whose cap is not as wanted
    :ivar last_tick_ms: duration of the last tick
    :ivar bills: rounds of billing since the agent started
    :ivar dd_billing: values of ``vqos:dd_billing`` that work on this host
    :ivar capacity: None: unknown
    :ivar quantum_classes: values of ``vqos:quantum_class`` that work here
    :ivar quantum: None: there was no round yet
    :ivar guarantee: None: the host guarantees no speed
    :ivar project_ceilings: that servers share here; None: the agent keeps none
    :ivar burst_room_cu: what servers that burst may use here beyond their
        units; None: none can burst here, or none wants to
    :ivar keeps_bursts: whether servers can burst here
    :ivar pushed_generation: of the newest push; 0: there was none
    :ivar ticks: since the agent started, as all numbers below
    :ivar writes: of caps
    :ivar pins: of servers to the pCPUs of one core type
    :ivar restored: times that a cap was written since another writer had
        changed it
    :ivar tamperings: changes of caps by other writers, restored or not; of
        several between two readings one is counted
    :ivar policy_errors: flavors that cannot be honoured
    :ivar refused_reservations: tries to reserve CPU time for a server that
        did not succeed
    :ivar refused_statements: of accounts, by other hosts
    :ivar corrections: changes of the speed of servers with ``vqos:work=auto``
    :ivar errors: unexpected errors
    """

    at: str = ''
    started_at: str = ''
    connected: bool
    cgroup_version: int
    profile_id: str | None = None
    profile: calibration.Profile | None = None
    problem: str = ''
    units: Units | None = None
    proof: Proof | None = None
    alarms: tuple[str, ...]
    domains: int
    servers: tuple[str, ...]
    wrong: tuple[str, ...]
    last_tick_ms: float
    bills: int = 0
    dd_billing: tuple[str, ...]
    capacity: host_load.LoadReport | None = None
    quantum_classes: tuple[str, ...]
    quantum: Pools | None = None
    guarantee: HostGuarantee | None = None
    project_ceilings: tuple[ProjectCeiling, ...] | None = None
    burst_room_cu: float | None = None
    keeps_bursts: bool = False
    pushed_generation: int = 0
    ticks: int
    writes: int
    pins: int = 0
    restored: int
    tamperings: int = 0
    policy_errors: int = 0
    refused_reservations: int = 0
    refused_statements: int = 0
    corrections: int = 0
    errors: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Host(LoopReport):
    """The answer to ``get_host``.

    :ivar host: its name
    :ivar version: of the agent
    :ivar pid: of the agent
    :ivar stats: those of the compute node that are ours, as the compute
        service reported them; None: unknown
    :ivar stats_at: when it reported them
    :ivar terms: what caps depend on besides the speed of pCPUs, see
        :class:`nova_vqos.compute_state.ComputeState`
    :ivar stats_problem: why the stats are unknown
    """

    host: str
    version: str
    pid: int = 0
    stats: Mapping[str, str] | None = None
    stats_at: str = ''
    terms: Mapping[str, int] = dataclasses.field(default_factory=dict)
    stats_problem: str = ''
