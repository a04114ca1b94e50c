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

"""Hosts with unlike cores: which class of equal pCPUs a server is kept in.

A server is capped by one coefficient, so it runs on pCPUs of one class only.
Compute driver and agent choose that class here, by what each class still has
room for. A host whose servers share pCPUs of one class has no need of this.

Pure: no Nova, no libvirt, no state, and exact sums as in
:mod:`nova_vqos.units`.
"""

from collections.abc import Iterable, Sequence
from fractions import Fraction
import math
import typing as ty

from nova_vqos import policy as policies
from nova_vqos import profile as profiles
from nova_vqos import units


class Server(ty.NamedTuple):
    """A server that a host has.

    :ivar units: CU of the whole server
    :ivar pcpus: those that its vCPUs may run on; None: all that are shared
    """

    units: int
    pcpus: frozenset[int] | None


class Room(ty.NamedTuple):
    """A class of the pCPUs that a host's servers share.

    :ivar coefficient: of each of its pCPUs, with all pCPUs of the host busy
    :ivar room_cu: what is left of it for new servers; negative where it has
        more servers than it can serve
    """

    pcpus: frozenset[int]
    coefficient: float
    room_cu: Fraction

    @property
    def whole_room_cu(self) -> int:
        """The room for servers, whose units are whole."""
        return max(0, math.floor(self.room_cu))

    def fast_enough(self, policy: policies.ServerPolicy, *,
                    tick_us: int) -> bool:
        """Whether a cap can give each vCPU of a server its speed here.

        :param policy: with units
        """
        try:
            units.cap(ty.cast(int, policy.units), policy.vcpus,
                      self.coefficient, tick_us=tick_us)
        except units.UnitsError:
            return False
        return True


class NoClassFits(units.UnitsError):
    """No class is both fast enough for a server and has room for it.

    :ivar rooms: the classes that there are
    """

    def __init__(self, policy: policies.ServerPolicy,
                 rooms: Sequence[Room]) -> None:
        self.rooms = tuple(rooms)
        has = ', '.join(
            f'pCPUs {profiles.format_pcpus(room.pcpus)} of '
            f'{units.format_cu(units.pcpu_cu(room.coefficient))} CU each have '
            f'{room.whole_room_cu} CU left' for room in self.rooms)
        super().__init__(
            f'no class of equal pCPUs can take {policy.units} CU on '
            f'{policy.vcpus} vCPUs: {has}')


def of_host(profile: profiles.Profile,
            pcpus: Iterable[int]) -> tuple[Room, ...]:
    """The classes among the pCPUs that servers share, empty of servers.

    One alone is that of a host of equal pCPUs. pCPUs that were not measured
    are in none.
    """
    shared = frozenset(pcpus)
    return tuple(
        Room(mine, cpu_class.busy.coefficient,
             _capacity_cu(len(mine), cpu_class.busy.coefficient))
        for cpu_class in profile.cpu_classes
        if (mine := cpu_class.pcpus & shared))


def with_servers(classes: Sequence[Room], servers: Iterable[Server], *,
                 reserved_cu: int = 0,
                 allocation_ratio: float = 1.0) -> tuple[Room, ...]:
    """What the servers of a host leave of its classes.

    Of a server that may run on several classes each one carries a part, in
    proportion to the capacity that the server finds there.

    :param classes: see :func:`of_host`
    :param reserved_cu: CU kept for the host, of each class in proportion to
        its capacity
    :param allocation_ratio: how many times over the rest is sold
    """
    total_cu = sum((room.room_cu for room in classes), start=Fraction(0))
    sold = (1 - min(Fraction(reserved_cu), total_cu) / total_cu) * Fraction(
        repr(float(allocation_ratio))) if classes else Fraction(0)
    left = [room.room_cu * sold for room in classes]
    for server in servers:
        found = [_capacity_cu(
            len(room.pcpus if server.pcpus is None
                else room.pcpus & server.pcpus), room.coefficient)
            for room in classes]
        # NOTE: pCPUs of another host, which libvirt's hook does not count
        # either.
        found = found if any(found) else [room.room_cu for room in classes]
        whole_cu = sum(found, start=Fraction(0))
        for number, part_cu in enumerate(found):
            left[number] -= server.units * part_cu / whole_cu
    return tuple(room._replace(room_cu=room_cu)
                 for room, room_cu in zip(classes, left, strict=True))


def choose(policy: policies.ServerPolicy, rooms: Sequence[Room], *,
           tick_us: int) -> Room:
    """The class for a server: the slowest one that is fast enough, with room.

    So the fast ones are kept for those that need them. Of equally fast ones
    the one with most room.

    :param policy: of the server, with units
    :param tick_us: length of the kernel's scheduler tick
    :raises NoClassFits: when there is none
    """
    fitting = [room for room in rooms if _fits(policy, room, tick_us)]
    if not fitting:
        raise NoClassFits(policy, rooms)
    return min(fitting, key=lambda room: (
        room.coefficient, -room.room_cu, min(room.pcpus)))


def keep(policy: policies.ServerPolicy, rooms: Sequence[Room],
         last: frozenset[int] | None, *, tick_us: int) -> Room | None:
    """The class for a server that has been on this host before.

    The one that it had, unless only another one has room for it.

    :param policy: of the server, with units
    :param rooms: without the server itself
    :param last: pCPUs that its vCPUs could run on; None: not known
    :returns: None where none fits: nobody asked the server whether to return
    """
    had = None if last is None else holding(rooms, last)
    if had is not None and _fits(policy, had, tick_us):
        return had
    try:
        return choose(policy, rooms, tick_us=tick_us)
    except NoClassFits:
        if had is not None and had.fast_enough(policy, tick_us=tick_us):
            return had
        return None


def holding(classes: Iterable[Room], pcpus: frozenset[int]) -> Room | None:
    """The class that some pCPUs all belong to, None if there is none."""
    for room in classes:
        if pcpus and pcpus <= room.pcpus:
            return room
    return None


def narrowed(rooms: Iterable[Room],
             pcpus: frozenset[int]) -> tuple[Room, ...]:
    """What classes have on some of their pCPUs, for who may use no others."""
    return tuple(
        room._replace(pcpus=mine, room_cu=min(
            room.room_cu, _capacity_cu(len(mine), room.coefficient)))
        for room in rooms if (mine := room.pcpus & pcpus))


def _fits(policy: policies.ServerPolicy, room: Room, tick_us: int) -> bool:
    return (room.room_cu >= ty.cast(int, policy.units)
            and room.fast_enough(policy, tick_us=tick_us))


def _capacity_cu(pcpus: int, coefficient: float) -> Fraction:
    return pcpus * units.pcpu_cu(coefficient)
