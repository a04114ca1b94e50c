# SPDX-License-Identifier: Apache-2.0
"""Which hosts can take a server, why not others, and what it gets. Pure.

The judgement of a host's stats is the scheduler filter's own, see
:mod:`nova_vqos.scheduler.fitness`; the arithmetic is Placement's.
"""

from collections.abc import Mapping
import datetime
import decimal
import fractions
import typing as ty

from nova_vqos import cputune
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.agent import fanout
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.scheduler import fitness

YES, NO, UNKNOWN = 'yes', 'no', 'unknown'

# Of the stats of a compute service: it reports each minute, unless its
# operator has it report less often than the scheduler's limit for agents.
_LEAST_MAX_AGE_S = 300
# How near a cap is to what was promised: see nova_vqos.units.cap().
_TOLERANCE = 0.001


class Facts(ty.NamedTuple):
    """The answers about a host.

    :ivar offered: whether Placement offers it
    :ivar provider: None: Placement does not know it
    :ivar answer: of its agent to get_host
    """

    compute: cloud.Compute
    offered: bool
    provider: demands.Provider | None
    answer: fanout.Answer[host_report.Host]


class Verdict(ty.NamedTuple):
    """Whether a host can take a server.

    :ivar fits: YES, NO or UNKNOWN
    :ivar free_cu: that Placement has left; None: the host has none
    :ivar takes_cu: CU of the host that the server takes; None: not known, or
        it has no units
    :ivar speed_cu: of the pCPUs that count for the server, by its kind of
        work; None: not known
    :ivar reasons: what is against it, or why it is not known
    """

    host: str
    fits: str
    free_cu: int | None
    takes_cu: float | None
    speed_cu: float | None
    reasons: tuple[str, ...]


class Landing(ty.NamedTuple):
    """A server on its new host.

    :ivar cap: of each of its vCPUs; None: none, or unknown
    :ivar cap_cu: the speed that the cap allows there
    :ivar as_fast: whether that is the promised one; None: none was promised,
        or it is unknown
    :ivar notes: remarks for the operator
    """

    cap: units.CpuCap | None = None
    cap_cu: float | None = None
    as_fast: bool | None = None
    notes: tuple[str, ...] = ()


class Check:
    """Checks many hosts for one server."""

    def __init__(self, policy: policies.ServerPolicy | None,
                 demand: demands.Demand, *, agent_max_age_s: int,
                 servers_without_units: str, in_one_type: bool = True
                 ) -> None:
        """
        :param policy: of the server; None: stock Nova's business
        :param agent_max_age_s: see the option, as the next one
        :param in_one_type: see :class:`nova_vqos.scheduler.fitness.Judge`
        """
        self._policy = policy or policies.ServerPolicy(1)
        self._demand = demand
        self._without_units = servers_without_units
        self._judge = fitness.Judge(
            self._policy, agent_max_age_s=agent_max_age_s,
            in_one_type=in_one_type)
        self._oldest_stats = (
            datetime.datetime.now(datetime.UTC) - datetime.timedelta(
                seconds=max(agent_max_age_s, _LEAST_MAX_AGE_S)))

    def verdict(self, facts: Facts) -> Verdict:
        """Whether a host can take the server."""
        stats, doubt = None, ''
        obstacles = [*facts.compute.obstacles]
        try:
            stats, doubt = self._stats_of(facts.answer)
        except host_stats.StatInvalid as error:
            if not fitness.asks_for_nothing(self._policy):
                obstacles.append(f'its stats are invalid: {error}')
        if self._policy.units is None:
            obstacles += self._kept(stats, facts.provider)
        if stats:
            obstacles += self._judge.refusals(stats)
        obstacles += self._lacking(stats, facts)
        if fitness.asks_for_nothing(self._policy):
            doubt = ''
        elif stats and stats.profile == host_stats.VALID and (
                self._policy.units):
            host = facts.answer.value
            # What the agent found since the compute service reported.
            doubt = (f'the scheduler does not know yet: {host.problem}'
                     if host and host.problem else '')
        # Placement and the stats may give the same reason.
        obstacles = list(dict.fromkeys(obstacles))
        fits = NO if obstacles else UNKNOWN if doubt else YES
        return Verdict(
            host=facts.compute.host, fits=fits,
            free_cu=facts.provider and facts.provider.free_cu,
            takes_cu=stats and _number(self._judge.cost_cu(stats)),
            speed_cu=stats and _number(self._judge.speed_cu(stats)),
            reasons=(*obstacles, *([doubt] if doubt else [])))

    def _stats_of(self, answer: fanout.Answer[host_report.Host]
                  ) -> tuple[host_stats.HostStats | None, str]:
        """:returns: stats, None where they are unknown, and why they are

        :raises nova_vqos.host_stats.StatInvalid:
        """
        host = answer.value
        if host is None:
            return None, f'its agent gave no answer: {answer.error}'
        if not host.stats:
            problem = host.stats_problem or 'the agent is too old'
            return None, ('the stats of its compute node are unknown: '
                          f'{problem}')
        if not self._is_of_now(host.stats_at):
            return None, ('the last stats of its compute node are of '
                          f'{host.stats_at}')
        return host_stats.decode(host_stats.texts_of(host.stats)), ''

    def _is_of_now(self, at: str) -> bool:
        try:
            return datetime.datetime.fromisoformat(at) >= self._oldest_stats
        except (TypeError, ValueError):
            # NOTE: a time without an offset cannot be compared.
            return False

    def _kept(self, stats: host_stats.HostStats | None,
              provider: demands.Provider | None) -> list[str]:
        if self._without_units == 'allow':
            return []
        if stats:
            sells_units = stats.sells_units
        else:
            sells_units = provider is not None and (
                provider.free_cu is not None)
        return ['it is kept for servers with units ([vqos] '
                'servers_without_units)'] if sells_units else []

    def _lacking(self, stats: host_stats.HostStats | None,
                 facts: Facts) -> list[str]:
        if facts.offered:
            return []
        if facts.provider is None:
            return ['Placement does not know it']
        demand = self._demand
        if stats and stats.profile not in ('', host_stats.VALID):
            # That its units are closed is no reason of its own.
            demand = demand._replace(resources={
                name: amount for name, amount in demand.resources.items()
                if name != policies.RESOURCE_CLASS})
        reasons = facts.provider.lacks(demand)
        if not reasons and demand is self._demand:
            return ['Placement does not offer it, for nothing that its own '
                    'inventories and traits show']
        return reasons


