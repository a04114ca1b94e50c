# SPDX-License-Identifier: Apache-2.0
"""Placement: what hosts have and what servers hold of it.

All is read only but the repair of claims, the removal of what nova_vqos has
left, and the traits of flavors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent import futures
import operator
import typing as ty

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import differences
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import rest

# With groups of resources in nested providers.
_VERSION = '1.36'
_AT_ONCE = 8
# Of a change, while others change the same.
_TRIES = 5
_CONCURRENT = 'placement.concurrent_update'


class Holdings(ty.NamedTuple):
    """What is held of a resource provider.

    :ivar inventory: of CPU units; None: it has none
    :ivar held: resources by class, by consumer
    """

    inventory: differences.Inventory | None
    held: Mapping[str, Mapping[str, int]]


class Placement:
    """Asks Placement; whatever fails raises ManageError."""

    def __init__(self, connection: ty.Any) -> None:
        """
        :param connection: openstack.connection.Connection
        """
        self._service = rest.Service(connection, 'placement')

    def held(self, consumer: str) -> dict[str, int]:
        """What a server holds of all providers, by resource class."""
        def read(body: ty.Any) -> dict[str, int]:
            held: dict[str, int] = {}
            for allocation in body['allocations'].values():
                for name, amount in allocation['resources'].items():
                    held[name] = held.get(name, 0) + amount
            return held
        return self._service.get(f'/allocations/{consumer}', _VERSION, read)

    def holdings(self, providers: Iterable[str]
                 ) -> Iterator[tuple[str, Holdings]]:
        """What is held of resource providers, by UUID."""
        wanted = list(providers)
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from zip(wanted, pool.map(self._holdings, wanted),
                           strict=True)

    def set_claim(self, consumer: str, provider: str, amount_cu: int,
                  is_right: Callable[[], bool]) -> str:
        """Set the CPU units that a server holds of its host.

        What else it holds stays.

        :param is_right: asked once what it holds was read: a change after
            that is a conflict
        :returns: why it was not set; '': it was
        """
        path = f'/allocations/{consumer}'
        for _ in range(_TRIES):
            body = self._service.get(path, _VERSION, dict)
            if not is_right():
                return 'the server has changed meanwhile'
            changed = _changed(body, provider, amount_cu)
            if changed is None:
                return 'it holds nothing of its host any more'
            conflict = self._service.change('put', path, _VERSION,
                                            json=changed)
            if not conflict:
                return ''
            if conflict != _CONCURRENT:
                return f'Placement has no room for its {amount_cu} CU'
        return 'its claim is changed all the time: try again'

    def offers(self, demand: demands.Demand) -> dict[str, demands.Provider]:
        """The hosts that Placement offers for a demand, by UUID."""
        def read(body: ty.Any) -> dict[str, demands.Provider]:
            summaries = body['provider_summaries']
            roots = {summaries[provider]['root_provider_uuid']
                     for request in body['allocation_requests']
                     for provider in request['allocations']}
            return {root: demands.Provider.of_summary(summaries[root])
                    for root in roots if root in summaries}
        return self._service.get(f'/allocation_candidates?{demand.query}',
                                 _VERSION, read)

    def providers(self, uuids: Iterable[str]) -> dict[str, demands.Provider]:
        """The resource providers of some hosts, by UUID."""
        wanted = [uuid for uuid in uuids if uuid]
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(wanted, pool.map(self._provider, wanted),
                            strict=True))

    def remove_inventory(self, provider: str, name: str) -> None:
        """Remove a resource class from a resource provider.

        :raises ManageError: when servers hold some of it
        """
        if self._service.change(
                'delete', f'/resource_providers/{provider}/inventories/{name}',
                _VERSION):
            raise errors.ManageError(
                f'servers hold {name} of resource provider {provider}: '
                'migrate or delete them first')

    def remove_traits(self, provider: str,
                      select: Callable[[Iterable[str]], set[str]]
                      ) -> list[str]:
        """Remove traits from a resource provider.

        :param select: finds them among all that it has
        :returns: those that were removed, sorted
        """
        path = f'/resource_providers/{provider}/traits'
        for _ in range(_TRIES):
            traits, generation = self._service.get(
                path, _VERSION, lambda body: (
                    set(body['traits']), body['resource_provider_generation']))
            removed = select(traits)
            # nova-compute may change its provider at the same time.
            if not removed or not self._service.change('put', path, _VERSION,
                                                       json={
                    'traits': sorted(traits - removed),
                    'resource_provider_generation': generation}):
                return sorted(removed)
        raise errors.ManageError(
            f'resource provider {provider} is changed all the time: try again')

    def create_traits(self, names: Iterable[str]) -> None:
        """Have Placement know some traits, which no host needs to have."""
        known = self._service.get(
            f'/traits?name=startswith:{host_stats.TRAIT}', _VERSION,
            lambda body: set(body['traits']))
        for name in sorted(set(names) - known):
            self._service.change('put', f'/traits/{name}', _VERSION)

    def _provider(self, uuid: str) -> demands.Provider:
        inventories, usages, traits = (
            self._service.get(f'/resource_providers/{uuid}/{name}', _VERSION,
                              operator.itemgetter(name))
            for name in ('inventories', 'usages', 'traits'))
        return demands.Provider(inventories, usages, frozenset(traits))

    def _holdings(self, provider: str) -> Holdings:
        path = f'/resource_providers/{provider}'
        return Holdings(
            self._service.get(f'{path}/inventories', _VERSION, _inventory),
            self._service.get(f'{path}/allocations', _VERSION,
                              lambda body: {
                                  consumer: one['resources'] for consumer, one
                                  in body['allocations'].items()}))


def _inventory(body: Mapping[str, ty.Any]) -> differences.Inventory | None:
    found = body['inventories'].get(policy.RESOURCE_CLASS)
    return None if found is None else differences.Inventory(
        found['total'], found['reserved'], found['allocation_ratio'])


def _changed(body: Mapping[str, ty.Any], provider: str,
             amount_cu: int) -> dict[str, ty.Any] | None:
    """What a consumer holds, with other units; None: nothing of a provider."""
    resources = {uuid: dict(one['resources'])
                 for uuid, one in body.get('allocations', {}).items()}
    if provider not in resources:
        return None
    resources[provider].pop(policy.RESOURCE_CLASS, None)
    if amount_cu:
        resources[provider][policy.RESOURCE_CLASS] = amount_cu
    return {
        'allocations': {uuid: {'resources': amounts}
                        for uuid, amounts in resources.items() if amounts},
        **{name: body[name] for name in (
            'project_id', 'user_id', 'consumer_generation')}}
