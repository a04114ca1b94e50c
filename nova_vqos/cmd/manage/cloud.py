# SPDX-License-Identifier: Apache-2.0
"""A cloud, as its administrator sees it: servers, flavors and hosts of Nova.

All is read only but the extra specs of flavors. For Placement see
:mod:`nova_vqos.cmd.manage.placement`, for openstacksdk, which is imported
late, :mod:`nova_vqos.cmd.manage.rest`.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent import futures
import datetime
import typing as ty
import urllib.parse

from nova_vqos import policy
from nova_vqos.cmd.manage import differences
from nova_vqos.cmd.manage import errors
from nova_vqos.cmd.manage import placement
from nova_vqos.cmd.manage import rest

# Services by UUID, with those that are forced down, and hypervisors likewise,
# without asking each for its uptime; migrations by UUID; flavors with their
# extra specs; a check of new ones; servers of cells that are down; where a
# server's vCPUs are.
_HYPERVISORS = '2.53'
_MIGRATIONS = '2.59'
_FLAVORS = '2.61'
_SERVERS = '2.69'
_TOPOLOGY = '2.78'
_EXTRA_SPECS = '2.86'
_PAGE = 500
# No list is longer: Nova would not page.
_MOST = 20_000
_MOST_SERVERS = 1_000_000
_AT_ONCE = 8
_COMPUTE = 'nova-compute'
_LISTS = {'server': 'openstack server list --all-projects',
          'flavor': 'openstack flavor list --all'}
_MIGRATES = ('ACTIVE', 'PAUSED')
# NOTE: states of migrations that nova-manage placement audit regards as in
# progress; the API selects by one at a time.
_OPEN = ('accepted', 'queued', 'preparing', 'running', 'running (post-copy)',
         'pre-migrating', 'migrating', 'post-migrating', 'finished',
         'confirming', 'reverting')

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


def connect(os_cloud: str | None) -> 'Cloud':
    """Connect with the credentials of the environment.

    :param os_cloud: of clouds.yaml; None: what OS_CLOUD or OS_* say
    :raises ManageError: when there are none
    """
    import openstack
    return Cloud(rest.ask('Nova', lambda: openstack.connect(cloud=os_cloud)))


class Cloud:
    """Asks Nova; whatever fails raises ManageError.

    :ivar placement: its Placement
    """

    def __init__(self, connection: ty.Any) -> None:
        """
        :param connection: openstack.connection.Connection
        """
        self.placement = placement.Placement(connection)
        self._connection = connection
        self._nova = rest.Service(connection, 'compute')

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
        nodes = self._nova.get(f'/servers/{found.id}/topology', _TOPOLOGY,
                               lambda body: body['nodes'])
        return Server(
            uuid=found.id, name=found.name, flavor=found.flavor,
            host=found.compute_host, resources=self.placement.held(found.id),
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
        return self._nova.get_if_any(
            f'/servers/{uuid}', _SERVERS,
            lambda body: _placed_server(body['server']))

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

    def change_flavor(self, flavor_id: str, set_specs: Mapping[str, str],
                      removed: Iterable[str]) -> None:
        """Change extra specs of a flavor; others stay."""
        path = f'/flavors/{urllib.parse.quote(flavor_id)}/os-extra_specs'
        conflicts = [self._nova.change(
            'delete', f'{path}/{urllib.parse.quote(key)}', _EXTRA_SPECS)
            for key in removed]
        if set_specs:
            conflicts.append(self._nova.change(
                'post', path, _EXTRA_SPECS,
                json={'extra_specs': dict(set_specs)}))
        if any(conflicts):
            raise errors.ManageError(
                f'others change flavor {flavor_id} at the same time: try '
                'again')

    def _services(self) -> list[Compute]:
        """All compute services, without their providers; at least one."""
        # NOTE: not by openstacksdk's list: its objects of a thousand services
        # take nearly half a second.
        found = self._nova.get(
            f'/os-services?binary={_COMPUTE}', _HYPERVISORS,
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
        while page := self._nova.get(
                f'{path}limit={_PAGE}{marker}', version,
                lambda body: [read(one) for one in body[name]]):
            found += page
            if len(found) > most:
                raise errors.ManageError(
                    f'Nova has more than {most} {name}, or does not page')
            marker = f'&marker={urllib.parse.quote(page[-1][0])}'
        return found

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
    found = rest.ask('Nova', find_one)
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
