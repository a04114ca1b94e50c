# SPDX-License-Identifier: Apache-2.0
"""The contract between the agent and the driver of a host's hypervisor.

A driver lists the domains that run, describes them, reads and writes their CPU
tuning, reads their counters, and passes events on. It decides nothing. Calls
may come from several threads. Each may raise Unavailable, each that names a
domain DomainGone, and each another HypervisorError where a value is refused,
or an answer cannot be had or understood.

The agent loads a driver by its name in the stevedore namespace
``nova_vqos.hypervisors``.
"""

import abc
from collections.abc import Callable, Collection, Mapping, Sequence, Set
import dataclasses
import enum
from fractions import Fraction
import typing as ty

from nova_vqos import units
from nova_vqos.billing import throttle
from nova_vqos.billing import usage
from nova_vqos.quantum import model
from nova_vqos.quantum import recognition


class HypervisorError(Exception):
    """A request to the hypervisor failed."""


class Unavailable(HypervisorError):
    """The hypervisor cannot be reached."""


class DomainGone(HypervisorError):
    """The domain does not run here any more."""


class DomainBusy(HypervisorError):
    """The domain cannot be written to now, for example in a migration."""


class SlicesUnsupported(HypervisorError):
    """This host's kernel has no slices that could be set."""


class SlicesDenied(HypervisorError):
    """This process may not set the slices of other users' threads."""


