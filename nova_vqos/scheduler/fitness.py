# SPDX-License-Identifier: Apache-2.0
"""Whether a host can serve a server, by the stats of its compute node.

The one judgement of the scheduler's filter and of the operator's checks, so
that they cannot differ. Imports nothing of Nova's.
"""

from collections.abc import Callable, Mapping, Sequence
import datetime
from decimal import Decimal
from fractions import Fraction
import functools
import math
import operator
import typing as ty

from nova_vqos import core_types
from nova_vqos import guarantee
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos import work as works

_CoreTypes: ty.TypeAlias = Sequence[host_stats.CoreTypeRoom]
_Check: ty.TypeAlias = Callable[[host_stats.HostStats], str]


class Terms(ty.NamedTuple):
    """What pCPUs of one speed are for a server.

    :ivar speed_cu: of each, by the server's kind of work
    :ivar cost_cu: CU of the host that the server takes there
    """

    speed_cu: Decimal
    cost_cu: Fraction | int

    def least_cu(self, least_cu: Decimal, pcpu_cu: Decimal) -> Decimal:
        """CU of a vCPU that a cap can give there, by the same kind.

        :param least_cu: by the mean of all kinds
        :param pcpu_cu: speed by that mean
        """
        return (least_cu if self.speed_cu == pcpu_cu
                else least_cu * self.speed_cu / pcpu_cu)


def terms(policy: policies.ServerPolicy, pcpu_cu: Decimal,
          work: tuple[host_stats.WorkSpeeds, ...]) -> Terms | None:
    """What pCPUs are for a server; None: not measured with its work.

    :param policy: of the server, with units
    :param pcpu_cu: speed of the pCPUs by the mean of all kinds
    :param work: of the host
    """
    if policy.mix is None:
        return Terms(pcpu_cu, ty.cast(int, policy.units))
    return _terms_by_speed(policy, work).get(pcpu_cu)


@functools.lru_cache(maxsize=16384)
def _terms_by_speed(policy: policies.ServerPolicy,
                    work: tuple[host_stats.WorkSpeeds, ...]
                    ) -> Mapping[Decimal, Terms]:
    """Of the core types that were measured with a kind of work.

    NOTE: cached, since ten thousand hosts are asked for each server of a
    flavor, several times each.

    :param policy: with units and kinds of work
    """
    cu, mix = ty.cast(int, policy.units), ty.cast(works.Mix, policy.mix)
    best: dict[Decimal, float] = {}
    for one in work:
        coefficient = _coefficient(mix, one)
        if coefficient is not None:
            # Where core types of one speed differ: the driver knows which.
            best[one.speed_cu] = max(coefficient,
                                     best.get(one.speed_cu, coefficient))
    return {speed_cu: Terms(
        host_stats.speed_cu(coefficient), units.cost_cu(
            cu, float(speed_cu / units.CU_PER_REFERENCE_PCPU), coefficient))
        for speed_cu, coefficient in best.items()}


def _coefficient(mix: works.Mix, measured: host_stats.WorkSpeeds
                 ) -> float | None:
    try:
        return mix.coefficient(measured.kinds)
    except works.KindMissing:
        return None


def fitting(policy: policies.ServerPolicy, core_types: _CoreTypes,
            work: tuple[host_stats.WorkSpeeds, ...] = ()
            ) -> host_stats.CoreTypeRoom | None:
    """The core type that the driver would choose; None: none fits.

    :param policy: of the server, with units
    :param core_types: of a host, the slowest first; their room in whole CU, so
        that a part of one may have a place
    :param work: of the host
    """
    cu, vcpus = ty.cast(int, policy.units), policy.vcpus
    for one in core_types:
        speed_cu, room_cu, least_cu = one
        found = terms(policy, speed_cu, work)
        # NOTE: exact, so that a pCPU of 60 CU serves a vCPU of 60 CU.
        if found is None or (room_cu is not None
                             and math.floor(found.cost_cu) > room_cu):
            continue
        if (found.least_cu(least_cu, speed_cu) * vcpus <= cu
                <= found.speed_cu * vcpus):
            return one
    return None


