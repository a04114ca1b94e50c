# SPDX-License-Identifier: Apache-2.0
"""Whether a host can serve a server, by the stats of its compute node.

The one judgement of the scheduler's filter and of the operator's checks, so
that they cannot differ. Imports nothing of Nova's.
"""

from collections.abc import Callable, Sequence
import datetime
from decimal import Decimal
from fractions import Fraction
import functools
import operator
import typing as ty

from nova_vqos import core_types
from nova_vqos import guarantee
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units

_CoreTypes: ty.TypeAlias = Sequence[host_stats.CoreTypeRoom]
_Check: ty.TypeAlias = Callable[[host_stats.HostStats, _CoreTypes], str]


def fitting(policy: policies.ServerPolicy, core_types: _CoreTypes
            ) -> host_stats.CoreTypeRoom | None:
    """The core type that the driver would choose; None: none fits.

    :param policy: of the server, with units
    :param core_types: of a host, the slowest first
    """
    cu, vcpus = ty.cast(int, policy.units), policy.vcpus
    for one in core_types:
        speed_cu, room_cu, least_cu = one
        # NOTE: exact, so that a pCPU of 60 CU serves a vCPU of 60 CU.
        if cu <= room_cu and least_cu * vcpus <= cu <= speed_cu * vcpus:
            return one
    return None


def with_server(policy: policies.ServerPolicy, core_types: _CoreTypes
                ) -> _CoreTypes:
    """What one more server leaves of a host's core types.

    :param policy: of the server, with units
    """
    chosen = fitting(policy, core_types)
    if chosen is None:
        return core_types
    smaller = chosen._replace(
        room_cu=chosen.room_cu - ty.cast(int, policy.units))
    return [smaller if one is chosen else one for one in core_types]


class Judge:
    """What a server asks of a host, made ready for many hosts.

    :ivar asked: it, in words
    """

    def __init__(self, policy: policies.ServerPolicy, *, agent_max_age_s: int,
                 in_one_type: bool = True) -> None:
        """
        :param agent_max_age_s: see [vqos] agent_max_age_s
        :param in_one_type: whether a server runs on one core type whatever
            its cap, since it has no NUMA topology
        """
        self.asked = describe(policy)
        self._policy = policy
        self._in_one_type = core_types.in_one_type(
            policy, is_pinned=not in_one_type)
        self._agent_max_age_s = agent_max_age_s
        # NOTE: a check is asked of each of ten thousand hosts, so that those
        # that could not refuse any are left out here.
        checks: list[_Check] = []
        if policy.units is not None:
            checks += self._too_slow, self._does_not_pack
            if agent_max_age_s:
                now = datetime.datetime.now(datetime.UTC)
                self._oldest_heartbeat = now - datetime.timedelta(
                    seconds=agent_max_age_s)
                checks.append(self._agent_gone)
        for key, wanted, offered in (
                (policies.QUANTUM_CLASS_KEY, policy.quantum_class,
                 operator.attrgetter('quantum_classes')),
                (policies.DD_BILLING_KEY, policy.dd_billing,
                 operator.attrgetter('dd_billing'))):
            if _is_wanted(key, wanted):
                checks.append(functools.partial(
                    _not_offered, offered, key, wanted))
        if policy.guarantee == 'required':
            checks.append(self._no_guarantee)
        self._checks = tuple(checks)

    def refusal(self, stats: host_stats.HostStats,
                core_types: _CoreTypes | None = None) -> str:
        """Why a host is refused, '' if it is not: the first reason.

        :param stats: of its compute node
        :param core_types: that are left by now; None: as the stats say
        """
        core_types = stats.core_types if core_types is None else core_types
        for check in self._checks:
            reason = check(stats, core_types)
            if reason:
                return reason
        return ''

    def refusals(self, stats: host_stats.HostStats) -> list[str]:
        """All that is against a host; nothing if it is not refused."""
        return [reason for check in self._checks
                if (reason := check(stats, stats.core_types))]

    def speed_cu(self, stats: host_stats.HostStats) -> Decimal | None:
        """The speed of the pCPUs that count for a server.

        :param stats: of a host
        :returns: None where it is not known
        """
        if (self._policy.units is not None and self._in_one_type
                and stats.core_types):
            chosen = fitting(self._policy, stats.core_types)
            return None if chosen is None else chosen.speed_cu
        return stats.slowest_cu

    def _too_slow(self, stats: host_stats.HostStats,
                  core_types: _CoreTypes) -> str:
        if stats.profile != host_stats.VALID:
            return ('it accepts no new servers with units: '
                    f'{stats.profile}' if stats.profile
                    else 'it has no CPU units')
        policy = self._policy
        if self._in_one_type and core_types:
            return '' if fitting(policy, core_types) else _no_room(core_types)
        if stats.slowest_cu is None or stats.least_cu is None:
            return 'its stats do not say how fast it is'
        cu = ty.cast(int, policy.units)
        if cu > stats.slowest_cu * policy.vcpus:
            return (f'its slowest pCPU has {stats.slowest_cu} CU, less than '
                    'what each vCPU needs')
        if cu < stats.least_cu * policy.vcpus:
            return f'it can give a vCPU no less than {stats.least_cu} CU'
        return ''

    def _does_not_pack(self, stats: host_stats.HostStats,
                       _core_types: _CoreTypes) -> str:
        """NOTE: only the driver knows whether all vCPUs of a server pack."""
        largest_cu = stats.largest_vcpu_cu
        policy = self._policy
        if (largest_cu is None
                or ty.cast(int, policy.units) <= largest_cu * policy.vcpus):
            return ''
        return (f'no vCPU of more than {largest_cu} CU packs beside those of '
                'its servers')

    def _no_guarantee(self, stats: host_stats.HostStats,
                      _core_types: _CoreTypes) -> str:
        # Without a speed it is refused already.
        if self._policy.units is None or not stats.slowest_cu:
            return ''
        return guarantee.refusal(
            self._policy.units, self._policy.vcpus,
            Fraction(stats.slowest_cu), stats.guarantee_cu)

    def _agent_gone(self, stats: host_stats.HostStats,
                    _core_types: _CoreTypes) -> str:
        seen_at = stats.agent_seen_at
        if seen_at is None:
            return 'its agent was never seen'
        if seen_at >= self._oldest_heartbeat:
            return ''
        return (f'its agent was last seen at {seen_at.isoformat()}, longer '
                f'than {self._agent_max_age_s} s ago')


