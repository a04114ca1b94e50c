# SPDX-License-Identifier: Apache-2.0
"""How many CPU units a host sells, and whether its servers leave room.

Driver and agent count here, so that they cannot differ. Pure: no Nova, no
libvirt, no state.
"""

import typing as ty

from nova_vqos import units


class HostFull(units.UnitsError):
    """The servers of a host leave too few of its units for another one."""

    def __init__(self, units_cu: int, room: 'Room') -> None:
        """
        :param units_cu: CU of the server that is refused
        """
        super().__init__(
            f'the servers of this host have {room.used_cu} of the '
            f'{units.format_cu(room.sold_cu)} CU that it sells, {units_cu} CU '
            'more do not fit')


class Room(ty.NamedTuple):
    """The CPU units of a host and of its servers.

    :ivar used_cu: of all its servers
    :ivar sold_cu: that it sells, see :func:`sold_cu`
    """

    used_cu: int
    sold_cu: float

    def check(self, units_cu: int) -> None:
        """Refuse one more server, as Placement would.

        :param units_cu: CU of the server
        :raises HostFull: when it does not fit
        """
        if self.used_cu + units_cu > self.sold_cu:
            raise HostFull(units_cu, self)


def reserved_cu(capacity_cu: int, *, host_cu: int, stock_cu: int,
                unsold_cu: int) -> int:
    """CU of a host that it does not sell.

    :param capacity_cu: of the host; it reserves no more
    :param host_cu: for the host itself, see [vqos] reserved_cu
    :param stock_cu: what servers without units can use
    :param unsold_cu: that cannot be reserved for servers, which is for the
        others as well: see :func:`nova_vqos.guarantee.unsold_cu`
    """
    return min(max(host_cu + stock_cu, unsold_cu), capacity_cu)


def sold_cu(capacity_cu: int, reserved_cu: int,
            allocation_ratio: float) -> float:
    """CU of a host that servers may claim, as Placement computes it."""
    return (capacity_cu - reserved_cu) * allocation_ratio