def with_server(policy: policies.ServerPolicy, core_types: _CoreTypes,
                work: tuple[host_stats.WorkSpeeds, ...] = ()) -> _CoreTypes:
    """What one more server leaves of a host's core types.

    :param policy: of the server, with units
    :param work: of the host
    """
    chosen = fitting(policy, core_types, work)
    taken = chosen and terms(policy, chosen.speed_cu, work)
    if chosen is None or chosen.room_cu is None or taken is None:
        return core_types
    smaller = chosen._replace(
        room_cu=chosen.room_cu - math.ceil(taken.cost_cu))
    return [smaller if one is chosen else one for one in core_types]


def stats_with_server(policy: policies.ServerPolicy,
                      stats: host_stats.HostStats, *,
                      in_one_type: bool) -> host_stats.HostStats:
    """The stats of a host that has one more server, as far as a request needs.

    Placement counts the units of each server of a request, neither where they
    run nor what they take.

    :param policy: of the server, with units
    :param in_one_type: whether it runs on one core type
    """
    if in_one_type and stats.core_types:
        return stats._replace(core_types=tuple(
            with_server(policy, stats.core_types, stats.work)))
    taken_cu = cost_cu(policy, stats) if policy.work else None
    if taken_cu is None or stats.room_cu is None:
        return stats
    return stats._replace(room_cu=stats.room_cu - math.floor(taken_cu))


def terms_of(policy: policies.ServerPolicy, stats: host_stats.HostStats
             ) -> Terms | None:
    """What a host is for a server that may run on all its pCPUs.

    The slowest pCPU counts. None: that is not known.

    :param policy: of the server, with units
    """
    if policy.mix is None:
        return (None if stats.slowest_cu is None
                else terms(policy, stats.slowest_cu, ()))
    return _least_terms(policy, stats.work)


@functools.lru_cache(maxsize=16384)
def _least_terms(policy: policies.ServerPolicy,
                 work: tuple[host_stats.WorkSpeeds, ...]) -> Terms | None:
    """The slowest speed and the least cost; None: not measured."""
    known = _terms_by_speed(policy, work).values()
    if not known:
        return None
    return Terms(min(one.speed_cu for one in known),
                 min(one.cost_cu for one in known))


