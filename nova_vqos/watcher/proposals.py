# SPDX-License-Identifier: Apache-2.0
"""Whether a move would be refused, once those proposed before are made.

The judgement is that of ``nova-vqos-manage migration check``, whose judgement
of a host's stats is the scheduler filter's own. It gets hosts as the moves
before leave them. What only the driver of a host knows counts against a move.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
import dataclasses
from decimal import Decimal
import typing as ty

from nova_vqos import core_types
from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos.agent import fanout
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import demand
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import migration
from nova_vqos.watcher import arrivals
from nova_vqos.watcher import balance

# Nova and Placement answer some questions about each: a cloud where hosts
# refuse everything is no reason to ask about all servers.
_MOST_SERVERS = 1000
# A server that each host takes which takes any, and a host with room for it.
_ANY_POLICY = policies.ServerPolicy(1, units=1)
_ANY_STATS = host_stats.HostStats(
    slowest_cu=Decimal(100), fastest_cu=Decimal(100), least_cu=Decimal(1))


class Proposals:
    """Moves that were proposed, and what they leave of hosts."""

    def __init__(self, cloud: clouds.Cloud, computes: Iterable[clouds.Compute],
                 answers: Mapping[str, fanout.Answer[host_report.Host]],
                 providers: Mapping[str, demand.Provider], *,
                 agent_max_age_s: int, servers_without_units: str) -> None:
        """
        :param computes: of all hosts among which servers move
        :param answers: of their agents to get_host, by host
        :param providers: of them, by UUID
        :param agent_max_age_s: see the option, as the next one
        """
        self._cloud = cloud
        self._computes = {one.host: one for one in computes}
        self._answers = answers
        self._providers = providers
        self._options: dict[str, ty.Any] = {
            'agent_max_age_s': agent_max_age_s,
            'servers_without_units': servers_without_units}
        self._migrations: dict[str, migration.Migration] = {}
        self._failed: dict[str, str] = {}
        self._looked_at: set[str] = set()
        self._facts: dict[str, dict[str, checks.Facts]] = {}
        self._arrivals: dict[str, list[migration.Migration]] = {}
        self._any = checks.Check(_ANY_POLICY, demand.Demand({}),
                                 **self._options)
        self._of_hosts: dict[str, tuple[str, ...]] = {}
        # Of servers alike: what is refused remains so.
        self._of_alike: dict[ty.Any, tuple[str, ...]] = {}
        # For the summary: by server, how many hosts have each reason.
        self._refused: dict[str, collections.Counter[str]] = {}
        self._has_ended = False

    def accept(self, server: balance.Server, host: str) -> balance.Reply:
        """Propose a move unless it would be refused, or may be."""
        reply, reasons = self._judge(server.uuid, host)
        if reply is balance.Reply.YES:
            self.propose(server.uuid, host)
        elif reply is balance.Reply.END:
            self._has_ended = True
        elif reply is not balance.Reply.NO_HOST:
            self._refused.setdefault(server.uuid, collections.Counter())[
                '; '.join(reasons)] += 1
        return reply

    def refusals(self, server_uuid: str, host: str) -> tuple[str, ...]:
        """Why a move would be refused, or may be; nothing: it would not."""
        return self._judge(server_uuid, host)[1]

    def propose(self, server_uuid: str, host: str) -> None:
        """Count a move that is not refused."""
        self._refused.pop(server_uuid, None)
        self._arrivals.setdefault(host, []).append(
            self._migrations[server_uuid])

    def summary(self) -> Iterator[str]:
        """Why servers are not moved: one line for each, and for each host."""
        for host, reasons in sorted(self._of_hosts.items()):
            if reasons:
                yield f'No server is moved to {host}: {"; ".join(reasons)}'
        for uuid, counts in sorted(self._refused.items()):
            (reason, hosts), = counts.most_common(1)
            yield (f'Server {uuid} is not moved: {reason} ({hosts} of '
                   f'{counts.total()} refusals)')
        if self._has_ended:
            yield f'No server is tried after the first {_MOST_SERVERS}'

    def _judge(self, uuid: str, host: str
               ) -> tuple[balance.Reply, tuple[str, ...]]:
        """Whether a server can be moved to a host, and why not."""
        reasons = self._against(host)
        if reasons:
            return balance.Reply.NO_HOST, reasons
        if (len(self._looked_at) >= _MOST_SERVERS
                and uuid not in self._looked_at):
            return balance.Reply.END, (
                f'{_MOST_SERVERS} other servers were looked at',)
        self._looked_at.add(uuid)
        try:
            moved = self._migration(uuid)
            known = self._facts_for(moved)
        except errors.ManageError as error:
            return balance.Reply.NO_SERVER, (str(error),)
        source = known.get(moved.server.host)
        reasons = tuple(moved.obstacles(source))
        if reasons:
            return balance.Reply.NO_SERVER, reasons
        alike = (host, moved.policy, moved.demand.query,
                 moved.server.has_topology)
        reasons = self._of_alike.get(alike, ())
        if not reasons:
            facts = self._with_arrivals(known[host], moved)
            verdict = moved.verdict(facts, source)
            reasons = (_doubts(moved, facts) if verdict.fits == checks.YES
                       else verdict.reasons)
        if reasons:
            self._of_alike[alike] = reasons
            return balance.Reply.NO, reasons
        return balance.Reply.YES, ()

    def _against(self, host: str) -> tuple[str, ...]:
        """Why a host takes no server with units, whatever it is."""
        if host not in self._of_hosts:
            self._of_hosts[host] = self._any.verdict(checks.Facts(
                self._computes[host], True, None, _without_speeds(
                    self._answers[host]))).reasons
        return self._of_hosts[host]

    def _migration(self, uuid: str) -> migration.Migration:
        """
        :raises ManageError: when it cannot be judged
        """
        if uuid in self._failed:
            raise errors.ManageError(self._failed[uuid])
        if uuid not in self._migrations:
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
                    self._cloud.placement, self._computes.values(),
                    moved.demand, self._answers, self._providers)}
        return self._facts[key]

    def _with_arrivals(self, facts: checks.Facts,
                       moved: migration.Migration) -> checks.Facts:
        """What is known of a host, as the moves before leave it."""
        arrived = self._arrivals.get(facts.compute.host)
        if not arrived or facts.provider is None:
            return facts
        usages = dict(facts.provider.usages)
        for one in arrived:
            for name, amount in one.demand.resources.items():
                usages[name] = usages.get(name, 0) + amount
        provider = facts.provider._replace(usages=usages)
        return facts._replace(
            provider=provider, answer=_after(facts.answer, arrived),
            offered=facts.offered and not provider.lacks(moved.demand))


def _after(answer: fanout.Answer[host_report.Host],
           arrived: Iterable[migration.Migration]
           ) -> fanout.Answer[host_report.Host]:
    """The answer of an agent whose host has more servers."""
    def changed(stats: host_stats.HostStats) -> host_stats.HostStats:
        for one in arrived:
            if one.policy is not None and one.policy.units is not None:
                stats = arrivals.stats_after(
                    one.policy, stats,
                    in_one_type=_in_one_type(one.policy, one))
        return stats
    return _changed(answer, changed)


def _without_speeds(answer: fanout.Answer[host_report.Host]
                    ) -> fanout.Answer[host_report.Host]:
    """The answer of an agent whose host is as fast as any server needs."""
    return _changed(answer, lambda stats: _ANY_STATS._replace(
        profile=stats.profile, agent_seen_at=stats.agent_seen_at))


def _changed(answer: fanout.Answer[host_report.Host],
             change: Callable[[host_stats.HostStats], host_stats.HostStats]
             ) -> fanout.Answer[host_report.Host]:
    """An answer with other stats, where it has valid ones."""
    if answer.value is None or not answer.value.stats:
        return answer
    try:
        stats = host_stats.decode(host_stats.texts_of(answer.value.stats))
    except host_stats.StatInvalid:
        return answer
    return answer._replace(value=dataclasses.replace(
        answer.value, stats=host_stats.encode(change(stats))))


def _in_one_type(policy: policies.ServerPolicy,
                 moved: migration.Migration) -> bool:
    return core_types.in_one_type(
        policy, is_pinned=moved.server.has_topology)


def _doubts(moved: migration.Migration,
            facts: checks.Facts) -> tuple[str, ...]:
    policy, host = moved.policy, facts.answer.value
    if policy is None or policy.units is None or host is None:
        return ()
    return arrivals.doubts(
        policy, host_stats.decode(host_stats.texts_of(host.stats or {})),
        in_one_type=_in_one_type(policy, moved))
