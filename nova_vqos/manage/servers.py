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

"""nova-vqos-manage server: what servers are promised, and what they get."""

import argparse
from collections.abc import Iterable, Sequence
import typing as ty
import uuid

from cliff import lister
from cliff import show

from nova_vqos.manage import command
from nova_vqos.manage import errors
from nova_vqos.manage import fleet as fleets
from nova_vqos.manage import server_rows as rows


class ListServers(command.ManageCommand, lister.Lister):
    """Show all servers: what they are promised, and what they get.

    Delivered is the speed that the server's vCPUs had over about the last
    minute, as throttled, the part of it for which they were held back. dd_cu
    is what the host spent on its I/O lately, debt what it has yet to pay of
    that.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        add_filters(parser)
        parser.add_argument(
            '--long', action='store_true',
            help="more columns: the hypervisor's name, project, slice, mean "
                 'run, the last time that the cap was set')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), 'list_servers')
        found = select(answers, parsed_args)
        shown = rows.LONG if parsed_args.long else rows.SHORT
        return tuple(shown), [tuple(column(one) for column in shown.values())
                              for one in found]


class ShowServer(command.ManageCommand, show.ShowOne):
    """Show one server: its promise, its bill, its slices, its cap.

    Nova is asked where it runs. With --host it is not: the agents of those
    hosts are asked, and the server is to be given by its UUID.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('server', metavar='SERVER',
                            help='UUID, or name in Nova')
        command.add_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        server_uuid, host = locate(self, parsed_args.server,
                                   parsed_args.hosts)
        if host:
            # It may be on its way to another.
            answer = self._ask({host}, server_uuid)
            if answer is None:
                answer = self._ask((), server_uuid)
        else:
            answer = self._ask(parsed_args.hosts, server_uuid)
        if answer is None or answer.value is None:
            raise errors.ManageError(
                f'server {server_uuid} runs on no host whose agent answers')
        return zip(*rows.fields(rows.Placed(answer.host, answer.value)),
                   strict=True)

    def _ask(self, hosts: Iterable[str],
             server_uuid: str) -> fleets.Answer | None:
        """:returns: of the host that has it; None: none does"""
        answers = self.fleet().ask(self.app.connections.hosts(hosts),
                                   'get_server', server_uuid=server_uuid)
        found = [one for one in answers if one.value is not None]
        if found:
            # Where its guest runs, rather than where it migrates to.
            return min(found, key=lambda one: bool(
                (one.value or {}).get('arriving')))
        silent = [one for one in answers if 'does not run on' not in one.error]
        self.tell_silent(silent, len(answers))
        return None


def locate(asking: command.ManageCommand, given: str,
           hosts: Sequence[str]) -> tuple[str, str]:
    """Find a server.

    :param asking: the command that asks Nova
    :param given: its UUID; its name where Nova is asked
    :param hosts: those of --host; none: Nova is asked
    :returns: its UUID, and its host as Nova knows it, or ''
    :raises ManageError: when there is none
    """
    if hosts:
        if not is_uuid(given):
            raise errors.ManageError(
                f'{given!r} is no UUID: leave --host away, and Nova is '
                'asked for the server of this name')
        return str(uuid.UUID(given)), ''
    from nova_vqos.manage import nova
    return nova.server(asking.cloud(), given)


def add_filters(parser: argparse.ArgumentParser) -> None:
    """Add what :func:`select` follows."""
    parser.add_argument(
        '--project', metavar='ID', help='only servers of this project')
    parser.add_argument(
        '--wrong', action='store_true',
        help='only servers whose cap is not as it should be, or that have '
             'another problem')


def select(answers: Iterable[fleets.Answer],
           parsed_args: argparse.Namespace) -> list[rows.Placed]:
    """The servers that are asked for, by host and UUID."""
    return [
        placed for one in answers if one.value is not None
        for placed in (rows.Placed(one.host, brief)
                       for brief in one.value['servers'])
        if parsed_args.project in (None, placed.brief.get('project_id'))
        and (not parsed_args.wrong or rows.is_wrong(placed))]


def is_uuid(text: str) -> bool:
    try:
        return len(text) == len(str(uuid.UUID(text)))
    except ValueError:
        return False
