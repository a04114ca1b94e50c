# SPDX-License-Identifier: Apache-2.0
"""What checks tell is what the scheduler and the driver then do."""

from nova.tests.functional.api import client as api_client
import testtools.matchers

from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import manage_case

HEAD = ('free_cu', 'takes_cu', 'speed_cu')
# By host, what is wrong with it for a server of 90 CU per vCPU.
OBSTACLES = {
    'fast': [],
    'slow': ['its slowest pCPU has 80 CU'],
    'full': ['it has 50 CU left, 90 are asked for'],
    'stale': ['the profile is stale'],
    'silent': ['its agent was last seen at'],
    'disabled': ['its compute service is disabled: new disks'],
    'hybrid': ['320 CU left on pCPUs of 80 CU, 40 CU left on pCPUs of '
               '200 CU'],
    'stock': ['profile.yaml does not exist'],
    'charging': [],
}


class ChecksTestCase(manage_case.ManageTestCase):
    """Hosts of all kinds, see OBSTACLES; each has an agent that answers."""

    def setUp(self):
        super().setUp()
        self.hook_path = '/etc/libvirt/hooks/qemu.d/nova-vqos'
        self.migrations.hook = self.hook
        for host, coefficient, pcpus in (
                ('fast', 2.0, 4), ('slow', 0.8, 4), ('full', 1.4, 1),
                ('stale', 2.0, 4), ('silent', 2.0, 4), ('disabled', 2.0, 4),
                ('stock', None, 4), ('charging', 1.0, 4)):
            self.start_host(host, coefficient, pcpus=pcpus)
        files = self.useFixture(base.host_files.HostFiles('hybrid'))
        files.calibrate({'0-1': 2.0, '2-5': 0.8})
        self.start_host('hybrid', None, pcpus=6, files=files)
        self.boot(self.make_flavor(90), 'full')
        self.boot(self.make_flavor(360, vcpus=2), 'hybrid')
        self.host_files['stale'].calibrate(
            {'0-3': 2.0}, fingerprint={'cpu_model': 'another'})
        self.host_files['silent'].agent_lives(age_s=1000)
        self.host_files['charging'].agent_lives(
            classes=('default', 'io'), dd_billing=('off', 'charge'))
        self._run_periodics()
        self.api.put_service(
            self.api.get_services(host='disabled', binary='nova-compute')
            [0]['id'], {'status': 'disabled', 'disabled_reason': 'new disks'})
        for host in OBSTACLES:
            self.start_agent(host)

    def assert_reasons(self, rows, expected):
        self.assertEqual(sorted(expected), sorted(rows))
        for host, texts in expected.items():
            row = rows[host]
            self.assertEqual('no' if texts else 'yes', row['fits'], row)
            self.assertThat(row['reasons'],
                            testtools.matchers.HasLength(len(texts)), row)
            for text, reason in zip(texts, row['reasons'], strict=True):
                self.assertIn(text, reason)

    def assert_boots_alike(self, flavor, rows):
        """A server boots where one fits, and nowhere else."""
        for host, row in rows.items():
            state = 'ACTIVE' if row['fits'] == 'yes' else 'ERROR'
            used = self.used(host)
            server = self.boot(flavor, host, expected_state=state)
            self._delete_server(server)
            self.wait_until_used(host, used)

    def check_flavor(self, *args, **kwargs):
        """What the check says, and a server then finds, by host."""
        flavor = self.make_flavor(*args, **kwargs)
        rows = self.check('flavor', 'check', flavor)
        self.assert_boots_alike(flavor, rows)
        return rows

    def test_flavors(self):
        rows = self.check_flavor(90)
        self.assert_reasons(rows, OBSTACLES)
        self.assertEqual((800, 90, 200), tuple(
            rows['fast'][name] for name in HEAD))
        self.assertEqual((None, None, None), tuple(
            rows['stock'][name] for name in HEAD))
        # What the guide shows.
        self.assertEqual({'hybrid', 'stock'}, {
            host for host, row in rows.items() if row['takes_cu'] is None})

        # As fast in hashes as any, and slower in the mean.
        self.host_files['charging'].calibrate(
            {'0-3': {'hash': 2.0, 'integer': 0.5}})
        self._run_periodics()
        rows = self.check_flavor(150, specs={'vqos:work': 'hash'})
        self.assert_reasons({'charging': rows['charging']}, {'charging': []})
        self.assertEqual((400, 150, 200), tuple(
            rows['charging'][name] for name in HEAD))
        self.assertIn("vqos:work has 'hash'", rows['fast']['reasons'][0])
        rows = self.check_flavor(40, specs={'vqos:work': 'integer'})
        self.assertEqual((400, 80, 50), tuple(
            rows['charging'][name] for name in HEAD))
        self.host_files['charging'].calibrate({'0-3': 1.0})
        self._run_periodics()

        # Room in the slow class alone; what is offered beside units.
        rows = self.check_flavor(60, specs={
            'vqos:quantum_class': 'io', 'vqos:dd_billing': 'charge'})
        self.assertEqual((360, 80), (rows['hybrid']['free_cu'],
                                     rows['hybrid']['speed_cu']))
        self.assert_reasons(
            {host: rows[host] for host in ('fast', 'charging')},
            {'fast': ['it offers vqos:quantum_class default',
                      'it offers vqos:dd_billing off'], 'charging': []})

        rows = self.check_flavor(60, specs={
            'trait:CUSTOM_VQOS_SPEED_100': 'required',
            'trait:CUSTOM_VQOS_SPEED_150': 'forbidden'})
        self.assert_reasons(
            {host: rows[host] for host in ('fast', 'slow', 'charging')}, {
                'fast': ['it has the trait CUSTOM_VQOS_SPEED_150'],
                'slow': ['it has no trait CUSTOM_VQOS_SPEED_100'],
                'charging': []})

        rows = self.check_flavor()
        self.assertEqual({'stock'}, {host for host, row in rows.items()
                                     if row['fits'] == 'yes'})
        self.assert_reasons({'slow': rows['slow']}, {
            'slow': ['it is kept for servers with units']})

        # Too much for all.
        flavor = self.make_flavor(2000, vcpus=2)
        rows = self.check('flavor', 'check', flavor)
        self.assertEqual({'no'}, {row['fits'] for row in rows.values()})
        self.assertEqual(1, self.run_manage('flavor', 'check', flavor).status)

    def _migrates(self, server, host):
        """Whether a server can be live-migrated; it is back afterwards."""
        before = len(self.migrations.arrived)
        try:
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': host, 'block_migration': 'auto'}})
        except api_client.OpenStackApiException:
            return False
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.wait_for(
            lambda: all(one['status'] in ('completed', 'error')
                        for one in self.api.api_get(
                            '/os-migrations').body['migrations']),
            lambda: 'migrations end')
        if self.host_of(server) != host:
            self.assertEqual(before, len(self.migrations.arrived))
            return False
        self._live_migrate(server, host='fast')
        return True

    def test_migrations(self):
        server = self.boot(self.make_flavor(90), 'fast')
        rows = self.check('migration', 'check', server['id'])
        self.assert_reasons(rows, {host: texts for host, texts
                                   in OBSTACLES.items() if host != 'fast'})
        for host, row in rows.items():
            self.assertEqual(row['fits'] == 'yes',
                             self._migrates(server, host), row)

        # One host alone, whatever it is.
        rows = self.check('migration', 'check', server['id'], 'slow')
        self.assert_reasons(rows, {'slow': OBSTACLES['slow']})
        rows = self.check('migration', 'check', server['id'], 'fast')
        self.assert_reasons(rows, {'fast': ['the server is there already']})
        ran = self.run_manage('migration', 'check', server['id'], 'nowhere')
        self.assertEqual(1, ran.status)
        self.assertIn('no compute service on a host nowhere', ran.err)

        # What its cap would be.
        server = self.boot(self.make_flavor(60, vcpus=2), 'fast')
        for host in ('slow', 'charging', 'hybrid'):
            row = self.check('migration', 'check', server['id'], host)[host]
            self.assertEqual(('yes', True, 30, []), (
                row['fits'], row['as_fast'], row['cap']['cu'], row['notes']))
            self._live_migrate(server, host=host)
            self.assertEqual((row['cap']['quota_us'], row['cap']['period_us']),
                             self.tunables(server)[:2])
            self._live_migrate(server, host='fast')

        # One that does not run.
        self._stop_server(server)
        rows = self.check('migration', 'check', server['id'], 'charging')
        self.assert_reasons(rows, {'charging': ['the server is SHUTOFF']})
        self.assertFalse(self._migrates(server, 'charging'))


