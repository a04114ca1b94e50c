# SPDX-License-Identifier: Apache-2.0
"""Servers and hosts without units are stock Nova's, to the letter."""

import re

from nova_vqos.tests.functional import base

#: Flavors that have nothing of ours.
STOCK_FLAVORS = (
    (1, None),
    (2, {'quota:cpu_quota': '20000', 'quota:cpu_period': '40000'}),
    (2, {'quota:cpu_shares': '77'}),
    (3, {'hw:cpu_sockets': '1', 'hw:cpu_policy': 'shared'}),
)


def leveled(xml, server):
    """A domain's XML without what differs from server to server."""
    for own in (server['id'], server['name']):
        xml = xml.replace(own, 'OWN')
    for tag in ('name', 'nova:creationTime'):
        xml = re.sub('<%s>[^<]*</%s>' % (tag, tag), '<%s/>' % tag, xml)
    return xml


class StockServersTestCase(base.VqosTestCase):

    def _boot_on(self, host, driver, flavors):
        self.flags(compute_driver=driver)
        self.start_host(host, None)
        return [self.boot(flavor, host) for flavor in flavors]

    def test_xml_is_the_stock_drivers(self):
        flavors = [self.make_flavor(vcpus=vcpus, specs=specs)
                   for vcpus, specs in STOCK_FLAVORS]
        ours = self._boot_on('ours', self.COMPUTE_DRIVER, flavors)
        stock = self._boot_on('stock', 'libvirt.LibvirtDriver', flavors)
        for our, its in zip(ours, stock, strict=True):
            expected = leveled(self.domain(its).defined_xml, its)
            self.assertIn('<domain', expected)
            self.assertEqual(
                expected, leveled(self.domain(our).defined_xml, our))

    def test_xml_on_a_host_with_units(self):
        self.flags(servers_without_units='allow', group='vqos')
        flavors = [self.make_flavor(vcpus=vcpus, specs=specs)
                   for vcpus, specs in STOCK_FLAVORS]
        self.start_host('fast', 2.0)
        ours = [self.boot(flavor, 'fast') for flavor in flavors]
        stock = self._boot_on('stock', 'libvirt.LibvirtDriver', flavors)
        for our, its in zip(ours, stock, strict=True):
            self.assertEqual(
                leveled(self.domain(its).defined_xml, its),
                leveled(self.domain(our).defined_xml, our))
        self.assertEqual(0, self.used('fast'))

    def test_dedicated_cpus(self):
        self.flags(cpu_shared_set='0-1', cpu_dedicated_set='2-3',
                   group='compute')
        flavor = self.make_flavor(
            vcpus=2, specs={'hw:cpu_policy': 'dedicated'})
        our, = self._boot_on('ours', self.COMPUTE_DRIVER, [flavor])
        its, = self._boot_on('stock', 'libvirt.LibvirtDriver', [flavor])
        self.assertIn('vcpupin', self.domain(its).defined_xml)
        self.assertEqual(leveled(self.domain(its).defined_xml, its),
                         leveled(self.domain(our).defined_xml, our))


class MixedCloudTestCase(base.VqosTestCase):
    """By default a host with units takes only servers with units."""

    def test_refused_on_a_host_with_units(self):
        self.start_host('units', 2.0)
        stock = self.make_flavor()
        refused = self.boot(stock, expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertNotIn('servers_without_units', self.log())
        # The filter alone refuses it as well.
        self.flags(placement_prefilter=False, group='vqos')
        self.boot(stock, expected_state='ERROR')
        self.assertIn('servers_without_units', self.log())

        # Each finds its host.
        self.start_host('plain', None)
        self.assertEqual('plain', self.host_of(self.boot(stock)))
        self.assertEqual('units', self.host_of(self.boot(
            self.make_flavor(60))))

        # A host that lost its profile still has servers with units.
        self.host_files['units'].lose_profile()
        self._run_periodics()
        self.boot(stock, 'units', expected_state='ERROR')

        self.flags(servers_without_units='allow', group='vqos')
        self.boot(stock, 'units')

    def test_moves_of_a_server_without_units(self):
        for host in ('one', 'two'):
            self.start_host(host, None)
        server = self.boot(self.make_flavor(specs={
            'quota:cpu_quota': '20000', 'quota:cpu_shares': '77'}), 'one')
        self.migrations.hook = self.hook
        self._live_migrate(server)
        self.assertEqual('two', self.host_of(server))
        self.assertEqual((20000, None, 77), self.tunables(server))
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertEqual('one', self.host_of(server))
        self.assertEqual((20000, None, 77), self.tunables(server))


class OnboardingTestCase(base.VqosTestCase):
    """A host gets units while servers without units run on it."""

    def setUp(self):
        super().setUp()
        files = self.start_host('old', None)
        self.large = self.boot(self.make_flavor(vcpus=2), 'old')
        self.small = self.boot(self.make_flavor(), 'old')
        files.calibrate({'0-3': 1.0})
        self._run_periodics()

    def reserved(self):
        self._run_periodics()
        inventory = self.inventory('old')
        self.assertEqual(400, inventory['total'])
        return inventory['reserved']

    def test_what_they_use_is_not_sold(self):
        self.assertEqual(300, self.reserved())
        refused = self.boot(self.make_flavor(150, vcpus=2), 'old',
                            expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        server = self.boot(self.make_flavor(100), 'old')
        self.assertEqual({'old': 100}, self.allocated(server['id']))

        # As their claims of VCPU, what is reserved stays with them.
        self._stop_server(self.large)
        self.assertEqual(300, self.reserved())
        self._start_server(self.large)
        self._reboot_server(self.large, hard=True)
        self.assertEqual(300, self.reserved())

        self._delete_server(self.large)
        self.assertEqual(100, self.reserved())
        self.boot(self.make_flavor(200, vcpus=2), 'old')
        self.assertEqual(300, self.used('old'))

    def test_servers_with_units_stay_where_another_one_comes(self):
        server = self.boot(self.make_flavor(100), 'old')
        # Past the scheduler's filters.
        self.boot(self.make_flavor(vcpus=3), az='nova:old')
        self.assertEqual(400, self.reserved())
        self._reboot_server(server, hard=True)
        self.assertEqual({'old': 100}, self.allocated(server['id']))
        self.start_host('new', 1.0)
        self._live_migrate(server)
        self.assertEqual({'new': 100}, self.allocated(server['id']))

    def test_a_resize_gives_units_to_one_of_them(self):
        with_units = self.make_flavor(100, vcpus=2)
        self.flags(allow_resize_to_same_host=True)
        self._resize_server(self.large, with_units)
        self._confirm_resize(self.large)
        self.assertEqual(100, self.reserved())
        self.assertEqual({'old': 100}, self.allocated(self.large['id']))
