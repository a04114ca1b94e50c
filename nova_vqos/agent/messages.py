# SPDX-License-Identifier: Apache-2.0
"""What agents answer over RPC: the fields of each answer, and their types.

:class:`~nova_vqos.agent.manager.AgentManager` makes them, everybody else
reads them by :func:`nova_vqos.primitives.parse`. A field with a default may
be missing: an agent of another version does not know it. Texts in
``..._at`` are times, ISO 8601, UTC.
"""

from collections.abc import Mapping
import dataclasses
import math

from nova_vqos import policy as policies
from nova_vqos import policy_override
from nova_vqos import primitives
from nova_vqos import room
from nova_vqos.billing import host_load
from nova_vqos.billing import rolling
from nova_vqos.quantum import probe_result

# The host.


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
class Profile:
    """The profile in use.

    :ivar reference: name of the reference host
    :ivar age_s: None: ``measured_at`` is no time
    """

    id: str
    reference: str
    measured_at: str
    age_s: float | None = None


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
    profile: Profile | None = None
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


# Servers.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedFlavor:
    """The last push of a server's flavor.

    :ivar generation: see :class:`nova_vqos.policy_override.Override`, as the
        next ones
    """

    generation: int
    name: str
    vcpus: int
    units: int | None
    quantum_class: str
    dd_billing: str
    guarantee: str
    pushed_at: str


