# SPDX-License-Identifier: Apache-2.0
"""What the driver builds upon, in this release of Nova and in others."""

import fixtures
from nova.virt.libvirt import driver as libvirt_driver
from nova.virt.libvirt import host as libvirt_host

from nova import exception
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver as driver_case
from nova_vqos.tests.fixtures import nova_case
from nova_vqos.virt import driver
from nova_vqos.virt import nova_contract


class Stock:
    """A release of Nova."""

    def spawn(self, context, instance, more=None):
        pass

    def _tune(self, guest, flavor):
        pass

    def _get_vcpu_available(self):
        pass


class Host:

    def get_guest(self, instance):
        pass

    def is_cpu_control_policy_capable(self):
        pass

    def list_guests(self, only_running=True, only_guests=True):
        pass


class Ours(Stock):

    def spawn(self, context, instance, *args):
        pass

    def _tune(self, guest, flavor):
        pass

    def _vqos_report(self):
        pass


def changed(cls, **attributes):
    """The class in another release: None takes a method away."""
    kept = {name: value for name, value in vars(cls).items()
            if callable(value)} | attributes
    return type(cls.__name__, (), {
        name: value for name, value in kept.items() if value is not None})


class DifferenceTestCase(nova_case.NovaTestCase):

    def difference(self, host=Host, **attributes):
        return nova_contract.difference(
            Ours, changed(Stock, **attributes), host)

    def test_none(self):
        self.assertEqual('', self.difference())
        # What is passed on as it comes may be more.
        self.assertEqual('', self.difference(
            spawn=lambda self, context, instance, more, still_more: None,
            _get_vcpu_available=lambda self: None))

    def test_of_this_nova(self):
        self.assertEqual('', nova_contract.difference(
            driver.VqosLibvirtDriver, libvirt_driver.LibvirtDriver,
            libvirt_host.Host))

    def test_what_is_gone_or_has_other_parameters(self):
        for name, method in (
                ('_tune', None), ('spawn', None),
                ('_get_vcpu_available', None),
                ('_tune', lambda self, flavor, guest: None),
                ('_tune', lambda self, guest, flavor, image: None),
                ('_tune', lambda self, guest: None),
                ('spawn', lambda self, instance: None)):
            self.assertIn(name, self.difference(**{name: method}))

    def test_of_the_host(self):
        for name, method in (('list_guests', None), ('get_guest', None),
                             ('list_guests', lambda self, running: None)):
            self.assertIn(name, self.difference(
                changed(Host, **{name: method})))


class UnknownNovaTestCase(driver_case.DriverTestCase):
    """A Nova that never calls the driver's method."""

    def setUp(self):
        super().setUp()
        # NOTE: stub_driver() would keep the stock parameters.
        self.useFixture(fixtures.MockPatchObject(
            libvirt_driver.LibvirtDriver, '_update_guest_cputune',
            lambda this, guest: None))
        self.start_compute()

    def test_it_sells_no_units(self):
        # Stock Nova's part needs guests that are more real.
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        stats = self.driver.get_available_resource(driver_case.NODE)['stats']
        self.assertIn('_update_guest_cputune', stats['vqos_profile'])
        self.assertRaises(
            exception.MigrationPreCheckError,
            self.driver.check_can_live_migrate_destination, self.context,
            self.make_instance({policy.UNITS_KEY: '60'}), {}, {})


class NotTunedTestCase(driver_case.DriverTestCase):
    """Nova made the guest of a new server without the driver's tuning."""

    XML = """
<domain type='qemu'><name>vm</name><uuid>%s</uuid><memory>1024</memory>
 <metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'>
  <n:flavor name='f'><n:vcpus>1</n:vcpus><n:extraSpecs>
   <n:extraSpec name='resources:CUSTOM_VQOS_CPU_UNIT'>60</n:extraSpec>%s
  </n:extraSpecs></n:flavor></n:instance></metadata>
 <vcpu>1</vcpu>%s<os><type>hvm</type></os><devices/></domain>"""
    FLOOR = "<n:extraSpec name='vqos:cap'>floor</n:extraSpec>"
    SHARES = '<cputune><shares>614</shares></cputune>'
    ALL = ('<cputune><shares>614</shares><quota>1</quota><period>2</period>'
           '</cputune>')

    def create(self, tuning, specs='', **changes):
        instance = self.make_instance({policy.UNITS_KEY: '60'}, **changes)
        return self.driver._create_guest(
            self.context, self.XML % (instance.uuid, specs, tuning), instance)

    def test_no_cap_is_an_error(self):
        for tuning in ('', '<cputune/>', self.SHARES):
            self.assertRaises(exception.ComputeResourcesUnavailable,
                              self.create, tuning)
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.create, '', self.FLOOR)
        self.assertEqual(
            [], self.driver._host.get_connection().listAllDomains(0))

    def test_what_is_tuned(self):
        self.create(self.ALL)

    def test_a_floor_has_no_cap(self):
        self.create(self.SHARES, self.FLOOR)

    def test_one_that_returns_may_have_none(self):
        self.create('', task_state='powering-on')
