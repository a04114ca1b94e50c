# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-manage beside the cloud in one process.

openstacksdk talks HTTP to Nova's and Placement's real APIs, of which only
Keystone is faked; agents answer over a bus in memory, real but for their
hypervisors.
"""

import pathlib

import fixtures
from keystoneauth1 import access
from keystoneauth1 import fixture as token_fixture
from keystoneauth1 import session
from keystoneauth1.identity import base as identity
import openstack

from nova_vqos.tests import functional
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.functional import base

if not functional.THREADED:
    requirement.need('agents and command run on threads, this Nova on '
                     'eventlet')

from nova_vqos.tests.fixtures import manage


class _Keystone(identity.BaseIdentityPlugin):
    """Gives a token without a Keystone."""

    def __init__(self, token, endpoints):
        super().__init__(auth_url='http://keystone.test')
        self._token = token
        self._endpoints = endpoints

    def get_auth_ref(self, session, **kwargs):
        body = token_fixture.V3Token()
        body.set_project_scope()
        for service_type, url in self._endpoints.items():
            body.add_service(service_type).add_standard_endpoints(
                public=url, region='RegionOne')
        return access.create(body=body, auth_token=self._token)


class ManageTestCase(base.VqosTestCase):
    """Hosts have agents, see :meth:`start_agent`."""

    def setUp(self):
        super().setUp()
        directory = pathlib.Path(self.useFixture(fixtures.TempDir()).path)
        self.agents = manage.Agents(directory)
        self.addCleanup(self.agents.stop)
        self.config = directory / 'nova-vqos.conf'
        # For the few that do not answer. Others need seconds, too, if busy.
        self.config.write_text('[DEFAULT]\ntransport_url = fake://\n'
                               '[vqos_manage]\ntimeout_s = 6\n')

    def cloud(self, roles='admin,member,reader', **endpoints):
        """An openstack.connection.Connection, as an administrator.

        :param roles: that Keystone would give
        :param endpoints: by service type, others than the real ones
        """
        user = 'admin' if 'admin' in roles else 'reader'
        placement = self.placement.fixture
        keystone = _Keystone(placement.token, {
            'compute': self.api_fixture.base_url,
            'placement': placement.endpoint, **endpoints})
        # What Nova's fixture has in place of Keystone's middleware.
        headers = {'X-Auth-User': user, 'X-User-Id': user,
                   'X-Auth-Project-Id': self.api.project_id,
                   'X-Roles': roles}
        return openstack.connection.Connection(session=session.Session(
            auth=keystone, additional_headers=headers))

    def start_agent(self, hostname):
        """Start the agent of a host, which must have been started."""
        self.agents.add(hostname, compute_state_path=self.host_files[
            hostname].compute_state_path)

    def run_manage(self, *arguments, cloud=None):
        """:returns: see :class:`manage_world.Ran`"""
        return manage.run(*arguments, config=self.config,
                          cloud=cloud or self.cloud())

    def check(self, *arguments):
        """What a check says, by host."""
        ran = self.run_manage(*arguments, '-f', 'json')
        self.assertTrue(ran.out, ran.err)
        rows = {row['host']: row for row in ran.json}
        self.assertEqual(
            0 if any(row['fits'] == 'yes' for row in rows.values()) else 1,
            ran.status, ran.err)
        return rows
