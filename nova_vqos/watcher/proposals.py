# SPDX-License-Identifier: Apache-2.0
"""Whether a move would be refused, once those proposed before are made.

The judgement is that of ``nova-vqos-manage migration check``, whose judgement
of a host's stats is the scheduler filter's own. It gets hosts as the moves
before leave them. What only the driver of a host knows counts against a move.
"""

from collections.abc import Iterable, Mapping
import dataclasses
from decimal import Decimal
from fractions import Fraction
import math
import typing as ty

from nova_vqos import core_types
from nova_vqos import guarantee
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.agent import fanout
from nova_vqos.agent import messages
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import migration
from nova_vqos.scheduler import fitness

# Nova and Placement answer some questions about each: a cloud where hosts
# refuse everything is no reason to ask about all servers.
_MOST_SERVERS = 1000


class Proposals:
    """Moves that were proposed, and what they leave of hosts."""

    def __init__(self, cloud: clouds.Cloud, computes: Iterable[clouds.Compute],
                 answers: Mapping[str, fanout.Answer[messages.Host]], *,
                 agent_max_age_s: int, servers_without_units: str) -> None:
        """
        :param computes: of all hosts among which servers move
        :param answers: of their agents to get_host, by host
        :param agent_max_age_s: see the option, as the next one
        """
        self._cloud = cloud
        self._computes = list(computes)
        self._answers = answers
        self._options: dict[str, ty.Any] = {
            'agent_max_age_s': agent_max_age_s,
            'servers_without_units': servers_without_units}
        self._migrations: dict[str, migration.Migration] = {}
        self._failed: dict[str, str] = {}
        self._facts: dict[str, dict[str, checks.Facts]] = {}
        self._arrivals: dict[str, list[migration.Migration]] = {}

    def refusals(self, server_uuid: str, host: str) -> tuple[str, ...]:
        """Why a move would be refused, or may be; nothing: it would not."""
        try:
            moved = self._migration(server_uuid)
            known = self._facts_for(moved)
        except errors.ManageError as error:
            return (str(error),)
        facts = self._with_arrivals(known[host], moved)
        verdict = moved.verdict(facts, known.get(moved.server.host))
        if verdict.fits != checks.YES:
            return verdict.reasons
        return _doubts(moved, facts)

    def propose(self, server_uuid: str, host: str) -> None:
        """Count a move that is not refused."""
        self._arrivals.setdefault(host, []).append(
            self._migrations[server_uuid])

    def _migration(self, uuid: str) -> migration.Migration:
        """
        :raises ManageError: when it cannot be judged
        """
        if uuid in self._failed:
            raise errors.ManageError(self._failed[uuid])
        if uuid not in self._migrations:
            if len(self._migrations) + len(self._failed) >= _MOST_SERVERS:
                raise errors.ManageError(
                    f'{_MOST_SERVERS} other servers were looked at')
            try:
                self._migrations[uuid] = migration.Migration(
                    self._cloud.server(uuid), **self._options)
            except errors.ManageError as error:
                self._failed[uuid] = str(error)
                raise
        return self._migrations[uuid]

    def _facts_for(self, moved: migration.Migration
                   ) -> Mapping[str, checks.Facts]:
        key = moved.demand.query
        if key not in self._facts:
            self._facts[key] = {
                one.compute.host: one for one in migration.facts_of(
                    self._cloud, self._computes, moved.demand, self._answers)}
        return self._facts[key]

    def _with_arrivals(self, facts: checks.Facts,
                       moved: migration.Migration) -> checks.Facts:
        """What is known of a host, as the moves before leave it."""
        arrivals = self._arrivals.get(facts.compute.host)
        if not arrivals or facts.provider is None:
            return facts
        usages = dict(facts.provider.usages)
        for one in arrivals:
            for name, amount in one.demand.resources.items():
                usages[name] = usages.get(name, 0) + amount
        provider = facts.provider._replace(usages=usages)
        return facts._replace(
            provider=provider, answer=_after(facts.answer, arrivals),
            offered=facts.offered and not provider.lacks(moved.demand))


def stats_after(policy: policies.ServerPolicy, stats: host_stats.HostStats, *,
                in_one_type: bool) -> host_stats.HostStats:
    """The stats of a host that has one more server, at worst.

    :param policy: of the server, with units
    :param in_one_type: see :func:`nova_vqos.core_types.in_one_type`
    """
    after = fitness.stats_with_server(policy, stats, in_one_type=in_one_type)
    cost_cu = fitness.cost_cu(policy, stats)
    if stats.room_cu is not None and cost_cu is not None:
        after = after._replace(
            room_cu=max(0, stats.room_cu - math.ceil(cost_cu)))
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


def _after(answer: fanout.Answer[messages.Host],
           arrivals: Iterable[migration.Migration]
           ) -> fanout.Answer[messages.Host]:
    """The answer of an agent whose host has more servers."""
    if answer.value is None or not answer.value.stats:
        return answer
    try:
        stats = host_stats.decode(host_stats.texts_of(answer.value.stats))
    except host_stats.StatInvalid:
        return answer
    for one in arrivals:
        if one.policy is not None and one.policy.units is not None:
            stats = stats_after(one.policy, stats, in_one_type=_in_one_type(
                one.policy, one))
    return answer._replace(value=dataclasses.replace(
        answer.value, stats=host_stats.encode(stats)))


def _in_one_type(policy: policies.ServerPolicy,
                 moved: migration.Migration) -> bool:
    return core_types.in_one_type(
        policy, is_pinned=moved.server.has_topology)


def _doubts(moved: migration.Migration,
            facts: checks.Facts) -> tuple[str, ...]:
    """What the filter leaves to the driver to refuse.

    NOTE: the filter compares the largest vCPU that packs, and stats have
    pieces of pCPUs rounded up: all vCPUs of a server have to find theirs.
    """
    policy, host = moved.policy, facts.answer.value
    if policy is None or policy.units is None or host is None:
        return ()
    stats = host_stats.decode(host_stats.texts_of(host.stats or {}))
    cost_cu = fitness.cost_cu(policy, stats)
    if stats.largest_vcpu_cu is None or policy.vcpus == 1 or cost_cu is None:
        return ()
    vcpu_cu = Fraction(cost_cu) / policy.vcpus
    places = sum(math.floor((one.cu - 1) / vcpu_cu) * one.pcpus
                 for one in stats.pieces)
    if places >= policy.vcpus:
        return ()
    return (f'the pieces of its pCPUs have places for {places} vCPUs of '
            f'{units.format_cu(vcpu_cu)} CU for certain, the server has '
            f'{policy.vcpus}',)
