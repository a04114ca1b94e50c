# SPDX-License-Identifier: Apache-2.0
"""Cost of the kernel's part of a server's I/O, as calibrated on its host.

Only CPU time that is not charged to a thread of the server: a packet that QEMU
or a vhost worker sends passes the bridge in that thread's own time, which is
measured; an arriving packet reaches the tap in softirq, charged to any thread
that runs then. Cost of requests = requests * per request + bytes * per byte
(thesis 4.3: T2 + T3, per request and per size). A single packet also wakes the
thread that receives it.
"""

from collections.abc import Mapping
import dataclasses

from nova_vqos.billing import usage


@dataclasses.dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU time of the host's kernel for one kind of request.

    :ivar request_ns: per request
    :ivar byte_ns: per byte, on top
    """

    request_ns: float
    byte_ns: float

    def total_ns(self, requests: int, size_bytes: int) -> float:
        """The cost of some requests.

        :param size_bytes: of all of them together
        """
        return requests * self.request_ns + size_bytes * self.byte_ns


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceCost:
    """Of one kind of interface; the guest receives rx.

    :ivar wake_ns: additional cost of a packet that wakes its receiving thread
    """

    rx: RequestCost
    tx: RequestCost
    wake_ns: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class DiskCost:
    """Of one kind of disk."""

    read: RequestCost
    write: RequestCost


@dataclasses.dataclass(frozen=True, slots=True)
class IoCosts:
    """All kinds of requests that a host was calibrated for."""

    interfaces: Mapping[usage.InterfaceKind, InterfaceCost]
    disks: Mapping[usage.DiskKind, DiskCost]
