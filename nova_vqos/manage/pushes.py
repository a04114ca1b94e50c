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


"""``policy push`` and ``policy status``: flavors as agents know them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import typing as ty

from cliff import lister

from nova_vqos import pushed
from nova_vqos.agent import pushed_store
from nova_vqos.manage import columns
from nova_vqos.manage import command
from nova_vqos.manage import errors
from nova_vqos.manage import flavors
from nova_vqos.manage import fleet as fleets
from nova_vqos.manage import hosts

PLAN_COLUMNS = ('flavor', 'id', 'vcpus', 'units_cu', 'quantum_class',
                'dd_billing', 'hosts_behind')
PUSH_COLUMNS = ('host', 'cell', 'state', 'servers', 'following',
                'other_units', 'not_following', 'problem')
STATUS_COLUMNS = ('host', 'cell', 'state', 'generation', 'pushed_at',
                  'flavors', 'behind', 'following', 'not_following',
                  'problem')

CURRENT, BEHIND = 'current', 'behind'
_MOST_NAMED = 5


class PushPolicies(command.ManageCommand, lister.Lister):
    """Have running servers follow their flavors as Nova has them now.

    That is vqos:quantum_class and vqos:dd_billing; a flavor without them
    means the defaults. Units and vqos:cap stay as each server was booted with:
    they change by a resize. Agents that are down hear of it from others once
    they are back. Exits with 1 where a host did not acknowledge.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            '--flavor', action='append', dest='flavors', default=[],
            metavar='FLAVOR', help='name or id of a flavor to push; may be '
            'given more than once, default: all')
        parser.add_argument(
            '--dry-run', action='store_true',
            help='show what would be pushed, and how many hosts do not hold '
                 'it yet; tell agents nothing')
        command.add_hosts(
            parser, 'push to this host alone; the others of its cell hear of '
            'it from it within minutes; may be given more than once')
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        wanted = flavors.overrides(flavors.select(
            flavors.read_all(self.cloud().compute), parsed_args.flavors))
        if not wanted:
            raise errors.ManageError('Nova has no flavors')
        asked = self.hosts(parsed_args)
        if parsed_args.dry_run:
            answers = self.ask(asked, 'get_pushed')
            return PLAN_COLUMNS, plan_rows(wanted, answers)
        # Those who do not answer now are told of by the next question.
        held = self.fleet().ask(asked, 'get_pushed')
        generation = max(pushed_store.now_us(), 1 + max(
            (one.value['generation'] for one in held
             if one.value is not None), default=0))
        answers = self.ask(
            asked, 'push_policies', generation=generation,
            flavors={flavor_id: fields(override)
                     for flavor_id, override in wanted.items()})
        self._tell(answers, generation)
        return PUSH_COLUMNS, [push_row(one, generation) for one in answers]

    def _tell(self, answers: Sequence[fleets.Answer],
              generation: int) -> None:
        """Tell on stderr of what is not as it should be."""
        told = [one.value for one in answers if one.value is not None]
        overtaken = _hosts(one for one in told
                           if one['generation'] > generation)
        if overtaken:
            self.status = 1
            self.app.LOG.warning(
                'another push came at the same time, and holds where both '
                'have a flavor, on %s: push again', overtaken)
        unkept = _hosts(one for one in told if not one['stored'])
        if unkept:
            self.status = 1
            self.app.LOG.warning(
                'in force, but not kept for the next start of the agent, on '
                '%s: see the column problem', unkept)
        tell_not_following(self.app.LOG, told)


