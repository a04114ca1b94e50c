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
"""nova-vqos-manage flavor check, migration check: what would become of it."""

import argparse
from collections.abc import Iterable, Mapping
import textwrap
import typing as ty

from cliff import lister

from nova_vqos import host_report
from nova_vqos import policy as policies
from nova_vqos import units
from nova_vqos.manage import checks
from nova_vqos.manage import cloud as clouds
from nova_vqos.manage import columns
from nova_vqos.manage import command
from nova_vqos.manage import demand as demands
from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets
from nova_vqos.manage import landing as landings
from nova_vqos.scheduler import fitness

_COLUMNS = ('host', 'fits', 'free_cu', 'speed_cu', 'reasons')
_MIGRATION_COLUMNS = ('host', 'fits', 'free_cu', 'speed_cu', 'cap',
                      'as_fast', 'reasons', 'notes')
_LINE = 48
# Of a flavor or an image that gives servers a NUMA topology.
_TOPOLOGY_KEYS = ('hw:numa_nodes', 'hw:mem_page_size', 'hw:pmem')


class _Check(command.ManageCommand, lister.Lister):
    """Asks for what is known of hosts. Exits 1 where none of them fits."""

    def _settings(self) -> checks.Settings:
        options = self.app.connections.options().vqos
        return checks.Settings(options.agent_max_age_s,
                               options.servers_without_units)

    def _facts(self, cloud: clouds.Cloud, computes: Iterable[clouds.Compute],
               demand: demands.Demand) -> list[checks.Facts]:
        hosts = {one.host: one for one in computes}
        offered = cloud.offers(demand)
        known = offered | cloud.providers(
            one.provider for one in hosts.values()
            if one.provider not in offered)
        answers = self.ask(self.app.connections.hosts(hosts), 'get_host')
        return [checks.Facts(
            hosts[answer.host], hosts[answer.host].provider in offered,
            known.get(hosts[answer.host].provider), answer)
            for answer in answers]

    def _tell(self, name: str, policy: policies.ServerPolicy | None) -> None:
        if fitness.asks_for_nothing(policy) or policy is None:
            self.app.LOG.info(
                '%s asks for nothing of nova_vqos: any host would do that is '
                'not kept for servers with units', name)
        else:
            self.app.LOG.info('%s asks for %s', name,
                              fitness.describe(policy))

    def _judged(self, verdicts: list[checks.Verdict]) -> None:
        self.status = 0 if any(
            one.fits == checks.YES for one in verdicts) else 1


class CheckFlavor(_Check):
    """Tell which hosts can take a server of a flavor, and why not others.

    Exits 1 if none can.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('flavor', metavar='FLAVOR', help='name or ID')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        cloud = clouds.Cloud(self.cloud())
        flavor = cloud.flavor(parsed_args.flavor)
        policy = _policy_of(flavor)
        self._tell(flavor.name, policy)
        demand = demands.of_flavor(flavor)
        check = checks.Check(
            policy, demand, self._settings(),
            in_one_class=not any(key in (flavor.extra_specs or {})
                                 for key in _TOPOLOGY_KEYS))
        verdicts = [check.verdict(facts) for facts in self._facts(
            cloud, cloud.computes(), demand)]
        self._judged(verdicts)
        return _COLUMNS, [
            (*_head(one), _lines(one.reasons)) for one in verdicts]


class CheckMigration(_Check):
    """Tell which hosts a server can be live-migrated to, and what it gets.

    Exits 1 if there is none.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='SERVER', help='name or ID')
        parser.add_argument('host', metavar='HOST', nargs='?',
                            help='look at this host alone')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        cloud = clouds.Cloud(self.cloud())
        server = cloud.server(parsed_args.server)
        policy = _policy_of(server.flavor)
        self._tell(server.name, policy)
        demand = demands.of_flavor(server.flavor, server.resources)
        check = checks.Check(policy, demand, self._settings(),
                             in_one_class=not server.has_topology)
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
            rows.append(_row(verdict, landings.land(
                policy, verdict, _terms(facts.answer), now_cu=now_cu,
                has_hook=facts.provider is not None
                and host_report.TRAIT_HOOK in facts.provider.traits)))
        self._judged(verdicts)
        return _MIGRATION_COLUMNS, rows


def _policy_of(flavor: ty.Any) -> policies.ServerPolicy | None:
    """The policy of a flavor; None: stock Nova's business.

    :raises ManageError: when it is invalid, with what Nova's API says of it
        from 2.86 on
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
        raise errors.ManageError(
            f'Nova has no compute service on a host {host}')
    return [one for one in computes if one.host in (host, server.host)]


def _obstacles(server: clouds.Server,
               source: checks.Facts | None) -> list[str]:
    """What keeps a server from being live-migrated anywhere."""
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


def _terms(answer: fleets.Answer) -> Mapping[str, int]:
    return (answer.value or {}).get('terms') or {}


def _row(verdict: checks.Verdict, landing: landings.Landing
         ) -> tuple[ty.Any, ...]:
    cap = landing.cap
    told = cap and {'quota_us': cap.quota_us, 'period_us': cap.period_us,
                    'cu': landing.cap_cu}
    return (*_head(verdict),
            columns.Shown(told, cap and f'{cap.quota_us}/{cap.period_us} us'),
            columns.flag(landing.as_fast), _lines(verdict.reasons),
            _lines(landing.notes))


def _head(verdict: checks.Verdict) -> tuple[ty.Any, ...]:
    speed_cu = verdict.speed_cu
    return (verdict.host, verdict.fits, columns.number(verdict.free_cu),
            columns.Shown(speed_cu, speed_cu and units.format_cu(speed_cu)))


def _lines(texts: Iterable[str]) -> columns.Shown:
    """Texts: a list for programs, lines for people."""
    listed = list(texts)
    return columns.Shown(listed, '\n'.join(
        textwrap.fill(text, _LINE, subsequent_indent='  ',
                      break_long_words=False, break_on_hyphens=False)
        for text in listed))
