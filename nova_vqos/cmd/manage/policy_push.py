# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage policy push and policy status."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import functools
import logging
import typing as ty

from cliff import lister
from cryptography.hazmat.primitives.asymmetric import ed25519

from nova_vqos import policy
from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos import push_keys
from nova_vqos import push_signature
from nova_vqos.agent import fanout
from nova_vqos.agent import rpcapi
from nova_vqos.agent.messages import pushes
from nova_vqos.agent.overrides import store
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import hosts
from nova_vqos.cmd.manage import output
from nova_vqos.cmd.manage import pushed

PLAN_COLUMNS = ('flavor', 'id', 'vcpus', 'units_cu',
                *policy_override.FOLLOWED, 'hosts_behind')
PUSH_COLUMNS = ('host', 'cell', 'state', 'servers', 'following',
                'other_units', 'keep_reservation', 'not_following', 'problem')
STATUS_COLUMNS = ('host', 'cell', 'state', 'generation', 'pushed_at',
                  'flavors', 'behind', 'following', 'keep_reservation',
                  'not_following', 'signed', 'problem')

CURRENT, BEHIND = 'current', 'behind'
_MOST_NAMED = 5

_Answering = pushes.PushResult | pushes.Pushed


class _PolicyCommand(command.ManageCommand, lister.Lister):
    def ask_pushed(self, hosts: Mapping[str, str]
                   ) -> list[fanout.Answer[pushes.Pushed]]:
        """What hosts hold; warns of those that do not answer."""
        answers = pushed.of_hosts(self.ask_quietly, hosts)
        self.warn([one for one in answers if one.value is None],
                  len(answers))
        return answers


