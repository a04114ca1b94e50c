# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-vendordata with a real Keystone: tokens, roles and catalog.

Keystone is a process of its own, agents are real but for their hypervisors;
Nova's API is a server that knows one server's host.
"""

import http.server
import json
import os
import subprocess
import sys
import threading

from keystoneauth1 import session
from keystoneauth1.identity import v3
import openstack
from oslo_config import cfg
import pytest
import requests

from nova_vqos.agent import rpcapi
from nova_vqos.conf import vendordata
from nova_vqos.tests import functional
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import manage
from nova_vqos.tests.fixtures import ports
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.fixtures import waits
from nova_vqos.vendordata import service

pytestmark = functional.needs_threads
requirement.need_modules('keystone')

PASSWORD = 'secret'
LIMIT_S = 120
_SERVE = """
import sys
from wsgiref import simple_server
from keystone.server.wsgi import initialize_public_application
port = int(sys.argv.pop())
application = initialize_public_application()
simple_server.make_server('127.0.0.1', port, application).serve_forever()
"""


class Keystone:
    """:ivar url: of its API"""

    def __init__(self, directory, port):
        self._config = directory / 'keystone.conf'
        keys = directory / 'keys'
        self._config.write_text(
            f'[DEFAULT]\nlog_file = {directory}/keystone.log\n'
            f'[database]\nconnection = sqlite:///{directory}/keystone.db\n'
            f'[fernet_tokens]\nkey_repository = {keys}\n'
            f'[fernet_receipts]\nkey_repository = {keys}\n'
            f'[credential]\nkey_repository = {directory}/credential\n'
            '[identity]\npassword_hash_rounds = 4\n')
        self.url = f'http://127.0.0.1:{port}/v3'
        owner = ('--keystone-user', 'root', '--keystone-group', 'root')
        for command in (
                ('fernet_setup', *owner), ('credential_setup', *owner),
                ('db_sync',),
                ('bootstrap', '--bootstrap-password', PASSWORD,
                 '--bootstrap-region-id', 'RegionOne',
                 '--bootstrap-public-url', self.url,
                 '--bootstrap-internal-url', self.url)):
            subprocess.run(
                [sys.executable, '-W', 'ignore', '-c',
                 'import sys; from keystone.cmd.manage import main;'
                 'sys.exit(main())', '--config-file', str(self._config),
                 *command], check=True, timeout=LIMIT_S, env=self._environ)
        self._process = subprocess.Popen(
            [sys.executable, '-W', 'ignore', '-c', _SERVE, str(port)],
            env=self._environ, stderr=subprocess.DEVNULL)
        waits.wait_until(lambda: self._process.poll() is not None
                         or ports.listens(port))
        assert self._process.poll() is None

    @property
    def _environ(self):
        return {**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path),
                'OS_KEYSTONE_CONFIG_FILES': str(self._config)}

    def stop(self):
        self._process.kill()
        self._process.wait()

    def plugin(self, user, project):
        return v3.Password(
            self.url, username=user, password=PASSWORD, project_name=project,
            user_domain_id='default', project_domain_id='default')

    def token(self, user, project):
        return session.Session(auth=self.plugin(user, project)).get_token()

    def add(self, compute_url):
        """Make the accounts that the guide names, and one of a tenant."""
        identity = openstack.connection.Connection(session=session.Session(
            auth=self.plugin('admin', 'admin'))).identity
        projects = {name: identity.create_project(
            name=name, domain_id='default') for name in ('service', 'web')}
        # Bootstrap makes them.
        roles = {role.name: role for role in identity.roles()}
        for user, project, role in (
                ('nova', 'service', 'service'), ('vqos', 'service', 'admin'),
                ('tenant', 'web', 'member'), ('manager', 'web', 'manager')):
            identity.assign_project_role_to_user(
                projects[project], identity.create_user(
                    name=user, password=PASSWORD, domain_id='default'),
                roles[role])
        compute = identity.create_service(name='nova', type='compute')
        identity.create_endpoint(
            service_id=compute.id, interface='public',
            region_id='RegionOne', url=compute_url)


class Nova(http.server.ThreadingHTTPServer):
    """Its API, which tells administrators on which host a server is.

    :ivar tokens: of those who asked for a server
    """

    def __init__(self):
        super().__init__(('127.0.0.1', 0), _NovaHandler)
        self.tokens = []
        self.url = f'http://127.0.0.1:{self.server_port}'
        self._thread = threading.Thread(target=self.serve_forever)
        self._thread.start()

    def stop(self):
        self.shutdown()
        self._thread.join()
        self.server_close()


class _NovaHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == f'/servers/{fakes.UUID}'
        if known:
            self.server.tokens.append(self.headers['X-Auth-Token'])
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({'server': {
            'tenant_id': 'web', 'OS-EXT-SRV-ATTR:host': 'here'}}).encode()
            if known else b'{}')

    def log_message(self, *_arguments):
        pass


@pytest.fixture(scope='module')
def nova():
    made = Nova()
    yield made
    made.stop()


@pytest.fixture(scope='module')
def keystone(tmp_path_factory, nova):
    with ports.kept() as port:
        made = Keystone(tmp_path_factory.mktemp('keystone'), port)
        try:
            made.add(nova.url)
            yield made
        finally:
            made.stop()


@pytest.fixture(scope='module')
def port():
    with ports.kept() as kept:
        yield kept


@pytest.fixture(scope='module')
def url(keystone, port, tmp_path_factory):
    """Of the service, configured as the guide has it."""
    directory = tmp_path_factory.mktemp('agents')
    path = directory / 'nova-vqos.conf'
    path.write_text(f"""
