# SPDX-License-Identifier: Apache-2.0
"""Hosts and servers with units, as Placement has them."""

from collections.abc import Iterable, Mapping
import typing as ty

from nova_vqos import policy
from nova_vqos.cmd.manage import cloud
from nova_vqos.cmd.manage import demand
from nova_vqos.cmd.manage import placement as placements
from nova_vqos.watcher import balance

_MEMORY = 'MEMORY_MB'


class Cluster(ty.NamedTuple):
    """What may be levelled.

    :ivar hosts: that sell units now
    :ivar servers: of them, with units
    :ivar providers: of all hosts, by UUID
    """

    hosts: tuple[balance.Host, ...]
    servers: tuple[balance.Server, ...]
    providers: Mapping[str, demand.Provider]


def read(placement: placements.Placement, computes: Iterable[cloud.Compute],
         placed: Mapping[str, tuple[str, bool]]) -> Cluster:
    """Ask Placement what hosts have, and what servers hold of them.

    Hosts without units, or whose units are all reserved, as those of a host
    without a valid profile, are left out with their servers.

    :param placed: host and whether it may move, of each server that Nova has,
        by UUID. A claim on another host is of a move that is under way: it
        counts as used alone
    :raises ManageError: when Placement cannot be asked
    """
    names = {one.provider: one.host for one in computes}
    hosts, servers = [], []
    held = dict(placement.holdings(names))
    providers = placement.providers(names)
    for uuid, provider in providers.items():
        host, capacity_cu = names[uuid], provider.capacity(
            policy.RESOURCE_CLASS)
        if capacity_cu <= 0:
            continue
        hosts.append(balance.Host(
            host, capacity_cu, provider.usages.get(policy.RESOURCE_CLASS, 0),
            provider.capacity(_MEMORY), provider.usages.get(_MEMORY, 0)))
        for consumer, resources in held[uuid].held.items():
            cu = resources.get(policy.RESOURCE_CLASS, 0)
            where, may_move = placed.get(consumer, ('', False))
            if cu and where == host:
                servers.append(balance.Server(
                    consumer, host, cu, resources.get(_MEMORY, 0), may_move))
    return Cluster(tuple(hosts), tuple(servers), providers)
