# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage flavor sync."""

import argparse
from collections.abc import Mapping
import typing as ty

from cliff import lister

from nova_vqos import host_stats
from nova_vqos import policy as policies
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import output
from nova_vqos.scheduler import fitness

_COLUMNS = ('flavor', 'result', 'set', 'removed', 'kept')
_RESERVED_KEY = f'trait:{host_stats.TRAIT_SELLS_UNITS}'


class Change(ty.NamedTuple):
    """What is to be changed in the extra specs of a flavor.

    :ivar set: keys that are missing, with their values
    :ivar removed: keys by which the flavor would find no host
    :ivar kept: keys that have another value, which somebody has chosen
    """

    set: Mapping[str, str]
    removed: tuple[str, ...]
    kept: Mapping[str, str]

    @classmethod
    def of(cls, extra_specs: Mapping[str, str], vcpus: int, *,
           servers_without_units: str) -> 'Change':
        """
        :param servers_without_units: see [vqos] servers_without_units
        :raises PolicyError: when the flavor is invalid
        """
        policy = policies.parse(extra_specs, vcpus)
        wanted = {f'trait:{trait}': 'required'
                  for trait in fitness.required_traits(policy)}
        wanted |= {f'trait:{trait}': 'forbidden'
                   for trait in fitness.forbidden_traits(
                       policy, servers_without_units=servers_without_units)}
        wanted = dict(sorted(wanted.items()))
        return cls(
            {key: value for key, value in wanted.items()
             if key not in extra_specs},
            tuple(key for key in (_RESERVED_KEY,) if key not in wanted
                  and extra_specs.get(key) == 'forbidden'),
            {key: extra_specs[key] for key, value in wanted.items()
             if extra_specs.get(key, value) != value})


class SyncFlavors(command.ManageCommand, lister.Lister):
    """Write the traits that servers need into flavors, as trait: keys.

    For clouds with [vqos] placement_prefilter = false, or with isolated
    aggregates: so Placement leaves out hosts that the scheduler filter would
    refuse. Flavors without units exclude the hosts that sell units. Keys that
    are there already stay, whatever their values. Once more, it changes
    nothing. Exits 1 if a flavor is invalid.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('flavors', metavar='FLAVOR', nargs='*',
                            help='name or ID; default: all flavors')
        parser.add_argument(
            '--dry-run', action='store_true',
            help='show what would be changed, and change nothing')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        cloud = self.connections.cloud()
        without = self.connections.options().vqos.servers_without_units
        rows, todo = [], []
        for flavor in clouds.select(cloud.flavors(), parsed_args.flavors):
            try:
                change = Change.of(flavor.extra_specs, flavor.vcpus,
                                   servers_without_units=without)
            except policies.PolicyError as error:
                self.status = 1
                self.app.LOG.warning('flavor %s is invalid: %s', flavor.name,
                                     error)
                change, result = Change({}, (), {}), 'invalid'
            else:
                result = 'unchanged'
                if change.set or change.removed:
                    todo.append((flavor, change))
                    result = ('would change' if parsed_args.dry_run
                              else 'changed')
            rows.append((flavor.name, result, _specs(change.set),
                         output.texts(change.removed), _specs(change.kept)))
        if todo and not parsed_args.dry_run:
            # NOTE: Placement refuses a request with a trait that it does not
            # know, and no host may have these yet.
            cloud.placement.create_traits(host_stats.ASKED_TRAITS)
            for flavor, change in todo:
                cloud.change_flavor(flavor.flavor_id, change.set,
                                    change.removed)
        return _COLUMNS, rows


def _specs(specs: Mapping[str, str]) -> output.Shown:
    return output.Shown(dict(specs), '\n'.join(
        f'{key}={value}' for key, value in specs.items()))
