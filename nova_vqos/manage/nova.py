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

"""What nova-vqos-manage asks Nova; imported where it is asked only.

Importing openstacksdk takes a second, which those do not wait for who name
their hosts.
"""

from keystoneauth1 import exceptions as keystone_exceptions
import openstack
from openstack import exceptions

from nova_vqos.manage import errors

#: What openstacksdk raises when Nova, or who knows where it is, fails.
ERRORS = (exceptions.SDKException, keystone_exceptions.ClientException)

_COMPUTE = 'nova-compute'


def connect(os_cloud: str | None) -> openstack.connection.Connection:
    """A connection, with the credentials that the environment has.

    :param os_cloud: of clouds.yaml; None: what OS_CLOUD or OS_* say
    :raises ManageError: when there are none
    """
    try:
        return openstack.connect(cloud=os_cloud)
    except ERRORS as error:
        raise failure(error) from error


def compute_hosts(cloud: openstack.connection.Connection) -> list[str]:
    """Hosts of all compute services, also of those that are down.

    :raises ManageError: when Nova cannot be asked, or has none
    """
    try:
        names = [service.host
                 for service in cloud.compute.services(binary=_COMPUTE)]
    except ERRORS as error:
        raise failure(error) from error
    if not names:
        raise errors.ManageError('Nova has no compute services')
    return names


def server(cloud: openstack.connection.Connection,
           given: str) -> tuple[str, str]:
    """A server, by its UUID or its name, of whatever project.

    :returns: its UUID, and its host, '' where it has none
    :raises ManageError: when there is none, or there are several
    """
    try:
        found = cloud.compute.find_server(given, all_projects=True)
    except exceptions.DuplicateResource as error:
        raise errors.ManageError(
            f'several servers are called {given!r}: give the UUID'
            ) from error
    except ERRORS as error:
        raise failure(error) from error
    if found is None:
        raise errors.ManageError(f'Nova knows no server {given!r}')
    return found.id, found.compute_host or ''


def failure(error: Exception) -> errors.ManageError:
    """What to tell of an error of openstacksdk."""
    return errors.ManageError(
        f'Nova cannot be asked: {errors.one_line(error)} (credentials come '
        'from OS_* or --os-cloud; with --host Nova is not asked)')
