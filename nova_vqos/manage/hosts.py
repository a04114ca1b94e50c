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
from collections.abc import Mapping
import typing as ty

from cliff import lister
from cliff import show

from nova_vqos import units as cpu_units
from nova_vqos.manage import columns
from nova_vqos.manage import command
from nova_vqos.manage import fleet as fleets

COLUMNS = ('host', 'cell', 'agent', 'capacity_cu', 'reserved_cu', 'used_cu',
           'coefficient', 'profile', 'profile_age_s', 'classes', 'servers',
           'wrong', 'alarms')

#: What is said of an agent in the column of this name.
NO_ANSWER = 'no answer'
TOO_OLD = 'too old'
NO_HYPERVISOR = 'no hypervisor'
ALIVE = 'alive'


class ListHosts(command.ManageCommand, lister.Lister):
    """Show all hosts: what they have to offer, and how they are.

    The coefficient is that of the host's slowest pCPU. Classes are those of
    vqos:quantum_class that its kernel was seen to enforce. Wrong are servers
    whose cap is not as it should be.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), 'get_host')
        return COLUMNS, [row(one) for one in answers]


class ShowHost(command.ManageCommand, show.ShowOne):
    """Show one host: what it has to offer, and how it is."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument('host', metavar='HOST', type=command.host_name,
                            help='as Nova names its compute service')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        told = self.ask_one(parsed_args.host, 'get_host')
        return zip(*fields(told), strict=True)


def agent_state(answer: fleets.Answer) -> str:
    """How an agent is, in a word or two."""
    if answer.value is not None:
        return ALIVE if answer.value.get('connected', True) else NO_HYPERVISOR
    return TOO_OLD if answer.error == fleets.TOO_OLD else NO_ANSWER


def row(answer: fleets.Answer) -> tuple[ty.Any, ...]:
    """What is said of a host, with :data:`COLUMNS`."""
    told = answer.value or {}
    units = told.get('units') or {}
    profile = told.get('profile') or {}
    return (
        answer.host, answer.cell, agent_state(answer),
        columns.number(units.get('capacity_cu')),
        columns.number(units.get('reserved_cu')),
        columns.number(units.get('used_cu')),
        columns.number(_coefficient(units, 'slowest_cu'), 3),
        columns.Shown(profile.get('id'), profile.get('id', '')),
        columns.age(profile.get('age_s')),
        columns.texts(told.get('quantum_classes')),
        columns.count(told.get('servers')), columns.count(told.get('wrong')),
        columns.count(told.get('alarms')))


def fields(told: Mapping[str, ty.Any]) -> list[tuple[str, ty.Any]]:
    """Names and values of what one host tells."""
    units = told.get('units') or {}
    profile = told.get('profile') or {}
    return [
        ('host', told['host']), ('agent', told['version']),
        ('started_at', told.get('started_at')),
        ('hypervisor', 'connected' if told['connected'] else NO_HYPERVISOR),
        ('cgroup_version', told['cgroup_version']),
        ('capacity_cu', units.get('capacity_cu')),
        ('reserved_cu', units.get('reserved_cu')),
        ('allocation_ratio', units.get('allocation_ratio')),
        ('used_cu', units.get('used_cu')),
        ('coefficient_slowest', _coefficient(units, 'slowest_cu')),
        ('coefficient_fastest', _coefficient(units, 'fastest_cu')),
        ('profile', profile.get('id')),
        ('profile_reference', profile.get('reference')),
        ('profile_measured_at', profile.get('measured_at')),
        ('profile_age_s', columns.age(profile.get('age_s'))),
        ('classes', columns.texts(told['quantum_classes'])),
        ('proof', columns.Shown(told.get('proof'), _proof(told))),
        ('dd_billing', columns.texts(told['dd_billing'])),
        ('servers', columns.Shown(told['servers'],
                                  str(len(told['servers'])))),
        ('wrong', columns.texts(told['wrong'])),
        ('alarms', columns.Shown(told['alarms'],
                                 '\n'.join(told['alarms']) or 'none')),
        ('ticks', told['ticks']), ('last_tick_ms', told['last_tick_ms']),
        ('writes', told['writes']), ('restored', told['restored']),
        ('errors', told['errors']),
    ]


def _coefficient(units: Mapping[str, float], name: str) -> float | None:
    return (None if name not in units else
            round(units[name] / cpu_units.CU_PER_REFERENCE_PCPU, 5))


def _proof(told: Mapping[str, ty.Any]) -> str:
    """What the kernel was seen to do with each class, one a line."""
    proof = told.get('proof')
    if proof is None:
        return ''
    words = {True: 'enforced', False: 'not enforced', None: 'not measured'}
    return '\n'.join(
        ': '.join(filter(None, (name, words[outcome['enforced']],
                                outcome['reason'])))
        for name, outcome in proof['classes'].items())
