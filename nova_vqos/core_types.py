# SPDX-License-Identifier: Apache-2.0
"""Hosts with unlike cores: the core type for a server.

A server has one cap, computed from one coefficient. So it runs on the pCPUs of
one core type: those with the same coefficient. Compute driver and agent choose
the core type here, by what each still has room for. A host whose servers share
pCPUs of one core type needs no choice.

Pure: no Nova, no libvirt, no state, and exact sums as in
:mod:`nova_vqos.units`.
"""

import collections
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
import math
import types
import typing as ty

from nova_vqos import cpuset
from nova_vqos import packing
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos import work
from nova_vqos.profile import model


class Server(ty.NamedTuple):
    """A server that a host has.

    :ivar units: CU of the whole server
    :ivar pcpus: those that its vCPUs may run on; None: all that are shared
    :ivar vcpus: that share the units equally
    :ivar mix: kinds of work that the units are of; None: the mean of all
    """

    units: int
    pcpus: frozenset[int] | None
    vcpus: int
    mix: work.Mix | None = None


class CoreType(ty.NamedTuple):
    """The pCPUs of one core type that a host's servers share.

    :ivar coefficient: of each of its pCPUs, with all pCPUs of the host busy
    :ivar room_cu: capacity left for new servers; negative where it is
        oversold
    :ivar packed: its vCPUs, which have to pack; None: they need not
    :ivar kinds: likewise the coefficient, of each kind of work
    """

    pcpus: frozenset[int]
    coefficient: float
    room_cu: Fraction
    packed: packing.Pcpus | None = None
    kinds: Mapping[str, float] = types.MappingProxyType({})

    @property
    def whole_room_cu(self) -> int:
        """The room for servers, whose units are whole."""
        return max(0, math.floor(self.room_cu))

    @property
    def largest_vcpu_cu(self) -> Fraction | None:
        """CU of the largest vCPU that still fits; None: they need not pack."""
        if self.packed is None:
            return None
        return max(Fraction(0), min(
            self.room_cu, units.pcpu_cu(self.coefficient),
            self.packed.largest_cu()))

    @property
    def stranded_cu(self) -> Fraction | None:
        """CU that are left, but not for a vCPU as large as the largest here.

        They are in pieces of pCPUs that are smaller than that. None: vCPUs
        need not pack.
        """
        if self.packed is None:
            return None
        largest_cu = max(self.packed.vcpus, default=Fraction(0))
        return max(Fraction(0), self.room_cu - sum(
            piece_cu * pcpus for piece_cu, pcpus
            in self.packed.pieces().items() if piece_cu >= largest_cu))

    def takes(self, policy: policies.ServerPolicy) -> bool:
        """Whether there is room for a server.

        :param policy: with units
        """
        cost_cu = self.cost_cu(ty.cast(int, policy.units), policy.vcpus,
                               policy.mix)
        return self.room_cu >= cost_cu and (
            self.packed is None or self.packed.takes(
                cost_cu / policy.vcpus, policy.vcpus))

    def cost_cu(self, cu: Fraction | int, vcpus: Fraction | int,
                mix: work.Mix | None) -> Fraction:
        """CU of its pCPUs that a server takes, see :func:`units.cost_cu`.

        With a kind of work that was not measured a server has an unknown cap:
        each vCPU takes a whole pCPU, the most that it can.

        :param cu: of the server, or of the part of it that runs here
        :param vcpus: likewise
        :param mix: of its kinds of work
        """
        if mix is None:
            return Fraction(cu)
        try:
            coefficient = mix.coefficient(self.kinds)
        except work.KindMissing:
            return max(Fraction(cu), vcpus * units.pcpu_cu(self.coefficient))
        return units.cost_cu(cu, self.coefficient, coefficient)

    def fast_enough(self, policy: policies.ServerPolicy, *,
                    tick_us: int) -> bool:
        """Whether a cap can give each vCPU of a server its speed here.

        :param policy: with units
        """
        mix = policy.mix
        try:
            units.cap(ty.cast(int, policy.units), policy.vcpus,
                      self.coefficient if mix is None
                      else mix.coefficient(self.kinds), tick_us=tick_us)
        except units.UnitsError:
            return False
        return True


