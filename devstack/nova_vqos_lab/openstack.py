# SPDX-License-Identifier: Apache-2.0
"""Keystone, Placement, Glance and Nova: schemas, accounts, endpoints."""

from collections.abc import Callable, Sequence
import concurrent.futures
import os

import openstack
import openstack.connection

from nova_vqos_lab import config
from nova_vqos_lab import daemons
from nova_vqos_lab import paths
from nova_vqos_lab import services

_ENDPOINTS = {
    'placement': 'placement', 'glance': 'image', 'nova': 'compute',
    'neutron': 'network',
}


def together(*steps: Callable[[], object]) -> None:
    """Do steps at the same time; the first error is raised at the end.

    Each thread is in the network namespace that the caller is in. Interrupted,
    this returns at once and leaves them to the end of the program.
    """
    pool = concurrent.futures.ThreadPoolExecutor(len(steps))
    try:
        futures = [pool.submit(step) for step in steps]
        concurrent.futures.wait(futures)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    for future in futures:
        future.result()


def in_turn(*steps: Callable[[], object]) -> Callable[[], None]:
    """:returns: a step that does these steps, one after the other"""
    def run() -> None:
        for step in steps:
            step()

    return run


def _manage(program: str, etc: str, *commands: Sequence[str]) -> None:
    """Run commands of a service's own management program, in turn."""
    for command in commands:
        daemons.run(program, [
            os.path.join(services.BIN, program), '--config-file', etc,
            *command], limit_s=240)


def make_keystone() -> None:
    """Keys, schema, and the administrator."""
    etc = f'{paths.etc("keystone")}/keystone.conf'
    address = config.url('keystone')
    owner = ('--keystone-user', 'root', '--keystone-group', 'root')
    _manage('keystone-manage', etc,
            ('fernet_setup', *owner), ('credential_setup', *owner),
            ('db_sync',),
            ('bootstrap', '--bootstrap-password', config.PASSWORD,
             '--bootstrap-region-id', config.REGION,
             '--bootstrap-public-url', address,
             '--bootstrap-internal-url', address,
             '--bootstrap-admin-url', address))


def make_placement() -> None:
    """The schema."""
    _manage('placement-manage', f'{paths.etc("placement")}/placement.conf',
            ('db', 'sync'))


def make_glance() -> None:
    """The schema."""
    _manage('glance-manage', f'{paths.etc("glance")}/glance-api.conf',
            ('db', 'sync'))


def make_nova() -> None:
    """The schemas, and one cell."""
    _manage('nova-manage', f'{paths.etc("nova-api")}/nova.conf',
            ('api_db', 'sync'),
            ('cell_v2', 'map_cell0', '--database_connection',
             config.database_url('nova_cell0')),
            ('db', 'sync'),
            ('cell_v2', 'create_cell', '--name', 'cell1',
             '--transport-url', config.transport_url(),
             '--database_connection', config.database_url('nova')))


def connect() -> openstack.connection.Connection:
    """:returns: the administrator's connection to the lab."""
    return openstack.connection.Connection(
        auth={'auth_url': config.url('keystone'), 'username': 'admin',
              'password': config.PASSWORD, 'project_name': 'admin',
              'user_domain_id': 'default', 'project_domain_id': 'default'},
        region_name=config.REGION, app_name='nova_vqos_lab',
        # The lab is reached directly, whatever proxy the machine uses.
        session=None, vendor_hook=None)


def make_accounts() -> None:
    """Make users, roles, services and endpoints, where they are missing."""
    with connect() as cloud:
        for name, kind in _ENDPOINTS.items():
            make_service(cloud, name, kind)


def make_service(cloud: openstack.connection.Connection, name: str,
                 kind: str) -> None:
    """Make a service with its user and endpoint, unless there is one.

    :param name: a key of config.PORTS
    :param kind: its type in the catalog
    """
    identity = cloud.identity
    if identity.find_service(name):
        return
    make_user(cloud, name, 'admin', 'service')
    service = identity.create_service(name=name, type=kind)
    identity.create_endpoint(
        service_id=service.id, interface='public', region_id=config.REGION,
        url=config.url(name))


def make_user(cloud: openstack.connection.Connection, name: str,
              *roles: str) -> None:
    """Make a user of the services' project, unless there is one.

    :param roles: which are made where they are missing
    """
    identity = cloud.identity
    project = identity.find_project('service') or identity.create_project(
        name='service', domain_id='default')
    user = identity.find_user(name) or identity.create_user(
        name=name, password=config.PASSWORD, domain_id='default')
    for role in roles:
        identity.assign_project_role_to_user(
            project, user,
            identity.find_role(role) or identity.create_role(name=role))


def hosts_up(names: Sequence[str]) -> bool:
    """:returns: whether Nova can schedule to all of these hosts."""
    with connect() as cloud:
        return set(names) <= {
            hypervisor.service_details['host']
            for hypervisor in cloud.compute.hypervisors(details=True)
            if hypervisor.state == 'up'}
