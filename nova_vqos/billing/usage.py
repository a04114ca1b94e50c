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

"""What a server used of its host, as counted by kernel and hypervisor.

The words between those who read counters (a hypervisor's driver) and those
who bill (the agent). Counters only ever grow within a run of a domain's
emulator; another run begins anew.
"""

from collections.abc import Mapping
import dataclasses
import typing as ty


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceKind:
    """What decides what a packet of an interface costs the host.

    :ivar mode: how packets get from the interface to the world: ``bridge``,
        ``routed``, ``nat``, ``openvswitch``; '' where unknown
    :ivar backend: who moves them between guest and interface: ``vhost`` or
        ``qemu``; '' where unknown
    """

    mode: str
    backend: str


@dataclasses.dataclass(frozen=True, slots=True)
class DiskKind:
    """What decides what a request of a disk costs the host.

    :ivar source: ``file``, ``block`` or ``network``
    :ivar buffered: whether the host's page cache is used
    """

    source: str
    buffered: bool


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceCounters:
    """Of one interface, in the words of the guest: it receives rx.

    :ivar rx_dropped: packets for the guest that it was not given, which are
        not in rx_packets
    """

    rx_packets: int
    rx_bytes: int
    rx_dropped: int
    tx_packets: int
    tx_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class DiskCounters:
    """Of one disk, finished requests."""

    read_requests: int
    read_bytes: int
    write_requests: int
    write_bytes: int


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    """All counters of a domain at one moment.

    :ivar run: names this run of its emulator on this boot of the host, so
        that counters of two are never compared
    :ivar read_at_s: on the monotonic clock
    :ivar vcpu_ns: CPU time of its vCPU threads
    :ivar emulator_ns: of its emulator threads, without vhost and migration
    :ivar iothread_ns: of its I/O threads
    :ivar vhost_ns: of its vhost workers, threads or kernel threads
    :ivar migration_ns: of threads that only serve a migration: the host's
        wish, not the server's, hence nobody's bill
    :ivar throttled_ns: how long its vCPUs were held back by their limits, and
        all of its threads by the domain's, together
    :ivar interfaces: by the interface's name on the host
    :ivar disks: by the name in the guest, such as ``vda``; None where they
        were not read this time: another job held the domain, or it did next
        to nothing
    :ivar wakes: how often those began to run that take in its packets:
        QEMU's main thread, and workers of vhost
    """

    run: str
    read_at_s: float
    vcpu_ns: int
    emulator_ns: int
    iothread_ns: int
    vhost_ns: int
    migration_ns: int
    throttled_ns: int
    interfaces: Mapping[str, InterfaceCounters]
    disks: Mapping[str, DiskCounters] | None
    wakes: int = 0


class VcpuTime(ty.NamedTuple):
    """The CPU time of a domain's vCPUs at one moment.

    :ivar run: as that of :class:`Usage`, and so the next three
    :ivar vcpus: how many are online
    """

    run: str
    read_at_s: float
    vcpu_ns: int
    throttled_ns: int
    vcpus: int


@dataclasses.dataclass(frozen=True, slots=True)
class HostUsage:
    """CPU time of a whole host at one moment, since it booted.

    :ivar read_at_s: on the monotonic clock
    :ivar total_ns: of everything that ran
    :ivar domains_ns: of the cgroups below which domains are, as a whole: also
        of domains that are gone
    :ivar own_ns: of the host's other processes; the rest is the kernel's own
    """

    read_at_s: float
    total_ns: int
    domains_ns: int
    own_ns: int
