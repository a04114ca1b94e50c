# SPDX-License-Identifier: Apache-2.0
"""How many CPU units a host sells, and whether its servers leave room.

Driver and agent count here, so that they cannot differ. Pure: no Nova, no
libvirt, no state.
"""

from fractions import Fraction
import math
import typing as ty

from nova_vqos import units


class HostFull(units.UnitsError):
    """The servers of a host leave too few of its units for another one."""

    def __init__(self, cost_cu: Fraction | int, room: 'Room') -> None:
        """
        :param cost_cu: CU that the refused server would take
        """
        super().__init__(
            f'the servers of this host have {math.ceil(room.costs_cu)} of the '
            f'{units.format_cu(room.sale.sold_cu())} CU that it sells, '
            f'{units.format_cu(cost_cu)} CU more do not fit')


class Sale(ty.NamedTuple):
    """What of a host is sold, but for what kinds of work take of that.

    :ivar capacity_cu: of the host
    :ivar reserved_cu: that are not sold whatever servers there are
    :ivar allocation_ratio: ratio of sold CU to the rest
    """

    capacity_cu: int
    reserved_cu: int
    allocation_ratio: float

    def sold_cu(self, work_cu: int = 0) -> float:
        """CU that servers may claim.

        :param work_cu: that are reserved for kinds of work as well
        """
        return sold_cu(
            self.capacity_cu,
            min(self.reserved_cu + work_cu, self.capacity_cu),
            self.allocation_ratio)


class Room(ty.NamedTuple):
    """The CPU units of a host and of its servers.

    :ivar units_cu: of all its servers, which they claimed
    :ivar costs_cu: that they take
    """

    units_cu: int
    costs_cu: Fraction
    sale: Sale

    def check(self, units_cu: int, cost_cu: Fraction | int) -> None:
        """Refuse one more server, as Placement would once it has come.

        So the agent, which compares claims with what Placement sells, never
        calls a host oversold by its rounding alone.

        :param units_cu: of the server
        :param cost_cu: CU that it takes: its units, or more where its kind of
            work is slow, see :func:`nova_vqos.units.cost_cu`
        :raises HostFull: when it does not fit
        """
        claimed_cu = self.units_cu + units_cu
        if claimed_cu > self.sale.sold_cu(work_cu(
                claimed_cu, self.costs_cu + cost_cu,
                self.sale.allocation_ratio)):
            raise HostFull(cost_cu, self)


def reserved_cu(capacity_cu: int, *, host_cu: int, stock_cu: int,
                unsold_cu: int, work_cu: int = 0) -> int:
    """CU of a host that it does not sell.

    :param capacity_cu: of the host; it reserves no more
    :param host_cu: for the host itself, see [vqos] reserved_cu
    :param stock_cu: what servers without units can use
    :param unsold_cu: that cannot be reserved for servers, which is for the
        others as well: see :func:`nova_vqos.guarantee.unsold_cu`
    :param work_cu: that servers take beyond their units, see :func:`work_cu`
    """
    return min(max(host_cu + stock_cu, unsold_cu) + work_cu, capacity_cu)


def work_cu(units_cu: int, costs_cu: Fraction,
            allocation_ratio: float) -> int:
    """CU of a host that it may not sell since slow kinds of work take them.

    What is reserved counts allocation_ratio times, see :func:`sold_cu`.

    :param units_cu: of all servers, which they claimed
    :param costs_cu: what they take
    """
    return math.ceil((costs_cu - units_cu)
                     / Fraction(repr(float(allocation_ratio))))


def sold_cu(capacity_cu: int, reserved_cu: int,
            allocation_ratio: float) -> float:
    """CU of a host that servers may claim, as Placement computes it."""
    return (capacity_cu - reserved_cu) * allocation_ratio
