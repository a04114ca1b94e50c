# SPDX-License-Identifier: Apache-2.0
"""The driver beside Nova's own."""

import inspect

from nova.tests import fixtures as nova_fixtures
from nova.virt.libvirt import driver as libvirt_driver

from nova.virt import driver as nova_driver
from nova.virt import fake
from nova_vqos.tests.fixtures import nova_case
from nova_vqos.virt import driver


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
            'check_can_live_migrate_destination',
            'check_source_migrate_data_at_dest',
            'cleanup_live_migration_destination_check',
            'post_claim_migrate_data', 'live_migration',
            'post_live_migration_at_destination', 'cleanup',
            'migrate_disk_and_power_off', 'spawn',
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


class EveryGuestIsMadeInOnePlaceTestCase(nova_case.NovaTestCase):
    """All of Nova's ways to a guest lead through _create_guest."""

    def test_of_the_stock_driver(self):
        source = inspect.getsource(libvirt_driver)
        self.assertEqual(1, source.count('libvirt_guest.Guest.create('))
        self.assertIn('libvirt_guest.Guest.create(', inspect.getsource(
            libvirt_driver.LibvirtDriver._create_guest))
