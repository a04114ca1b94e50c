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
"""What Nova and Placement say of servers, flavors and hosts."""

from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
import operator
import typing as ty

from nova_vqos.manage import demand as demands
from nova_vqos.manage import errors

# Of Nova: hypervisors by UUID, without asking each for its uptime; where a
# server's vCPUs are. Of Placement: groups of resources in nested providers.
_HYPERVISORS = '2.53'
_TOPOLOGY = '2.78'
_PLACEMENT = '1.36'
_PAGE = 500
_AT_ONCE = 8
_COMPUTE = 'nova-compute'
_NAMES = {'compute': 'Nova', 'placement': 'Placement'}
_MIGRATES = ('ACTIVE', 'PAUSED')

_Answer = ty.TypeVar('_Answer')


class Compute(ty.NamedTuple):
    """A compute service.

    :ivar provider: UUID of its resource provider; '' where it has none
    :ivar is_down: whether it does nothing now, not even for its own servers
    :ivar obstacles: why Nova puts no server there
    """

    host: str
    provider: str
    is_down: bool
    obstacles: tuple[str, ...]


class Server(ty.NamedTuple):
    """A server that may be moved.

    :ivar flavor: as it was booted, with extra_specs
    :ivar host: where it is
    :ivar resources: that it holds in Placement
    :ivar has_topology: whether it has a NUMA topology
    :ivar obstacles: why Nova would not move it now
    """

    uuid: str
    name: str
    flavor: ty.Any
    host: str
    resources: Mapping[str, int]
    has_topology: bool
    obstacles: tuple[str, ...]


