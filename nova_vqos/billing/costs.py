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

"""What the kernel's part of a server's I/O costs, as calibrated on its host.

Only what no thread of the server was charged for: a packet that QEMU or a
vhost worker sends goes through the bridge in that thread's own time, which is
measured; one that arrives gets to the tap in softirq, charged to whoever runs
(TRAPS on softirq). Cost of some requests = requests * per request + bytes *
per byte (thesis 4.3: T2 + T3, per request and per size); where packets come
one by one, each of them also wakes the one who takes it in.
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
        """Of some requests that have so many bytes together."""
        return requests * self.request_ns + size_bytes * self.byte_ns


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceCost:
    """Of one kind of interface, in the words of the guest.

    :ivar wake_ns: of a packet for the guest for which the one had to be woken
        who takes it in, on top
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