class RefusalTestCase(manage_case.ManageTestCase):
    """What cannot be asked, or is no question."""

    def setUp(self):
        super().setUp()
        self.start_host('one', 1.0)
        self.start_host('stock', None)

    def assert_refused(self, *arguments, texts, cloud=None):
        ran = self.run_manage(*arguments, cloud=cloud)
        self.assertEqual((1, ''), (ran.status, ran.out))
        for text in texts:
            self.assertIn(text, ran.err)

    def test_what_is_refused(self):
        # Flavors that were made before the API refused them.
        for specs, texts in (
                ({base.UNITS_KEY: '6_0', 'vqos:cap': 'soft'},
                 (f"{base.UNITS_KEY} is '6_0', it must be a whole number",
                  "vqos:cap is 'soft', it must be one of hard, floor")),
                ({base.UNITS_KEY: '60', 'quota:cpu_quota': '1000'},
                 ("quota:cpu_quota is '1000', it must be left out",)),
                ({f'resources1:{base.RESOURCE_CLASS}': '60'},
                 (f"resources1:{base.RESOURCE_CLASS} is '60'",))):
            flavor = self.make_flavor(specs=specs, version=base.NOT_VALIDATED)
            self.assert_refused('flavor', 'check', flavor,
                                texts=('Validation failed; ', *texts))
        self.assert_refused('flavor', 'check', 'none',
                            texts=['there is no flavor none'])
        self.assert_refused('migration', 'check', 'none',
                            texts=['there is no server none'])
        flavor = self.make_flavor(60)
        for cloud, texts in (
                ({'roles': 'reader'},
                 ['Nova cannot be asked', 'os-services', 'OS_*']),
                ({'placement': 'http://127.0.0.1:1/placement'},
                 ['Placement cannot be asked']),
                ({'compute': 'http://127.0.0.1:1/v2.1'},
                 ['Nova cannot be asked'])):
            self.assert_refused('flavor', 'check', flavor, texts=texts,
                                cloud=self.cloud(**cloud))

    def test_a_private_flavor_by_its_name(self):
        self.start_agent('one')
        self.api.post_flavor({'flavor': {
            'id': '7', 'name': 'mine', 'vcpus': 1, 'ram': 256, 'disk': 1,
            'os-flavor-access:is_public': False}})
        rows = self.check('flavor', 'check', 'mine')
        self.assertEqual('yes', rows['stock']['fits'])

    def test_agents_that_do_not_answer(self):
        rows = self.check('flavor', 'check', self.make_flavor(60))
        self.assertEqual('unknown', rows['one']['fits'])
        (reason,) = rows['one']['reasons']
        self.assertIn('its agent gave no answer', reason)
        # Placement knows enough of some.
        self.assertEqual('no', rows['stock']['fits'])
        self.assertEqual(
            'no', self.check('flavor', 'check', self.make_flavor(401))
            ['one']['fits'])
        rows = self.check('flavor', 'check', self.make_flavor())
        self.assertEqual({'one': 'no', 'stock': 'yes'}, {
            host: row['fits'] for host, row in rows.items()})

    def test_a_compute_service_that_is_down(self):
        self.start_agent('one')
        server = self.boot(self.make_flavor(60), 'one')
        self.host_dies('one')
        rows = self.check('flavor', 'check', self.make_flavor(60))
        self.assertIn('its compute service was forced down',
                      rows['one']['reasons'])
        rows = self.check('migration', 'check', server['id'])
        self.assertIn('the compute service of one, where the server is, is '
                      'down', rows['stock']['reasons'])