@dataclasses.dataclass(frozen=True, slots=True)
class Rates:
    """What the vCPUs of a server got in a window up to the last sample.

    :ivar over_s: the window's length
    :ivar delivered_cu: speed of all vCPUs together; None: the speed of the
        pCPUs is unknown
    :ivar throttled: share of the time for which limits held its vCPUs back,
        mean of all vCPUs
    """

    over_s: float
    delivered_cu: float | None
    throttled: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """The clock that a server's CPUs ran at.

    :ivar mhz: the mean
    :ivar is_own: whether it is that of the server's own CPU time, over about
        the last minute; else it is that of the pCPUs that it may run on,
        whatever they do, at the last sample
    :ivar calibrated_mhz: of these pCPUs while they were calibrated; None: not
        known
    :ivar coefficient: of the server, at this clock; None: not known
    """

    mhz: float
    is_own: bool
    calibrated_mhz: float | None = None
    coefficient: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class EmulatorMemory:
    """What a host's memory has of an emulator, beyond the guest's RAM.

    Private memory: the kernel does not show how much of it is guest RAM, where
    that is private memory too. The bounds are equal where it is not.

    :ivar low_bytes: at least: if all RAM of the guest is resident
    :ivar high_bytes: at most: if none is
    """

    low_bytes: int
    high_bytes: int

    @classmethod
    def of(cls, resident_bytes: int | None, ram_bytes: int | None
           ) -> 'EmulatorMemory | None':
        """
        :param resident_bytes: private memory of the emulator; None: not known
        :param ram_bytes: guest RAM that may be part of it; None: not known
        :returns: None: not known
        """
        if resident_bytes is None or ram_bytes is None:
            return None
        return cls(max(0, resident_bytes - ram_bytes), resident_bytes)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """What a server used and owes.

    :ivar billing: its ``vqos:dd_billing``
    :ivar used_cu_s: by component, on all hosts
    :ivar used_here_cu_s: by component, on this host
    :ivar used_lately_cu: by component
    :ivar debt_cu_s: what it has to pay out of its entitlement
    :ivar written_off_cu_s: what it need not pay, on all hosts
    :ivar entitlement_cu: None: without units
    :ivar limit_cu: what it may use now; None: it does not pay
    :ivar overdrawn: whether its I/O costs more than it can pay for
    :ivar not_modelled: kinds of I/O that the profile has no costs of
    :ivar inherited: whether the statement of the host that had the account is
        included
    :ivar stored: whether accounts can be written to the ledger
    :ivar rolling_4h: mean use on this host in the last four hours; None: not
        known
    :ivar saved_cu_s: what it used less than its units, for bursts; below 0: it
        overspent; None: its flavor has no bursts
    """

    server_uuid: str = ''
    project_id: str = ''
    billing: str = ''
    used_cu_s: Mapping[str, float]
    used_here_cu_s: Mapping[str, float] = dataclasses.field(
        default_factory=dict)
    used_lately_cu: Mapping[str, float]
    debt_cu_s: float
    written_off_cu_s: float
    written_off_here_cu_s: float = 0.0
    entitlement_cu: int | None = None
    limit_cu: float | None
    overdrawn: bool = False
    not_modelled: tuple[str, ...] = ()
    inherited: bool = False
    stored: bool = True
    rolling_4h: rolling.Mean | None = None
    saved_cu_s: float | None = dataclasses.field(
        default=None, metadata=primitives.OMIT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DiskLimit:
    """The limit on the disks of a server that is overdrawn.

    :ivar requests_per_s: of all its disks together, like the next
    :ivar since: since when it is in force; None: it is not
    :ivar problem: why it is not; '': it is
    """

    requests_per_s: int
    bytes_per_s: int
    since: str | None = None
    problem: str = ''


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Vcpu:
    """A vCPU and its slice.

    :ivar kind: what it is taken for
    :ivar slice_us: wanted; None: the kernel's own
    :ivar obtainable_us: what of it the cap leaves
    :ivar mean_run_us: for how long it ran at a time; None: unknown
    :ivar waited_s: for how long it was ready and did not run; None: unknown
    :ivar pcpus: to which it is confined; None: to none
    :ivar recognised_after_s: for how long its work was of its kind before that
        was recognised; None: none is
    """

    kind: str
    slice_us: int | None = None
    obtainable_us: int | None = None
    mean_run_us: float | None = None
    waited_s: float | None = None
    pcpus: str | None = None
    recognised_after_s: float | None = dataclasses.field(
        default=None, metadata=primitives.OMIT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slices:
    """The slices and pCPUs of a server's vCPUs.

    :ivar class_: its quantum class
    :ivar recognised_class: of a server of class auto; None: of any other
    :ivar problem: why its slices are not enforced; '': they are
    :ivar left_alone: why it is in no pool; '': it may be in one
    :ivar vcpus: by number
    :ivar sibling_preemptions_per_s: how often vCPUs lost their pCPU while
        another ran, together; None: not known, or none of them spins
    """

    class_: str = ''
    recognised_class: str | None = None
    problem: str = ''
    left_alone: str = ''
    vcpus: Mapping[str, Vcpu]
    sibling_preemptions_per_s: float | None = dataclasses.field(
        default=None, metadata=primitives.OMIT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guarantee:
    """What is reserved for a server that is guaranteed its speed.

    :ivar since: since when all of it is; None: it is not
    :ivar vcpus: how many vCPUs have a reservation
    :ivar runtime_us: of the vCPU that has the least, in each period
    :ivar reserved_pcpus: for all its threads, those of its I/O included, with
        what is kept for it while it pays for its I/O
    :ivar problem: why its speed is not guaranteed; '': it is
    :ivar ends: whether it is kept until the server stops, and no longer: its
        flavor asks for none any more
    :ivar counted: what of each second of its vCPUs the kernel counts at the
        clock of its own CPU time; None: not known
    """

    since: str | None
    vcpus: int
    runtime_us: int | None
    period_us: int | None
    reserved_pcpus: float
    problem: str
    ends: bool = False
    counted: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """How fast a server's own work is on its host: ``vqos:work=auto``.

    :ivar factor: in force, over the coefficient of all kinds of work
    :ivar predicted: by what was measured; None: nothing could be predicted
    :ivar low: of the interval that has it with 90 %
    :ivar high: likewise
    :ivar since: since when the factor is in force; None: it never changed
    :ivar hosts: unlike ones that the server was measured on, this included
    :ivar windows: of five seconds, in which it was measured here
    :ivar phases: how often its work changed here
    :ivar instructions_per_cpu_s: of its guest; None: not measured yet
    :ivar problem: why it is not corrected, or not as far; '': it is
    """

    factor: float
    predicted: float | None = None
    low: float | None = None
    high: float | None = None
    since: str | None = None
    hosts: int = 0
    windows: int = 0
    phases: int = 0
    instructions_per_cpu_s: float | None = None
    problem: str = ''


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerCeiling:
    """The ceiling that a server shares with others of its project.

    :ivar ceiling_cu: the smallest of their flavors
    :ivar left_cu: what it leaves the server now, of its own units
    :ivar servers: how many share it on this host
    """

    ceiling_cu: int
    left_cu: float
    servers: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What a server saved, and what it may use beyond its units.

    :ivar burst_cu: of its flavor
    :ivar left_cu: what it may use now: its units, while it does not burst
    :ivar saved_cu_s: below 0: it overspent; None: not known
    :ivar most_saved_cu_s: that it may save
    :ivar problem: why it cannot burst; '': it can, once it has saved enough
    """

    burst_cu: int
    left_cu: float
    saved_cu_s: float | None
    most_saved_cu_s: float
    problem: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Recap:
    """The last time that a cap was set.

    :ivar reason: the server's origin, for its first cap here; else flavor,
        profile, pcpus, vcpus, correction, lifted, debt, ceiling, burst,
        tampered, released or other
    :ivar wrong_ms: for how long another cap was in force before, at the most;
        None: unknown
    """

    at: str
    reason: str
    wrong_ms: float | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A server of the answer to ``list_servers``.

    A field that cannot be read of a server is None.

    :ivar name: the hypervisor's
    :ivar origin: found, booted, migrated, restored or another word of the
        hypervisor's for how it came to run here
    :ivar arriving: whether its guest has yet to begin to run here: its old
        host has a row of it as well
    :ivar flavor: '' where it has none of Nova's
    :ivar policy: None: without units
    :ivar policy_source: flavor or pushed, by field
    :ivar booted: value in the flavor that it was booted with, by field
    :ivar pushed: None: its flavor was not pushed
    :ivar push_error: why it does not follow the push
    :ivar entitled_cu: None: without units
    :ivar quantum_class: in force
    :ivar dd_billing: in force
    :ivar right: whether its cap is as wanted; None: without units
    :ivar guarantee: None: its flavor asks for none, and nothing is reserved
    :ivar correction: None: its flavor asks for none
    :ivar ceiling: None: its flavor has none
    :ivar burst: likewise
    :ivar disk_limit: None: its disks are not held back
    :ivar coefficient: of the slowest pCPU that it may run on, by its kind of
        work, as corrected
    :ivar vcpu_s: CPU time of its vCPUs since its emulator started
    :ivar throttled_s: for how long limits held them back, all together
    :ivar rates: over about the last minute, or since the first sample
    :ivar clock: None: not known
    :ivar emulator_memory: None: not known, or not read for this answer
    """

    server_uuid: str
    name: str | None = None
    project_id: str | None = None
    origin: str | None = None
    arriving: bool | None = None
    flavor: str | None = None
    flavor_id: str | None = None
    policy: policies.ServerPolicy | None = None
    policy_source: Mapping[str, str] | None = None
    booted: Mapping[str, str] | None = None
    pushed: PushedFlavor | None = None
    push_error: str | None = None
    entitled_cu: int | None = None
    quantum_class: str | None = None
    dd_billing: str | None = None
    right: bool | None = None
    problem: str | None = None
    coefficient: float | None = None
    vcpu_s: float | None = None
    throttled_s: float | None = None
    rates: Rates | None = None
    clock: Clock | None = None
    emulator_memory: EmulatorMemory | None = None
    bill: Bill | None = None
    disk_limit: DiskLimit | None = None
    quantum: Slices | None = None
    guarantee: Guarantee | None = None
    correction: Correction | None = None
    ceiling: ServerCeiling | None = None
    burst: Burst | None = None
    last_recap: Recap | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A CFS bandwidth limit.

    :ivar quota_us: None: no limit
    """

    quota_us: int | None
    period_us: int | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wanted(Limit):
    """The tuning that is wanted: the limit is that of each vCPU.

    :ivar domain: of all that runs for the server; None: no limit
    """

    shares: int
    domain: Limit | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """The tuning that is in force.

    :ivar vcpus: by number
    :ivar domain: of all that runs for the server
    """

    vcpus: Mapping[str, Limit]
    shares: int
    domain: Limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tampering:
    """A cap that another writer changed.

    :ivar found: the tuning that was found
    :ivar expected: the tuning that was in force before
    :ivar last_right_at: when that was last read
    :ivar channel: the way in which it was changed, as far as known
    :ivar restored_at: None: not yet
    """

    seen_at: str
    found: str
    expected: str
    last_right_at: str
    channel: str
    restored_at: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerDetail(Server):
    """The answer to ``get_server``.

    :ivar sampled_at: when vcpu_s and throttled_s were read; None: they were
        not
    :ivar rates_10s: over about 10 s; None: there are no samples of as long
    :ivar rates_5min: likewise over 5 min
    :ivar clock_problem: why the clock of its own CPU time is not counted; '':
        it is, or will be
    :ivar policy_error: why its policy cannot be honoured
    :ivar right_at_first_sight: whether its cap was, when the agent first saw
        it
    :ivar wrong_ms: for how long it ran here before its cap was right
    :ivar writes: of its cap
    :ivar tamperings: the last of those that were restored
    :ivar tampering_count: all that the agent saw in this run of the server,
        restored or not
    """

    sampled_at: str | None = None
    rates_10s: Rates | None = None
    rates_5min: Rates | None = None
    clock_problem: str | None = None
    policy_error: str | None = None
    wanted: Wanted | None = None
    in_force: InForce | None = None
    right_at_first_sight: bool | None = None
    wrong_ms: float | None = None
    writes: int | None = None
    tamperings: tuple[Tampering, ...] | None = None
    tampering_count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Servers:
    """The answer to ``list_servers``.

    :ivar servers: all that run on the host, sorted by server_uuid
    """

    host: str
    at: str
    servers: tuple[Server, ...]


# Calibration.


@dataclasses.dataclass(frozen=True, slots=True)
class Coefficient:
    """A coefficient, and its 95 % interval."""

    coefficient: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, slots=True)
class CpuClass:
    """Equal pCPUs of a host, such as 0-3, and how fast they are."""

    pcpus: str
    alone: Coefficient
    busy: Coefficient


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CalibratedProfile(Profile):
    """The profile in use, with its figures.

    :ivar measured_on: the host that was measured
    """

    measured_on: str
    is_reference: bool
    cpu_classes: tuple[CpuClass, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Calibration:
    """The answer to ``get_profile``.

    :ivar alarms: what is wrong with the profile
    :ivar document: text of the profile, 4 MiB at the most; None: not asked
        for, or there is none
    """

    host: str
    alarms: tuple[str, ...]
    profile: CalibratedProfile | None
    document: primitives.Lines | None


# Pushes.


@dataclasses.dataclass(frozen=True, slots=True)
class NotFollowing:
    """A server that does not follow the push of its flavor."""

    server_uuid: str
    flavor: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Following:
    """How the servers of a host follow what was pushed.

    :ivar following: how many do
    :ivar other_units: how many of these were booted with other units
    :ivar refused: how many cannot
    :ivar unmatched: how many have a flavor that was made anew
    :ivar not_following: of the latter two, a hundred at most
    :ivar keep_reservation: how many keep one until they stop, whose flavor
        asks for none any more
    """

    following: int
    other_units: int
    refused: int
    unmatched: int
    not_following: tuple[NotFollowing, ...]
    keep_reservation: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushResult(Following):
    """The answer to ``push_flavors`` and ``push_policies``.

    :ivar generation: the largest that the host has
    :ivar state: applied (some of the push was new), same (it was known) or
        older (newer pushes hold)
    :ivar stored: whether the push outlives the agent
    :ivar problem: why it does not
    :ivar servers: how many have another policy now
    """

    host: str
    generation: int
    state: str
    stored: bool
    problem: str
    servers: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushState(Following):
    """The pushes that a host holds, and how servers follow them.

    :ivar generation: the largest; 0: there was no push
    :ivar full_generation: of the newest full push; 0: there was none
    :ivar requires_signature: whether the host takes signed pushes alone
    :ivar pushed_at: '' where there was no push
    :ivar problem: why the pushes do not outlive the agent, or the last one was
        refused
    """

    host: str
    generation: int
    full_generation: int = 0
    requires_signature: bool = False
    pushed_at: str
    problem: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Pushed(PushState):
    """The answer to ``get_pushed``.

    :ivar flavors: by id
    """

    flavors: Mapping[str, policy_override.Override]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PushedDigest(PushState):
    """The answer to ``get_pushed_digest``.

    :ivar digest: of the flavors, see
        :func:`nova_vqos.policy_override.digest_of`
    """

    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class PushesDifference:
    """The answer to ``compare_pushes``.

    :ivar pushes: for :func:`nova_vqos.policy_push.from_list`; None: both
        agents hold the same
    """

    host: str
    pushes: object


@dataclasses.dataclass(frozen=True, slots=True)
class OverridesDifference:
    """The answer to ``compare_pushed``.

    :ivar flavors: for :func:`nova_vqos.policy_override.from_dict`; None: both
        agents hold the same
    """

    host: str
    flavors: object


@dataclasses.dataclass(frozen=True, slots=True)
class Lifted:
    """The answer to ``lift_limits``."""

    lifted: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """The answer to ``check_server``.

    :ivar reason: why the host cannot take it; '': it can
    """

    reason: str