class NoCoreTypeFits(units.UnitsError):
    """No core type is fast enough for a server and has room for it."""

    def __init__(self, policy: policies.ServerPolicy,
                 core_types: Sequence[CoreType]) -> None:
        cu = ty.cast(int, policy.units)
        each = units.format_cu(units.cu_per_vcpu(cu, policy.vcpus))
        super().__init__(
            f'no core type can take {cu} CU on {policy.vcpus} vCPUs, {each} '
            f'CU each{_of_work(policy)}: '
            f'{", ".join(map(_describe, core_types))}')


class SpansCoreTypes(units.UnitsError):
    """The cells of a server's NUMA topology share no core type."""

    def __init__(self, policy: policies.ServerPolicy,
                 core_types: Sequence[CoreType]) -> None:
        super().__init__(
            f'{policies.CAP_KEY} is {policy.cap}, and the NUMA cells of the '
            'server have no core type in common, so that one cap does not '
            f'hold in all: {", ".join(map(_describe, core_types))}')


def of_host(profile: model.Profile,
            pcpus: Iterable[int]) -> tuple[CoreType, ...]:
    """The core types of the pCPUs that servers share, without any server.

    Unmeasured pCPUs belong to none.
    """
    shared = frozenset(pcpus)
    return tuple(
        CoreType(mine, cpu_class.busy.coefficient,
                 _capacity_cu(len(mine), cpu_class.busy.coefficient),
                 kinds=cpu_class.busy.kinds)
        for cpu_class in profile.cpu_classes
        if (mine := cpu_class.pcpus & shared))


def with_servers(core_types: Sequence[CoreType], servers: Iterable[Server], *,
                 reserved_cu: int = 0,
                 allocation_ratio: float = 1.0,
                 exact: bool = False) -> tuple[CoreType, ...]:
    """The core types of a host with the room that its servers leave.

    :param core_types: see :func:`of_host`
    :param reserved_cu: CU reserved for the host and for servers without
        units, of each core type in proportion to its capacity
    :param allocation_ratio: ratio of sold CU to the rest
    :param exact: whether vCPUs have to pack. The host's own work needs no
        piece of its own: it uses what vCPUs leave. With a ratio above 1 each
        pCPU has so much more.
    """
    ratio = Fraction(repr(float(allocation_ratio)))
    total_cu = sum((one.room_cu for one in core_types), start=Fraction(0))
    sold = (1 - min(Fraction(reserved_cu), total_cu) / total_cu
            ) * ratio if core_types else Fraction(0)
    left_cu = [one.room_cu * sold for one in core_types]
    vcpus: list[collections.Counter[Fraction]] = [
        collections.Counter() for _ in core_types]
    for server in servers:
        for number, used_cu in enumerate(costs_cu(server, core_types)):
            left_cu[number] -= used_cu
            if used_cu:
                vcpus[number][used_cu / server.vcpus] += server.vcpus
    return tuple(
        one._replace(room_cu=room_cu, packed=packing.Pcpus(
            len(one.pcpus), max(Fraction(1), ratio) * units.pcpu_cu(
                one.coefficient), mine) if exact else None)
        for one, room_cu, mine in zip(core_types, left_cu, vcpus,
                                      strict=True))


