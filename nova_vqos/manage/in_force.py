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


"""``policy show``: what holds for servers, and why."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos import pushed
from nova_vqos.manage import columns
from nova_vqos.manage import command
from nova_vqos.manage import errors
from nova_vqos.manage import server_rows as rows
from nova_vqos.manage import servers

COLUMNS = ('host', 'server', 'flavor', 'field', 'in_force', 'source',
           'booted', 'pushed', 'pushed_at', 'reason')


class ShowPolicies(command.ManageCommand, lister.Lister):
    """Show which class and billing hold for servers, and where they are from.

    Source is flavor, as it was when the server was booted, or pushed.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        parser.add_argument(
            '--server', metavar='SERVER',
            help='this server alone: UUID, or, without --host, name in Nova')
        parser.add_argument(
            '--flavor', metavar='FLAVOR',
            help='only servers of the flavor of this name or id')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        given, asked = parsed_args.server, parsed_args.hosts
        if given is not None:
            given, host = servers.locate(self, given, asked)
            asked = [host] if host else asked
        answers = self.ask(self.app.connections.hosts(asked), 'list_servers')
        found = [
            rows.Placed(one.host, brief)
            for one in answers if one.value is not None
            for brief in one.value['servers']
            if given in (None, brief['server_uuid'])
            and parsed_args.flavor in (None, brief['flavor'],
                                       brief['flavor_id'])]
        if given is not None and not found:
            raise errors.ManageError(
                f'server {given} runs on no host whose agent answers')
        return COLUMNS, [row for one in found for row in field_rows(one)]


def field_rows(placed: rows.Placed) -> list[tuple[ty.Any, ...]]:
    """One row for each field that can be pushed, with :data:`COLUMNS`."""
    brief = placed.brief
    last = brief['pushed'] or {}
    return [(
        placed.host, brief['server_uuid'], brief['flavor'], name, brief[name],
        (brief['policy_source'] or {}).get(name),
        (brief['booted'] or {}).get(name),
        _shown(last.get(name)), _shown(last.get('pushed_at')),
        brief['push_error'] or '') for name in pushed.FOLLOWED]


def _shown(text: str | None) -> columns.Shown:
    return columns.Shown(text, text or '')
