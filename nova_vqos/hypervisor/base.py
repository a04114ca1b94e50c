# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What the agent needs of a host's hypervisor: the contract of its drivers.

A driver tells which domains run, what their policy follows from, and which
CPU tuning is in force; it writes what it is told, and passes events on. It
decides nothing. Drivers are found by name in the stevedore namespace
``nova_vqos.hypervisors``.
"""

import abc
from collections.abc import Callable, Collection, Mapping, Sequence, Set
import dataclasses
import enum

from nova_vqos.billing import usage
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import activity
from nova_vqos.quantum import model


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
    """What of a domain's CPU tuning can be written."""

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
    """What a domain's policy follows from.

    :ivar name: the hypervisor's name of the domain
    :ivar extra_specs: of its flavor; None: not a server of Nova
    :ivar flavor_name: of its flavor; '' where unknown
    :ivar flavor_id: of its flavor in Nova's API; '' where unknown
    :ivar vcpus: of its flavor; 0 where unknown
    :ivar pcpus: those that its vCPUs may run on; None: all
    :ivar pinned_by_others: whether one of them was pinned, not by :meth:`pin`
        or :meth:`place` of :class:`Hypervisor`
    :ivar cpuset: those that they may run on where they are not pinned; None:
        all
    :ivar pinned: whether one of them was pinned, by whomever
    :ivar project_id: whose server it is; '' where unknown
    :ivar interfaces: by the name on the host; not those whose packets pass by
        the host's kernel
    :ivar disks: by the name in the guest, such as ``vda``; not those whose
        requests pass by the host's kernel
    :ivar incoming: whether its guest is yet to come from another host; None:
        the driver cannot tell
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


@dataclasses.dataclass(frozen=True, slots=True)
class Threads:
    """The threads of a domain, by their id on this host.

    :ivar vcpus: of each vCPU that is online, by its number
    :ivar others: of its emulator, I/O threads and vhost workers
    """

    vcpus: Mapping[int, int]
    others: tuple[int, ...]


#: The detail of a CHANGED event: a migration or another job has ended.
JOB_COMPLETED = 'job completed'


class EventKind(enum.Enum):
    """What happened to a domain, as far as the agent treats it differently."""

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
    :ivar run_id: see :meth:`Hypervisor.running`, -1 where it does not run
    :ivar detail: the hypervisor's own word for it, such as ``migrated``
    :ivar seen_at_s: on the monotonic clock
    :ivar values: of TUNED: what was set
    """

    kind: EventKind
    uuid: str
    run_id: int
    detail: str
    seen_at_s: float
    values: Mapping[Parameter, int | None] = dataclasses.field(
        default_factory=dict)


