# SPDX-License-Identifier: Apache-2.0
"""What the driver offers to Placement, the scheduler and the agent."""

import json

import fixtures
from nova.compute import provider_tree
from nova.virt.libvirt import driver as libvirt_driver
from oslo_utils import uuidutils

from nova import exception
from nova_vqos import compute_state
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.functional import host_files

NODE = driver.NODE
CLASS = driver.CLASS


class InventoryTestCase(driver.DriverTestCase):

    def setUp(self):
        super().setUp()
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def update(self, **kwargs):
        self.driver.update_provider_tree(self.tree, NODE, **kwargs)
        return self.tree.data(NODE).inventory.get(CLASS)

    def own_traits(self):
        return {trait for trait in self.tree.data(NODE).traits
                if trait.startswith('CUSTOM_VQOS')}

    def test_inventory_beside_novas_own(self):
        self.flags(reserved_cu=12, correction_reserve_cu=8,
                   allocation_ratio=1.5, group='vqos')
        self.assertEqual({
            'total': 300, 'reserved': 20, 'allocation_ratio': 1.5,
            'min_unit': 1, 'max_unit': 2**31 - 1, 'step_size': 1},
            self.update())
        self.assertEqual({'VCPU', 'MEMORY_MB', 'DISK_GB', CLASS},
                         set(self.tree.data(NODE).inventory))
        traits = self.tree.data(NODE).traits
        self.assertIn('CUSTOM_VQOS_SPEED_150', traits)
        self.assertNotIn('CUSTOM_VQOS_SPEED_175', traits)
        self.assertIn('HW_CPU_X86_AESNI', traits)

    def test_a_reshape_comes_to_the_same(self):
        first = self.update()
        before = self.tree.data(NODE)
        self.assertEqual(first, self.update(allocations={}))
        self.assertEqual(before.inventory, self.tree.data(NODE).inventory)
        self.assertEqual(before.traits, self.tree.data(NODE).traits)

    def test_a_host_that_guarantees_sells_what_it_can_reserve(self):
        found = {**host_files.FINGERPRINT, 'online_pcpus': '0-1'}
        self.stub_out('nova_vqos.profile.fingerprint.of_host',
                      lambda emulator=None: dict(found))
        self.files.calibrate({'0-1': 1.5}, fingerprint=found)
        trait = 'CUSTOM_VQOS_GUARANTEE'

        def unsold():
            return self.update()['reserved'], (
                trait in self.tree.data(NODE).traits)
        self.assertEqual((0, False), unsold())
        self.files.agent_lives(guarantee_pcpus=0.5, guarantee_total_pcpus=1.5)
        self.assertEqual((75, True), unsold())
        # It has just started, or was not since the host was booted.
        self.files.agent_lives()
        self.assertEqual((75, True), unsold())
        self.files.agent_was_never_there()
        self.start_compute()
        self.assertEqual((75, True), unsold())
        self.assertEqual('', self.driver.get_available_resource(NODE)[
            'stats']['vqos_guarantee_cu'])
        # It was switched off.
        self.files.agent_lives(guarantee_total_pcpus=0)
        self.assertEqual((0, False), unsold())

    def test_a_lost_profile_closes_the_inventory(self):
        first = self.update()
        self.lose_profile()
        for _ in range(2):
            self.assertEqual({**first, 'reserved': 300}, self.update())
            self.assertEqual({'CUSTOM_VQOS_SELLS_UNITS'}, self.own_traits())
        self.files.calibrate({'0-1': 1.5})
        self.assertEqual(first, self.update())

    def test_stats_and_traits_agree_on_who_sells_units(self):
        def sells_units():
            self.update()
            stats = self.driver.get_available_resource(NODE)['stats']
            return (stats['vqos_sells_units'],
                    'CUSTOM_VQOS_SELLS_UNITS' in self.own_traits())
        self.lose_profile()
        self.assertEqual(('False', False), sells_units())
        # The host never had units to sell, and may not get other servers now.
        self.files.calibrate({'0': 1.5})
        self.assertEqual(('True', True), sells_units())
        self.assertIsNone(self.tree.data(NODE).inventory.get(CLASS))
        self.files.calibrate({'0-1': 1.5})
        self.assertEqual(('True', True), sells_units())
        self.lose_profile()
        self.assertEqual(('True', True), sells_units())

    def test_a_restart_with_a_lost_profile_closes_the_inventory(self):
        first = self.update()
        self.lose_profile()
        self.start_compute()
        self.assertEqual({**first, 'reserved': 300}, self.update())

    def test_no_profile_ever_is_stock(self):
        self.lose_profile()
        self.assertIsNone(self.update())
        stock = provider_tree.ProviderTree()
        stock.new_root(NODE, self.tree.data(NODE).uuid)
        libvirt_driver.LibvirtDriver.update_provider_tree(
            self.driver, stock, NODE)
        self.assertEqual(stock.data(NODE).inventory,
                         self.tree.data(NODE).inventory)
        self.assertEqual(stock.data(NODE).traits, self.tree.data(NODE).traits)

    def test_our_failure_closes_the_inventory(self):
        def fail(*args, **kwargs):
            raise ZeroDivisionError

        first = self.update()
        with fixtures.MonkeyPatch('nova_vqos.virt.inventory.cpu_units', fail):
            self.assertEqual({**first, 'reserved': 300}, self.update())
            self.assertEqual({'CUSTOM_VQOS_SELLS_UNITS'}, self.own_traits())
            self.tree = provider_tree.ProviderTree()
            self.tree.new_root(NODE, uuidutils.generate_uuid())
            self.assertIsNone(self.update())
            self.assertEqual(set(), self.own_traits())

    def test_what_the_stock_method_raises_goes_through(self):
        def reshape(*args, **kwargs):
            raise exception.ReshapeNeeded()

        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_update_provider_tree_for_vgpu', reshape)
        self.assertRaises(exception.ReshapeNeeded, self.update)

    def test_a_host_that_cannot_cap_sells_nothing(self):
        first = self.update()
        self.cgroups.version = 0
        self.assertEqual({**first, 'reserved': 300}, self.update())
        self.cgroups.version = 2
        self.assertEqual(first, self.update())
        self.flags(virt_type='lxc', group='libvirt')
        self.assertEqual({**first, 'reserved': 300}, self.update())


