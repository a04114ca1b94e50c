# SPDX-License-Identifier: Apache-2.0
"""nova-compute fails or is killed while a server moves, and starts again.

What Nova leaves in Placement then, the audit finds, and its advice mends.
"""

import threading

import fixtures
from nova.cmd import manage as nova_manage

from nova import exception
from nova_vqos.tests.functional import fakes
from nova_vqos.tests.functional import test_audit

# Of 60 CU on a pCPU of 200 and of 100 CU.
ON_FAST = (15000, 50000, 614)
ON_SLOW = (30000, 50000, 614)

# What an operator has the audit do who knows it.
NOTHING_MOVES = ('--stuck-minutes', '0')

DRIVER = 'nova.virt.libvirt.LibvirtDriver'


class RestartTestCase(test_audit.AuditTestCase):

    def setUp(self):
        super().setUp()
        self.migrations.hook = self.hook
        self.placement_commands = nova_manage.PlacementCommands()
        self.server = self.boot_seen('fast')

    def _delete_strange_claims(self, host):
        """As the audit advises: 4 says that there were some."""
        self.assertEqual(4, self.placement_commands.audit(
            verbose=True, provider_uuid=self.compute_rp_uuids[host],
            delete=True))

    def _heal(self):
        self.assertEqual(0, self.placement_commands.heal_allocations(
            instance_uuid=self.server['id'], verbose=True,
            skip_port_allocations=True))

    def _assert_is(self, host, cap):
        self.assertEqual(host, self.host_of(self.server))
        self.assertTrue(self.domain(self.server).isActive())
        self.assertEqual(cap, self.tunables(self.server))


class LiveMigrationBase(RestartTestCase):

    def _request(self):
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {
            'host': 'slow', 'block_migration': 'auto'}})

    def _begin(self):
        """:returns: the migration, once its transfer has begun"""
        self._request()
        self.wait_for(lambda: self.migrations.arrived,
                      lambda: 'no transfer yet')
        return self._wait_for_migration_status(self.server, ['running'])


