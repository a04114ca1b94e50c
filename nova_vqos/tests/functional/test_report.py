# SPDX-License-Identifier: Apache-2.0
"""What Placement and the scheduler are told of a host."""

import pytest

from nova_vqos import policy
from nova_vqos.tests.functional import base

OTHERS_TRAIT = 'CUSTOM_VQOS_OF_SOMEBODY_ELSE'


def tiers(traits):
    return {int(trait.removeprefix('CUSTOM_VQOS_SPEED_'))
            for trait in traits if trait.startswith('CUSTOM_VQOS_SPEED_')}


@pytest.mark.smoke
class ReportTestCase(base.VqosTestCase):

    KNOWN_TRAITS = False

    def test_host_with_units(self):
        files = self.start_host('fast', 2.0)
        inventory = self.inventory('fast')
        most = inventory.pop('max_unit')
        self.assertGreaterEqual(most, 2 ** 31 - 1)
        self.assertEqual(
            {'total': 800, 'reserved': 0, 'allocation_ratio': 1.0,
             'min_unit': 1, 'step_size': 1}, inventory)

        traits = self.traits('fast')
        self.assertIn('CUSTOM_VQOS', traits)
        self.assertNotIn('CUSTOM_VQOS_HOOK', traits)
        self.assertEqual(200, max(tiers(traits)))
        self.assertIn(100, tiers(traits))

        stats = self.stats('fast')
        self.assertEqual('valid', stats['vqos_profile'])
        self.assertEqual(16, len(stats['vqos_profile_id']))
        self.assertEqual(200, float(stats['vqos_slowest_cu']))
        self.assertEqual(200, float(stats['vqos_fastest_cu']))
        self.assertEqual('default', stats['vqos_quantum_classes'])
        self.assertEqual('off', stats['vqos_dd_billing'])

        # Renewed by the periodic task.
        seen_at = stats['vqos_agent_seen_at']
        files.agent_lives(age_s=-1)
        self.hook_path = '/etc/libvirt/hooks/qemu'
        files.calibrate({'0-1': 0.8, '2-3': 2.0})
        self._run_periodics()
        renewed = self.stats('fast')
        self.assertGreater(renewed['vqos_agent_seen_at'], seen_at)
        self.assertNotEqual(stats['vqos_profile_id'],
                            renewed['vqos_profile_id'])
        self.assertEqual(80, float(renewed['vqos_slowest_cu']))
        self.assertEqual(200, float(renewed['vqos_fastest_cu']))
        self.assertEqual(560, self.inventory('fast')['total'])
        self.assertIn('CUSTOM_VQOS_HOOK', self.traits('fast'))
        self.assertEqual(200, max(tiers(self.traits('fast'))))

    def test_options(self):
        self.flags(reserved_cu=50, allocation_ratio=1.5, group='vqos')
        self.start_host('fast', 2.0)
        inventory = self.inventory('fast')
        self.assertEqual(
            (800, 50, 1.5), (inventory['total'], inventory['reserved'],
                             inventory['allocation_ratio']))

    def test_the_reserve_follows_the_load(self):
        """Up and down, and servers that are there stay."""
        self.flags(dd_reserve='measured', reserved_cu=50, group='vqos')
        files = self.start_host('fast', 2.0)

        def reserved_of(reserve_cu):
            files.agent_lives(reserve_cu=reserve_cu)
            self._run_periodics()
            return self.inventory('fast')['reserved']

        self.assertEqual(50, reserved_of(None))
        self.assertEqual(50, reserved_of(20))
        self.boot(self.make_flavor(100), 'fast')
        self.assertEqual(720, reserved_of(720))
        server = self.boot(self.make_flavor(60), 'fast',
                           expected_state='ERROR')
        self.assertIn('No valid host', server['fault']['message'])
        self.assertEqual(110, reserved_of(110))
        self.boot(self.make_flavor(60), 'fast')
        self.flags(dd_reserve='fixed', group='vqos')
        self.assertEqual(50, reserved_of(110))

    def test_only_shared_pcpus_are_sold(self):
        self.flags(cpu_shared_set='0-1', cpu_dedicated_set='2-3',
                   group='compute')
        self.start_host('fast', 2.0)
        self.assertEqual(400, self.inventory('fast')['total'])
        server = self.boot(self.make_flavor(60), 'fast')
        self.assertIn('cpuset="0-1"', self.domain(server).defined_xml)

    def test_pcpu_that_was_not_measured(self):
        files = self.start_host('fast', None)
        files.calibrate({'0-2': 2.0})
        self._run_periodics()
        self.assertIsNone(self.inventory('fast'))
        self.assertIn('pCPU 3', self.stats('fast')['vqos_profile'])

    def test_what_others_gave_the_host_stays(self):
        self.start_host('fast', 2.0)
        uuid = self.compute_rp_uuids['fast']
        self._create_trait(OTHERS_TRAIT)
        self._set_provider_traits(
            uuid, self._get_provider_traits(uuid) + [OTHERS_TRAIT])
        # NOTE: Nova reads them again every [compute]
        # resource_provider_association_refresh seconds.
        self.computes['fast'].manager.reportclient.clear_provider_cache()
        self._run_periodics()
        self.assertIn(OTHERS_TRAIT, self._get_provider_traits(uuid))
        self.assertIn('CUSTOM_VQOS', self._get_provider_traits(uuid))

    def test_beside_units_as_the_stock_driver(self):
        self.start_host('fast', 2.0)
        self.flags(compute_driver='libvirt.LibvirtDriver')
        self.start_host('stock', None)
        ours, stock = (self.compute_rp_uuids[host]
                       for host in ('fast', 'stock'))
        inventory = self._get_provider_inventory(ours)
        del inventory[policy.RESOURCE_CLASS]
        self.assertEqual(self._get_provider_inventory(stock), inventory)
        self.assertEqual(
            set(self._get_provider_traits(stock)),
            set(self._get_provider_traits(ours)) - self.traits('fast'))
        # The uptime is this machine's.
        self.assertEqual(
            set(self.compute_node('stock').stats),
            {key for key in self.compute_node('fast').stats
             if not key.startswith('vqos_')})


