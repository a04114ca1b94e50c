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

"""Where the CPU time of a host went, and what it has to keep for itself.

Nothing is hidden: what all CPUs did is what ran for servers, what is modelled
of the kernel's work for them, what the host's own processes used, and the
rest, which nobody can be named for.
"""

import collections
import dataclasses
import math
import typing as ty

from nova_vqos.billing import usage as usages

# What is suggested follows from the last day, minute by minute.
_REMEMBERED = 24 * 60
_SAMPLE_S = 60.0
# Of the minutes, in this part less is needed than is suggested.
_PERCENTILE = 0.95
_NS_PER_S = 1e9


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """Where the CPU time of a host went, in CU at its mean speed.

    :ivar total_cu: all that ran
    :ivar servers_cu: domains, with all of their threads
    :ivar modelled_cu: the kernel's work for the I/O of servers that are
        billed, as modelled; it ran outside of their cgroups
    :ivar own_cu: other processes of the host
    :ivar unattributed_cu: the rest: negative where the model says more than
        there was
    :ivar unpaid_cu: what servers' I/O used that nobody pays for: threads and
        modelled work of those that are billed and not charged; in the others
    """

    total_cu: float
    servers_cu: float
    modelled_cu: float
    own_cu: float
    unattributed_cu: float
    unpaid_cu: float

    @property
    def reserve_cu(self) -> float:
        """What ran and no server's entitlement pays for."""
        return max(0.0, self.own_cu + self.unattributed_cu + self.unpaid_cu)


class Capacity:
    """Follows where a host's CPU time goes."""

    def __init__(self) -> None:
        self._last: usages.HostUsage | None = None
        self._modelled_cu_us = 0
        self._unpaid_cu_us = 0
        self._shares: Shares | None = None
        self._reserves: collections.deque[float] = collections.deque(
            maxlen=_REMEMBERED)

    def add_server(self, threads_cu_us: int, modelled_cu_us: int, *,
                   charged: bool) -> None:
        """Take in what the I/O of a server that is billed used."""
        self._modelled_cu_us += modelled_cu_us
        if not charged:
            self._unpaid_cu_us += threads_cu_us + modelled_cu_us

    def is_due(self, now_s: float) -> bool:
        """Whether the host's counters are to be read again."""
        return self._last is None or (
            now_s - self._last.read_at_s >= _SAMPLE_S)

    def add_host(self, reading: usages.HostUsage, pcpu_cu: float) -> None:
        """Take in the host's counters.

        :param pcpu_cu: speed of a pCPU of the host, their mean, in CU
        """
        last, self._last = self._last, reading
        modelled_cu_us, self._modelled_cu_us = self._modelled_cu_us, 0
        unpaid_cu_us, self._unpaid_cu_us = self._unpaid_cu_us, 0
        if last is None or reading.read_at_s <= last.read_at_s:
            return
        length_s = reading.read_at_s - last.read_at_s

        def in_cu(name: str) -> float:
            grown_ns = max(0, getattr(reading, name) - getattr(last, name))
            return float(grown_ns / _NS_PER_S * pcpu_cu / length_s)

        total_cu, servers_cu, own_cu = map(in_cu, (
            'total_ns', 'domains_ns', 'own_ns'))
        modelled_cu = modelled_cu_us / 1e6 / length_s
        unpaid_cu = unpaid_cu_us / 1e6 / length_s
        self._shares = Shares(
            total_cu, servers_cu, modelled_cu, own_cu,
            total_cu - servers_cu - modelled_cu - own_cu, unpaid_cu)
        self._reserves.append(self._shares.reserve_cu)

    def report(self) -> dict[str, ty.Any] | None:
        """For people, in primitives; None: nothing is known yet.

        ``suggested_reserved_cu`` is what all but one in twenty of the minutes
        of the last day were content with.
        """
        if self._shares is None:
            return None
        reserves = sorted(self._reserves)
        at = math.ceil(_PERCENTILE * len(reserves)) - 1
        return {
            **{name: round(value, 3) for name, value
               in dataclasses.asdict(self._shares).items()},
            'suggested_reserved_cu': math.ceil(reserves[at]),
            'minutes_seen': len(reserves),
        }
