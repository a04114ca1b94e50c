# SPDX-License-Identifier: Apache-2.0
"""The lab's cloud as its users and its administrator see it.

Plain requests with an explicit microversion, since the story is also about
what each version answers.
"""

from collections.abc import Iterable, Mapping
import contextlib
import dataclasses
import datetime
import os
import typing as ty

from nova_vqos import policy
from nova_vqos_lab import openstack
from nova_vqos_lab import process

# Nova 2024.1 (Caracal) and later have it.
_MICROVERSION = '2.96'
_PLACEMENT_VERSION = '1.39'
_BOOT_LIMIT_S = 90
_COMPUTE_LIMIT_S = 90
_MIGRATION_LIMIT_S = 120
_DELETE_LIMIT_S = 60
_SERVER_MEMORY_MIB = 160
_DISK_BYTES = 2 ** 20


@dataclasses.dataclass(frozen=True)
class Answer:
    """What an API said.

    :ivar status: of HTTP
    :ivar message: of an error, '' otherwise
    """

    status: int
    body: ty.Any
    message: str


class CloudError(process.LabError):
    """The cloud did not do what the story needs to go on."""


class Cloud:
    """The administrator's session."""

    def __init__(self) -> None:
        """Log in; the caller is in the controller's network."""
        self._connection = openstack.connect()

    def close(self) -> None:
        """Log out."""
        self._connection.close()

    def compute(self, method: str, path: str, body: ty.Any = None,
                version: str = _MICROVERSION) -> Answer:
        """Send a request to Nova and return its answer, error or not."""
        return self._send(self._connection.compute, method, path, body,
                          version)

    def placement(self, path: str) -> ty.Any:
        """:returns: what Placement shows at a path.

        :raises CloudError: when it shows an error
        """
        answer = self._send(self._connection.placement, 'GET', path, None,
                            _PLACEMENT_VERSION)
        return _expect(answer, 200, f'Placement {path}').body

    def delete_claim(self, consumer: str) -> None:
        """Delete what a server or a migration has claimed."""
        _expect(self._send(self._connection.placement, 'DELETE',
                           f'/allocations/{consumer}', None,
                           _PLACEMENT_VERSION),
                204, f'deleting the claim of {consumer}')

    @staticmethod
    def _send(api: ty.Any, method: str, path: str, body: ty.Any,
              version: str) -> Answer:
        response = api.request(
            path, method, json=body, microversion=version, raise_exc=False)
        try:
            content = response.json()
        except ValueError:
            content = None
        message = ''
        if response.status_code >= 400:
            message = response.text
            if isinstance(content, dict):
                with contextlib.suppress(KeyError, TypeError, IndexError):
                    message = next(iter(content.values()))['message']
        return Answer(response.status_code, content, message)

    def make_image(self, name: str, kernel: str, ramdisk: str,
                   command_line: str) -> str:
        """Make an image that boots a kernel and a ramdisk from files.

        All projects may use it.

        :returns: the id of the image, an empty disk with the others' ids
        """
        image = self._connection.image
        parts = {}
        for kind, form, path in (('kernel', 'aki', kernel),
                                 ('ramdisk', 'ari', ramdisk)):
            part = f'vqos-{os.path.basename(path)}'
            found = image.find_image(part)
            if found is None:
                with open(path, 'rb') as stream:
                    found = image.create_image(
                        part, container_format=form,
                        disk_format=form, data=stream.read(),
                        allow_duplicates=True, wait=True,
                        visibility='public')
            parts[f'{kind}_id'] = found.id
        return self.make_disk_image(name, b'', os_command_line=command_line,
                                    **parts)

    def make_disk_image(self, name: str, content: bytes,
                        **properties: str) -> str:
        """Make an image of a disk, which all projects may use.

        :param content: of its beginning; the rest is empty
        :returns: its id
        """
        disk = self._connection.image.create_image(
            name, container_format='bare', disk_format='raw',
            data=content.ljust(_DISK_BYTES, b'\0'), allow_duplicates=True,
            wait=True, visibility='public', **properties)
        return str(disk.id)

    def has_image(self, name: str) -> bool:
        """:returns: whether there is an image of a name"""
        return self._connection.image.find_image(name) is not None

    def delete_images(self, prefix: str) -> None:
        """Delete all images whose names begin so."""
        for image in self._connection.image.images():
            if image.name.startswith(prefix):
                self._connection.image.delete_image(image.id)

    def find_image(self, name: str) -> str:
        """:returns: the id of an image that is there"""
        return self._connection.image.find_image(
            name, ignore_missing=False).id

    def make_flavor(self, name: str, extra_specs: Mapping[str, str], *,
                    vcpus: int = 1, disk_gib: int = 0,
                    version: str = _MICROVERSION) -> Answer:
        """Make a flavor.

        :param disk_gib: 0: as large as the image, for administrators alone
        :returns: the answer to the request that sets the extra specs
        """
        flavor = {'flavor': {'name': name, 'id': name, 'vcpus': vcpus,
                             'ram': _SERVER_MEMORY_MIB, 'disk': disk_gib}}
        _expect(self.compute('POST', '/flavors', flavor), 200,
                f'making the flavor {name}')
        return self.compute('POST', f'/flavors/{name}/os-extra_specs',
                            {'extra_specs': dict(extra_specs)}, version)

    def delete_flavor(self, name: str) -> None:
        """Delete a flavor."""
        _expect(self.compute('DELETE', f'/flavors/{name}'), 202,
                f'deleting the flavor {name}')

    def make_zone(self, name: str, host: str) -> None:
        """Make an availability zone of one host."""
        aggregate = _expect(
            self.compute('POST', '/os-aggregates', {'aggregate': {
                'name': name, 'availability_zone': name}}),
            200, f'making the zone {name}').body['aggregate']
        _expect(
            self.compute('POST', f'/os-aggregates/{aggregate["id"]}/action',
                         {'add_host': {'host': host}}),
            200, f'adding {host} to the zone {name}')

    def boot(self, name: str, flavor: str, image: str,
             host: str | None = None) -> 'Server':
        """Ask for a server; it is not waited for.

        :param host: where to, through the scheduler and its filters
        """
        request = {'name': name, 'flavorRef': flavor, 'imageRef': image,
                   'networks': 'none'}
        if host:
            request['host'] = host
        answer = _expect(self.compute('POST', '/servers', {'server': request}),
                         202, f'booting {name}')
        return Server(self, answer.body['server']['id'], name)

    def servers(self) -> list['Server']:
        """:returns: all servers."""
        answer = _expect(self.compute('GET', '/servers'), 200, 'servers')
        return [Server(self, one['id'], one['name'])
                for one in answer.body['servers']]

    def compute_service(self, host: str) -> str:
        """:returns: the path of the API for a host's nova-compute."""
        (found,) = self.compute(
            'GET', f'/os-services?binary=nova-compute&host={host}').body[
                'services']
        return f'/os-services/{found["id"]}'

    def wait_for_compute(self, host: str, since: datetime.datetime) -> None:
        """Wait until nova-compute of a host reports by the bus again.

        While it starts, Nova resets each live migration of its servers, as
        if its last run had left it unfinished.

        :raises process.LabError: when it does not
        """
        def reported() -> bool:
            shown = self.compute(
                'GET', f'/os-services?binary=nova-compute&host={host}')
            updated_at = (shown.body['services'][0]['updated_at']
                          if shown.status == 200 else None)
            return (updated_at is not None and datetime.datetime.fromisoformat(
                updated_at).replace(tzinfo=datetime.UTC) > since)

        process.wait_until(
            reported, _COMPUTE_LIMIT_S, f'nova-compute of host {host}',
            log=_log(f'nova-compute-{host}'), interval_s=0.5)

    def provider(self, host: str) -> str:
        """:returns: the id of a host's resource provider."""
        (found,) = self.placement(f'/resource_providers?name={host}')[
            'resource_providers']
        return found['uuid']

    def usages(self, host: str) -> dict[str, int]:
        """:returns: what is claimed on a host, by resource class."""
        return self.placement(
            f'/resource_providers/{self.provider(host)}/usages')['usages']

    def inventory(self, host: str) -> dict[str, dict[str, int]]:
        """:returns: what a host has, by resource class."""
        return self.placement(
            f'/resource_providers/{self.provider(host)}/inventories'
        )['inventories']

    def capacity_cu(self, host: str) -> int:
        """:returns: CPU units that a host sells, with those that are sold"""
        units = self.inventory(host)[policy.RESOURCE_CLASS]
        return int((units['total'] - units['reserved'])
                   * units['allocation_ratio'])

    def traits(self, host: str) -> list[str]:
        """:returns: the traits of a host."""
        return self.placement(
            f'/resource_providers/{self.provider(host)}/traits')['traits']


