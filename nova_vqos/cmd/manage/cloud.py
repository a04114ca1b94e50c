# SPDX-License-Identifier: Apache-2.0
"""Nova and Placement: servers, flavors and hosts, as an administrator.

All is read only but the removal of what nova_vqos has left in Placement, the
repair of claims, and the traits of flavors.

Importing openstacksdk takes a second, which commands with --host need not
wait for: it is imported where it is used.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent import futures
import datetime
import operator
import typing as ty
import urllib.parse

from nova_vqos import host_stats
from nova_vqos import policy
from nova_vqos.agent import fanout
from nova_vqos.cmd.manage import demand as demands
from nova_vqos.cmd.manage import differences
from nova_vqos.cmd.manage import errors

# Of Nova: services by UUID, with those that are forced down, and hypervisors
# likewise, without asking each for its uptime; migrations by UUID; flavors
# with their extra specs; a check of new ones; servers of cells that are down;
# where a server's vCPUs are. Of Placement: groups of resources in nested
# providers.
_HYPERVISORS = '2.53'
_MIGRATIONS = '2.59'
_FLAVORS = '2.61'
_SERVERS = '2.69'
_TOPOLOGY = '2.78'
_EXTRA_SPECS = '2.86'
_PLACEMENT = '1.36'
_PAGE = 500
# No list is longer: Nova would not page.
_MOST = 20_000
_MOST_SERVERS = 1_000_000
_AT_ONCE = 8
# Of a change, while others change the same.
_TRIES = 5
_CONFLICT = 409
_NOT_FOUND = 404
_CONCURRENT = 'placement.concurrent_update'
_COMPUTE = 'nova-compute'
_NAMES = {'compute': 'Nova', 'placement': 'Placement'}
_LISTS = {'server': 'openstack server list --all-projects',
          'flavor': 'openstack flavor list --all'}
_MIGRATES = ('ACTIVE', 'PAUSED')
# NOTE: states of migrations that nova-manage placement audit regards as in
# progress; the API selects by one at a time.
_OPEN = ('accepted', 'queued', 'preparing', 'running', 'running (post-copy)',
         'pre-migrating', 'migrating', 'post-migrating', 'finished',
         'confirming', 'reverting')

_Answer = ty.TypeVar('_Answer')
# What a list of Nova has, its ID first.
_Entry = ty.TypeVar('_Entry', bound=tuple[ty.Any, ...])


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


class Flavor(ty.NamedTuple):
    """A flavor, as it is pushed.

    :ivar flavor_id: that users know it by
    """

    flavor_id: str
    name: str
    vcpus: int
    extra_specs: Mapping[str, str]


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


class Holdings(ty.NamedTuple):
    """What is held of a resource provider.

    :ivar inventory: of CPU units; None: it has none
    :ivar held: resources by class, by consumer
    """

    inventory: differences.Inventory | None
    held: Mapping[str, Mapping[str, int]]


def connect(os_cloud: str | None) -> 'Cloud':
    """Connect with the credentials of the environment.

    :param os_cloud: of clouds.yaml; None: what OS_CLOUD or OS_* say
    :raises ManageError: when there are none
    """
    import openstack
    return Cloud(_ask('Nova', lambda: openstack.connect(cloud=os_cloud)))


class Cloud:
    """Asks Nova and Placement; whatever fails raises ManageError."""

    def __init__(self, connection: ty.Any) -> None:
        """
        :param connection: openstack.connection.Connection
        """
        self._connection = connection

    def hosts(self) -> list[str]:
        """Hosts of all compute services, also of those that are down."""
        return [service.host for service in self._services()]

    def locate(self, name_or_id: str) -> tuple[str, str]:
        """A server of any project: its UUID, and its host or ''."""
        found = self._find_server(name_or_id)
        return found.id, found.compute_host or ''

    def flavors(self) -> list[Flavor]:
        """All flavors, also private ones."""
        # NOTE: not by openstacksdk's list of flavors: there a flavor whose
        # extra specs Nova hides looks like one that has none.
        return self._get_pages(
            'flavors', '/flavors/detail?is_public=None&', _FLAVORS, _flavor)

    def flavor(self, name_or_id: str) -> ty.Any:
        """A flavor as openstacksdk reads it, also a private one."""
        return _find('flavor', name_or_id, lambda: (
            self._connection.compute.find_flavor(
                name_or_id, get_extra_specs=True, is_public=None)))

    def server(self, name_or_id: str) -> Server:
        """A server of any project that is on a host."""
        found = self._find_server(name_or_id)
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
        """All compute services, by host."""
        services = self._services()
        # NOTE: providers not by openstacksdk's own list: the latest version of
        # the API asks each host for its uptime.
        providers = {host: uuid for uuid, host in self._get_pages(
            'hypervisors', '/os-hypervisors/detail?', _HYPERVISORS,
            lambda one: (one['id'], one['service']['host']))}
        return sorted(
            one._replace(provider=providers.get(one.host, ''))
            for one in services)

    def all_servers(self) -> list[differences.Server]:
        """The servers of all projects but those that are soft-deleted."""
        return self._get_pages(
            'servers', '/servers/detail?all_tenants=1&', _SERVERS,
            _placed_server, most=_MOST_SERVERS)

    def server_now(self, uuid: str) -> differences.Server | None:
        """A server of any kind; None: there is none."""
        def get() -> differences.Server | None:
            from openstack import exceptions
            answer = self._connection.compute.get(
                f'/servers/{uuid}', microversion=_SERVERS)
            if answer.status_code == _NOT_FOUND:
                return None
            exceptions.raise_from_response(answer)
            return _placed_server(answer.json()['server'])
        return _ask(_NAMES['compute'], get)

    def servers_now(self, uuids: Iterable[str]
                    ) -> Iterator[differences.Server | None]:
        """The same of many."""
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            yield from pool.map(self.server_now, uuids)

    def open_migrations(self) -> tuple[differences.Migration, ...]:
        """Migrations and resizes that have not come to an end."""
        return tuple(
            found for status in _OPEN for found in self._get_pages(
                'migrations', '/os-migrations?'
                f'status={urllib.parse.quote(status)}&', _MIGRATIONS,
                lambda one: differences.Migration(
                    one['uuid'], one['instance_uuid'],
                    _time(one['updated_at'] or one['created_at']))))

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
            body = self._get('placement', path, _PLACEMENT, dict)
            if not is_right():
                return 'the server has changed meanwhile'
            changed = self._get_changed(body, provider, amount_cu)
            if changed is None:
                return 'it holds nothing of its host any more'
            refused = self._put(path, changed)
            if refused is None:
                return ''
            if refused != _CONCURRENT:
                return f'Placement has no room for its {amount_cu} CU'
        return 'its claim is changed all the time: try again'

    def offers(self, demand: demands.Demand
               ) -> dict[str, demands.Provider]:
        """The hosts that Placement offers for a demand, by UUID."""
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
        """The resource providers of some hosts, by UUID."""
        wanted = [uuid for uuid in uuids if uuid]
        with futures.ThreadPoolExecutor(_AT_ONCE) as pool:
            return dict(zip(wanted, pool.map(self._provider, wanted),
                            strict=True))

    def remove_inventory(self, provider: str, name: str) -> None:
        """Remove a resource class from a resource provider.

        :raises ManageError: when servers hold some of it
        """
        path = f'/resource_providers/{provider}/inventories/{name}'
        if not self._change('delete', path):
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
            traits, generation = self._get(
                'placement', path, _PLACEMENT, lambda body: (
                    set(body['traits']), body['resource_provider_generation']))
            removed = select(traits)
            # nova-compute may change its provider at the same time.
            if not removed or self._change('put', path, json={
                    'traits': sorted(traits - removed),
                    'resource_provider_generation': generation}):
                return sorted(removed)
        raise errors.ManageError(
            f'resource provider {provider} is changed all the time: try again')

    def create_traits(self, names: Iterable[str]) -> None:
        """Have Placement know some traits, which no host needs to have."""
        known = self._get(
            'placement', f'/traits?name=startswith:{host_stats.TRAIT}',
            _PLACEMENT, lambda body: set(body['traits']))
        for name in sorted(set(names) - known):
            self._change('put', f'/traits/{name}')

    def change_flavor(self, flavor_id: str, set_specs: Mapping[str, str],
                      removed: Iterable[str]) -> None:
        """Change extra specs of a flavor; others stay."""
        path = f'/flavors/{urllib.parse.quote(flavor_id)}/os-extra_specs'
        for key in removed:
            self._change('delete', f'{path}/{urllib.parse.quote(key)}',
                         'compute', _EXTRA_SPECS)
        if set_specs:
            self._change('post', path, 'compute', _EXTRA_SPECS,
                         json={'extra_specs': dict(set_specs)})

    def _services(self) -> list[Compute]:
        """All compute services, without their providers; at least one."""
        # NOTE: not by openstacksdk's list: its objects of a thousand services
        # take nearly half a second.
        found = self._get(
            'compute', f'/os-services?binary={_COMPUTE}', _HYPERVISORS,
            lambda body: [_service(one) for one in body['services']])
        if not found:
            raise errors.ManageError(
                'Nova has no compute services: start nova-compute on a host, '
                'or choose another cloud with --os-cloud')
        return found

    def _find_server(self, name_or_id: str) -> ty.Any:
        return _find('server', name_or_id, lambda: (
            self._connection.compute.find_server(
                name_or_id, all_projects=True)))

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

    def _holdings(self, provider: str) -> Holdings:
        path = f'/resource_providers/{provider}'

        def read(body: Mapping[str, ty.Any]) -> differences.Inventory | None:
            found = body['inventories'].get(policy.RESOURCE_CLASS)
            return None if found is None else differences.Inventory(
                found['total'], found['reserved'], found['allocation_ratio'])
        return Holdings(
            self._get('placement', f'{path}/inventories', _PLACEMENT, read),
            self._get('placement', f'{path}/allocations', _PLACEMENT,
                      lambda body: {
                          consumer: one['resources'] for consumer, one
                          in body['allocations'].items()}))

    @staticmethod
    def _get_changed(body: Mapping[str, ty.Any], provider: str,
                     amount_cu: int) -> dict[str, ty.Any] | None:
        """What a consumer holds, with other units; None: nothing of it."""
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

    def _put(self, path: str, body: Mapping[str, ty.Any]) -> str | None:
        """Write to Placement.

        :returns: the code of a conflict; None: it was written
        """
        def put() -> str | None:
            from openstack import exceptions
            answer = self._connection.placement.put(
                path, microversion=_PLACEMENT, json=body)
            if answer.status_code == _CONFLICT:
                return str(answer.json()['errors'][0]['code'])
            exceptions.raise_from_response(answer)
            return None
        return _ask(_NAMES['placement'], put)

    def _get_pages(self, name: str, path: str, version: str,
                   read: Callable[[ty.Any], _Entry],
                   most: int = _MOST) -> list[_Entry]:
        """Read a whole list of Nova.

        :param name: of the list in the body
        :param read: reads one entry, which begins with its ID
        :param most: entries, more than there can be
        """
        found: list[_Entry] = []
        marker = ''
        while page := self._get(
                'compute', f'{path}limit={_PAGE}{marker}', version,
                lambda body: [read(one) for one in body[name]]):
            found += page
            if len(found) > most:
                raise errors.ManageError(
                    f'Nova has more than {most} {name}, or does not page')
            marker = f'&marker={urllib.parse.quote(page[-1][0])}'
        return found

    def _get(self, service: str, path: str, version: str,
             read: Callable[[ty.Any], _Answer]) -> _Answer:
        """
        :param read: reads the body of the answer
        """
        def get() -> _Answer:
            from openstack import exceptions
            answer = getattr(self._connection, service).get(
                path, microversion=version)
            exceptions.raise_from_response(answer)
            return read(answer.json())
        return _ask(_NAMES[service], get)

    def _change(self, method: str, path: str, service: str = 'placement',
                version: str = _PLACEMENT, **options: ty.Any) -> bool:
        """Change something.

        :param method: of HTTP, in lower case
        :returns: False: it is in use, or is not any more as it was read
        """
        def change() -> bool:
            from openstack import exceptions
            answer = getattr(getattr(self._connection, service), method)(
                path, microversion=version, **options)
            if answer.status_code == _CONFLICT:
                return False
            exceptions.raise_from_response(answer)
            return True
        return _ask(_NAMES[service], change)


def select(flavors: Iterable[Flavor],
           given: Collection[str]) -> list[Flavor]:
    """Flavors by id or by name; none given: all.

    :raises ManageError: when there is no such flavor
    """
    flavors = list(flavors)
    if not given:
        return flavors
    by_name = {flavor.name: flavor for flavor in flavors}
    by_id = {flavor.flavor_id: flavor for flavor in flavors}
    unknown = [name for name in given if name not in by_id
               and name not in by_name]
    if unknown:
        raise _missing('flavor', ', '.join(unknown))
    found = [by_id.get(name) or by_name[name] for name in given]
    return list({flavor.flavor_id: flavor for flavor in found}.values())


def _find(what: str, given: str, find: Callable[[], ty.Any]) -> ty.Any:
    """The only thing with this name or ID."""
    from openstack import exceptions

    def find_one() -> ty.Any:
        try:
            return find()
        except exceptions.DuplicateResource as error:
            raise errors.ManageError(f'several {what}s are called {given}: '
                                     'give the ID') from error
    found = _ask('Nova', find_one)
    if found is None:
        raise _missing(what, given)
    return found


def _missing(what: str, given: str) -> errors.ManageError:
    return errors.ManageError(
        f'there is no {what} {given}: {_LISTS[what]} shows all')


def no_compute(host: str) -> errors.ManageError:
    """The error where Nova has no such host."""
    return errors.ManageError(
        f'Nova has no compute service on a host {host}: openstack compute '
        'service list shows all')


def _placed_server(fields: Mapping[str, ty.Any]) -> differences.Server:
    if 'flavor' not in fields:
        # NOTE: all that Nova says of servers in a cell that is down.
        return differences.Server(fields['id'], '', fields['status'], '', None)
    return differences.Server(
        fields['id'], fields['OS-EXT-SRV-ATTR:host'] or '', fields['status'],
        fields['OS-EXT-STS:task_state'] or '', _units_cu(fields['flavor']),
        _time(fields['updated']))


def _units_cu(fields: Mapping[str, ty.Any]) -> int | None:
    """CU of a server's flavor; 0: it has none; None: it is invalid."""
    _check_shown(fields, fields['original_name'])
    try:
        found = policy.parse(fields['extra_specs'], fields['vcpus'])
    except policy.PolicyError:
        return None
    return (found and found.units) or 0


