# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage flavor check and migration check."""

import argparse
from collections.abc import Iterable
import textwrap
import typing as ty

from cliff import lister

from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import checks
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import migration
from nova_vqos.cmd.manage import output
from nova_vqos.scheduler import fitness

_HEAD = ('host', 'fits', 'free_cu', 'takes_cu', 'speed_cu')
_COLUMNS = (*_HEAD, 'reasons')
_MIGRATION_COLUMNS = (*_HEAD, 'cap', 'as_fast', 'reasons', 'notes')
_LINE = 48
# Of a flavor or an image that gives servers a NUMA topology.
_TOPOLOGY_KEYS = ('hw:numa_nodes', 'hw:mem_page_size', 'hw:pmem')


class _Check(command.ManageCommand, lister.Lister):
    """Asks Nova, Placement and agents about hosts."""

    def _settings(self) -> dict[str, ty.Any]:
        """The options that judge, as arguments."""
        options = self.connections.options().vqos
        return {'agent_max_age_s': options.agent_max_age_s,
                'servers_without_units': options.servers_without_units}

    def _facts(self, cloud: clouds.Cloud, computes: Iterable[clouds.Compute],
               demand: demands.Demand) -> list[checks.Facts]:
        hosts = list(computes)
        answers = self.ask(self.connections.hosts(
            one.host for one in hosts), rpcapi.GET_HOST)
        return migration.facts_of(cloud.placement, hosts, demand,
                                  {one.host: one for one in answers})

    def _say_policy(self, name: str,
                    policy: policies.ServerPolicy | None) -> None:
        if fitness.asks_for_nothing(policy) or policy is None:
            self.say(
                f'{name} asks for nothing of nova_vqos: any host will do that '
                'is not kept for servers with units')
        else:
            self.say(f'{name} asks for {fitness.describe(policy)}')

    def _set_status(self, verdicts: list[checks.Verdict]) -> None:
        self.status = 0 if any(
            one.fits == checks.YES for one in verdicts) else 1


class CheckFlavor(_Check):
    """Show which hosts can take a server of a flavor, and why not others.

    Exits 1 if none can.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('flavor', metavar='FLAVOR', help='name or ID')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        cloud = self.connections.cloud()
        flavor = cloud.flavor(parsed_args.flavor)
        policy = migration.policy_of(flavor)
        self._say_policy(flavor.name, policy)
        demand = demands.of_flavor(flavor)
        check = checks.Check(
            policy, demand, **self._settings(), in_one_type=not any(
                key in (flavor.extra_specs or {}) for key in _TOPOLOGY_KEYS))
        verdicts = [check.verdict(facts) for facts in self._facts(
            cloud, cloud.computes(), demand)]
        self._set_status(verdicts)
        return _COLUMNS, [
            (*_head(one), _lines(one.reasons)) for one in verdicts]


class CheckMigration(_Check):
    """Show which hosts a server can be live-migrated to, and its cap there.

    Exits 1 if there is none.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('server', metavar='SERVER', help='name or ID')
        parser.add_argument('host', metavar='HOST', nargs='?',
                            help='check this host alone')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        cloud = self.connections.cloud()
        server = cloud.server(parsed_args.server)
        moved = migration.Migration(server, **self._settings())
        policy = moved.policy
        self._say_policy(server.name, policy)
        found = self._facts(
            cloud, _asked_of(cloud.computes(), server, parsed_args.host),
            moved.demand)
        source = next((facts for facts in found
                       if facts.compute.host == server.host), None)
        now_cu = moved.speed_cu(source)
        rows, verdicts = [], []
        for facts in found:
            if facts is source and parsed_args.host != server.host:
                continue
            verdict = moved.verdict(facts, source)
            verdicts.append(verdict)
            rows.append(_row(verdict, checks.land(
                policy, verdict, facts.answer.value.terms
                if facts.answer.value else {}, now_cu=now_cu,
                has_hook=facts.provider is not None
                and host_stats.TRAIT_HOOK in facts.provider.traits)))
        self._set_status(verdicts)
        return _MIGRATION_COLUMNS, rows


def _asked_of(computes: list[clouds.Compute], server: clouds.Server,
              host: str | None) -> list[clouds.Compute]:
    """The server's own host, and those that it might go to.

    :raises ManageError: when there is no such host
    """
    if host is None:
        return computes
    if host not in [one.host for one in computes]:
        raise clouds.no_compute(host)
    return [one for one in computes if one.host in (host, server.host)]


def _row(verdict: checks.Verdict, landing: checks.Landing
         ) -> tuple[ty.Any, ...]:
    cap = landing.cap
    figures = cap and {'quota_us': cap.quota_us, 'period_us': cap.period_us,
                       'cu': landing.cap_cu}
    return (*_head(verdict),
            output.Shown(figures, f'{cap.quota_us}/{cap.period_us} us'
                          if cap else ''),
            output.flag(landing.as_fast), _lines(verdict.reasons),
            _lines(landing.notes))


def _head(verdict: checks.Verdict) -> tuple[ty.Any, ...]:
    return (verdict.host, verdict.fits, output.number(verdict.free_cu),
            _cu(verdict.takes_cu), _cu(verdict.speed_cu))


def _cu(cu: float | None) -> output.Shown:
    return output.Shown(cu, units.format_cu(cu) if cu else '')


def _lines(texts: Iterable[str]) -> output.Shown:
    """Texts: a list for programs, lines for people."""
    listed = list(texts)
    return output.Shown(listed, '\n'.join(
        textwrap.fill(text, _LINE, subsequent_indent='  ',
                      break_long_words=False, break_on_hyphens=False)
        for text in listed))
