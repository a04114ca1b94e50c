# SPDX-License-Identifier: Apache-2.0
"""The load of a host by origin, and the reserve that it needs.

The CPU time of all CPUs is that of servers, that of the kernel's modelled work
for them, that of the host's own processes, and an unattributed rest.
"""

import collections
from collections.abc import Mapping
import dataclasses
import math

from nova_vqos import cpuset
from nova_vqos.billing import io_fairness
from nova_vqos.billing import packet_load
from nova_vqos.billing import reserve
from nova_vqos.billing import usage

# The suggestion is based on the minutes of the last day.
_REMEMBERED = 24 * 60
_SAMPLE_S = 60.0
# The suggestion suffices for this part of the minutes.
_PERCENTILE = 0.95
_NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """The load of a host by origin, in CU at its mean speed.

    :ivar total_cu: all threads
    :ivar servers_cu: domains, with all of their threads
    :ivar modelled_cu: modelled work of the kernel for the I/O of billed
        servers, which ran outside their cgroups
    :ivar own_cu: other processes of the host
    :ivar unattributed_cu: the rest; negative where the model exceeds it
    :ivar unpaid_cu: I/O for which no server pays: threads and modelled work of
        servers that are billed and not charged, and what those that are do
        not pay for; included in the others
    """

    total_cu: float
    servers_cu: float
    modelled_cu: float
    own_cu: float
    unattributed_cu: float
    unpaid_cu: float


@dataclasses.dataclass(frozen=True, slots=True)
class LoadReport(Load):
    """The load of the last minute, and the suggested reserve, for people.

    :ivar suggested_reserved_cu: suffices for 95 % of the minutes of the last
        day
    :ivar minutes_seen: number of these minutes
    :ivar packets: None: not known
    :ivar reserve_cu: that follows the load, see
        :mod:`nova_vqos.billing.reserve`
    :ivar fairness: by direction, see
        :mod:`nova_vqos.billing.io_fairness`; without those of which no two
        servers can be compared
    """

    suggested_reserved_cu: int
    minutes_seen: int
    packets: packet_load.PacketReport | None = None
    reserve_cu: int = 0
    fairness: Mapping[str, io_fairness.Fairness] = dataclasses.field(
        default_factory=dict)


class HostLoad:
    """Observes the load of a host."""

    def __init__(self, reserve_cu: int = 0) -> None:
        """:param reserve_cu: that an agent before this one had measured"""
        self._reserve = reserve.Reserve(reserve_cu)
        self._last: usage.HostUsage | None = None
        self._modelled_cu_us = 0
        self._unpaid_cu_us = 0
        self._load: Load | None = None
        self._packets = packet_load.PacketLoad()
        self._io = io_fairness.IoFairness()
        self._fairness: Mapping[str, io_fairness.Fairness] = {}
        self._reserves: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED)

    @property
    def alarms(self) -> tuple[str, ...]:
        """Problems that an operator has to look at."""
        packets = self._packets.report
        if packets is None or not packets.saturated_pcpus:
            return ()
        return (f'pCPUs {cpuset.format_pcpus(packets.saturated_pcpus)} have '
                'no time for more packets, and drop some: let more pCPUs '
                'receive (queues, RPS), or move servers away',)

    @property
    def reserve_cu(self) -> int:
        """See :class:`nova_vqos.billing.reserve.Reserve`."""
        return self._reserve.cu

    @property
    def outside_cu(self) -> float | None:
        """What ran outside of domains in the last minute, the kernel's work
        for their I/O included; None: not known.
        """
        load = self._load
        return None if load is None else max(
            0.0, load.total_cu - load.servers_cu)

    def add_server(self, modelled_cu_us: int, *, unpaid_cu_us: int) -> None:
        """Add the I/O of a billed server.

        :param unpaid_cu_us: of its threads and of the kernel, for which it
            does not pay
        """
        self._modelled_cu_us += modelled_cu_us
        self._unpaid_cu_us += unpaid_cu_us

    def add_packets(self, uuid: str, units: int | None, length_s: float,
                    delivered: int, dropped: int) -> None:
        """As :meth:`nova_vqos.billing.io_fairness.IoFairness.add`."""
        self._io.add(uuid, units, length_s, delivered, dropped)

    def is_due(self, now_s: float) -> bool:
        """Whether the next reading of the host's counters is due."""
        return self._last is None or (
            now_s - self._last.read_at_s >= _SAMPLE_S)

    def add_host(self, reading: usage.HostUsage, pcpu_cu: float) -> None:
        """Add a reading of the host's counters.

        :param pcpu_cu: mean speed of the host's pCPUs, in CU
        """
        last, self._last = self._last, reading
        self._packets.add(reading.read_at_s, reading.packets)
        modelled_cu_us, self._modelled_cu_us = self._modelled_cu_us, 0
        unpaid_cu_us, self._unpaid_cu_us = self._unpaid_cu_us, 0
        length_s = 0.0 if last is None else reading.read_at_s - last.read_at_s
        self._fairness = self._io.end(length_s)
        if last is None or length_s <= 0:
            return

        def in_cu(name: str) -> float:
            grown_ns = max(0, getattr(reading, name) - getattr(last, name))
            return float(grown_ns / _NS_PER_S * pcpu_cu / length_s)

        total_cu, servers_cu, own_cu = map(in_cu, (
            'total_ns', 'domains_ns', 'own_ns'))
        modelled_cu = modelled_cu_us / 1e6 / length_s
        unpaid_cu = unpaid_cu_us / 1e6 / length_s
        self._load = Load(
            total_cu, servers_cu, modelled_cu, own_cu,
            total_cu - servers_cu - modelled_cu - own_cu, unpaid_cu)
        # The load that no server's entitlement pays for.
        rest_cu = max(0.0, own_cu + self._load.unattributed_cu + unpaid_cu)
        self._reserves.append(rest_cu)
        self._reserve.add_minute(rest_cu, self._usual_cu(), pcpu_cu)

    def _usual_cu(self) -> float:
        """What suffices for nearly all minutes of the last day, in CU."""
        reserves = sorted(self._reserves)
        return reserves[math.ceil(_PERCENTILE * len(reserves)) - 1]

    def report(self) -> LoadReport | None:
        """For people; None: before the second reading."""
        if self._load is None:
            return None
        return LoadReport(
            **{name: round(value, 3) for name, value
               in dataclasses.asdict(self._load).items()},
            suggested_reserved_cu=math.ceil(self._usual_cu()),
            minutes_seen=len(self._reserves), packets=self._packets.report,
            reserve_cu=self.reserve_cu, fairness=self._fairness)