class ShowPushed(command.ManageCommand, lister.Lister):
    """Show which hosts hold what was pushed, and which lag behind.

    Behind are flavors of which another host holds something newer. Exits with
    1 where a host lags behind, or does not answer.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        command.add_hosts(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask(self.hosts(parsed_args), 'get_pushed')
        newest = newest_of(answers)
        rows = [status_row(one, newest) for one in answers]
        told = [one.value for one in answers if one.value is not None]
        lagging = _hosts(one for one in told if behind(one, newest))
        if lagging:
            self.status = 1
            self.app.LOG.warning(
                'behind are %s: they ask others within minutes; policy push '
                'tells them now', lagging)
        tell_not_following(self.app.LOG, told)
        return STATUS_COLUMNS, rows


def fields(override: pushed.Override) -> dict[str, ty.Any]:
    """What is sent of a flavor: the generation is that of the push."""
    sent = override.to_dict()
    del sent['generation']
    return sent


def plan_rows(wanted: pushed.Overrides, answers: Sequence[fleets.Answer]
              ) -> list[tuple[ty.Any, ...]]:
    """What would be pushed, with :data:`PLAN_COLUMNS`, by name."""
    held = [one.value['flavors'] for one in answers if one.value is not None]
    rows = []
    for flavor_id, override in wanted.items():
        sent = fields(override)
        missing = sum(
            {**one.get(flavor_id, {}), 'generation': None}
            != {**sent, 'generation': None} for one in held)
        rows.append((
            override.name, flavor_id, override.vcpus,
            columns.number(override.units), override.quantum_class,
            override.dd_billing, missing))
    return sorted(rows, key=lambda row: row[:2])


def push_row(answer: fleets.Answer, generation: int) -> tuple[ty.Any, ...]:
    """What became of a push on a host, with :data:`PUSH_COLUMNS`."""
    told = answer.value
    if told is None:
        return (answer.host, answer.cell, hosts.agent_state(answer),
                *[columns.number(None)] * 3, columns.texts(None),
                answer.error)
    state = 'overtaken' if told['generation'] > generation else told['state']
    return (answer.host, answer.cell, state, told['servers'],
            told['following'], told['other_units'], not_following(told),
            told['problem'])


def status_row(answer: fleets.Answer,
               newest: pushed.Overrides) -> tuple[ty.Any, ...]:
    """What a host holds, with :data:`STATUS_COLUMNS`."""
    told = answer.value
    if told is None:
        none = columns.number(None)
        return (answer.host, answer.cell, hosts.agent_state(answer), none,
                columns.texts(None), none, columns.texts(None), none,
                columns.texts(None), answer.error)
    lacking = behind(told, newest)
    return (answer.host, answer.cell, BEHIND if lacking else CURRENT,
            told['generation'], told['pushed_at'] or columns.texts(None),
            len(told['flavors']), columns.texts(lacking), told['following'],
            not_following(told), told['problem'])


def newest_of(answers: Iterable[fleets.Answer]) -> pushed.Overrides:
    """What all hosts would hold, had they heard of everything."""
    newest = pushed.NOTHING
    for one in answers:
        if one.value is not None:
            newest = pushed.merged(newest,
                                   pushed.from_dict(one.value['flavors']))
    return newest


def behind(told: Mapping[str, ty.Any],
           newest: pushed.Overrides) -> list[str]:
    """Names of flavors of which a host holds something older, or nothing."""
    held = pushed.from_dict(told['flavors'])
    return sorted(override.name for flavor_id, override in newest.items()
                  if held.get(flavor_id) != override)


def not_following(told: Mapping[str, ty.Any]) -> ty.Any:
    """How many servers do not follow; for JSON also which, and why."""
    count = told['refused'] + told['unmatched']
    return columns.Shown({'refused': told['refused'],
                          'unmatched': told['unmatched'],
                          'servers': told['not_following']}, f'{count:7}')


def tell_not_following(log: ty.Any,
                       told: Iterable[Mapping[str, ty.Any]]) -> None:
    """Tell on stderr of servers that do not follow what was pushed."""
    told = list(told)
    count = sum(one['refused'] + one['unmatched'] for one in told)
    if not count:
        return
    named = [f'{server["server_uuid"]} of flavor {server["flavor"]} on '
             f'{one["host"]}: {server["reason"]}'
             for one in told for server in one['not_following']]
    shown = '; '.join(named[:_MOST_NAMED])
    log.warning('%d servers do not follow what was pushed: %s%s', count,
                shown, '; ...' if count > _MOST_NAMED else '')


def _hosts(told: Iterable[Mapping[str, ty.Any]]) -> str:
    names = sorted(one['host'] for one in told)
    left = len(names) - _MOST_NAMED
    return ', '.join(names[:_MOST_NAMED]) + (
        f' and {left} more' if left > 0 else '')