class PushPolicies(_PolicyCommand):
    """Have running servers follow their flavors as Nova has them now.

    They follow vqos:quantum_class, vqos:dd_billing and vqos:guarantee; the
    defaults of a flavor without them; and of a flavor that Nova does not have
    any more, what they were booted with. Units, vqos:cap and vqos:work change
    only by a resize, and a reservation ends only when its server stops. Agents
    that are down get the push from others once they are back. Exits with 1
    where a host did not acknowledge, or a flavor is invalid and not pushed.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            '--flavor', action='append', dest='flavors', default=[],
            metavar='FLAVOR', help='name or ID of a flavor to push; may be '
            'repeated, default: all')
        parser.add_argument(
            '--dry-run', action='store_true',
            help='show what would be pushed, and how many hosts do not hold '
                 'it yet; send nothing')
        command.add_hosts(
            parser, 'push to this host alone, which passes it on to the '
            'others of its cell within minutes; may be repeated')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        flavors = cloud.select(self.connections.cloud().flavors(),
                               parsed_args.flavors)
        if not flavors:
            raise errors.ManageError('Nova has no flavors')
        wanted, invalid = overrides(flavors)
        self._warn_of_invalid(invalid, len(wanted))
        self._warn_of_work(flavors)
        # A full push would drop the overrides of invalid flavors.
        full = not parsed_args.flavors and not invalid
        asked = self.hosts(parsed_args)
        key = self._key()
        if parsed_args.dry_run:
            answers = self.ask_pushed(asked)
            if full:
                self._warn_of_dropped(wanted, answers)
            return PLAN_COLUMNS, plan_rows(wanted, answers)
        held = pushed.generations(self.ask_quietly, asked)
        generation = max(store.now_us(), 1 + max(
            (one.value for one in held if one.value is not None), default=0))
        push = policy_push.Push(generation, full, {
            flavor_id: override._replace(generation=generation)
            for flavor_id, override in wanted.items()})
        results = self._push(asked, push if key is None
                             else push_signature.signed(push, key))
        self._warn_of_ignored(held, results)
        self._warn(results, generation)
        return PUSH_COLUMNS, [push_row(one, generation) for one in results]

    def _key(self) -> ed25519.Ed25519PrivateKey | None:
        """
        :raises ManageError: when it cannot be used
        """
        path = self.connections.options().vqos_manage.push_private_key
        if not path:
            return None
        try:
            return push_keys.load_private(path)
        except push_keys.KeyInvalid as error:
            raise errors.ManageError(
                f'[vqos_manage] push_private_key: {error}') from error

    def _push(self, hosts: Mapping[str, str], push: policy_push.Push
              ) -> list[fanout.Answer[pushes.PushResult]]:
        found = self.ask_quietly(hosts, rpcapi.PUSH_FLAVORS,
                                 push=push.to_dict())
        # Agents before 1.6 know partial pushes alone.
        older = {one.host: one for one in self.ask_quietly(
            {one.host: one.cell for one in found
             if one.error == fanout.TOO_OLD}, rpcapi.PUSH_POLICIES,
            generation=push.generation,
            flavors=policy_push.without_generation(push.overrides))}
        results = [pushed.plausible(older.get(one.host, one))
                   for one in found]
        self.warn([one for one in results if one.value is None],
                  len(results))
        return results

    def _warn_of_dropped(
            self, wanted: policy_override.Overrides,
            answers: Iterable[fanout.Answer[pushes.Pushed]]) -> None:
        """Warn of servers that a push sends back to their flavor at boot."""
        names = {override.name for one in answers if one.value is not None
                 for flavor_id, override in one.value.flavors.items()
                 if flavor_id not in wanted}
        if names:
            self.app.LOG.warning(
                'Nova does not have these flavors any more: with this push '
                'their servers follow them as booted: %s',
                output.some(sorted(names)))

    def _warn_of_ignored(
            self, held: Sequence[fanout.Answer[int]],
            results: Sequence[fanout.Answer[pushes.PushResult]]) -> None:
        """Warn of hosts whose generation did not count for the push."""
        # A host that fails twice alike is warned of as such.
        ignored = [f'{before.host} ({before.error})'
                   for before, after in zip(held, results, strict=True)
                   if before.error not in ('', after.error)]
        if ignored:
            self.status = 1
            self.app.LOG.warning(
                'the newest generation of these hosts is unknown, and the '
                'push may be older than what they hold: %s',
                output.some(ignored))

    def _warn_of_invalid(self, invalid: Sequence[str], valid: int) -> None:
        """
        :param invalid: what is wrong with each flavor that is not pushed
        :param valid: how many are
        :raises ManageError: when none is
        """
        if not invalid:
            return
        said = (f'{len(invalid)} flavors are not pushed, since they are '
                'invalid, and no earlier push is dropped: '
                f'{"; ".join(invalid)}')
        if not valid:
            raise errors.ManageError(said)
        self.status = 1
        self.app.LOG.warning('%s', said)

    def _warn_of_work(self, flavors: Iterable[cloud.Flavor]) -> None:
        """Warn of what looks as if a push changed it."""
        named = [flavor.name for flavor in flavors
                 if policy.WORK_KEY in flavor.extra_specs]
        if named:
            self.app.LOG.warning(
                '%s is not pushed: running servers keep that of their boot '
                'until a resize. Flavors with it: %s', policy.WORK_KEY,
                output.some(named))

    def _warn(self, answers: Sequence[fanout.Answer[pushes.PushResult]],
              generation: int) -> None:
        """Warn of hosts and servers that do not follow."""
        results = [one.value for one in answers if one.value is not None]
        overtaken = _hosts(one for one in results
                           if one.generation > generation)
        if overtaken:
            self.status = 1
            self.app.LOG.warning(
                'another push came at the same time, and holds for flavors of '
                'both on %s: push again', overtaken)
        unkept = _hosts(one for one in results if not one.stored)
        if unkept:
            self.status = 1
            self.app.LOG.warning(
                'in force, but lost with the next start of the agent, on %s: '
                'see the column problem', unkept)
        warn_not_following(self.app.LOG, results)


class ShowPushed(_PolicyCommand):
    """Show which hosts hold the newest push of each flavor.

    A host is behind in a flavor where another host holds a newer push. Exits
    with 1 where a host is behind, or does not answer.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        answers = self.ask_pushed(self.hosts(parsed_args))
        held = [one.value for one in answers if one.value is not None]
        newest = newest_of(held)
        rows = [status_row(one, newest) for one in answers]
        lagging = _hosts(one for one in held if behind(one, newest))
        if lagging:
            self.status = 1
            self.app.LOG.warning(
                'hosts behind: %s; they ask others within minutes, policy '
                'push updates them now', lagging)
        warn_not_following(self.app.LOG, held)
        return STATUS_COLUMNS, rows


def newest_of(held: Iterable[pushes.Pushed]) -> policy_override.Overrides:
    """The newest override of each flavor of the newest full push, or later."""
    held = list(held)
    full_generation = max((one.full_generation for one in held), default=0)
    merged = functools.reduce(
        policy_override.merged, (one.flavors for one in held),
        policy_override.NOTHING)
    return {flavor_id: override for flavor_id, override in merged.items()
            if override.generation >= full_generation}


