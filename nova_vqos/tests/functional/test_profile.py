# SPDX-License-Identifier: Apache-2.0
"""A host whose profile is missing or wrong, at start and later.

Whatever it is: nova-compute starts, its stats stay fresh, it takes no new
server with units, keeps what it has, and can be emptied.
"""

import json
import pathlib

import fixtures

from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import host_files

ON_FAST = (15000, 50000, 614)


def other_schema(files):
    path = pathlib.Path(files.profile_path)
    document = json.loads(path.read_text())
    document['schema'] = 99
    path.write_text(json.dumps(document))


def other_cpu(files):
    files.calibrate({'0-3': 2.0}, fingerprint={
        **host_files.FINGERPRINT, 'cpu_model': 'another one'})


def wide_interval(files):
    files.calibrate({'0-3': 2.0}, relative_width=0.2)


#: What happens to a profile: and what the host then says of it.
BREAKS = {
    'missing': (lambda files: files.lose_profile(), 'does not exist'),
    'truncated': (lambda files: files.truncate_profile(), 'not the JSON'),
    'garbage': (lambda files: files.spoil_profile(), 'not the JSON'),
    'world-writable': (lambda files: files.open_profile_to_all(), 'mode'),
    'of another schema': (other_schema, 'schema'),
    'of another CPU': (other_cpu, 'stale'),
    'too uncertain': (wide_interval, 'stale'),
}

class AtStartTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.units = self.make_flavor(60)
        self.stock = self.make_flavor()

    def test_host_without_a_profile_is_stock_novas(self):
        files = self.start_host('new', None)
        self.assertIsNone(self.inventory('new'))
        self.assertEqual(set(), self.traits('new'))
        self.assertIn('does not exist', self.stats('new')['vqos_profile'])
        self.boot(self.stock, 'new')
        self.boot(self.units, 'new', expected_state='ERROR')

        # It is calibrated while nova-compute runs.
        files.calibrate({'0-3': 2.0})
        self._run_periodics()
        self.assertEqual(800, self.inventory('new')['total'])
        self.assertEqual('valid', self.stats('new')['vqos_profile'])
        self.assertEqual(ON_FAST, self.tunables(self.boot(self.units, 'new')))

    def test_host_with_a_profile_that_cannot_be_used(self):
        for i, (name, (spoil, said)) in enumerate(BREAKS.items()):
            host = 'host%d' % i
            files = self.useFixture(host_files.HostFiles(host))
            files.calibrate({'0-3': 2.0})
            spoil(files)
            self.start_host(host, None, files=files)
            self.assertIsNone(self.inventory(host), name)
            sells_units = self.stats(host)['vqos_sells_units'] == 'True'
            self.assertEqual(name != 'missing', sells_units, name)
            self.assertEqual({'CUSTOM_VQOS_SELLS_UNITS'} if sells_units
                             else set(), self.traits(host), name)
            self.assertIn(said, self.stats(host)['vqos_profile'], name)
        self.boot(self.units, expected_state='ERROR')
        self.assertEqual(len(BREAKS), len(self.computes))


class LaterTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.files = self.start_host('fast', 2.0)
        self.server = self.boot(self.make_flavor(60), 'fast')
        self.small = self.make_flavor(10)

    def _assert_closed(self, said):
        inventory = self.inventory('fast')
        self.assertEqual((800, 800),
                         (inventory['total'], inventory['reserved']))
        self.assertEqual({'CUSTOM_VQOS_SELLS_UNITS'}, self.traits('fast'))
        self.assertIn(said, self.stats('fast')['vqos_profile'])
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))

    def test_with_a_server_on_the_host(self):
        for name, (spoil, said) in BREAKS.items():
            spoil(self.files)
            self._run_periodics()
            self._assert_closed(said)
            refused = self.boot(self.small, 'fast', expected_state='ERROR')
            self.assertIn('No valid host', refused['fault']['message'])
            self.assertEqual({}, self.allocated(refused['id']))

            # Twice: what is kept is what was last, not what it was closed to.
            self._run_periodics()
            self._assert_closed(said)

            # Who runs may start again, and keeps the cap.
            self._reboot_server(self.server, hard=True)
            self.assertEqual(ON_FAST, self.tunables(self.server), name)
            self._calibrate_anew(2.0, total=800)

    def test_a_restart_of_the_compute_service(self):
        # Its first report comes before it asks Placement.
        stock = self.make_flavor()
        self.files.lose_profile()
        self._run_periodics()
        self.restart_compute_service('fast')
        refused = self.boot(stock, 'fast', expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])

    def _calibrate_anew(self, coefficient, total):
        self.files.calibrate({'0-3': coefficient})
        self._run_periodics()
        inventory = self.inventory('fast')
        self.assertEqual((total, 0),
                         (inventory['total'], inventory['reserved']))
        self.assertIn('CUSTOM_VQOS', self.traits('fast'))

    def test_it_can_be_emptied_and_be_calibrated_anew(self):
        spoil, said = BREAKS['missing']
        spoil(self.files)
        self._run_periodics()
        self.restart_compute_service('fast')
        self._assert_closed(said)
        # Stats are fresh, not only ours.
        self.assertEqual(1, self.compute_node('fast').running_vms)

        self.start_host('spare', 2.0)
        self._live_migrate(self.server, host='spare')
        self.assertEqual({'spare': 60}, self.allocated(self.server['id']))
        self.wait_until_used('fast', 0)
        self._run_periodics()
        self.assertEqual(0, self.compute_node('fast').running_vms)

        self._calibrate_anew(1.0, total=400)
        self._live_migrate(self.server, host='fast')
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))

    def test_cold_migration_off_the_host(self):
        self.start_host('spare', 2.0)
        self.files.lose_profile()
        self._run_periodics()
        self._migrate_server(self.server)
        self.assertEqual('spare', self.host_of(self.server))
        # Back as well: it has been there.
        self._revert_resize(self.server)
        self.assertEqual('fast', self.host_of(self.server))
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))

    def test_whatever_else_goes_wrong(self):
        def fail(*args, **kwargs):
            raise RuntimeError('nobody expected this')

        with fixtures.MonkeyPatch(
                'nova_vqos.virt.host_state.HostReporter.report', fail):
            self._run_periodics()
            self._assert_closed('nobody expected this')
            self.restart_compute_service('fast')
            self._assert_closed('nobody expected this')
        self._run_periodics()
        self.assertEqual(0, self.inventory('fast')['reserved'])
        self.assertEqual('valid', self.stats('fast')['vqos_profile'])