def _time(text: str) -> datetime.datetime:
    """A time as Nova writes it: UTC, with or without saying so."""
    return datetime.datetime.fromisoformat(text).replace(
        tzinfo=datetime.UTC)


def _check_shown(fields: Mapping[str, ty.Any], name: str) -> None:
    """
    :raises ManageError: when Nova hides extra specs
    """
    if 'extra_specs' not in fields:
        raise errors.ManageError(
            f'Nova hides the extra specs of flavor {name}: use the '
            "credentials of an administrator. Nova's policy "
            'os_compute_api:os-flavor-extra-specs:index must allow that')


def _flavor(fields: Mapping[str, ty.Any]) -> Flavor:
    _check_shown(fields, fields['name'])
    return Flavor(fields['id'], fields['name'], fields['vcpus'],
                  fields['extra_specs'])


def _service(one: Mapping[str, ty.Any]) -> Compute:
    obstacles = []
    if one['forced_down']:
        obstacles.append('its compute service was forced down')
    elif one['state'] != 'up':
        obstacles.append('its compute service is down')
    if one['status'] != 'enabled':
        reason = one['disabled_reason']
        obstacles.append('its compute service is disabled'
                         f'{f": {reason}" if reason else ""}')
    return Compute(one['host'], '', one['forced_down'] or one['state'] != 'up',
                   tuple(obstacles))


def _ask(service: str, ask: Callable[[], _Answer]) -> _Answer:
    """
    :raises ManageError: when a service does not answer, or refuses
    """
    from keystoneauth1 import exceptions as keystone
    from openstack import exceptions
    try:
        return ask()
    except (keystone.ConnectionError, exceptions.NotSupported) as error:
        # NOTE: openstacksdk calls a service that is down one of no supported
        # version: it asks its versions first.
        raise errors.ManageError(
            f'{service} cannot be asked: {fanout.one_line(error)} (is it '
            'running, and its endpoint in the catalog right?)') from error
    except (exceptions.SDKException, keystone.ClientException) as error:
        raise errors.ManageError(
            f'{service} cannot be asked: {fanout.one_line(error)} '
            '(administrator\'s credentials come from OS_* or --os-cloud)'
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise errors.ManageError(
            f'the answer of {service} is not what its API documents'
            ) from error
