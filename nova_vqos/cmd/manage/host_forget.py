# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage host forget."""

import argparse
import typing as ty

from cliff import show

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import cloud as clouds
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import output


class ForgetHost(command.ManageCommand, show.ShowOne):
    """Remove from Placement what nova_vqos reported of a host.

    The last step of an uninstallation: the inventory of CUSTOM_VQOS_CPU_UNIT
    and all traits of nova_vqos are removed from the host's resource provider,
    others stay. Refused while servers hold units of the host, and while its
    agent or its compute driver would report them again. Once more, it changes
    nothing.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument('host', metavar='HOST', type=command.host_name,
                            help='as Nova names its compute service')
        parser.add_argument(
            '--force', action='store_true',
            help='also where the agent still answers, or the compute service '
                 'still reports units: if it goes on, they come back. Units '
                 'that servers hold are never removed')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        host = parsed_args.host
        cloud = self.connections.cloud()
        compute = next((one for one in cloud.computes()
                        if one.host == host and one.provider), None)
        if compute is None:
            raise errors.ManageError(
                f'Nova has no compute service {host} with a resource '
                'provider: there is nothing to remove')
        placement = cloud.placement
        found = placement.providers([compute.provider])[compute.provider]
        used_cu = found.usages.get(policy.RESOURCE_CLASS, 0)
        if used_cu:
            raise errors.ManageError(
                f'servers or migrations hold {used_cu} CU of host {host}: '
                'migrate or delete the servers first')
        has_units = policy.RESOURCE_CLASS in found.inventories
        if not parsed_args.force:
            self._check_stopped(compute, has_units)
        if has_units:
            placement.remove_inventory(compute.provider,
                                       policy.RESOURCE_CLASS)
        traits = placement.remove_traits(compute.provider,
                                         host_stats.own_traits)
        return zip(*(('host', host), ('provider', compute.provider),
                     ('units_removed', output.flag(has_units)),
                     ('traits_removed', output.texts(traits))), strict=True)

    def _check_stopped(self, compute: clouds.Compute,
                       has_units: bool) -> None:
        """
        :raises ManageError: when something would report the units again
        """
        if has_units and not compute.is_down:
            raise errors.ManageError(
                f'host {compute.host} still sells units, and its compute '
                'service is up: set [DEFAULT] compute_driver of its nova.conf '
                'back to libvirt.LibvirtDriver and restart nova-compute first '
                '(--force: remove them all the same)')
        (answer,) = self.ask_quietly(
            self.connections.hosts([compute.host]), rpcapi.GET_HOST)
        if answer.value is not None:
            raise errors.ManageError(
                f'the agent of host {compute.host} still answers: stop and '
                'disable nova-vqos-agent there first (--force: go on all the '
                'same)')
