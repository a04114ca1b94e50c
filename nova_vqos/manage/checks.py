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
"""Which hosts can take a server, and why not the others. Pure.

The judgement of a host's stats is the scheduler filter's own, see
:mod:`nova_vqos.scheduler.fitness`; the arithmetic is Placement's.
"""

from collections.abc import Mapping
import datetime
import typing as ty

from nova_vqos import policy as policies
from nova_vqos.manage import cloud as clouds
from nova_vqos.manage import demand as demands
from nova_vqos.manage import fleet as fleets
from nova_vqos.scheduler import fitness

YES, NO, UNKNOWN = 'yes', 'no', 'unknown'

# Of what a compute service last said: it speaks each minute, unless its
# operator has it speak less often than the scheduler forgives its agent.
_LEAST_MAX_AGE_S = 300


class Settings(ty.NamedTuple):
    """What the scheduler goes by, see the options of the same names."""

    agent_max_age_s: int
    servers_without_units: str


class Facts(ty.NamedTuple):
    """What is known of a host.

    :ivar offered: whether Placement offers it
    :ivar provider: None: Placement does not know it
    :ivar answer: of its agent to get_host
    """

    compute: clouds.Compute
    offered: bool
    provider: demands.Provider | None
    answer: fleets.Answer


class Verdict(ty.NamedTuple):
    """Whether a host can take a server.

    :ivar fits: YES, NO or UNKNOWN
    :ivar free_cu: that Placement has left; None: the host has none
    :ivar speed_cu: of the pCPUs that count for the server; None: not known
    :ivar reasons: what is against it, or why it is not known
    :ivar stats: of the host; empty: not known
    """

    host: str
    fits: str
    free_cu: int | None
    speed_cu: float | None
    reasons: tuple[str, ...]
    stats: Mapping[str, str]


class Check:
    """What a server asks of hosts, made ready for many of them."""

    def __init__(self, policy: policies.ServerPolicy | None,
                 demand: demands.Demand, settings: Settings, *,
                 in_one_class: bool = True) -> None:
        """
        :param policy: of the server; None: stock Nova's business
        :param in_one_class: see :class:`nova_vqos.scheduler.fitness.Judge`
        """
        self._policy = policy or policies.ServerPolicy(1)
        self._demand = demand
        self._settings = settings
        self._judge = fitness.Judge(
            self._policy, agent_max_age_s=settings.agent_max_age_s,
            in_one_class=in_one_class)
        self._oldest_stats = (
            datetime.datetime.now(datetime.UTC) - datetime.timedelta(
                seconds=max(settings.agent_max_age_s, _LEAST_MAX_AGE_S)))

    def verdict(self, facts: Facts) -> Verdict:
        """Whether a host can take the server."""
        stats, doubt = self._stats_of(facts.answer)
        obstacles = [*facts.compute.obstacles]
        if self._policy.units is None:
            obstacles += self._kept(stats, facts.provider)
        if stats:
            obstacles += self._judge.refusals(stats)
        obstacles += self._lacking(stats, facts)
        if fitness.asks_for_nothing(self._policy):
            doubt = ''
        elif stats.get('vqos_profile') == 'valid' and self._policy.units:
            doubt = _wrong_since(facts.answer.value)
        # Placement and the stats may tell the same.
        obstacles = list(dict.fromkeys(obstacles))
        fits = NO if obstacles else UNKNOWN if doubt else YES
        return Verdict(
            host=facts.compute.host, fits=fits,
            free_cu=facts.provider and facts.provider.free_cu,
            speed_cu=_number(self._judge.speed_cu(stats)),
            reasons=(*obstacles, *([doubt] if doubt else [])), stats=stats)

    def _stats_of(self, answer: fleets.Answer
                  ) -> tuple[Mapping[str, str], str]:
        """:returns: stats, empty where they are not known, and why not"""
        told = answer.value
        if told is None:
            return {}, f'its agent gave no answer: {answer.error}'
        if not told.get('stats'):
            problem = told.get('stats_problem') or 'the agent is too old'
            return {}, ('its agent does not know what the scheduler was told '
                        f'of it: {problem}')
        if not self._is_of_now(told['stats_at']):
            return {}, ('what its compute service last told its agent is of '
                        f'{told["stats_at"]}')
        return told['stats'], ''

    def _is_of_now(self, at: str) -> bool:
        try:
            return datetime.datetime.fromisoformat(at) >= self._oldest_stats
        except (TypeError, ValueError):
            return False

    def _kept(self, stats: Mapping[str, str],
              provider: demands.Provider | None) -> list[str]:
        if self._settings.servers_without_units == 'allow':
            return []
        if stats:
            sells_units = fitness.sells_units(stats)
        else:
            sells_units = provider is not None and (
                provider.free_cu is not None)
        return ['it is kept for servers with units ([vqos] '
                'servers_without_units)'] if sells_units else []

    def _lacking(self, stats: Mapping[str, str], facts: Facts) -> list[str]:
        if facts.offered:
            return []
        if facts.provider is None:
            return ['Placement does not know it']
        demand = self._demand
        if stats.get('vqos_profile', 'valid') != 'valid':
            # That its units are closed is no reason of its own.
            demand = demand._replace(resources={
                name: amount for name, amount in demand.resources.items()
                if name != policies.RESOURCE_CLASS})
        reasons = facts.provider.lacks(demand)
        if not reasons and demand is self._demand:
            return ['Placement does not offer it, for nothing that its own '
                    'inventories and traits show']
        return reasons


def _wrong_since(told: Mapping[str, ty.Any] | None) -> str:
    """What the agent found wrong since the compute service last reported."""
    problem = (told or {}).get('problem')
    return f'the scheduler does not know yet: {problem}' if problem else ''


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return int(number) if number.is_integer() else number
