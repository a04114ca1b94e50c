# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""The compute driver, on Nova's fake libvirt."""

import inspect
import json
import os

import fixtures
from lxml import etree
from nova.compute import provider_tree
from nova.compute import task_states
from nova.compute import vm_states
from nova.objects import fields
from nova.tests import fixtures as nova_fixtures
from nova.tests.unit import fake_flavor
from nova.tests.unit import fake_instance
from nova.virt.libvirt import config as vconfig
from nova.virt.libvirt import driver as libvirt_driver
import oslo_messaging
from oslo_utils import uuidutils

from nova import context
from nova import exception
from nova import objects
from nova import rpc
from nova.virt import driver as nova_driver
from nova.virt import fake
from nova_vqos import policy
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.unit import nova_case
from nova_vqos.virt import driver

NODE = 'compute1'
UUID = '6f70656e-0000-4000-8000-00000000cafe'
CLASS = policy.RESOURCE_CLASS


class DriverTestCase(nova_case.NovaTestCase):
    """A host of two pCPUs, of 150 CU each but for its profile."""

    REQUIRES_LOCKING = True

    def setUp(self):
        super().setUp()
        self.context = context.get_admin_context()
        self.flags(instances_path=self.useFixture(fixtures.TempDir()).path)
        self.flags(sysinfo_serial='none', virt_type='qemu', group='libvirt')
        self.libvirt = self.useFixture(nova_fixtures.LibvirtFixture())
        self.cgroups = self.useFixture(nova_fixtures.CGroupsFixture())
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_get_local_gb_info',
                      lambda *args: {'total': 100, 'used': 10, 'free': 90})
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_get_vcpu_available', lambda this: {0, 1})
        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      'get_host_uptime', lambda this: '1 day')
        self.stub_out('nova.virt.libvirt.host.Host.get_memory_mb_used',
                      lambda this: 512)
        self.stub_out('nova_vqos.fingerprint.of_host',
                      lambda emulator=None: dict(host_files.FINGERPRINT))
        self.stub_out('nova_vqos.hooks.install.installed_path', lambda: None)
        self.stub_out('nova_vqos.tuning.host_cgroup_version', lambda: 1)
        self.files = self.useFixture(host_files.HostFiles(NODE))
        self.files.calibrate({'0-1': 1.5})
        self.flags(profile_path=self.files.profile_path,
                   agent_state_path=self.files.agent_state_path,
                   verification_path=self.files.verification_path,
                   group='vqos')
        self.driver = driver.VqosLibvirtDriver(fake.FakeVirtAPI(), False)

    def make_flavor(self, extra_specs=None, vcpus=1):
        return fake_flavor.fake_flavor_obj(
            self.context, vcpus=vcpus, memory_mb=512,
            extra_specs=extra_specs or {}, expected_attrs=['extra_specs'])

    def make_instance(self, extra_specs=None, vcpus=1, **changes):
        instance = fake_instance.fake_instance_obj(
            self.context, uuid=UUID, vm_state=vm_states.BUILDING,
            task_state=task_states.SPAWNING, image_ref='',
            flavor=self.make_flavor(extra_specs, vcpus),
            expected_attrs=['system_metadata', 'metadata', 'resources',
                            'pci_devices', 'pci_requests', 'trusted_certs'])
        nothing = {'numa_topology': None, 'migration_context': None,
                   'vcpu_model': None}
        for name, value in (nothing | changes).items():
            setattr(instance, name, value)
        return instance

    def cputune(self, extra_specs, vcpus=1, instance=None):
        """(quota, period, shares) of a new guest."""
        guest = vconfig.LibvirtConfigGuest()
        guest.uuid = UUID
        self.driver._update_guest_cputune(
            guest, self.make_flavor(extra_specs, vcpus))
        return self.tunables(guest)

    def tunables(self, guest):
        if guest.cputune is None:
            return None
        return (guest.cputune.quota, guest.cputune.period,
                guest.cputune.shares)

    def lose_profile(self):
        os.unlink(self.files.profile_path)