class ReservationRefused(HypervisorError):
    """The kernel reserves no CPU time for a thread, or not as much."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limit:
    """A CFS bandwidth limit as it is in force.

    :ivar quota_us: None where there is no limit
    """

    quota_us: int | None
    period_us: int

    def __str__(self) -> str:
        if self.quota_us is None:
            return 'unlimited'
        return f'{self.quota_us}/{self.period_us} us'


@dataclasses.dataclass(frozen=True, slots=True)
class InForce:
    """The CPU tuning that is in force for a domain.

    :ivar vcpus: limit of each vCPU that is online, by its number
    :ivar shares: weight of the domain, in terms of the host's cgroup version
    :ivar domain: limit of the domain as a whole
    """

    vcpus: Mapping[int, Limit]
    shares: int
    domain: Limit

    def __str__(self) -> str:
        limits = {str(limit) for limit in self.vcpus.values()}
        if len(limits) <= 1:
            vcpus = f'vCPUs {"".join(limits) or "none"}'
        else:
            vcpus = ', '.join(f'vCPU {number} {limit}' for number, limit
                              in sorted(self.vcpus.items()))
        text = f'{vcpus}, shares {self.shares}'
        if self.domain.quota_us is not None:
            text = f'{text}, domain {self.domain}'
        return text


class Parameter(enum.Enum):
    """A value of a domain's CPU tuning that can be written."""

    DOMAIN_QUOTA_US = 'domain_quota_us'
    DOMAIN_PERIOD_US = 'domain_period_us'
    QUOTA_US = 'quota_us'
    PERIOD_US = 'period_us'
    SHARES = 'shares'


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """One value to write.

    :ivar value: None: no limit (quotas only)
    """

    parameter: Parameter
    value: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Domain:
    """The description of a domain, which its policy follows from.

    :ivar name: the hypervisor's name of the domain
    :ivar extra_specs: of its flavor; None: not a server of Nova
    :ivar flavor_name: of its flavor; '' where unknown
    :ivar flavor_id: of its flavor in Nova's API; '' where unknown
    :ivar vcpus: of its flavor; 0 where unknown
    :ivar pcpus: the pCPUs that its vCPUs may run on; None: all
    :ivar pinned_by_others: whether a vCPU was pinned by another writer than
        :meth:`CapDriver.pin` and :meth:`ThreadDriver.place`
    :ivar cpuset: the pCPUs of vCPUs that are not pinned; None: all
    :ivar pinned: whether a vCPU was pinned, by any writer
    :ivar project_id: of the server; '' where unknown
    :ivar interfaces: by the name on the host; without those whose packets
        bypass the host's kernel
    :ivar disks: by the name in the guest, such as ``vda``; without those whose
        requests bypass the host's kernel
    :ivar disk_limits: the limit that :meth:`CapDriver.limit_disks` has set, by
        disk, None where there is none; without disks that have a limit of
        another writer, or cannot have one
    :ivar incoming: whether the guest has not yet arrived from another host;
        None: unknown to the driver
    :ivar private_ram_bytes: see :class:`nova_vqos.domain_xml.Domain`
    """

    uuid: str
    name: str
    extra_specs: Mapping[str, str] | None
    vcpus: int
    pcpus: frozenset[int] | None
    pinned_by_others: bool = False
    cpuset: frozenset[int] | None = None
    pinned: bool = False
    project_id: str = ''
    interfaces: Mapping[str, usage.InterfaceKind] = dataclasses.field(
        default_factory=dict)
    disks: Mapping[str, usage.DiskKind] = dataclasses.field(
        default_factory=dict)
    incoming: bool | None = None
    flavor_name: str = ''
    flavor_id: str = ''
    private_ram_bytes: int | None = None
    disk_limits: Mapping[str, throttle.DiskLimit | None] = dataclasses.field(
        default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class Threads:
    """The threads of a domain, by their id on this host.

    :ivar vcpus: of each vCPU that is online, by its number
    :ivar others: of its emulator, I/O threads and vhost workers
    :ivar io: those of the others that serve its I/O: the emulator's main
        thread and the I/O threads
    """

    vcpus: Mapping[int, int]
    others: tuple[int, ...]
    io: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Reserved:
    """The CPU time that is reserved for a domain.

    :ivar vcpus: by the number of each vCPU that has a reservation
    :ivar pcpus: of all its threads together, in pCPUs
    :ivar refusal: why it is less than was wanted; '': it is not
    """

    vcpus: Mapping[int, units.CpuCap]
    pcpus: Fraction
    refusal: str = ''


class Bandwidth(ty.NamedTuple):
    """The CPU time that the kernel reserves for domains.

    :ivar pcpus: in pCPUs
    :ivar is_total: whether it includes what is reserved for domains by now
    :ivar number: of the pCPUs whose time it is a part of
    """

    pcpus: Fraction
    is_total: bool
    number: int


class ThreadRun(ty.NamedTuple):
    """Counters of one thread since it began; they never fall.

    The mean run until another thread ran is the difference of ``run_ns``
    divided by that of ``runs``.

    :ivar run_ns: how long it ran
    :ivar waited_ns: how long it was ready and did not run, also because of a
        cap
    :ivar runs: how often it began to run
    """

    run_ns: int
    waited_ns: int
    runs: int


#: The detail of a CHANGED event: a migration or another job has ended.
JOB_COMPLETED = 'job completed'
#: Likewise: what it starts from the next time was changed.
DEFINED = 'defined'


class EventKind(enum.Enum):
    """What happened to a domain; one kind for each reaction of the agent."""

    STARTED = 'started'
    RESUMED = 'resumed'
    CHANGED = 'changed'
    TUNED = 'tuned'
    TOUCHED = 'touched'
    STOPPED = 'stopped'
    CONNECTION_LOST = 'connection lost'


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    :ivar uuid: of the domain, '' for events of the connection
    :ivar run_id: see :meth:`CapDriver.running`, -1 where it does not run
    :ivar detail: the hypervisor's own word for it, such as ``migrated``
    :ivar seen_at_s: on the monotonic clock
    :ivar values: of TUNED: the new values
    """

    kind: EventKind
    uuid: str
    run_id: int
    detail: str
    seen_at_s: float
    values: Mapping[Parameter, int | None] = dataclasses.field(
        default_factory=dict)


class CapDriver(abc.ABC):
    """The domains of a host, and their CPU tuning."""

    @property
    @abc.abstractmethod
    def cgroup_version(self) -> int:
        """1 or 2: the scale of shares on this host."""

    @abc.abstractmethod
    def connect(self, on_event: Callable[[Event], None]) -> None:
        """Connect, or connect again, and follow the events from now on.

        :param on_event: called from a thread of the driver; must not block
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect and release everything. Never raises."""

    @abc.abstractmethod
    def running(self) -> Mapping[str, int]:
        """List all domains that run, with one bulk call.

        Events report who comes and goes: the list is to find what they missed.

        :returns: by UUID, a number that grows with each start of a domain
        """

    @abc.abstractmethod
    def describe(self, uuid: str) -> Domain:
        """Read the description of a domain.

        :raises DomainBusy: while it is being started; STARTED follows
        """

    @abc.abstractmethod
    def read(self, uuid: str) -> InForce:
        """Read the tuning in force.

        It may be answered from memory where the kernel reports writes, and
        reported none: TOUCHED comes with each.
        """

    @abc.abstractmethod
    def read_anew(self, uuids: Collection[str]) -> Mapping[str, InForce]:
        """Read the tuning in force of domains, whatever was reported.

        :returns: by UUID, the very objects that :meth:`read` returned where
            nothing changed; a domain that cannot be read is left out
        """

    @abc.abstractmethod
    def write(self, uuid: str, changes: Sequence[Change]) -> None:
        """Write values, in their order. May block for tens of seconds.

        :raises DomainBusy: when the domain takes no writes now
        """

    @abc.abstractmethod
    def is_busy(self, uuid: str) -> bool:
        """Whether a migration or another job goes on, so that it takes no
        writes now. May block for a second.
        """

    @abc.abstractmethod
    def persist(self, uuid: str, cap: units.CpuCap | None,
                shares: int) -> bool:
        """Have a domain start with this cap and weight the next time.

        Nothing that is in force changes. Limits on its I/O, and pins that the
        agent of another host made, are removed from what the hypervisor keeps.
        One that it keeps nothing of is left alone. May block for tens of
        seconds.

        :param cap: of each vCPU; None: no limit
        :returns: whether anything had to be changed
        :raises DomainBusy: when the domain takes no writes now
        """

    @abc.abstractmethod
    def limit_disks(self, uuid: str,
                    limit: throttle.DiskLimit | None) -> bool:
        """Limit the requests of all disks of a domain together.

        It ends with the run of the domain. A disk that has a limit of another
        writer keeps that, and is no part of this one. May block for tens of
        seconds.

        :param limit: None: end the one that is in force
        :returns: whether anything had to be changed
        :raises DomainBusy: when the domain takes no writes now
        """

    @abc.abstractmethod
    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        """Let all vCPUs of a domain run on these pCPUs only.

        The pins outlast a new start, but stay behind in a migration. May block
        for tens of seconds.

        :raises DomainBusy: when the domain takes no writes now
        """


@dataclasses.dataclass(frozen=True, slots=True)
class Clocks:
    """The clock of CPUs.

    :ivar counted: by UUID of the domain, CPU time of its vCPUs since the last
        reading, and the cycles in it; without domains that are not counted
    :ivar pcpus_mhz: by pCPU, whatever runs on it, idle or not, at this moment;
        empty where domains are counted
    :ivar problems: by UUID, why a domain is not counted, for an operator
    """

    counted: Mapping[str, usage.ClockTime]
    pcpus_mhz: Mapping[int, float]
    problems: Mapping[str, str]


#: Before the first reading, and where the last is too old.
NO_CLOCKS: ty.Final = Clocks({}, {}, {})


class Idle(ty.NamedTuple):
    """Until when a domain that does next to nothing need not be read.

    :ivar share: of a pCPU; once its threads together use more, it is read
    :ivar most_s: after so long it is read in any case
    """

    share: float
    most_s: float


class UsageDriver(abc.ABC):
    """Counters of domains, and of the whole host.

    A domain that cannot be read now is left out of an answer.
    """

    @abc.abstractmethod
    def usages(self, uuids: Collection[str], idle: Mapping[str, Idle]
               ) -> Mapping[str, usage.Usage]:
        """Read all counters of domains; cheap enough for each interval.

        Where the hypervisor hangs this blocks for seconds: call it from a
        thread that no other waits for.

        :param idle: by UUID, which of them are left out; others are always
            read
        :returns: by UUID
        """

    @abc.abstractmethod
    def bridge_traffic(self) -> Mapping[str, usage.BridgeTraffic]:
        """Read what bridges and the router of the host passed so far.

        :returns: of each interface of a server, by its name on the host;
            without those that another switch has
        """

    @abc.abstractmethod
    def vcpu_times(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        """Read the CPU time of the vCPUs of domains, a few files of each.

        Domains that were read before are read also while the hypervisor
        cannot be reached. The hypervisor is asked for a new one: call this
        from a thread that no other waits for.

        :param run_ids: of all domains that run, as from
            :meth:`CapDriver.running`
        :returns: by UUID
        """

    @abc.abstractmethod
    def emulator_memory(self, uuids: Collection[str]) -> Mapping[str, int]:
        """Read how much private memory the emulators of domains have resident.

        It includes the guest's RAM where that is private memory, see
        :class:`Domain`. It is not for each tick: one file of each domain is
        opened. Blocks as :meth:`vcpu_times` does.

        :returns: bytes, by UUID
        """

    @abc.abstractmethod
    def guest_work(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.GuestWork]:
        """Read the instructions that guests retired, and their CPU time.

        A domain is counted while it is asked for: from its first call on,
        until a call without it. A domain whose instructions cannot be counted
        is left out, and so is one that has retired none since the first call.
        Blocks as :meth:`vcpu_times` does.

        :param run_ids: as from :meth:`CapDriver.running`
        :returns: by UUID
        """

    @abc.abstractmethod
    def guest_work_problems(self) -> Mapping[str, str]:
        """Find why the instructions of domains cannot be counted.

        Reads nothing: it is as of the last call of :meth:`guest_work`.

        :returns: for an operator, by UUID; without domains that are counted
        """

    @abc.abstractmethod
    def clocks(self, run_ids: Mapping[str, int]) -> Clocks:
        """Read the clock that CPUs ran domains at since the last call.

        A domain is counted while it is asked for, as by :meth:`guest_work`.
        Costs next to nothing where the CPU does not show its clock. Blocks as
        :meth:`vcpu_times` does.

        :param run_ids: as from :meth:`CapDriver.running`
        """

    @abc.abstractmethod
    def activity(self, uuids: Collection[str]
                 ) -> Mapping[str, recognition.Activity]:
        """Read what shows the kind of work of domains, with one bulk call.

        Where the hypervisor hangs this blocks for seconds, as usages() does.

        :returns: by UUID
        """

    @abc.abstractmethod
    def host_usage(self) -> usage.HostUsage:
        """Read the CPU time that the whole host used so far."""


class ThreadDriver(abc.ABC):
    """The threads of domains: slices, reservations, runs, and pCPUs."""

    @abc.abstractmethod
    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        """Set the slices of the threads that a domain has now.

        Where several threads want the same pCPU, the shortest slice among them
        counts for the domain. Cheap where nothing has to be changed.

        :param vcpus: slice of each vCPU by its number, in microseconds;
            None: the kernel's default. A vCPU that is left out stays as it is
        :param others: of its emulator, I/O threads and vhost workers
        :returns: how many threads were changed
        :raises ValueError: when a slice is out of the kernel's bounds
        :raises SlicesUnsupported: when the kernel has no slices to set
        :raises SlicesDenied: when this process may not set them
        """

    @abc.abstractmethod
    def reserved(self, uuid: str) -> Reserved:
        """Read what is reserved for the threads that a domain has now.

        Cheap enough for the loop.
        """

    @abc.abstractmethod
    def reserve(self, uuid: str, vcpu: units.CpuCap, io: units.CpuCap, *,
                reclaims: bool = False, anew: bool = True) -> Reserved:
        """Reserve CPU time for the threads that a domain has now.

        Cheap where nothing has to be changed. What is reserved can be changed,
        and ends with the thread. A thread with a reservation has no slice.
        First, a vCPU with one is let run on all pCPUs again where the
        hypervisor has left it confined by a pin that the kernel refused. That
        may block for tens of seconds.

        :param vcpu: of each vCPU
        :param io: of each thread that serves its I/O, which may use more while
            others leave theirs unused. What one thread loses another one may
            have: a sum that stays needs no time that is free
        :param reclaims: whether vCPUs may use more, too
        :param anew: whether threads without a reservation get one
        :raises ValueError: when a reservation is out of bounds
        """

    @abc.abstractmethod
    def bandwidth(self) -> Bandwidth:
        """Find how much CPU time can be reserved for domains.

        Where it is measured, the kernel refuses all other reservations for
        some milliseconds.

        :raises ReservationRefused: when none can be reserved on this host
        """

    @abc.abstractmethod
    def counts_clock(self) -> bool:
        """Whether reserved time is counted by the clock of the CPU.

        A second at less than the full clock then counts as less.
        """

    @abc.abstractmethod
    def vcpu_threads(self, uuid: str) -> Mapping[int, int]:
        """Find the threads of a domain's vCPUs, by their number."""

    @abc.abstractmethod
    def vcpu_runs(self, uuids: Collection[str]
                  ) -> Mapping[str, Mapping[int, ThreadRun]]:
        """Read how long vCPUs ran, and how often; cheap enough for each tick.

        Counters of a vCPU that was plugged in again begin anew.

        :returns: by UUID and number of the vCPU; a domain that cannot be read
            now is left out
        """

    @abc.abstractmethod
    def vcpu_sleeps(self, uuids: Collection[str]
                    ) -> Mapping[str, Mapping[int, int]]:
        """Read how often vCPUs slept: gave up their pCPUs by themselves.

        Otherwise as :meth:`vcpu_runs`.
        """

    @abc.abstractmethod
    def io_runs(self, uuids: Collection[str]
                ) -> Mapping[str, Mapping[int, ThreadRun]]:
        """As :meth:`vcpu_runs`, of the threads that serve a domain's I/O.

        :returns: by UUID and id of the thread
        """

    @abc.abstractmethod
    def topology(self) -> tuple[model.Socket, ...]:
        """Read which pCPUs servers could run on, and what these share.

        :returns: the pCPUs that are online and not isolated
        """

    @abc.abstractmethod
    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        """Let single vCPUs of a domain run on these pCPUs only.

        The pins last as long as the domain runs on this host. Other vCPUs stay
        as they are; a pin that is in force is not written. May block for tens
        of seconds.

        :param pcpus_by_vcpu: by number of the vCPU
        :returns: whether a pin was written
        :raises ValueError: when a vCPU is given no pCPU
        :raises DomainBusy: when the domain takes no writes now
        """


class Hypervisor(CapDriver, UsageDriver, ThreadDriver):
    """A host's hypervisor: what each driver implements."""