def overrides(flavors: Iterable[cloud.Flavor]
              ) -> tuple[policy_override.Overrides, list[str]]:
    """The overrides to push; the defaults of a flavor without our keys.

    :returns: without a generation; and what is wrong with each flavor that
        has none, since it is invalid
    :raises ManageError: when they are too many
    """
    flavors = list(flavors)
    if len(flavors) > policy_override.MOST_FLAVORS:
        raise errors.ManageError(
            f'{len(flavors)} flavors are more than the '
            f'{policy_override.MOST_FLAVORS} '
            'that agents keep: name some by --flavor')
    found, wrong = {}, []
    for flavor in flavors:
        try:
            found[flavor.flavor_id] = policy_override.of_flavor(
                flavor.name, flavor.vcpus, flavor.extra_specs)
        except policy.PolicyError as error:
            wrong.append(f'flavor {flavor.name} ({flavor.flavor_id}): {error}')
    return found, wrong


def plan_rows(wanted: policy_override.Overrides,
              answers: Sequence[fanout.Answer[pushes.Pushed]]
              ) -> list[tuple[ty.Any, ...]]:
    """What would be pushed, with :data:`PLAN_COLUMNS`, by name."""
    held = [one.value.flavors for one in answers if one.value is not None]
    rows = []
    for flavor_id, override in wanted.items():
        missing = sum(
            flavor_id not in one or one[flavor_id] != override._replace(
                generation=one[flavor_id].generation) for one in held)
        rows.append((
            override.name, flavor_id, override.vcpus,
            output.number(override.units),
            *(getattr(override, field) for field in policy_override.FOLLOWED),
            missing))
    return sorted(rows, key=lambda row: row[:2])


def push_row(answer: fanout.Answer[pushes.PushResult],
             generation: int) -> tuple[ty.Any, ...]:
    """The result of a push on a host, with :data:`PUSH_COLUMNS`."""
    result = answer.value
    if result is None:
        return (answer.host, answer.cell, hosts.silence(answer.error),
                *[output.text(None)] * 5, answer.error)
    state = 'overtaken' if result.generation > generation else result.state
    return (answer.host, answer.cell, state, result.servers,
            result.following, result.other_units, result.keep_reservation,
            not_following(result), result.problem)


def status_row(answer: fanout.Answer[pushes.Pushed],
               newest: policy_override.Overrides) -> tuple[ty.Any, ...]:
    """The pushes that a host holds, with :data:`STATUS_COLUMNS`."""
    held = answer.value
    if held is None:
        return (answer.host, answer.cell, hosts.silence(answer.error),
                *[output.text(None)] * 8, answer.error)
    lacking = behind(held, newest)
    return (answer.host, answer.cell, BEHIND if lacking else CURRENT,
            held.generation, held.pushed_at or output.text(None),
            len(held.flavors), output.texts(lacking), held.following,
            held.keep_reservation, not_following(held),
            output.Shown(held.requires_signature,
                         'required' if held.requires_signature else 'no'),
            held.problem)


def behind(held: pushes.Pushed,
           newest: policy_override.Overrides) -> list[str]:
    """Names of flavors whose newest push a host lacks, or should not have."""
    return sorted(
        override.name for flavor_id, override in
        {**held.flavors, **newest}.items()
        if held.flavors.get(flavor_id) != newest.get(flavor_id))


def not_following(host: pushes.Following) -> output.Shown:
    """How many servers do not follow; for JSON also which, and why."""
    return output.Shown({'refused': host.refused,
                         'unmatched': host.unmatched,
                         'servers': host.not_following},
                        f'{host.refused + host.unmatched:7}')


def warn_not_following(log: logging.Logger, hosts: Iterable[_Answering]
                       ) -> None:
    """Warn of servers that do not follow what was pushed."""
    hosts = list(hosts)
    count = sum(one.refused + one.unmatched for one in hosts)
    if not count:
        return
    named = [f'{server.server_uuid} of flavor {server.flavor} on '
             f'{one.host}: {server.reason}'
             for one in hosts for server in one.not_following]
    log.warning('%d servers do not follow what was pushed: %s%s', count,
                '; '.join(named[:_MOST_NAMED]),
                '; ...' if count > _MOST_NAMED else '')


def _hosts(answers: Iterable[_Answering]) -> str:
    return output.some(sorted(one.host for one in answers))