class SignaturesTestCase(nova_case.NovaTestCase):
    """What is overridden exists in Nova, and is called as there."""

    def overridden(self):
        stock = libvirt_driver.LibvirtDriver
        return {name for name in vars(driver.VqosLibvirtDriver)
                if callable(getattr(driver.VqosLibvirtDriver, name))
                and hasattr(stock, name) and not name.startswith('__')}

    def test_overridden_methods(self):
        self.assertEqual({
            'update_provider_tree', 'get_available_resource',
            'check_can_live_migrate_destination', 'live_migration',
            'post_live_migration_at_destination', 'cleanup',
            '_get_existing_guest_config', '_get_guest_config',
            '_update_guest_cputune', '_create_guest'}, self.overridden())

    def test_public_signatures(self):
        for name in self.overridden():
            if name.startswith('_'):
                continue
            self.assertEqual(
                inspect.getfullargspec(
                    getattr(libvirt_driver.LibvirtDriver, name)),
                inspect.getfullargspec(
                    getattr(driver.VqosLibvirtDriver, name)), name)

    def test_private_signatures_begin_as_passed_on(self):
        for name, first in (
                ('_get_existing_guest_config', ['self', 'instance']),
                ('_get_guest_config', ['self', 'instance']),
                ('_update_guest_cputune', ['self', 'guest', 'flavor']),
                ('_create_guest', ['self', 'context', 'xml', 'instance'])):
            stock = inspect.getfullargspec(
                getattr(libvirt_driver.LibvirtDriver, name)).args
            self.assertEqual(first, stock[:len(first)])

    def test_names_of_ours_do_not_meet_those_of_nova(self):
        ours = set(vars(driver.VqosLibvirtDriver)) - self.overridden()
        self.assertEqual(set(), {
            name for name in ours if not name.startswith('__')
            and hasattr(libvirt_driver.LibvirtDriver, name)})

    def test_nova_loads_it(self):
        self.useFixture(nova_fixtures.LibvirtFixture())
        loaded = nova_driver.load_compute_driver(
            fake.FakeVirtAPI(), 'vqos.VqosLibvirtDriver')
        self.assertIs(driver.VqosLibvirtDriver, type(loaded))


class InventoryTestCase(DriverTestCase):

    def setUp(self):
        super().setUp()
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root(NODE, uuidutils.generate_uuid())

    def update(self, **kwargs):
        self.driver.update_provider_tree(self.tree, NODE, **kwargs)
        return self.tree.data(NODE).inventory.get(CLASS)

    def test_inventory_beside_novas_own(self):
        self.flags(reserved_cu=20, allocation_ratio=1.5, group='vqos')
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

    def test_a_lost_profile_closes_the_inventory(self):
        first = self.update()
        self.lose_profile()
        for _ in range(2):
            self.assertEqual({**first, 'reserved': 300}, self.update())
            self.assertFalse({trait for trait in self.tree.data(NODE).traits
                              if trait.startswith('CUSTOM_VQOS')})
        self.files.calibrate({'0-1': 1.5})
        self.assertEqual(first, self.update())

    def test_a_restart_with_a_lost_profile_closes_the_inventory(self):
        first = self.update()
        self.lose_profile()
        self.driver = driver.VqosLibvirtDriver(fake.FakeVirtAPI(), False)
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
        self.assertEqual(stock.data(NODE).traits,
                         self.tree.data(NODE).traits)

    def test_our_failure_closes_the_inventory(self):
        first = self.update()

        def fail(*args, **kwargs):
            raise ZeroDivisionError

        self.stub_out('nova_vqos.virt.inventory.cpu_units', fail)
        self.assertEqual({**first, 'reserved': 300}, self.update())
        self.assertNotIn('CUSTOM_VQOS', self.tree.data(NODE).traits)

    def test_our_failure_with_nothing_known(self):
        def fail(*args, **kwargs):
            raise ZeroDivisionError

        self.stub_out('nova_vqos.virt.inventory.cpu_units', fail)
        self.assertIsNone(self.update())

    def test_what_the_stock_method_raises_goes_through(self):
        def reshape(*args, **kwargs):
            raise exception.ReshapeNeeded()

        self.stub_out('nova.virt.libvirt.driver.LibvirtDriver.'
                      '_update_provider_tree_for_vgpu', reshape)
        self.assertRaises(exception.ReshapeNeeded, self.update)

    def test_recalibrated_to_less(self):
        self.update()
        self.files.calibrate({'0-1': 0.1})
        self.assertEqual((20, 0, 2**31 - 1), tuple(
            self.update()[key] for key in ('total', 'reserved', 'max_unit')))

    def test_a_host_that_cannot_cap_sells_nothing(self):
        first = self.update()
        self.cgroups.version = 0
        self.assertEqual({**first, 'reserved': 300}, self.update())
        self.cgroups.version = 2
        self.assertEqual(first, self.update())
        self.flags(virt_type='lxc', group='libvirt')
        self.assertEqual({**first, 'reserved': 300}, self.update())