class RecalibrationTestCase(base.VqosTestCase):
    """The host turns out to be slower than what it sold."""

    def setUp(self):
        super().setUp()
        self.files = self.start_host('fast', 2.0)
        self.start_host('spare', 2.0)
        flavor = self.make_flavor(190)
        self.servers = [self.boot(flavor, 'fast') for _ in range(2)]
        # Four pCPUs of 40 CU: 160, and 380 are used.
        self.files.calibrate({'0-3': 0.4})
        self._run_periodics()

    def test_less_than_is_used(self):
        self.assertEqual(160, self.inventory('fast')['total'])
        self.assertEqual(380, self.used('fast'))
        self.assertEqual('40', self.stats('fast')['vqos_slowest_cu'][:2])

        # Nothing new comes in, but the host can be emptied.
        refused = self.boot(self.make_flavor(10), 'fast',
                            expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        moved, left = self.servers
        self._live_migrate(moved, host='spare')
        self.assertEqual({'spare': 190}, self.allocated(moved['id']))
        self.wait_until_used('fast', 190)

        # What stays can be restarted, with all that a pCPU has.
        self._reboot_server(left, hard=True)
        self.assertEqual('fast', self.host_of(left))
        self._delete_server(left)
        self.wait_until_used('fast', 0)
        self.boot(self.make_flavor(10), 'fast')

    def test_the_service_starts(self):
        self.restart_compute_service('fast')
        self.assertEqual(160, self.inventory('fast')['total'])
        for server in self.servers:
            self.assertEqual({'fast': 190}, self.allocated(server['id']))
