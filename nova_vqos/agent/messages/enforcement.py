# SPDX-License-Identifier: Apache-2.0
"""What an agent enforces for a server: its cap, its slices, and the rest."""

from collections.abc import Mapping
import dataclasses

from nova_vqos import primitives


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
    :ivar awake_us: for how long one of kind io works at a time, from when it
        wakes until it sleeps; None: unknown
    """

    kind: str
    slice_us: int | None = None
    obtainable_us: int | None = None
    mean_run_us: float | None = None
    waited_s: float | None = None
    pcpus: str | None = None
    recognised_after_s: float | None = dataclasses.field(
        default=None, metadata=primitives.OMIT)
    awake_us: float | None = dataclasses.field(
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