class StatsTestCase(DriverTestCase):

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

    def test_scalars_only_and_always_the_same_keys(self):
        keys = self.stats().keys()
        for change in (self.files.truncate_profile, self.lose_profile):
            change()
            stats = self.stats()
            self.assertEqual(keys, stats.keys())
            self.assertEqual({str}, {type(value) for value in stats.values()})

    def test_what_is_wrong_is_told(self):
        self.files.open_profile_to_all()
        self.assertIn('0666', self.stats()['vqos_profile'])

    def test_our_failure_refuses_new_servers_and_keeps_stats_fresh(self):
        def fail(*args, **kwargs):
            raise ZeroDivisionError('by our bug')

        self.stub_out('nova_vqos.host_report.HostReport.stats', fail)
        stats = self.stats()
        self.assertEqual('1 day', stats['uptime'])
        self.assertIn('by our bug', stats['vqos_profile'])

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

    def test_the_profile_is_parsed_once(self):
        self.stats()
        self.stub_out('nova_vqos.profile.document.loads', None)
        self.assertEqual('valid', self.stats()['vqos_profile'])


class CpuTuneTestCase(DriverTestCase):

    def test_a_cap_on_this_host(self):
        # 60 of 150 CU.
        self.assertEqual((20_000, 50_000, 614),
                         self.cputune({policy.UNITS_KEY: '60'}))

    def test_units_are_of_the_whole_server(self):
        self.assertEqual((20_000, 50_000, 1229), self.cputune(
            {policy.UNITS_KEY: '120'}, vcpus=2))

    def test_shares_in_the_terms_of_cgroup_v2(self):
        self.stub_out('nova_vqos.tuning.host_cgroup_version', lambda: 2)
        self.cgroups.version = 2
        self.assertEqual((20_000, 50_000, 60),
                         self.cputune({policy.UNITS_KEY: '60'}))

    def test_a_floor_has_shares_alone(self):
        self.assertEqual((None, None, 614), self.cputune(
            {policy.UNITS_KEY: '60', policy.CAP_KEY: 'floor'}))

    def test_another_period(self):
        self.flags(period_us=100_000, group='vqos')
        self.assertEqual((40_000, 100_000, 614),
                         self.cputune({policy.UNITS_KEY: '60'}))

    def test_a_whole_pcpu(self):
        self.assertEqual((50_000, 50_000, 1536),
                         self.cputune({policy.UNITS_KEY: '150'}))

    def test_too_slow_a_host_is_for_the_scheduler_to_try_another(self):
        error = self.assertRaises(
            exception.ComputeResourcesUnavailable, self.cputune,
            {policy.UNITS_KEY: '151'})
        self.assertIn('151 CU', str(error))
        self.assertIn('150 CU', str(error))

    def test_the_pcpus_of_a_numa_cell_are_the_eligible_ones(self):
        self.files.calibrate({'0': 1.5, '1': 0.6})
        guest = vconfig.LibvirtConfigGuest()
        guest.uuid = UUID
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
        pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
        pin.id, pin.cpuset = 0, {0}
        guest.cputune.vcpupin.append(pin)
        self.driver._update_guest_cputune(
            guest, self.make_flavor({policy.UNITS_KEY: '60'}))
        self.assertEqual((20_000, 50_000, 614), self.tunables(guest))
        self.assertEqual([pin], guest.cputune.vcpupin)

    def test_a_pcpu_that_was_not_measured(self):
        self.files.calibrate({'0': 1.5})
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.cputune, {policy.UNITS_KEY: '60'})

    def test_bad_policies_are_for_no_host(self):
        units = {policy.UNITS_KEY: '60'}
        for specs in ({policy.UNITS_KEY: '0'}, {policy.UNITS_KEY: '-1'},
                      {policy.UNITS_KEY: str(2**40)},
                      {policy.UNITS_KEY: ' 60 '}, {policy.UNITS_KEY: '6_0'},
                      {'resources1:CUSTOM_VQOS_CPU_UNIT': '60'},
                      {**units, 'resources1:CUSTOM_VQOS_CPU_UNIT': '60'},
                      {**units, 'quota:cpu_quota': '10000'},
                      {**units, 'quota:cpu_period': '10000'},
                      {**units, 'quota:cpu_shares': '10'},
                      {**units, 'hw:cpu_policy': 'dedicated'},
                      {**units, 'hw:cpu_policy': 'mixed'},
                      {**units, 'resources:PCPU': '1'},
                      {**units, policy.CAP_KEY: 'soft'},
                      {**units, 'vqos:kap': 'hard'},
                      {policy.CAP_KEY: 'hard'}):
            error = self.assertRaises(exception.InvalidInput, self.cputune,
                                      specs)
            self.assertTrue(any(key in str(error) for key in specs))

    def test_more_vcpus_than_units(self):
        self.assertRaises(exception.InvalidInput, self.cputune,
                          {policy.UNITS_KEY: '3'}, vcpus=4)

    def test_a_class_or_billing_that_this_host_does_not_offer(self):
        for key, value in ((policy.QUANTUM_CLASS_KEY, 'io'),
                           (policy.QUANTUM_CLASS_KEY, 'auto'),
                           (policy.DD_BILLING_KEY, 'account')):
            for units in ({policy.UNITS_KEY: '60'}, {}):
                error = self.assertRaises(
                    exception.ComputeResourcesUnavailable, self.cputune,
                    {**units, key: value})
                self.assertIn(f"{key} is '{value}'", str(error))

    def test_each_class_is_taken_where_it_is_offered(self):
        """auto as well: what recognises is the host's agent."""
        choices = policy.CHOICES[policy.QUANTUM_CLASS_KEY]
        for offered in choices:
            self.files.agent_lives(classes=[offered])
            for wanted in choices:
                asked = {policy.UNITS_KEY: '60',
                         policy.QUANTUM_CLASS_KEY: wanted}
                if wanted in ('default', offered):
                    self.cputune(asked)
                else:
                    self.assertRaises(exception.ComputeResourcesUnavailable,
                                      self.cputune, asked)

    def test_hosts_that_cannot_cap(self):
        units = {policy.UNITS_KEY: '60'}
        self.cgroups.version = 0
        self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                          self.cputune, units)
        self.cgroups.version = 1
        for virt_type in ('lxc', 'parallels'):
            self.flags(virt_type=virt_type, group='libvirt')
            self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                              self.cputune, units)

    def test_no_profile_no_new_server(self):
        for change in (self.files.truncate_profile,
                       self.lose_profile,
                       lambda: self.files.calibrate(
                           {'0-1': 1.5}, relative_width=0.2)):
            change()
            self.assertRaises(exception.ComputeResourcesUnavailable,
                              self.cputune, {policy.UNITS_KEY: '60'})

    def test_stock_behaviour_to_the_letter(self):
        for specs in ({}, {'hw:cpu_policy': 'dedicated'},
                      {'quota:cpu_quota': '10000'},
                      {'quota:cpu_shares': '7', 'quota:cpu_period': '20000'},
                      {'resources:CUSTOM_OTHER': '5'},
                      {policy.QUANTUM_CLASS_KEY: 'default',
                       policy.DD_BILLING_KEY: 'off'}):
            for change in (lambda: None, self.lose_profile,
                           lambda: self.files.calibrate({'0-1': 1.5})):
                change()
                stock = vconfig.LibvirtConfigGuest()
                libvirt_driver.LibvirtDriver._update_guest_cputune(
                    self.driver, stock, self.make_flavor(specs))
                self.assertEqual(self.tunables(stock), self.cputune(specs))

    def test_stock_refusal_to_the_letter(self):
        self.cgroups.version = 0
        self.assertRaises(exception.UnsupportedHostCPUControlPolicy,
                          self.cputune, {'quota:cpu_quota': '10000'})
        self.assertIsNone(self.cputune({}))