class Hypervisor(abc.ABC):
    """One host's hypervisor. Calls may come from several threads."""

    @property
    @abc.abstractmethod
    def cgroup_version(self) -> int:
        """1 or 2: what shares mean on this host."""

    @abc.abstractmethod
    def connect(self, on_event: Callable[[Event], None]) -> None:
        """Connect, or connect again, and follow the events from now on.

        :param on_event: called from a thread of the driver; must not block
        :raises Unavailable: when the hypervisor cannot be reached
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Disconnect and release everything. Never raises."""

    @abc.abstractmethod
    def running(self) -> Mapping[str, int]:
        """All domains that run, with one bulk call.

        :returns: by UUID, a number that grows with each start of a domain
        :raises Unavailable: when the hypervisor cannot be reached
        """

    @abc.abstractmethod
    def describe(self, uuid: str) -> Domain:
        """Read what a domain's policy follows from.

        :raises DomainBusy: when it is only being started; STARTED follows
        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when it cannot be understood
        """

    @abc.abstractmethod
    def read(self, uuid: str) -> InForce:
        """Read the tuning in force; cheap enough for each tick.

        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when it cannot be read
        """

    @abc.abstractmethod
    def write(self, uuid: str, changes: Sequence[Change]) -> None:
        """Write values, in their order. May block for tens of seconds.

        :raises DomainBusy: when the domain takes no writes now
        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when a value is refused
        """

    @abc.abstractmethod
    def pin(self, uuid: str, pcpus: Set[int]) -> None:
        """Let all vCPUs of a domain run on these pCPUs only.

        Also after a new start; but not on a host that it migrates to. May
        block for tens of seconds.

        :raises DomainBusy: when the domain takes no writes now
        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when a pCPU is refused
        """

    # NOTE: not abstract, so that a driver from before billing still loads:
    # its servers are billed nothing, and the agent says so.

    def usages(self, uuids: Collection[str]) -> Mapping[str, usage.Usage]:
        """Read what domains used so far; cheap enough for each interval.

        Where the hypervisor hangs this blocks for seconds: not for a thread
        that others wait for.

        :param uuids: of the domains that are wanted
        :returns: by UUID; a domain that cannot be read now is left out
        :raises Unavailable: when the hypervisor cannot be reached
        """
        return {}

    def vcpu_times(self, run_ids: Mapping[str, int]
                   ) -> Mapping[str, usage.VcpuTime]:
        """Read what the vCPUs of domains used so far, a few files of each.

        Also while the hypervisor cannot be reached, of those that were read
        before. Of one that is new it may be asked: not for a thread that
        others wait for.

        :param run_ids: of all domains that run, as :meth:`running` has them
        :returns: by UUID; a domain that cannot be read now is left out
        """
        return {}

    def activity(self, uuids: Collection[str]
                 ) -> Mapping[str, activity.Activity]:
        """Read what tells which kind of work domains do, in one bulk call.

        Where the hypervisor hangs this blocks for seconds, as usages() does.

        :param uuids: of the domains that are wanted
        :returns: by UUID; a domain that cannot be read now is left out
        :raises Unavailable: when the hypervisor cannot be reached
        """
        return {}

    def host_usage(self) -> usage.HostUsage:
        """Read the CPU time that the whole host used so far.

        :raises HypervisorError: when it is not counted or cannot be read
        """
        raise HypervisorError("this driver does not count the host's CPU time")

    # NOTE: nor are these, for a driver from before slices.

    def set_slices(self, uuid: str, vcpus: Mapping[int, int | None],
                   others: int | None) -> int:
        """Let the threads of a domain run for so long at a time.

        Those that are there now: where several want the same pCPU, the
        shortest slice among them counts for the domain. Cheap where they have
        theirs already.

        :param vcpus: slice of each vCPU by its number, in microseconds;
            None: the kernel's own. Those that are left out stay as they are
        :param others: of its emulator, I/O threads and vhost workers
        :returns: how many threads had another one
        :raises ValueError: when the kernel takes no such slice
        :raises SlicesUnsupported: when the kernel has no slices to set
        :raises SlicesDenied: when this process may not set them
        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when its threads cannot be found
        """
        raise SlicesUnsupported('this driver sets no slices')

    def threads(self, uuid: str) -> Threads:
        """Find the threads of a domain.

        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when they cannot be found
        """
        raise HypervisorError('this driver does not tell threads')

    def vcpu_runs(self, uuids: Collection[str]
                  ) -> Mapping[str, Mapping[int, schedstat.ThreadRun]]:
        """Read how long vCPUs ran, and how often; cheap enough for each tick.

        Counters of a vCPU that was plugged in again begin anew.

        :param uuids: of the domains that are wanted
        :returns: by UUID and number of the vCPU; a domain that cannot be read
            now is left out
        :raises Unavailable: when the hypervisor cannot be reached
        """
        return {}

    def topology(self) -> tuple[model.Socket, ...]:
        """Read which pCPUs servers could run on, and what they share.

        :returns: those that are online and not isolated
        :raises HypervisorError: when they cannot be told
        """
        raise HypervisorError('this driver does not tell pCPUs')

    def place(self, uuid: str,
              pcpus_by_vcpu: Mapping[int, Set[int]]) -> bool:
        """Let single vCPUs of a domain run on these pCPUs only.

        As long as it runs, and on this host. Others stay as they are, and
        what is so already is not written. May block for tens of seconds.

        :param pcpus_by_vcpu: by number of the vCPU
        :returns: whether anything was written
        :raises ValueError: when a vCPU is to have no pCPU
        :raises DomainBusy: when the domain takes no writes now
        :raises DomainGone: when it does not run
        :raises Unavailable: when the hypervisor cannot be reached
        :raises HypervisorError: when a vCPU or a pCPU is refused
        """
        raise HypervisorError('this driver places no single vCPUs')
