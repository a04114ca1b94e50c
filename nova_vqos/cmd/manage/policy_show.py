# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage policy show."""

import argparse
import typing as ty

from cliff import lister

from nova_vqos import policy_override
from nova_vqos.agent import rpcapi
from nova_vqos.cmd.manage import command
from nova_vqos.cmd.manage import output
from nova_vqos.cmd.manage import servers

COLUMNS = ('host', 'server', 'flavor', 'field', 'in_force', 'source',
           'booted', 'pushed', 'pushed_at', 'reason')


class ShowPolicies(command.ManageCommand, lister.Lister):
    """Show which class, billing and guarantee servers have, and their source.

    The source is the flavor that the server was booted with, or a push.
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        command.add_hosts(parser)
        parser.add_argument(
            '--server', metavar='SERVER',
            help='this server alone: UUID, or, without --host, name in Nova')
        parser.add_argument(
            '--flavor', metavar='FLAVOR',
            help='only servers of the flavor of this name or id')

    def take_action(self, parsed_args: argparse.Namespace) -> ty.Any:
        given, asked = parsed_args.server, parsed_args.hosts
        if given is not None:
            given, host = servers.locate(self, given, asked)
            asked = [host] if host else asked
        answers = self.ask(self.connections.hosts(asked),
                           rpcapi.LIST_SERVERS)
        found = [
            servers.Placed(one.host, server)
            for one in answers if one.value is not None
            for server in one.value.servers
            if given in (None, server.server_uuid)]
        if given is not None and not found:
            raise servers.runs_nowhere(given, parsed_args.hosts)
        return COLUMNS, [
            row for one in found
            if parsed_args.flavor in (None, one.server.flavor,
                                      one.server.flavor_id)
            for row in field_rows(one)]


def field_rows(placed: servers.Placed) -> list[tuple[ty.Any, ...]]:
    """One row for each field that can be pushed, with :data:`COLUMNS`."""
    server, last = placed.server, placed.server.pushed
    in_force = {
        'quantum_class': server.quantum_class,
        'dd_billing': server.dd_billing,
        'guarantee': server.policy.guarantee if server.policy else 'off'}
    reasons = {}
    if server.guarantee is not None and server.guarantee.ends:
        reasons['guarantee'] = 'it keeps its reservation until it stops'
    return [(
        placed.host, server.server_uuid, server.flavor, name,
        in_force[name], (server.policy_source or {}).get(name),
        (server.booted or {}).get(name),
        output.text(getattr(last, name) if last else None),
        output.text(last.pushed_at if last else None),
        server.push_error or reasons.get(name, ''))
        for name in policy_override.FOLLOWED]