class Server:
    """A server of the cloud."""

    def __init__(self, cloud: Cloud, uuid: str, name: str) -> None:
        self.cloud = cloud
        self.uuid = uuid
        self.name = name

    def show(self) -> dict[str, ty.Any]:
        """:returns: the server as the API shows it."""
        return _expect(self.cloud.compute('GET', f'/servers/{self.uuid}'),
                       200, self.name).body['server']

    @property
    def host(self) -> str:
        """The host that it is on."""
        return self.show()['OS-EXT-SRV-ATTR:host']

    @property
    def domain(self) -> str:
        """The name of its guest in libvirt."""
        return self.show()['OS-EXT-SRV-ATTR:instance_name']

    def wait_settled(self) -> str:
        """Wait for the end of its boot.

        :returns: '' when it has started, otherwise what the API says is wrong
        """
        def settled() -> dict[str, ty.Any] | None:
            shown = self.show()
            done = shown['status'] in ('ACTIVE', 'SHUTOFF', 'ERROR')
            return shown if done else None

        shown = process.wait_until(
            settled, _BOOT_LIMIT_S, f'the boot of {self.name}',
            log=_log('nova-conductor'), interval_s=0.25)
        if shown['status'] != 'ERROR':
            return ''
        return shown.get('fault', {}).get('message', 'no reason given')

    def wait_active(self) -> None:
        """Wait until it runs.

        :raises CloudError: when it does not
        """
        reason = self.wait_settled()
        if reason:
            raise CloudError(f'{self.name} did not boot: {reason}, see '
                             f'{_log("nova-conductor")}')

    def console(self) -> str:
        """:returns: what the guest printed on this host."""
        answer = self.cloud.compute(
            'POST', f'/servers/{self.uuid}/action',
            {'os-getConsoleOutput': {}})
        # 404 while the guest is being moved.
        return answer.body['output'] if answer.status == 200 else ''

    def allocations(self) -> dict[str, dict[str, int]]:
        """:returns: what it has claimed, by host's provider id."""
        return {
            provider: one['resources'] for provider, one in
            self.cloud.placement(f'/allocations/{self.uuid}')[
                'allocations'].items()}

    def migrate(self, host: str) -> None:
        """Migrate it live, and wait until that is done.

        :raises CloudError: when it fails
        """
        answer = self.request_migration(host)
        _expect(answer, 202, f'migrating {self.name} to {host}')

        shown = self.wait_idle()
        if shown['OS-EXT-SRV-ATTR:host'] != host:
            raise CloudError(
                f'{self.name} is still on {shown["OS-EXT-SRV-ATTR:host"]}: '
                f'{self.events("live-migration")}, see '
                f'{_log("nova-compute-" + shown["OS-EXT-SRV-ATTR:host"])}')
        # Nova deletes what it has claimed on the last host a moment later.
        process.wait_until(
            lambda: not self._is_claimed_by_moves(), _MIGRATION_LIMIT_S,
            f'the end of the claims of {self.name} on its last host',
            interval_s=0.1)

    def _is_claimed_by_moves(self) -> bool:
        path = f'/os-migrations?instance_uuid={self.uuid}'
        moves = _expect(self.cloud.compute('GET', path), 200, path).body[
            'migrations']
        return any(self.cloud.placement(f'/allocations/{one["uuid"]}')[
            'allocations'] for one in moves)

    def wait_idle(self) -> dict[str, ty.Any]:
        """Wait until nothing is being done to it any more.

        :returns: the server as the API shows it
        """
        def idle() -> dict[str, ty.Any] | None:
            shown = self.show()
            return None if shown['OS-EXT-STS:task_state'] else shown

        return process.wait_until(
            idle, _MIGRATION_LIMIT_S, f'the live migration of {self.name}',
            log=_log('nova-conductor'), interval_s=0.25)

    def request_migration(self, host: str, *, force: bool = False,
                          version: str = _MICROVERSION) -> Answer:
        """Ask for a live migration.

        :param force: skip the scheduler: exists in 2.30 to 2.67
        """
        request: dict[str, ty.Any] = {'host': host, 'block_migration': 'auto'}
        if version in ('2.30', '2.67'):
            request['force'] = force
        return self.cloud.compute(
            'POST', f'/servers/{self.uuid}/action',
            {'os-migrateLive': request}, version)

    def events(self, action: str, version: str = _MICROVERSION
               ) -> list[dict[str, ty.Any]]:
        """:returns: the events of the last action of that name."""
        path = f'/servers/{self.uuid}/os-instance-actions'
        actions = _expect(self.cloud.compute('GET', path), 200,
                          path).body['instanceActions']
        # The latest comes first.
        for one in actions:
            if one['action'] == action:
                shown = self.cloud.compute(
                    'GET', f'{path}/{one["request_id"]}', version=version)
                return _expect(shown, 200, path).body['instanceAction'][
                    'events']
        return []

    def wait_for_event(self, action: str, event: str, version: str
                       ) -> dict[str, ty.Any]:
        """Wait until an event of an action has ended.

        :returns: the event
        """
        def ended() -> dict[str, ty.Any] | None:
            for one in self.events(action, version):
                if one['event'] == event and one['finish_time']:
                    return one
            return None

        return process.wait_until(
            ended, 60, f'the event {event} of {self.name}',
            log=_log('nova-conductor'), interval_s=0.25)

    def delete(self) -> None:
        """Delete it, and wait until it is gone with its allocations."""
        self.request_deletion()
        self.wait_deleted()

    def request_deletion(self) -> None:
        """Have it deleted."""
        self.cloud.compute('DELETE', f'/servers/{self.uuid}')

    def wait_deleted(self) -> None:
        """Wait until it is gone with its allocations."""
        def gone() -> bool:
            shown = self.cloud.compute('GET', f'/servers/{self.uuid}')
            return shown.status == 404 and not self.allocations()

        process.wait_until(gone, _DELETE_LIMIT_S,
                           f'the deletion of {self.name}',
                           log=_log('nova-conductor'), interval_s=0.25)


def delete_all(servers: Iterable[Server]) -> None:
    """Delete servers at the same time, and wait until all are gone."""
    servers = list(servers)
    for server in servers:
        server.request_deletion()
    for server in servers:
        server.wait_deleted()


def _expect(answer: Answer, status: int, what: str) -> Answer:
    if answer.status != status:
        raise CloudError(f'{what}: {answer.status} {answer.message}, see '
                         f'{_log("nova-api")}')
    return answer


def _log(service: str) -> str:
    return f'{openstack.paths.LOGS}/{service}.log'
