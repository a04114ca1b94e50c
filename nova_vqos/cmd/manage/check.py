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
from nova_vqos.cmd.manage import errors
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

    def _check(self, policy: policies.ServerPolicy | None,
               demand: demands.Demand, *, in_one_type: bool) -> checks.Check:
        options = self.connections.options().vqos
        return checks.Check(
            policy, demand, agent_max_age_s=options.agent_max_age_s,
            servers_without_units=options.servers_without_units,
            in_one_type=in_one_type)

    def _facts(self, cloud: clouds.Cloud, computes: Iterable[clouds.Compute],
               demand: demands.Demand) -> list[checks.Facts]:
        hosts = {one.host: one for one in computes}
        offered = cloud.offers(demand)
        known = offered | cloud.providers(
            one.provider for one in hosts.values()
            if one.provider not in offered)
        answers = self.ask(self.connections.hosts(hosts), rpcapi.GET_HOST)
        return [checks.Facts(
            hosts[answer.host], hosts[answer.host].provider in offered,
            known.get(hosts[answer.host].provider), answer)
            for answer in answers]

    def _log_policy(self, name: str,
                    policy: policies.ServerPolicy | None) -> None:
        if fitness.asks_for_nothing(policy) or policy is None:
            self.app.LOG.info(
                '%s asks for nothing of nova_vqos: any host will do that is '
                'not kept for servers with units', name)
        else:
            self.app.LOG.info('%s asks for %s', name,
                              fitness.describe(policy))

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
        policy = _policy_of(flavor)
        self._log_policy(flavor.name, policy)
        demand = demands.of_flavor(flavor)
        check = self._check(
            policy, demand, in_one_type=not any(
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
        policy = _policy_of(server.flavor)
        self._log_policy(server.name, policy)
        demand = demands.of_flavor(server.flavor, server.resources)
        check = self._check(policy, demand,
                            in_one_type=not server.has_topology)
        found = self._facts(
            cloud, _asked_of(cloud.computes(), server, parsed_args.host),
            demand)
        source = next((facts for facts in found
                       if facts.compute.host == server.host), None)
        now_cu = source and check.verdict(source).speed_cu
        obstacles = _obstacles(server, source)
        rows, verdicts = [], []
        for facts in found:
            if facts is source and parsed_args.host != server.host:
                continue
            verdict = _moved(check.verdict(facts), obstacles, server)
            verdicts.append(verdict)
            rows.append(_row(verdict, checks.land(
                policy, verdict, facts.answer.value.terms
                if facts.answer.value else {}, now_cu=now_cu,
                has_hook=facts.provider is not None
                and host_stats.TRAIT_HOOK in facts.provider.traits)))
        self._set_status(verdicts)
        return _MIGRATION_COLUMNS, rows


def _policy_of(flavor: ty.Any) -> policies.ServerPolicy | None:
    """The policy of a flavor; None: stock Nova's business.

    :raises ManageError: when it is invalid, with the words of Nova's API from
        2.86 on
    """
    specs = flavor.extra_specs or {}
    problems = []
    for key, value in sorted(specs.items()):
        try:
            policies.check_value(key, value)
        except policies.PolicyError as error:
            problems.append(str(error))
    try:
        return policies.parse(specs, flavor.vcpus)
    except policies.PolicyError as error:
        problems = problems or [str(error)]
        raise errors.ManageError(
            f'Validation failed; {"; ".join(problems)}. No host takes a '
            'server of this flavor') from error


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


def _obstacles(server: clouds.Server,
               source: checks.Facts | None) -> list[str]:
    """Why a server cannot be live-migrated anywhere."""
    found = [*server.obstacles]
    if source is None or source.compute.is_down:
        found.append(f'the compute service of {server.host}, where the '
                     'server is, is down')
    return found


def _moved(verdict: checks.Verdict, obstacles: list[str],
           server: clouds.Server) -> checks.Verdict:
    if verdict.host == server.host:
        obstacles = ['the server is there already']
        return verdict._replace(fits=checks.NO, reasons=tuple(obstacles))
    if not obstacles:
        return verdict
    return verdict._replace(fits=checks.NO,
                            reasons=(*obstacles, *verdict.reasons))


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
