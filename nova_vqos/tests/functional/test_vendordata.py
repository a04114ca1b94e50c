# SPDX-License-Identifier: Apache-2.0
"""What a guest reads of Nova's metadata service.

Real are Nova's metadata API, its question over HTTP to nova-vqos-vendordata,
that service, its question to Nova's compute API, and agents (but for their
hypervisors); Keystone is faked on all sides.
"""

import hashlib
import hmac
import json
import socket
import time

from keystoneauth1 import adapter
from keystoneauth1 import loading
from keystonemiddleware import fixture as keystone_fixture
from nova.tests import fixtures as nova_fixtures
from oslo_config import cfg
import requests

from nova import service_auth
from nova_vqos import utc
from nova_vqos.agent import rpcapi
from nova_vqos.billing import usage
from nova_vqos.conf import vendordata
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import ports
from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import manage_case
from nova_vqos.vendordata import application
from nova_vqos.vendordata import service

AUTH = 'vendordata_dynamic_auth'
SECRET = 'secret'
NOVA, TENANT = 'token-of-nova', 'token-of-a-tenant'
S_NS = 10**9
DEADLINE_S = 4
# For how long the service keeps an answer, and more.
ANSWER_S = 1
KEEP_S = 1.1


class VendordataTestCase(manage_case.ManageTestCase):
    """A server of 60 CU on a host whose pCPUs have 200."""

    def setUp(self):
        super().setUp()
        self.port = self.enterContext(ports.kept())
        self.url = f'http://127.0.0.1:{self.port}/'
        for host, coefficient in (('fast', 2.0), ('slow', 1.0)):
            self.start_host(host, coefficient, pcpus=1)
            directory = self.files / host
            directory.mkdir()
            world = billing.World(directory)
            document.store(fakes.make_profile(coefficient=coefficient),
                           str(world.profile_path))
            self.agents.add(host, world=world)
        self.keystone = self.useFixture(keystone_fixture.AuthTokenFixture())
        self.keystone.add_token_data(
            NOVA, user_id='nova', project_id='service',
            role_list=['service'])
        self.keystone.add_token_data(
            TENANT, user_id='tenant', project_id=self.api.project_id,
            role_list=['member'])
        self.start_service_of_ours()
        self.metadata_url = self.useFixture(
            nova_fixtures.OSMetadataServer()).md_url
        self.flags(service_metadata_proxy=True,
                   metadata_proxy_shared_secret=SECRET, group='neutron')
        self.flags(vendordata_providers=['DynamicJSON'],
                   vendordata_dynamic_targets=[f'vqos@{self.url}'],
                   group='api')
        self.nova_has(NOVA)
        self.server = self.boot(self.make_flavor(60), 'fast')
        self.run_in(self.server, 'fast')

    @property
    def files(self):
        return self.config.parent

    def start_service_of_ours(self):
        path = self.files / 'vendordata.conf'
        path.write_text(
            f'[vqos_vendordata]\nlisten_port = {self.port}\n'
            f'deadline_s = {DEADLINE_S}\nkeep_s = {ANSWER_S}\n'
            '[keystone_authtoken]\n'
            'www_authenticate_uri = http://keystone.test\n')
        conf = cfg.ConfigOpts()
        vendordata.register_opts(conf)
        conf([], default_config_files=[str(path)], default_config_dirs=[])
        compute = adapter.Adapter(
            self.cloud().session, service_type='compute', interface='public')
        started = service.make(
            conf, {'default': rpcapi.AgentAPI(self.agents.transport())},
            compute)
        started.start()
        self.addCleanup(started.stop)
        self.wait_for(lambda: ports.listens(self.port),
                      lambda: 'the service listens')

    def nova_has(self, token):
        """Give Nova credentials, as the guide does; None: none."""
        service_auth.reset_globals()
        self.addCleanup(service_auth.reset_globals)
        if token is None:
            self.flags(auth_section=None, group=AUTH)
            return
        # As Nova does with those of password.
        base.CONF.register_opts(
            loading.get_auth_plugin_conf_options('admin_token'),
            group='service_user')
        self.flags(auth_section='service_user', group=AUTH)
        self.flags(auth_type='admin_token', endpoint=self.url, token=token,
                   group='service_user')

    def run_in(self, server, host, billing_mode='charge'):
        """Have the agent of a host see a server, and its CPU time."""
        world = self.agents.worlds[host]
        world.boot(server['id'], vcpus=1, specs=fakes.make_specs(
            '60', dd_billing=billing_mode))
        self.pass_time(server, host)
        self.wait_for(lambda: self.report(server, host)['bill'],
                      lambda: 'a bill')

    def report(self, server, host):
        return self.agents.worlds[host].manager.get_server(
            {}, server_uuid=server['id'])

    def pass_time(self, server, host, times=3):
        """Let seconds pass on a host, in which a server has 30 %."""
        world = self.agents.worlds[host]
        for _ in range(times):
            at_s = world.now_s + 11
            world.host.vcpu_used[server['id']] = usage.VcpuTime(
                'run', at_s, int(at_s * 0.3 * S_NS), int(at_s * 0.7 * S_NS),
                1)
            read = len(world.host.sampled)
            world.now_s = at_s
            self.wait_for(lambda: len(world.host.sampled) > read,  # noqa: B023
                          lambda: 'a sample')

    def read_raw(self, server, project_id=None):
        """What the guest of a server reads, as Neutron's proxy asks."""
        return requests.get(
            f'{self.metadata_url}openstack/latest/vendor_data2.json',
            headers={
                'X-Instance-ID': server['id'],
                'X-Tenant-ID': project_id or self.api.project_id,
                'X-Instance-ID-Signature': hmac.new(
                    SECRET.encode(), server['id'].encode(),
                    hashlib.sha256).hexdigest()}, timeout=20)

    def read(self, server=None):
        answer = self.read_raw(server or self.server)
        self.assertEqual(200, answer.status_code, answer.text)
        return answer.json()['vqos']

    def ask(self, token=NOVA, **changes):
        """Ask the service, as Nova does."""
        asked = {'instance-id': self.server['id'],
                 'project-id': self.api.project_id, 'image-id': None,
                 'user-data': None, 'hostname': 'test', 'metadata': {},
                 'boot-roles': '', **changes}
        return requests.post(
            self.url, data=json.dumps(asked), timeout=20,
            headers={'X-Auth-Token': token} if token else {})

    def test_a_guest_reads_what_it_was_promised_and_got(self):
        found = self.read()
        self.assertEqual('', found['problem'])
        self.assertIs(True, found['available'])
        self.assertEqual(60, found['promised_cu'])
        self.assertEqual(200.0, found['cu_per_pcpu'])
        self.assertAlmostEqual(60.0, found['delivered_cu'], delta=0.1)
        self.assertAlmostEqual(0.7, found['withheld_share'], delta=0.01)
        self.assertIs(True, found['io']['charged'])
        # The time is the machine's own: a tenant compares it with his.
        self.assertAlmostEqual(
            time.time(), utc.parse(found['at']).timestamp(), delta=20)

    def test_two_readings_give_the_speed_by_the_tenants_own_division(self):
        first = self.read()
        self.pass_time(self.server, 'fast')
        time.sleep(KEEP_S)
        second = self.read()
        # World's clock runs ahead of this machine's: only its own readings
        # can be divided by each other.
        cpu_s = second['cpu_s'] - first['cpu_s']
        withheld_s = second['withheld_s'] - first['withheld_s']
        self.assertAlmostEqual(33.0, cpu_s + withheld_s, delta=0.1)
        self.assertAlmostEqual(
            60.0, cpu_s * second['cu_per_pcpu'] / 33.0, delta=0.1)

    def test_each_read_asks_anew_though_nova_caches_metadata(self):
        """Nova keeps the server for 15 s, and not what it was answered."""
        for _ in range(20):
            begun_s = time.monotonic()
            first = self.read()
            self.pass_time(self.server, 'fast', times=1)
            again = self.read()
            if time.monotonic() - begun_s < ANSWER_S:
                break
            # On a busy machine that took longer than an answer is kept.
            time.sleep(KEEP_S)
        self.assertEqual(first, again)
        time.sleep(KEEP_S)
        self.assertLess(first['cpu_s'], self.read()['cpu_s'])

    def test_nothing_of_the_host_or_of_others(self):
        other = self.boot(self.make_flavor(30), 'fast')
        self.run_in(other, 'fast')
        text = self.read_raw(self.server).text
        for secret in ('fast', other['id'], 'instance-', self.server['id']):
            self.assertNotIn(secret, text)

    def test_another_project_reads_nothing(self):
        """By Nova's metadata, and by asking the service itself."""
        self.assertEqual(404, self.read_raw(
            self.server, 'another-project').status_code)
        answer = self.ask(**{'project-id': 'another-project'})
        self.assertEqual(404, answer.status_code)
        self.assertNotIn('promised_cu', answer.text)

    def test_who_is_not_nova_is_refused(self):
        self.assertEqual(200, self.ask().status_code)
        self.assertEqual(403, self.ask(TENANT).status_code)
        self.assertEqual(401, self.ask('no-token').status_code)
        self.assertEqual(401, self.ask(None).status_code)

    def test_a_nova_without_credentials_gets_nothing(self):
        self.nova_has(None)
        self.assertEqual({}, self.read())

    def test_the_server_is_found_where_it_moved_to(self):
        self.assertEqual(200.0, self.read()['cu_per_pcpu'])
        self._live_migrate(self.server, 'completed')
        self.assertEqual('slow', self.host_of(self.server))
        world = self.agents.worlds['fast']
        world.host.stop(self.server['id'])
        self.run_in(self.server, 'slow')
        time.sleep(KEEP_S)
        self.assertEqual(100.0, self.read()['cu_per_pcpu'])

    def test_a_host_whose_agent_is_silent(self):
        """The guest reads why, within the deadline.

        Nova by default waits for a second more.
        """
        self.flags(vendordata_dynamic_read_timeout=20, group='api')
        self.agents.silence()
        begun_s = time.monotonic()
        found = self.read()
        self.assertLess(time.monotonic() - begun_s, DEADLINE_S + 4)
        self.assertEqual((False, 'host_silent'),
                         (found['available'], found['problem']))
        self.assertIsNone(found['promised_cu'])

    def test_a_server_that_does_not_run(self):
        self._stop_server(self.server)
        self.agents.worlds['fast'].host.stop(self.server['id'])
        self.wait_for(
            lambda: self.server['id'] not in [
                one['server_uuid'] for one in self.agents.worlds[
                    'fast'].manager.list_servers({})['servers']],
            lambda: 'the agent sees it stop')
        self.assertEqual('not_running', self.read()['problem'])

    def test_a_server_that_is_not_there(self):
        unknown = '00000000-0000-4000-8000-000000000001'
        self.assertEqual(404, self.ask(
            **{'instance-id': unknown}).status_code)

    def test_what_is_no_question_of_novas(self):
        for method, sent, status in (
                ('GET', b'', 405), ('PUT', b'{}', 405),
                ('POST', b'x' * (application.MOST_BODY_BYTES + 1), 413)):
            with socket.create_connection(('127.0.0.1', self.port)) as one:
                one.settimeout(20)
                one.sendall(f'{method} / HTTP/1.0\r\nContent-Length: '
                            f'{len(sent)}\r\n\r\n'.encode())
                self.assertIn(str(status).encode(), one.recv(100))
