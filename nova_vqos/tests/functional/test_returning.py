# SPDX-License-Identifier: Apache-2.0
"""Servers whose flavor this release refuses start again on their host.

One that another release accepted, or that nobody looked at when it was booted.
"""

import fixtures

from nova import context
from nova import objects
from nova_vqos.tests.functional import base

ON_FAST = (15000, 50000, 614)


class ReturningTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.server = self.boot(self.make_flavor(60), 'fast')
        self._spoil_flavor()

    def _spoil_flavor(self):
        """From now on its embedded flavor has a key that is not known."""
        mapping = self.host_mappings['fast'].cell_mapping
        with context.target_cell(context.get_admin_context(), mapping) as cell:
            instance = objects.Instance.get_by_uuid(
                cell, self.server['id'], expected_attrs=['flavor'])
            instance.flavor.extra_specs['vqos:later_key'] = 'x'
            instance.save()

    def _assert_kept(self):
        self.assertEqual(ON_FAST, self.tunables(self.server))
        self.assertTrue(self.domain(self.server).isActive())
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))

    def test_hard_reboot_and_start(self):
        for act in (
                lambda: self._reboot_server(self.server, hard=True),
                lambda: (self._stop_server(self.server),
                         self._start_server(self.server))):
            act()
            self._assert_kept()
        self.assertIn('later_key', self.log())

    def test_boot_of_the_host(self):
        self.flags(resume_guests_state_on_host_boot=True)
        self.domain(self.server).destroy()
        self.restart_compute_service('fast', keep_hypervisor_state=True)
        self._wait_for_state_change(self.server, 'ACTIVE')
        self._assert_kept()

    def test_rebuild(self):
        # Its domain is gone before it is asked for another one.
        self._rebuild_server(self.server, base.IMAGE_ID)
        self.assertEqual((None, None, 614), self.tunables(self.server))

    def test_a_new_server_is_refused(self):
        flavor = self.make_flavor(60, specs={'vqos:later_key': 'x'},
                                  version=base.NOT_VALIDATED)
        self.boot(flavor, 'fast', expected_state='ERROR')


class BootedByStockNovaTestCase(base.VqosTestCase):

    def test_it_stays_as_it_was(self):
        self.flags(compute_driver='libvirt.LibvirtDriver')
        self.start_host('host', None)
        flavor = self.make_flavor(
            specs={'vqos:later_key': 'x', 'quota:cpu_quota': '20000'},
            version=base.NOT_VALIDATED)
        with fixtures.MonkeyPatch('nova_vqos.scheduler.request.policy_of',
                                  lambda *args: None):
            server = self.boot(flavor, 'host')
        self.flags(compute_driver=self.COMPUTE_DRIVER)
        self.restart_compute_service('host')
        before = self.tunables(server)
        self.assertEqual(20000, before.quota)
        self._reboot_server(server, hard=True)
        self.assertTrue(self.domain(server).isActive())
        self.assertEqual(20000, self.tunables(server).quota)