def costs_cu(server: Server, core_types: Sequence[CoreType]
             ) -> list[Fraction]:
    """CU that a server takes of each core type.

    Of several that it may run on it uses a part of each, in proportion to the
    capacity of the pCPUs that it may run on.

    :param core_types: without any server, see :func:`of_host`
    """
    parts_cu = [_capacity_cu(
        len(one.pcpus if server.pcpus is None
            else one.pcpus & server.pcpus), one.coefficient)
        for one in core_types]
    # NOTE: pCPUs of another host, which libvirt's hook does not count either.
    if not any(parts_cu):
        parts_cu = [one.room_cu for one in core_types]
    whole_cu = sum(parts_cu, start=Fraction(0))
    return [one.cost_cu(server.units * part_cu / whole_cu,
                        server.vcpus * part_cu / whole_cu, server.mix)
            for one, part_cu in zip(core_types, parts_cu, strict=True)]


def choose(policy: policies.ServerPolicy, core_types: Sequence[CoreType], *,
           tick_us: int) -> CoreType:
    """The core type for a new server: the slowest that is fast enough.

    So the fast ones stay free for servers that need them. Only core types with
    room count; of equally fast ones that with the most room.

    :param policy: of the server, with units
    :param tick_us: length of the kernel's scheduler tick
    :raises NoCoreTypeFits: when there is none
    """
    fitting = [one for one in core_types if _fits(policy, one, tick_us)]
    if not fitting:
        raise NoCoreTypeFits(policy, core_types)
    return min(fitting, key=lambda one: (
        one.coefficient, -one.room_cu, min(one.pcpus)))


def choose_again(policy: policies.ServerPolicy,
                 core_types: Sequence[CoreType],
                 last: frozenset[int] | None, *,
                 tick_us: int) -> CoreType | None:
    """The core type for a server that has been on this host before.

    The previous one, unless only another one has room for the server.

    :param policy: of the server, with units
    :param core_types: without the server itself
    :param last: pCPUs that its vCPUs could run on; None: unknown
    :returns: None where none fits: the server returns all the same
    """
    previous = next((one for one in core_types if last and last <= one.pcpus),
                    None)
    if previous is not None and _fits(policy, previous, tick_us):
        return previous
    try:
        return choose(policy, core_types, tick_us=tick_us)
    except NoCoreTypeFits:
        if previous is not None and previous.fast_enough(policy,
                                                         tick_us=tick_us):
            return previous
        return None


def in_one_type(policy: policies.ServerPolicy, *, is_pinned: bool) -> bool:
    """Whether a server has to run on one core type.

    The slowest pCPU that it may run on defines its cap. On all faster ones a
    hard cap would be exceeded; a floor gives no server less than its promise.

    :param is_pinned: whether its vCPUs have pins, those of a NUMA topology
    """
    return not is_pinned or policy.cap == 'hard'


def restricted(core_types: Iterable[CoreType],
               pcpus: frozenset[int]) -> tuple[CoreType, ...]:
    """The parts of core types on some pCPUs, for a server bound to these."""
    return tuple(
        one._replace(pcpus=mine, room_cu=min(
            one.room_cu, _capacity_cu(len(mine), one.coefficient)))
        for one in core_types if (mine := one.pcpus & pcpus))


def _fits(policy: policies.ServerPolicy, core_type: CoreType,
          tick_us: int) -> bool:
    return (core_type.fast_enough(policy, tick_us=tick_us)
            and core_type.takes(policy))


def _of_work(policy: policies.ServerPolicy) -> str:
    return f' of {policies.WORK_KEY} {policy.work}' if policy.work else ''


def _describe(core_type: CoreType) -> str:
    """What it has, in words."""
    speed_cu = units.format_cu(units.pcpu_cu(core_type.coefficient))
    has = (f'pCPUs {cpuset.format_pcpus(core_type.pcpus)} of {speed_cu} CU '
           f'each have {core_type.whole_room_cu} CU left')
    largest_cu = core_type.largest_vcpu_cu
    return has if largest_cu is None else (
        f'{has}, for a vCPU of at most {units.format_cu(largest_cu)} CU')


def _capacity_cu(pcpus: int, coefficient: float) -> Fraction:
    return pcpus * units.pcpu_cu(coefficient)