class LiveMigrationTestCase(LiveMigrationBase):

    def _mend_claims(self, migration):
        """The claims are as during the migration, and nothing moves."""
        self.assertEqual([
            ('claim-differs', self.server['id'], 'fast', 0, 60),
            ('claim-leaked', migration['uuid'], 'fast', 60, 0),
            ('claim-elsewhere', self.server['id'], 'slow', 60, 0)],
            self.audit())
        for host in 'slow', 'fast':
            self._delete_strange_claims(host)
        self._heal()
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))
        self.assertEqual([], self.audit())

    def test_the_source_cannot_begin(self):
        self._break('live_migration')
        self._request()
        migration = self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_state_change(self.server, 'ERROR',
                                    wait_for_fault_key=False)
        self.api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'active'}})
        self._assert_is('fast', ON_FAST)
        self._mend_claims(migration)

    def test_of_the_source(self):
        with self.migrations.held():
            migration = self._begin()
            self.kill_compute('fast', migrating=self.server)
            self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_server_parameter(self.server, {
            'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        # It ends the migration, and keeps the server.
        self._assert_is('fast', ON_FAST)
        self._mend_claims(migration)

    def test_of_the_destination(self):
        with self.migrations.held():
            self._begin()
            self.kill_compute('slow')
        self._wait_for_migration_status(self.server, ['completed'])
        self._wait_for_state_change(self.server, 'ACTIVE')
        self.ends(self.server['id'], 'fast')
        self.runs(self.server['id'], 'slow')
        self._assert_is('slow', ON_SLOW)
        self.assertEqual({'slow': 60}, self.allocated(self.server['id']))
        self.wait_until_used('fast', 0)
        self.assertEqual([], self.audit())

    def _break(self, method):
        def fail(*_args, **_kwargs):
            raise exception.NovaException('it broke')
        self.useFixture(fixtures.MonkeyPatch(f'{DRIVER}.{method}', fail))

    def _break_afterwards(self, method):
        """Have a step fail that comes once the guest runs on its new host."""
        self._break(method)
        self._request()
        migration = self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_server_parameter(
            self.server, {'OS-EXT-STS:task_state': None})
        self.ends(self.server['id'], 'fast')
        self.runs(self.server['id'], 'slow')
        self._assert_is('slow', ON_SLOW)
        self.assertEqual({'slow': 60}, self.allocated(self.server['id']))
        self.assertEqual([('claim-leaked', migration['uuid'], 'fast', 60, 0)],
                         self.audit())
        self._delete_strange_claims('fast')
        self.assertEqual([], self.audit())

    def test_what_follows_fails_at_the_destination(self):
        self._break_afterwards('post_live_migration_at_destination')

    def test_what_follows_fails_at_the_source(self):
        self._break_afterwards('post_live_migration_at_source')


class ResizeTestCase(RestartTestCase):

    def _kill_in(self, method, host):
        """Have a host's nova-compute be killed in a method of its driver."""
        died = threading.Event()

        def die(driver, context, instance_or_migration, *args, **_kwargs):
            if method == 'migrate_disk_and_power_off':
                driver.power_off(instance_or_migration)
            died.set()
            raise fakes.Killed
        with fixtures.MonkeyPatch(f'{DRIVER}.{method}', die):
            self.api.post_server_action(self.server['id'], {'resize': {
                'flavorRef': self.make_flavor(80)}})
            self.wait_for(died.is_set, lambda: f'{method} is not called')
        self.kill_compute(host)
        return self.get_migration_uuid_for_instance(self.server['id'])

    def test_of_the_source(self):
        migration = self._kill_in('migrate_disk_and_power_off', 'fast')
        self._wait_for_server_parameter(self.server, {
            'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        # NOTE: Nova 34 fails to start it, and leaves it off.
        self._reboot_server(self.server, hard=True)
        self._assert_is('fast', ON_FAST)
        # The migration is open still.
        self.assertEqual([], self.audit())
        self.assertIn(self.server['id'], self.said)
        self.assertEqual([
            ('claim-differs', self.server['id'], 'fast', 0, 60),
            ('claim-stuck', migration, 'fast', 60, 0),
            ('claim-elsewhere', self.server['id'], 'slow', 80, 0)],
            self.audit(*NOTHING_MOVES))
        self._delete_strange_claims('slow')
        self.placement.delete(f'/allocations/{migration}')
        self._heal()
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))
        self.assertEqual([], self.audit(*NOTHING_MOVES))

    def test_of_the_destination(self):
        migration = self._kill_in('finish_migration', 'slow')
        self.ends(self.server['id'], 'fast')
        self.api.post_server_action(
            self.server['id'], {'os-resetState': {'state': 'active'}})
        self._reboot_server(self.server, hard=True)
        self._assert_is('slow', (40000, 50000, 819))
        self.assertEqual({'slow': 80}, self.allocated(self.server['id']))
        self.runs(self.server['id'], 'slow', 80)
        self.assertEqual([('claim-stuck', migration, 'fast', 60, 0)],
                         self.audit(*NOTHING_MOVES))
        self.placement.delete(f'/allocations/{migration}')
        self.assertEqual([], self.audit(*NOTHING_MOVES))


class DeletionTestCase(LiveMigrationBase):

    def test_while_memory_is_copied(self):
        with self.migrations.held():
            migration = self._begin()
            self.api.delete_server(self.server['id'])
            self._wait_until_deleted(self.server)
        for host in 'fast', 'slow':
            connection = self.computes[host].driver._host.get_connection()
            self.assertEqual([], connection.listAllDomains(0))
        self.ends(self.server['id'], 'fast')
        self.wait_until_used('slow', 0)
        self.assertEqual([('claim-leaked', migration['uuid'], 'fast', 60, 0)],
                         self.audit())
        self._delete_strange_claims('fast')
        self.wait_until_used('fast', 0)
        self.assertEqual([], self.audit())