def asks_for_nothing(policy: policies.ServerPolicy | None) -> bool:
    """Whether a server asks nothing of ours of a host."""
    return policy is None or policy == policies.ServerPolicy(policy.vcpus)


def required_traits(policy: policies.ServerPolicy | None) -> frozenset[str]:
    """Traits of each host that is not refused for a server.

    They say less than :class:`Judge`: a host that has all of them may be
    refused.
    """
    if policy is None:
        return frozenset()
    found = [host_stats.quantum_trait(policy.quantum_class)]
    if policy.units is not None:
        found += host_stats.TRAIT, host_stats.speed_trait(
            units.cu_per_vcpu(policy.units, policy.vcpus))
        if policy.dd_billing == 'charge':
            found.append(host_stats.TRAIT_DD_BILLING)
        if policy.guarantee == 'required':
            found.append(host_stats.TRAIT_GUARANTEE)
    return frozenset(filter(None, found))


def forbidden_traits(policy: policies.ServerPolicy | None, *,
                     servers_without_units: str) -> frozenset[str]:
    """Traits of no host that is not refused for a server.

    :param servers_without_units: see [vqos] servers_without_units
    """
    has_units = policy is not None and policy.units is not None
    return frozenset(() if has_units or servers_without_units == 'allow'
                     else (host_stats.TRAIT_SELLS_UNITS,))


def describe(policy: policies.ServerPolicy) -> str:
    """What a server asks of a host, in words; '' when it is nothing."""
    asked = [f'{key} {value}' for key, value in (
        (policies.QUANTUM_CLASS_KEY, policy.quantum_class),
        (policies.DD_BILLING_KEY, policy.dd_billing),
        (policies.GUARANTEE_KEY, policy.guarantee))
        if _is_wanted(key, value)]
    if policy.units is not None:
        cu = units.cu_per_vcpu(policy.units, policy.vcpus)
        asked.insert(0, f'{policy.units} CU on {policy.vcpus} vCPUs, '
                     f'{units.format_cu(cu)} CU each')
    return ', '.join(asked)


def _is_wanted(key: str, value: str) -> bool:
    """Whether a value is one that a host may lack."""
    return value != policies.CHOICES[key][0]


def _no_room(core_types: _CoreTypes) -> str:
    has = ', '.join(f'{one.room_cu} CU left on pCPUs of {one.speed_cu} CU'
                    for one in core_types)
    return f'none of its core types is fast enough and has room: {has}'


def _not_offered(offered_of: Callable[[host_stats.HostStats], Sequence[str]],
                 key: str, wanted: str, stats: host_stats.HostStats,
                 _core_types: _CoreTypes) -> str:
    offered = offered_of(stats)
    return ('' if wanted in offered
            else f'it offers {key} {",".join(offered) or "nothing"}')