class Cloud:
    """Asks Nova and Placement, as an administrator."""

    def __init__(self, connection: ty.Any) -> None:
        """
        :param connection: openstack.connection.Connection
        """
        self._connection = connection

    def flavor(self, name_or_id: str) -> ty.Any:
        """A flavor, with its extra specs; private ones as well.

        :raises ManageError: when there is none
        """
        return _found('flavor', name_or_id, lambda: (
            self._connection.compute.find_flavor(
                name_or_id, get_extra_specs=True, is_public=None)))

    def server(self, name_or_id: str) -> Server:
        """A server of any project.

        :raises ManageError: when there is none, or it is nowhere
        """
        found = _found('server', name_or_id, lambda: (
            self._connection.compute.find_server(
                name_or_id, all_projects=True)))
        if not found.compute_host:
            raise errors.ManageError(
                f'server {name_or_id} is on no host: it is {found.status}')
        obstacles = []
        if found.status not in _MIGRATES:
            obstacles.append(f'the server is {found.status}: only servers '
                             'that run are live-migrated')
        if found.task_state:
            obstacles.append(f'the server is busy: {found.task_state}')
        nodes = self._get('compute', f'/servers/{found.id}/topology',
                          _TOPOLOGY, lambda body: body['nodes'])
        return Server(
            uuid=found.id, name=found.name, flavor=found.flavor,
            host=found.compute_host, resources=self._held(found.id),
            has_topology=bool(nodes),
            obstacles=tuple(obstacles))

    def computes(self) -> list[Compute]:
        """All compute services, by host.

        :raises ManageError: when Nova cannot be asked, or has none
        """
        services = _asked('Nova', lambda: list(
            self._connection.compute.services(binary=_COMPUTE)))
        if not services:
            raise errors.ManageError('Nova has no compute services')
        providers = self._providers_by_host()
        return sorted(
            Compute(one.host, providers.get(one.host, ''),
                    bool(one.is_forced_down) or one.state != 'up',
                    _obstacles(one))
            for one in services)

    def offers(self, demand: demands.Demand
               ) -> dict[str, demands.Provider]:
        """The hosts that Placement offers for a demand, by UUID.

        :raises ManageError: when it cannot be asked
        """
        def read(body: ty.Any) -> dict[str, demands.Provider]:
            summaries = body['provider_summaries']
            roots = {summaries[provider]['root_provider_uuid']
                     for request in body['allocation_requests']
                     for provider in request['allocations']}
            return {root: demands.Provider.of_summary(summaries[root])
                    for root in roots if root in summaries}
        return self._get(
            'placement', f'/allocation_candidates?{demand.query}', _PLACEMENT,
            read)

    def providers(self, uuids: Iterable[str]
                  ) -> dict[str, demands.Provider]:
        """What Placement knows of some hosts, by UUID.

        :raises ManageError: when it cannot be asked
        """
        wanted = [uuid for uuid in uuids if uuid]
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(wanted, pool.map(self._provider, wanted),
                            strict=True))

    def _providers_by_host(self) -> dict[str, str]:
        """UUIDs of resource providers: those of Nova's hypervisors."""
        # NOTE: not by openstacksdk's own list: the latest version of the API
        # asks each host for its uptime.
        def read(body: ty.Any) -> list[tuple[str, str]]:
            return [(one['service']['host'], one['id'])
                    for one in body['hypervisors']]

        found: dict[str, str] = {}
        marker = ''
        while page := self._get(
                'compute', f'/os-hypervisors/detail?limit={_PAGE}{marker}',
                _HYPERVISORS, read):
            found |= dict(page)
            marker = f'&marker={page[-1][1]}'
        return found

    def _provider(self, uuid: str) -> demands.Provider:
        path = f'/resource_providers/{uuid}'
        inventories, usages, traits = (
            self._get('placement', f'{path}/{name}', _PLACEMENT,
                      operator.itemgetter(name))
            for name in ('inventories', 'usages', 'traits'))
        return demands.Provider(inventories, usages, frozenset(traits))

    def _held(self, server_uuid: str) -> dict[str, int]:
        def read(body: ty.Any) -> dict[str, int]:
            held: dict[str, int] = {}
            for allocation in body['allocations'].values():
                for name, amount in allocation['resources'].items():
                    held[name] = held.get(name, 0) + amount
            return held
        return self._get('placement', f'/allocations/{server_uuid}',
                         _PLACEMENT, read)

    def _get(self, service: str, path: str, version: str,
             read: Callable[[ty.Any], _Answer]) -> _Answer:
        """What is read from an answer.

        :param read: takes the body
        :raises ManageError: when there is none, or nothing to be read
        """
        def get() -> _Answer:
            from openstack import exceptions
            answer = getattr(self._connection, service).get(
                path, microversion=version)
            exceptions.raise_from_response(answer)
            return read(answer.json())
        return _asked(_NAMES[service], get)


def _found(what: str, given: str, find: Callable[[], ty.Any]) -> ty.Any:
    """What is called so.

    :raises ManageError: when there is none, or there are several
    """
    from openstack import exceptions

    def find_one() -> ty.Any:
        try:
            return find()
        except exceptions.DuplicateResource as error:
            raise errors.ManageError(f'several {what}s are called {given}: '
                                     'give the ID') from error
    found = _asked('Nova', find_one)
    if found is None:
        raise errors.ManageError(f'there is no {what} {given}')
    return found


def _obstacles(service: ty.Any) -> tuple[str, ...]:
    found = []
    if service.is_forced_down:
        found.append('its compute service was forced down')
    elif service.state != 'up':
        found.append('its compute service is down')
    if service.status != 'enabled':
        reason = service.disabled_reason
        found.append('its compute service is disabled'
                     f'{f": {reason}" if reason else ""}')
    return tuple(found)


def _asked(service: str, ask: Callable[[], _Answer]) -> _Answer:
    """What a service answers.

    :raises ManageError: when it does not, or refuses
    """
    # NOTE: here, since openstacksdk takes a second to import.
    from nova_vqos.manage import nova
    try:
        return ask()
    except nova.ERRORS as error:
        raise errors.ManageError(
            f'{service} cannot be asked: {errors.one_line(error)} '
            '(administrator\'s credentials come from OS_* or --os-cloud)'
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.ManageError(
            f'what {service} answers is not what its API says') from error
