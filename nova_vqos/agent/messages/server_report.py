# SPDX-License-Identifier: Apache-2.0
"""The servers of a host: what each got, used and owes."""

from collections.abc import Mapping
import dataclasses

from nova_vqos import policy as policies
from nova_vqos import primitives
from nova_vqos.agent.messages import enforcement
from nova_vqos.agent.messages import pushes
from nova_vqos.billing import rolling


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
    pushed: pushes.PushedFlavor | None = None
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
    disk_limit: enforcement.DiskLimit | None = None
    quantum: enforcement.Slices | None = None
    guarantee: enforcement.Guarantee | None = None
    correction: enforcement.Correction | None = None
    ceiling: enforcement.ServerCeiling | None = None
    burst: enforcement.Burst | None = None
    last_recap: enforcement.Recap | None = None


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
    wanted: enforcement.Wanted | None = None
    in_force: enforcement.InForce | None = None
    right_at_first_sight: bool | None = None
    wrong_ms: float | None = None
    writes: int | None = None
    tamperings: tuple[enforcement.Tampering, ...] | None = None
    tampering_count: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Servers:
    """The answer to ``list_servers``.

    :ivar servers: all that run on the host, sorted by server_uuid
    """

    host: str
    at: str
    servers: tuple[Server, ...]