class StatsTestCase(driver.DriverTestCase):

    def stats(self):
        return self.driver.get_available_resource(NODE)['stats']

    def test_stats_beside_novas_own(self):
        self.files.agent_lives()
        stats = self.stats()
        self.assertEqual('1 day', stats['uptime'])
        self.assertEqual('valid', stats['vqos_profile'])
        self.assertEqual('150', stats['vqos_slowest_cu'])
        self.assertEqual('True', stats['vqos_sells_units'])
        with open(self.files.agent_state_path) as file:
            self.assertEqual(json.load(file)['seen_at'],
                             stats['vqos_agent_seen_at'])

    def test_the_agent_reads_the_stats_of_the_scheduler(self):
        stats = self.stats()
        state = compute_state.load(self.files.compute_state_path)
        self.assertEqual({key: value for key, value in stats.items()
                          if key.startswith('vqos_')}, state.stats)
        self.assertEqual((4000, 50000), (state.terms['tick_us'],
                                         state.terms['plain_us']))
        self.lose_profile()
        self.stats()
        state = compute_state.load(self.files.compute_state_path)
        self.assertNotEqual('valid', state.stats['vqos_profile'])
        self.assertEqual({}, state.terms)

    def test_a_file_that_cannot_be_left_costs_nothing(self):
        self.files.directory.joinpath('vqos.json').mkdir()
        self.assertEqual('valid', self.stats()['vqos_profile'])

    def test_always_the_same_keys(self):
        keys = self.stats().keys()
        for change in (self.files.open_profile_to_all, self.lose_profile):
            change()
            stats = self.stats()
            self.assertEqual(keys, stats.keys())
            # Stats that are no scalars stop the resource tracker.
            self.assertEqual({str}, {type(value) for value in stats.values()})
            self.assertNotEqual('valid', stats['vqos_profile'])

    def test_our_failure_refuses_new_servers_and_keeps_stats_fresh(self):
        def fail(*args, **kwargs):
            raise ZeroDivisionError('by our bug')

        self.stub_out('nova_vqos.virt.host_state.HostReport.stats', fail)
        stats = self.stats()
        self.assertEqual('1 day', stats['uptime'])
        self.assertIn('by our bug', stats['vqos_profile'])
        self.assertEqual('', stats['vqos_slowest_cu'])

    def test_whether_servers_without_units_may_come(self):
        self.lose_profile()
        self.assertEqual('False', self.stats()['vqos_sells_units'])
        tree = provider_tree.ProviderTree()
        tree.new_root(NODE, uuidutils.generate_uuid())
        self.files.calibrate({'0-1': 1.5})
        self.driver.update_provider_tree(tree, NODE)
        self.lose_profile()
        # Servers with units may be here.
        self.assertEqual('True', self.stats()['vqos_sells_units'])

    def start_again(self):
        """nova-compute is restarted: stats come before the inventory."""
        self.start_compute()
        return self.stats()['vqos_sells_units']

    def test_a_restart_without_a_profile_does_not_open_the_host(self):
        self.assertEqual('True', self.stats()['vqos_sells_units'])
        self.lose_profile()
        for _ in range(2):
            self.assertEqual('True', self.start_again())
        tree = provider_tree.ProviderTree()
        tree.new_root(NODE, uuidutils.generate_uuid())
        # There are no units left.
        self.driver.update_provider_tree(tree, NODE)
        for _ in range(2):
            self.assertEqual('False', self.stats()['vqos_sells_units'])
            self.assertEqual('False', self.start_again())

    def test_a_file_of_the_last_report_that_cannot_be_read(self):
        self.lose_profile()
        with open(self.files.compute_state_path, 'w') as file:
            file.write('{')
        self.assertEqual('False', self.start_again())
        self.assertIn('is no JSON', self.stdlog.logger.output)
