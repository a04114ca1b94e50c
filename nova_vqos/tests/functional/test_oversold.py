# SPDX-License-Identifier: Apache-2.0
"""Placement has sold more units of a host than it has: the driver refuses.

Concurrent requests make Placement do so (doc/source/contributor/oversold.rst).
Here another inventory does, until Nova restores it within the next claim.
"""

from nova_vqos.tests.functional import base

# 60 and 40 CU on a pCPU of 100 CU.
OF_60 = (30000, 50000, 614)


class OversoldTestCase(base.VqosTestCase):
    """A host of 100 CU, which the scheduler prefers, with a server of 60."""

    HOST_WEIGHTS = {'full': 2, 'other': 1}

    def setUp(self):
        super().setUp()
        self.start_host('full', 1.0, pcpus=1)
        self.flavor = self.make_flavor(60)
        self.first = self.boot(self.flavor)

    def oversell(self):
        """Have Placement sell three times what the host has."""
        provider = self.compute_rp_uuids['full']
        inventory = self._get_provider_inventory(provider)
        inventory[base.RESOURCE_CLASS]['total'] = 300
        generation = self._get_resource_provider_by_uuid(
            provider)['generation']
        self._update_inventory(provider, {
            'resource_provider_generation': generation,
            'inventories': inventory})

    def start_other(self):
        self.start_host('other', 1.0, pcpus=1)
        # Starting it has let all hosts report.
        self.oversell()


class BootTestCase(OversoldTestCase):

    def test_another_host_is_tried(self):
        self.start_other()
        second = self.boot(self.flavor)
        self.assertEqual('other', self.host_of(second))
        self.assertEqual({'other': 60}, self.allocated(second['id']))
        self.assertEqual(OF_60, self.tunables(second))
        self.wait_until_used('full', 60)
        self.assertIn('60 of the 100 CU', self.log())

    def test_there_is_no_other_host(self):
        self.oversell()
        refused = self.boot(self.flavor, expected_state='ERROR')
        self.wait_until_used('full', 60)
        self.assertEqual({}, self.allocated(refused['id']))

    def test_two_of_one_request(self):
        self.start_other()
        body = self._build_server(
            image_uuid=base.IMAGE_ID, flavor_id=self.make_flavor(30),
            networks='none')
        body['min_count'] = body['max_count'] = 2
        self.api.post_server({'server': body})
        servers = [self._wait_for_state_change(server, 'ACTIVE')
                   for server in self.api.get_servers()]
        self.assertEqual(['full', 'full', 'other'], sorted(
            self.host_of(server) for server in servers))
        self.wait_until_used('full', 90)
        self.wait_until_used('other', 30)


class LiveMigrationTestCase(OversoldTestCase):

    def test_one_that_does_not_fit(self):
        self.start_other()
        server = self.boot(self.flavor, 'other')
        self.migrations.hook = self.hook
        self.oversell()
        self.api.post_server_action(server['id'], {'os-migrateLive': {
            'host': 'full', 'block_migration': 'auto'}})
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual([], self.migrations.arrived)
        self.assertEqual('other', self.host_of(server))
        self.assertEqual({'other': 60}, self.allocated(server['id']))
        self.wait_until_used('full', 60)
        self.assertIn('60 of the 100 CU', self.log())


class ReturningTestCase(OversoldTestCase):

    def test_servers_of_an_oversold_host_start_again(self):
        self.flags(allocation_ratio=1.2, group='vqos')
        self._run_periodics()
        second = self.boot(self.flavor)
        self.flags(allocation_ratio=1.0, group='vqos')
        self._run_periodics()
        self.assertEqual(120, self.used('full'))
        for server in (self.first, second):
            self._reboot_server(server, hard=True)
            self._stop_server(server)
            self._start_server(server)
            self._rebuild_server(server, base.IMAGE_ID)
            self.assertEqual(OF_60, self.tunables(server))
