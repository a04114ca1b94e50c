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

"""nova-vqos-manage host: what hosts offer, and how they are."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos.manage import command
from nova_vqos.manage import fleet as fleets

COLUMNS = ('host', 'cell', 'agent', 'capacity_cu', 'used_cu', 'reserved_cu',
           'servers', 'wrong', 'alarms')
NO_ANSWER = 'no answer'


class ListHosts(command.ManageCommand, lister.Lister):
    """Show all hosts: what they have to offer, and how they are."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), 'get_host')
        return COLUMNS, [_row(one) for one in answers]


def _row(answer: fleets.Answer) -> tuple[ty.Any, ...]:
    told = answer.value
    if told is None:
        return (answer.host, answer.cell, NO_ANSWER,
                *[None] * (len(COLUMNS) - 3))
    units = told.get('units') or {}
    return (answer.host, answer.cell, told['version'],
            units.get('capacity_cu'), units.get('used_cu'),
            units.get('reserved_cu'), len(told['servers']),
            len(told['wrong']), len(told['alarms']))