def cost_cu(policy: policies.ServerPolicy, stats: host_stats.HostStats
            ) -> Fraction | int | None:
    """CU of a host that a server takes; None: not known.

    Of several core types it is the least: no more than the driver counts.

    :param policy: of the server, with units
    """
    if policy.mix is None:
        return policy.units
    found = _least_terms(policy, stats.work)
    return None if found is None else found.cost_cu


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
            if policy.mix is not None:
                checks.append(self._no_room_for_work)
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
        if policy.project_ceiling_cu is not None:
            checks.append(_no_ceilings)
        self._checks = tuple(checks)

    def refusal(self, stats: host_stats.HostStats) -> str:
        """Why a host is refused, '' if it is not: the first reason.

        :param stats: of its compute node
        """
        for check in self._checks:
            reason = check(stats)
            if reason:
                return reason
        return ''

    def refusals(self, stats: host_stats.HostStats) -> list[str]:
        """All that is against a host; nothing if it is not refused."""
        return [reason for check in self._checks
                if (reason := check(stats))]

    def speed_cu(self, stats: host_stats.HostStats) -> Decimal | None:
        """The speed of the pCPUs that count for a server, by its work.

        :param stats: of a host
        :returns: None where it is not known
        """
        if self._policy.units is None:
            return stats.slowest_cu
        found = self._terms(stats)
        return None if found is None else found.speed_cu

    def cost_cu(self, stats: host_stats.HostStats) -> Fraction | int | None:
        """CU of a host that a server takes; None: not known, or no units.

        :param stats: of the host
        """
        found = None if self._policy.units is None else self._terms(stats)
        return None if found is None else found.cost_cu

    def _terms(self, stats: host_stats.HostStats) -> Terms | None:
        if self._in_one_type and stats.core_types:
            chosen = fitting(self._policy, stats.core_types, stats.work)
            return chosen and terms(self._policy, chosen.speed_cu, stats.work)
        return terms_of(self._policy, stats)

    def _too_slow(self, stats: host_stats.HostStats) -> str:
        if stats.profile != host_stats.VALID:
            return ('it accepts no new servers with units: '
                    f'{stats.profile}' if stats.profile
                    else 'it has no CPU units')
        policy = self._policy
        if policy.mix is not None:
            try:
                policy.mix.check(stats.work[0].kinds if stats.work else {})
            except works.KindMissing as error:
                # NOTE: the driver leaves both out of the stats.
                return f'{error}; or its interval is too wide'
        if self._in_one_type and stats.core_types:
            return ('' if fitting(policy, stats.core_types, stats.work)
                    else _no_room(stats.core_types))
        found = terms_of(policy, stats)
        if found is None or stats.slowest_cu is None or stats.least_cu is None:
            return 'its stats do not say how fast it is'
        cu = ty.cast(int, policy.units)
        if cu > found.speed_cu * policy.vcpus:
            return (f'its slowest pCPU has {found.speed_cu} CU'
                    f'{self._of_work}, less than what each vCPU needs')
        least_cu = found.least_cu(stats.least_cu, stats.slowest_cu)
        if cu < least_cu * policy.vcpus:
            return (f'it can give a vCPU no less than {least_cu} CU'
                    f'{self._of_work}')
        return ''

    def _no_room_for_work(self, stats: host_stats.HostStats) -> str:
        """NOTE: Placement counted its units, which may be less."""
        if stats.room_cu is None or (self._in_one_type and stats.core_types):
            return ''
        taken_cu = cost_cu(self._policy, stats)
        if taken_cu is None or math.floor(taken_cu) <= stats.room_cu:
            return ''
        return (f'{self._policy.units} CU{self._of_work} take '
                f'{units.format_cu(taken_cu)} CU of it, and its servers '
                f'leave {stats.room_cu}')

    @property
    def _of_work(self) -> str:
        return f' of {self._policy.work}' if self._policy.work else ''

    def _does_not_pack(self, stats: host_stats.HostStats) -> str:
        """NOTE: only the driver knows whether all vCPUs of a server pack."""
        largest_cu = stats.largest_vcpu_cu
        if largest_cu is None:
            return ''
        taken_cu = cost_cu(self._policy, stats)
        if taken_cu is None or taken_cu <= largest_cu * self._policy.vcpus:
            return ''
        return (f'no vCPU of more than {largest_cu} CU packs beside those of '
                'its servers')

    def _no_guarantee(self, stats: host_stats.HostStats) -> str:
        # Without a speed it is refused already.
        if self._policy.units is None or not stats.slowest_cu:
            return ''
        found = terms_of(self._policy, stats)
        if found is None:
            return ''
        vcpus = self._policy.vcpus
        return guarantee.refusal(
            units.cu_per_vcpu(self._policy.units, vcpus)
            / Fraction(found.speed_cu), vcpus,
            Fraction(stats.slowest_cu), stats.guarantee_cu)

    def _agent_gone(self, stats: host_stats.HostStats) -> str:
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
        # A host may be faster than its trait in a kind of work.
        found += host_stats.TRAIT, (
            None if policy.mix is not None else host_stats.speed_trait(
                units.cu_per_vcpu(policy.units, policy.vcpus)))
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
    if policy.work:
        asked.append(f'{policies.WORK_KEY} {policy.work}')
    if policy.project_ceiling_cu is not None:
        asked.append(
            f'{policies.PROJECT_CEILING_KEY} {policy.project_ceiling_cu}')
    if policy.units is not None:
        cu = units.cu_per_vcpu(policy.units, policy.vcpus)
        asked.insert(0, f'{policy.units} CU on {policy.vcpus} vCPUs, '
                     f'{units.format_cu(cu)} CU each')
    return ', '.join(asked)


def _is_wanted(key: str, value: str) -> bool:
    """Whether a value is one that a host may lack."""
    return value != policies.CHOICES[key][0]


def _no_room(core_types: _CoreTypes) -> str:
    has = ', '.join(
        f'pCPUs of {one.speed_cu} CU' if one.room_cu is None
        else f'{one.room_cu} CU left on pCPUs of {one.speed_cu} CU'
        for one in core_types)
    return f'none of its core types is fast enough and has room: {has}'


def _no_ceilings(stats: host_stats.HostStats) -> str:
    return '' if stats.keeps_ceilings else (
        f'its agent does not keep {policies.PROJECT_CEILING_KEY}')


def _not_offered(offered_of: Callable[[host_stats.HostStats], Sequence[str]],
                 key: str, wanted: str, stats: host_stats.HostStats) -> str:
    offered = offered_of(stats)
    return ('' if wanted in offered
            else f'it offers {key} {",".join(offered) or "nothing"}')