class GuestTestCase(DriverTestCase):
    """The whole configuration of a guest, by Nova's own way to it."""

    def make_guest(self, instance):
        image_meta = objects.ImageMeta.from_dict(
            {'disk_format': 'raw', 'properties': {}})
        return self.driver._get_guest_config(
            instance, [], image_meta, {'disk_bus': 'virtio',
                                       'cdrom_bus': 'ide', 'mapping': {}},
            context=self.context)

    def test_the_cap_is_in_the_xml(self):
        guest = self.make_guest(self.make_instance({policy.UNITS_KEY: '60'}))
        cputune = etree.fromstring(guest.to_xml()).find('cputune')
        self.assertEqual(
            {'shares': '614', 'quota': '20000', 'period': '50000'},
            {element.tag: element.text for element in cputune})

    def test_the_agent_reads_the_policy_from_the_xml(self):
        guest = self.make_guest(self.make_instance({policy.UNITS_KEY: '60'}))
        specs = {element.get('name'): element.text
                 for element in etree.fromstring(guest.to_xml()).iter()
                 if str(element.tag).endswith('}extraSpec')}
        self.assertEqual({policy.UNITS_KEY: '60'}, specs)

    def test_dedicated_cpus_by_image(self):
        for cpu_policy in (fields.CPUAllocationPolicy.DEDICATED,
                           fields.CPUAllocationPolicy.MIXED):
            topology = objects.InstanceNUMATopology(cells=[
                objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset={0},
                                         memory=512, cpu_policy=cpu_policy)])
            error = self.assertRaises(
                exception.InvalidInput, self.make_guest, self.make_instance(
                    {policy.UNITS_KEY: '60'}, numa_topology=topology))
            self.assertIn('hw_cpu_policy', str(error))

    RETURNING = (task_states.REBOOT_STARTED_HARD, task_states.POWERING_ON,
                 task_states.RESCUING, task_states.RESIZE_REVERTING,
                 task_states.REBUILD_SPAWNING, None)

    def test_who_arrives_on_a_bad_host_is_refused(self):
        self.files.calibrate({'0-1': 0.5})
        evacuated = {'task_state': task_states.REBUILD_SPAWNING,
                     'migration_context': objects.MigrationContext()}
        for changes in ({'task_state': task_states.SPAWNING},
                        {'task_state': task_states.RESIZE_FINISH},
                        evacuated):
            self.assertRaises(
                exception.ComputeResourcesUnavailable, self.make_guest,
                self.make_instance({policy.UNITS_KEY: '60'}, **changes))

    def test_who_returns_to_a_host_that_became_too_slow_starts(self):
        self.files.calibrate({'0-1': 0.5})
        for task_state in self.RETURNING:
            guest = self.make_guest(self.make_instance(
                {policy.UNITS_KEY: '60'}, task_state=task_state,
                vm_state=vm_states.ACTIVE))
            # It is slower than a cap would make it.
            self.assertEqual((None, None, 614), self.tunables(guest))
        self.assertIn('starts without the cap', self.stdlog.logger.output)
        self.assertFalse(self.driver._vqos_returning)

    def test_who_returns_to_a_host_without_profile_starts(self):
        self.lose_profile()
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '60'}, task_state=task_states.POWERING_ON))
        self.assertEqual((None, None, 614), self.tunables(guest))

    def test_who_returns_to_a_host_with_a_stale_profile_is_capped(self):
        self.files.calibrate({'0-1': 1.5}, fingerprint={'kernel': 'old'})
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '90'}, task_state=task_states.POWERING_ON))
        self.assertEqual((30_000, 50_000, 922), self.tunables(guest))
        self.assertIn('no longer holds', self.stdlog.logger.output)

    def test_who_returns_is_forgotten_when_it_fails(self):
        self.assertRaises(
            exception.InvalidInput, self.make_guest, self.make_instance(
                {policy.UNITS_KEY: '0'}, task_state=task_states.POWERING_ON))
        self.assertFalse(self.driver._vqos_returning)

    def test_who_returns_to_a_host_that_offers_its_class_no_more(self):
        guest = self.make_guest(self.make_instance(
            {policy.UNITS_KEY: '90', policy.QUANTUM_CLASS_KEY: 'io'},
            task_state=task_states.REBOOT_STARTED_HARD))
        self.assertEqual((30_000, 50_000, 922), self.tunables(guest))