[vqos_vendordata]
listen_port = {port}
[keystone_authtoken]
auth_type = password
auth_url = {keystone.url}
www_authenticate_uri = {keystone.url}
username = vqos
password = {PASSWORD}
user_domain_name = Default
project_name = service
project_domain_name = Default
service_token_roles_required = true
""")
    conf = cfg.ConfigOpts()
    vendordata.register_opts(conf)
    conf([], default_config_files=[str(path)], default_config_dirs=[])
    with manage.Agents(directory) as agents:
        agents.add('here').boot()
        agents.worlds['here'].now_s += 20
        agents.wait_for_servers()
        made = service.make(conf, {
            'default': rpcapi.AgentAPI(agents.transport())})
        made.start()
        waits.wait_until(lambda: ports.listens(port))
        yield f'http://127.0.0.1:{port}/'
        made.stop()


def ask(url, token, project='web'):
    return requests.post(
        url, json={'instance-id': fakes.UUID, 'project-id': project},
        headers={'X-Auth-Token': token}, timeout=20)


def test_the_user_of_nova_is_answered(url, keystone, nova):
    answer = ask(url, keystone.token('nova', 'service'))
    assert answer.status_code == 200
    assert answer.json()['promised_cu'] == 60
    # Nova was found by the catalog, and asked as the service's own user.
    (token,) = nova.tokens
    identity = openstack.connection.Connection(session=session.Session(
        auth=keystone.plugin('admin', 'admin'))).identity
    seen = identity.get('/auth/tokens', headers={
        'X-Subject-Token': token}).json()['token']
    assert seen['user']['name'] == 'vqos'


@pytest.mark.parametrize('user, project', [
    ('tenant', 'web'), ('manager', 'web'), ('admin', 'admin')])
def test_who_lacks_its_role_is_not(url, keystone, user, project):
    assert ask(url, keystone.token(user, project)).status_code == 403


def test_neither_is_an_owner_of_other_servers(url, keystone):
    token = keystone.token('nova', 'service')
    assert ask(url, token, 'another').status_code == 404


def test_neither_is_a_token_that_keystone_does_not_know(url):
    assert ask(url, 'gAAAAABn').status_code == 401
