# SPDX-License-Identifier: Apache-2.0
"""Cost of the kernel's part of a server's I/O, as calibrated on its host.

Only CPU time that is not charged to a thread of the server: a packet that QEMU
or a vhost worker sends passes the bridge in that thread's own time, which is
measured, up to the tap of a server on the same host; a packet that arrives
from elsewhere reaches the tap in softirq, charged to any thread that runs
then. The cost of requests is their number times the cost of one of their mean
size (thesis 4.3: T2 + T3, by size).
"""

import bisect
from collections.abc import Mapping
import dataclasses
from fractions import Fraction
import functools
import itertools

from nova_vqos.billing import usage


@dataclasses.dataclass(frozen=True, slots=True)
class RequestCost:
    """CPU time of the host's kernel for one kind of request, by its size.

    Between two sizes a request costs what the straight line between them says.
    Below the smallest size and above the largest one it costs as much as that:
    nothing was measured there, and what a line says far from what it was made
    of is no measurement.

    :ivar by_size: size in bytes and cost in ns, from 0 on, in ascending order
        of different sizes; one or more
    """

    by_size: tuple[tuple[int, float], ...]

    def total_ns(self, requests: int, size_bytes: int) -> Fraction:
        """The cost of some requests, exactly.

        :param size_bytes: of all of them together. The kernel counts bytes
            after their request: those of no request cost nothing
        """
        if not requests:
            return Fraction(0)
        sizes, costs_ns, slopes = _segments(self)
        # The mean is between the same whole sizes as its whole part.
        at = bisect.bisect_right(sizes, size_bytes // requests) - 1
        if at < 0:
            return requests * costs_ns[0]
        return (requests * costs_ns[at]
                + (size_bytes - requests * sizes[at]) * slopes[at])


@functools.lru_cache(maxsize=256)
def _segments(cost: RequestCost) -> tuple[
        tuple[int, ...], tuple[Fraction, ...], tuple[Fraction, ...]]:
    """:returns: sizes, the cost at each, and per byte from each to the next"""
    sizes, costs_ns = zip(*cost.by_size, strict=True)
    exact_ns = tuple(map(Fraction, costs_ns))
    slopes = [(after - before) / (next_size - size)
              for (size, before), (next_size, after) in itertools.pairwise(
                  zip(sizes, exact_ns, strict=True))]
    return sizes, exact_ns, (*slopes, Fraction(0))


@dataclasses.dataclass(frozen=True, slots=True)
class InterfaceCost:
    """Of one kind of interface; the guest receives rx."""

    rx: RequestCost
    tx: RequestCost


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
