# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage audit."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import datetime
import textwrap
import time
import typing as ty

from cliff import lister

from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import host_report
from nova_vqos.agent.messages import server_report
from nova_vqos.cmd import arguments
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import differences
from nova_vqos.cmd.manage import output
from nova_vqos.cmd.manage import placement

COLUMNS = ('kind', 'server_uuid', 'host', 'found_cu', 'expected_cu', 'advice',
           'command')
_LINE = 40
_PROGRESS_S = 3.0
# Nova, Placement and agents are asked one after the other: what begins or
# ends meanwhile looks like a difference. Such is gone at the second look.
_AGAIN_AFTER_S = 5.0
_REPAIRED = 'repaired'
_MOST_STUCK_MINUTES = 24 * 60


class Audit(command.ManageCommand, lister.Lister):
    """Compare what runs, what Nova believes, and what Placement has sold.

    Shows each difference of servers with CPU units, and how to mend it.
    Servers that are being migrated or resized are not judged. Exits with 1
    where there is a difference that is not repaired, or an agent does not
    answer.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(
            parser, 'judge this host alone; may be repeated. The guests of '
            'others are not seen then')
        parser.add_argument(
            '--repair', action='store_true',
            help='set the units right that a server holds of its host in '
                 'Placement, where neither Nova nor an agent contradicts; '
                 'all else is only shown')
        parser.add_argument(
            '--stuck-minutes', metavar='MINUTES',
            type=lambda text: arguments.count(text, 0, _MOST_STUCK_MINUTES),
            default=differences.STUCK_AFTER // datetime.timedelta(minutes=1),
            help='judge a server whose migration Nova has not closed when it '
                 'has been at rest for so long; 0 when you know that nothing '
                 'is being moved (default: %(default)s)')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        survey = _Survey(self, parsed_args.hosts, datetime.timedelta(
            minutes=parsed_args.stuck_minutes))
        view = survey.look()
        found = differences.compare(view)
        if found:
            time.sleep(_AGAIN_AFTER_S)
            view = survey.look()
            before = {(one.kind, one.server_uuid, one.host, one.found_cu,
                       one.expected_cu) for one in found}
            found = [one for one in differences.compare(view) if (
                one.kind, one.server_uuid, one.host, one.found_cu,
                one.expected_cu) in before or not one.server_uuid]
        survey.warn_silent()
        unjudged = differences.unjudged(view)
        if unjudged:
            named = output.some(
                [f'{uuid} ({why})' for uuid, why in unjudged.items()])
            self.say(f'{len(unjudged)} servers were not judged: {named}')
        rows = [_row(one) for one in found]
        if not parsed_args.repair:
            if found:
                self.status = 1
            return COLUMNS, rows
        results = [self._repair(one, view) for one in found]
        if any(result != _REPAIRED for result in results):
            self.status = 1
        return (*COLUMNS, 'result'), [
            (*row, _wrapped(result))
            for row, result in zip(rows, results, strict=True)]

    def _repair(self, one: differences.Difference,
                view: differences.View) -> str:
        """Repair what is certain.

        :returns: what was done, or why not
        """
        if one.kind != differences.CLAIM_DIFFERS:
            return ''
        if not one.is_certain:
            return 'not certain: mend its other differences first'
        server, host = view.servers[one.server_uuid], view.hosts[one.host]
        cloud = self.connections.cloud()

        def is_right() -> bool:
            now = cloud.server_now(server.uuid)
            return now is not None and not differences.is_moving(now) and (
                now.host, now.units_cu) == (server.host, server.units_cu)
        return cloud.placement.set_claim(
            server.uuid, host.provider, one.expected_cu, is_right
        ) or _REPAIRED


class _Survey:
    """Asks Nova, Placement and agents, and says how far it is."""

    def __init__(self, asking: Audit, hosts: Sequence[str],
                 stuck_after: datetime.timedelta) -> None:
        """
        :param hosts: to judge; none: all
        """
        self._asking = asking
        self._cloud = asking.connections.cloud()
        self._hosts = hosts
        self._stuck_after = stuck_after
        self._said_at_s = time.monotonic()
        self._states: list[fanout.Answer[host_report.Host]] = []

    def look(self) -> differences.View:
        """One look at everything."""
        computes = {one.host: one for one in self._cloud.computes()
                    if not self._hosts or one.host in self._hosts}
        self._check_known(computes)
        asked = self._asking.connections.hosts(computes)
        now = datetime.datetime.now(datetime.UTC)
        servers = {one.uuid: one for one in self._cloud.all_servers()}
        self._say(f'Nova has {len(servers)} servers')
        migrations = self._cloud.open_migrations()
        held = self._holdings(computes.values())
        self._states = self._asking.ask_quietly(asked, rpcapi.GET_HOST)
        guests = tuple(_guests(self._asking.ask_quietly(
            asked, rpcapi.LIST_SERVERS)))
        known = {*servers, *(one.uuid for one in migrations)}
        unknown = sorted({
            consumer for one in held.values() for consumer in one.held
            if consumer not in known}
            | {one.server_uuid for one in guests
               if one.server_uuid not in known})
        # Those that came meanwhile, and those that no list of Nova has.
        servers.update(
            (one.uuid, one) for one in self._cloud.servers_now(unknown)
            if one is not None)
        return differences.View(
            servers=servers, migrations=migrations, guests=guests, now=now,
            hosts=dict(self._judged(computes, held)),
            stuck_after=self._stuck_after)

    def warn_silent(self) -> None:
        """Warn of hosts whose agents did not answer."""
        self._asking.warn([one for one in self._states if one.value is None],
                          len(self._states))

    def _check_known(self, computes: Iterable[str]) -> None:
        unknown = sorted(set(self._hosts).difference(computes))
        if unknown:
            raise clouds.no_compute(unknown[0])

    def _holdings(self, computes: Iterable[clouds.Compute]
                  ) -> dict[str, placement.Holdings]:
        wanted = [one.provider for one in computes if one.provider]
        found = {}
        for provider, holdings in self._cloud.placement.holdings(wanted):
            found[provider] = holdings
            self._say(
                f'Read {len(found)} of {len(wanted)} resource providers')
        return found

    def _judged(self, computes: Mapping[str, clouds.Compute],
                held: Mapping[str, placement.Holdings]
                ) -> Iterable[tuple[str, differences.Host]]:
        states = {one.host: one.value for one in self._states}
        for name, compute in computes.items():
            found = held.get(compute.provider)
            state = states[name]
            units = state.units if state else None
            yield name, differences.Host(
                name=name, provider=compute.provider, is_down=compute.is_down,
                inventory=found and found.inventory,
                held=found.held if found else {},
                answers=state is not None and state.connected,
                running_cu=units.used_cu if units else 0,
                capacity_cu=units.sellable_cu if units else None)

    def _say(self, text: str) -> None:
        """Say it, but only every few seconds."""
        if time.monotonic() - self._said_at_s >= _PROGRESS_S:
            self._said_at_s = time.monotonic()
            self._asking.say(text)


def _guests(answers: Iterable[fanout.Answer[server_report.Servers]]
            ) -> Iterable[differences.Guest]:
    for answer in answers:
        for one in answer.value.servers if answer.value else ():
            yield differences.Guest(
                one.server_uuid, answer.host, one.name or '', one.entitled_cu,
                bool(one.arriving))


def _row(one: differences.Difference) -> tuple[ty.Any, ...]:
    return (one.kind, output.text(one.server_uuid or None), one.host,
            output.number(one.found_cu), output.number(one.expected_cu),
            _wrapped(one.advice), one.command)


def _wrapped(text: str) -> output.Shown:
    return output.Shown(text, textwrap.fill(
        text, _LINE, break_long_words=False, break_on_hyphens=False))