def land(policy: policies.ServerPolicy | None, verdict: Verdict,
         terms: Mapping[str, int], *, has_hook: bool,
         now_cu: float | None) -> Landing:
    """A server on its new host.

    :param policy: None: stock Nova's business
    :param verdict: of the host
    :param terms: see :class:`nova_vqos.compute_state.ComputeState`
    :param has_hook: whether libvirt's hook is installed there
    :param now_cu: speed of the slowest pCPU where it is now; None: not known
    """
    if policy is None or policy.units is None:
        return Landing(notes=_without_promise(verdict.speed_cu, now_cu))
    if verdict.fits == NO:
        return Landing()
    notes = [] if has_hook else [
        "libvirt's hook is not installed there: the server arrives with the "
        'cap that it has now, until the agent corrects it']
    if policy.cap == 'floor':
        return Landing(notes=(*notes, 'it is not capped: a floor'),
                       as_fast=True if verdict.speed_cu else None)
    cap = _cap(policy, verdict.speed_cu, terms)
    if cap is None or verdict.speed_cu is None:
        return Landing(notes=tuple(notes))
    cap_cu = float(cap.share) * verdict.speed_cu
    promised_cu = float(units.cu_per_vcpu(policy.units, policy.vcpus))
    return Landing(
        cap=cap, cap_cu=round(cap_cu, 2),
        as_fast=abs(cap_cu / promised_cu - 1) <= _TOLERANCE,
        notes=tuple(notes))


def _cap(policy: policies.ServerPolicy, speed_cu: float | None,
         terms: Mapping[str, int]) -> units.CpuCap | None:
    if speed_cu is None:
        return None
    # NOTE: exact, so that a pCPU of 33.4 CU takes a vCPU of 33.4 CU.
    coefficient = float(decimal.Decimal(repr(speed_cu))
                        / units.CU_PER_REFERENCE_PCPU)
    try:
        fields = {name: terms[name] for name in cputune.Periods._fields}
        return cputune.compute_cap(
            policy, coefficient, tick_us=terms['tick_us'],
            periods=cputune.Periods(**fields))
    except (KeyError, ValueError):
        return None


def _without_promise(there_cu: float | None, now_cu: float | None
                     ) -> tuple[str, ...]:
    note = 'its flavor promises no speed'
    if there_cu and now_cu:
        note += f': a pCPU there is {there_cu / now_cu:.2f} times as fast'
    return (note,)


def _number(cu: decimal.Decimal | fractions.Fraction | int | None
            ) -> float | None:
    if cu is None:
        return None
    number = float(cu)
    return int(number) if number.is_integer() else number
