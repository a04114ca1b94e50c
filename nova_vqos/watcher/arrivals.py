# SPDX-License-Identifier: Apache-2.0
"""What a host's stats say of servers that are about to arrive, at worst. Pure.

The scheduler's filter leaves to the driver what stats do not say, and then
supposes the best case. Here the worst is supposed.
"""

from decimal import Decimal
from fractions import Fraction
import math
import typing as ty

from nova_vqos import core_types
from nova_vqos import guarantee
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.scheduler import fitness


def stats_after(policy: policies.ServerPolicy, stats: host_stats.HostStats, *,
                in_one_type: bool) -> host_stats.HostStats:
    """The stats of a host that has one more server, at worst.

    :param policy: of the server, with units
    :param in_one_type: see :func:`nova_vqos.core_types.in_one_type`
    """
    after = fitness.stats_with_server(policy, stats, in_one_type=in_one_type)
    cost_cu = _most_cost_cu(policy, stats)
    if cost_cu is not None:
        after = after._replace(room_cu=_less(stats.room_cu, cost_cu))
        if not in_one_type:
            after = after._replace(core_types=tuple(
                one._replace(room_cu=_less(one.room_cu, cost_cu))
                for one in stats.core_types))
    if stats.largest_vcpu_cu is not None:
        # Where its vCPUs go, and what they leave, is the driver's to say.
        after = after._replace(largest_vcpu_cu=Decimal(0), pieces=())
    terms = fitness.terms_of(policy, stats)
    if (policy.guarantee != 'off' and stats.guarantee_cu is not None
            and terms is not None and stats.slowest_cu):
        share = (units.cu_per_vcpu(ty.cast(int, policy.units), policy.vcpus)
                 / Fraction(terms.speed_cu))
        after = after._replace(guarantee_cu=max(0, math.floor(
            stats.guarantee_cu - Fraction(stats.slowest_cu)
            * guarantee.cost_pcpus(share, policy.vcpus))))
    return after


def doubts(policy: policies.ServerPolicy, stats: host_stats.HostStats, *,
           in_one_type: bool) -> tuple[str, ...]:
    """What the filter leaves to the driver to refuse.

    NOTE: the filter compares the least cost of all core types with what is
    left, and the largest vCPU that packs. Stats have pieces of pCPUs rounded
    up, and not the core types that these are of.

    :param policy: see :func:`stats_after`, as the next one
    """
    cost_cu = _most_cost_cu(policy, stats)
    if cost_cu is None:
        return ()
    takes = f'the server may take {units.format_cu(cost_cu)} CU of it'
    if not in_one_type and stats.room_cu is not None and (
            math.floor(cost_cu) > stats.room_cu):
        return (f'{takes}, and its servers leave {stats.room_cu}',)
    largest_cu = stats.largest_vcpu_cu
    if largest_cu is None or (policy.vcpus == 1 and cost_cu <= largest_cu):
        return ()
    if stats.core_types:
        return (f'{takes}, in pieces of pCPUs whose core types are not known',)
    vcpu_cu = Fraction(cost_cu) / policy.vcpus
    places = sum(math.floor((one.cu - 1) / vcpu_cu) * one.pcpus
                 for one in stats.pieces)
    if places >= policy.vcpus:
        return ()
    return (f'the pieces of its pCPUs have places for {places} vCPUs of '
            f'{units.format_cu(vcpu_cu)} CU for certain, the server has '
            f'{policy.vcpus}',)


def _most_cost_cu(policy: policies.ServerPolicy, stats: host_stats.HostStats
                  ) -> Fraction | int | None:
    """CU of a host that a server takes, of all core types the most.

    None: not known.
    """
    cu, mix = ty.cast(int, policy.units), policy.mix
    if mix is None:
        return cu
    return max((core_types.CoreType(
        frozenset(), float(one.speed_cu / units.CU_PER_REFERENCE_PCPU),
        Fraction(0), kinds=one.kinds).cost_cu(cu, policy.vcpus, mix)
        for one in stats.work), default=None)


def _less(room_cu: int | None, cost_cu: Fraction | int) -> int | None:
    return None if room_cu is None else max(0, room_cu - math.ceil(cost_cu))