class LiveMigrationCheckTestCase(DriverTestCase):

    def setUp(self):
        super().setUp()
        self.stock_calls = []
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'check_can_live_migrate_destination',
            lambda this, *args: self.stock_calls.append(args) or 'data')

    def check(self, instance):
        return self.driver.check_can_live_migrate_destination(
            self.context, instance, {'src': 1}, {'dst': 1}, True, False)

    def assert_refused(self, instance, *texts):
        error = self.assertRaises(exception.MigrationPreCheckError,
                                  self.check, instance)
        for text in texts:
            self.assertIn(text, str(error))
        # Before the stock method, which makes a file.
        self.assertEqual([], self.stock_calls)

    def test_passed_on_as_given(self):
        for specs in ({policy.UNITS_KEY: '150'}, {}):
            instance = self.make_instance(specs)
            self.assertEqual('data', self.check(instance))
            self.assertEqual((self.context, instance, {'src': 1},
                              {'dst': 1}, True, False),
                             self.stock_calls.pop())

    def test_too_slow(self):
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '151'}),
                            '151 CU', '150 CU', 'host')

    def test_no_valid_profile(self):
        instance = self.make_instance({policy.UNITS_KEY: '60'})
        self.files.calibrate({'0-1': 1.5}, fingerprint={'kernel': 'old'})
        self.assert_refused(instance, 'stale')
        self.lose_profile()
        self.assert_refused(instance, 'nova-vqos-calibrate')

    def test_bad_policy(self):
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '0'}),
                            policy.UNITS_KEY)

    def test_a_class_that_is_not_offered(self):
        self.assert_refused(
            self.make_instance({policy.UNITS_KEY: '60',
                                policy.QUANTUM_CLASS_KEY: 'io'}),
            policy.QUANTUM_CLASS_KEY)

    def test_dedicated_cpus(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(
                id=0, cpuset=set(), pcpuset={0}, memory=512,
                cpu_policy=fields.CPUAllocationPolicy.DEDICATED)])
        self.assert_refused(
            self.make_instance({policy.UNITS_KEY: '60'},
                               numa_topology=topology), 'hw_cpu_policy')

    def test_a_host_that_cannot_cap(self):
        self.cgroups.version = 0
        self.assert_refused(self.make_instance({policy.UNITS_KEY: '60'}),
                            'cgroup')

    def test_nothing_else_is_ever_raised(self):
        # Any other exception puts the running server into ERROR.
        for name in ('nova_vqos.host_report.HostReporter.report',
                     'nova_vqos.virt.admission.policy_of',
                     'nova_vqos.virt.admission.check_newcomer'):
            with fixtures.MonkeyPatch(name, lambda *args, **kwargs: 1 / 0):
                self.assert_refused(
                    self.make_instance({policy.UNITS_KEY: '60'}),
                    'division by zero')

    def test_no_rpc(self):
        # Bounded: it must not wait for another process.
        self.stub_out('nova.rpc.TRANSPORT', None)
        self.check(self.make_instance({policy.UNITS_KEY: '60'}))


class WakeTestCase(DriverTestCase):

    def setUp(self):
        super().setUp()
        self.casts = []
        self.address = ('nova_vqos', 'vqos-agent')
        this = self

        class Client:
            def prepare(self, **kwargs):
                self.server = kwargs['server']
                return self

            def cast(self, ctxt, method, **kwargs):
                this.casts.append((self.server, ctxt, method, kwargs))

        def get_client(transport, target, **kwargs):
            self.assertIs(rpc.TRANSPORT, transport)
            self.assertEqual(0, kwargs['retry'])
            self.assertEqual(self.address, (target.exchange, target.topic))
            return Client()

        self.stub_out('oslo_messaging.get_rpc_client', get_client)
        self.instance = self.make_instance({policy.UNITS_KEY: '60'})

    def assert_woken(self, times=1):
        self.assertEqual([(
            nova_case.CONF.host, {}, 'apply_policy',
            {'server_uuid': UUID, 'policy': {
                'vcpus': 1, 'units': 60, 'cap': 'hard',
                'quantum_class': 'default', 'dd_billing': 'off'}},
        )] * times, self.casts)

    def create(self, instance):
        xml = ('<domain type="qemu"><name>vm</name><uuid>%s</uuid>'
               '<memory>1024</memory><vcpu>1</vcpu><os><type>hvm</type></os>'
               '<devices/></domain>' % instance.uuid)
        return self.driver._create_guest(self.context, xml, instance)

    def test_after_a_guest_was_made(self):
        guest = self.create(self.instance)
        self.assertEqual(UUID, guest.uuid)
        self.assert_woken()

    def test_not_for_servers_of_stock_nova(self):
        self.create(self.make_instance())
        self.assertEqual([], self.casts)

    def test_after_a_live_migration(self):
        passed = []
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.'
            'post_live_migration_at_destination',
            lambda this, *args: passed.append(args))
        self.driver.post_live_migration_at_destination(
            self.context, self.instance, [], True, {'block': 'devices'})
        self.assertEqual([(self.context, self.instance, [], True,
                           {'block': 'devices'})], passed)
        self.assert_woken()

    def test_at_the_address_that_the_agent_was_given(self):
        self.address = ('other', 'agents')
        self.flags(exchange='other', topic='agents', group='vqos_agent')
        self.create(self.instance)
        self.assert_woken()

    def test_the_transport_is_read_at_call_time(self):
        other = oslo_messaging.get_rpc_transport(nova_case.CONF, 'fake:/')
        self.stub_out('nova.rpc.TRANSPORT', other)
        self.create(self.instance)
        self.assert_woken()

    def test_a_boot_goes_on_whatever_fails(self):
        for name, broken in (
                ('nova.rpc.TRANSPORT', None),
                ('oslo_messaging.get_rpc_client', lambda *a, **k: 1 / 0),
                ('nova_vqos.policy.parse', lambda *a: 1 / 0),
                ('nova_vqos.agent.rpcapi.AgentAPI', None)):
            with fixtures.MonkeyPatch(name, broken):
                self.assertEqual(UUID, self.create(self.instance).uuid)
            self.driver._host.get_connection()._domains = {}
            self.driver._host.get_connection()._running_vms = {}

    def test_a_bus_in_trouble_is_left_alone_for_a_while(self):
        now_s = [1000.0]
        self.stub_out('nova_vqos.virt.waker.time.monotonic', lambda: now_s[0])
        for takes_s, answer in ((5.0, True), (0.0, False)):
            tried = []

            def wake(api, host, uuid, policy, *, takes_s=takes_s,
                     answer=answer, tried=tried):
                tried.append(uuid)
                now_s[0] += takes_s
                return answer

            with fixtures.MonkeyPatch(
                    'nova_vqos.agent.rpcapi.AgentAPI.wake', wake):
                self.driver._vqos_waker.wake(self.instance)
                now_s[0] += 59
                self.driver._vqos_waker.wake(self.instance)
                self.assertEqual([UUID], tried)
                now_s[0] += 2
                self.driver._vqos_waker.wake(self.instance)
                self.assertEqual([UUID] * 2, tried)
            now_s[0] += 61
        self.driver._vqos_waker.wake(self.instance)
        self.assert_woken()

    def test_a_migration_waits_for_the_limit_to_go(self):
        calls = []
        self.stub_out(
            'nova_vqos.agent.rpcapi.AgentAPI.lift_limits',
            lambda api, host, uuid: calls.append(uuid))
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.live_migration',
            lambda *args: calls.append('migrate'))
        for dd_billing, expected in (
                ('charge', [UUID, 'migrate']), ('account', ['migrate'])):
            self.instance.flavor.extra_specs['vqos:dd_billing'] = dd_billing
            calls.clear()
            self.driver.live_migration(None, self.instance, 'there', None,
                                       None)
            self.assertEqual(expected, calls)

    def test_and_goes_on_whatever_fails(self):
        calls = []
        self.stub_out(
            'nova.virt.libvirt.driver.LibvirtDriver.live_migration',
            lambda *args: calls.append('migrate'))
        self.instance.flavor.extra_specs['vqos:dd_billing'] = 'charge'
        for name, broken in (
                ('nova.rpc.TRANSPORT', None),
                ('nova_vqos.policy.parse', lambda *a: 1 / 0),
                ('nova_vqos.agent.rpcapi.AgentAPI', None)):
            with fixtures.MonkeyPatch(name, broken):
                self.driver.live_migration(None, self.instance, 'there',
                                           None, None)
        self.assertEqual(['migrate'] * 3, calls)

    def test_a_guest_that_was_not_made_wakes_nobody(self):
        self.stub_out('nova.virt.libvirt.guest.Guest.launch',
                      lambda *args, **kwargs: 1 / 0)
        self.assertRaises(ZeroDivisionError, self.create, self.instance)
        self.assertEqual([], self.casts)


class EveryGuestIsMadeInOnePlaceTestCase(nova_case.NovaTestCase):
    """All of Nova's ways to a guest lead through _create_guest."""

    def test_of_the_stock_driver(self):
        source = inspect.getsource(libvirt_driver)
        self.assertEqual(1, source.count('libvirt_guest.Guest.create('))
        self.assertIn('libvirt_guest.Guest.create(', inspect.getsource(
            libvirt_driver.LibvirtDriver._create_guest))
