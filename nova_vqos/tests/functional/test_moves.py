# SPDX-License-Identifier: Apache-2.0
"""Evacuation and unshelving: capped by where the server comes to be."""

import fixtures
from nova.policies import base as policies
from nova.policies import servers

from nova import utils
from nova_vqos.tests.functional import test_resize

CAPS = test_resize.CAPS


class EvacuationTestCase(test_resize.TwoHostsTestCase):

    def test_to_a_slower_host(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self.host_dies('fast')
        self._evacuate_server(server, expected_host='slow')
        self.assertEqual({'fast': 60, 'slow': 60},
                         self.allocated(server['id']))
        self._start_server(server)
        self.assertEqual(CAPS['slow', 60], self.tunables(server))

        # The dead host comes back, and gives up what was evacuated.
        self.restart_compute_service('fast')
        self._assert_used(0, 60)
        self._assert_is(server, 'slow', 60)

    def test_no_host_is_fast_enough(self):
        server = self.boot(self.make_flavor(120), 'fast')
        self.host_dies('fast')
        self._evacuate_server(server, expected_state='ERROR',
                              expected_migration_status='error')
        self.assertEqual({'fast': 120}, self.allocated(server['id']))

    def test_forced_to_a_host_too_slow(self):
        # It skips the filters, so that the driver has to refuse.
        server = self.boot(self.make_flavor(120), 'fast')
        self.host_dies('fast')
        with utils.temporary_mutation(self.admin_api, microversion='2.67'):
            self.api.post_server_action(server['id'], {
                'evacuate': {'host': 'slow', 'force': True}})
        self._wait_for_migration_status(server, ['failed'])
        # It stays the dead host's, as ever.
        self._wait_for_server_parameter(
            server, {'OS-EXT-STS:task_state': None})
        self._assert_used(120, 0)
        self.assertEqual('fast', self.host_of(server))
        connection = self.computes['slow'].driver._host.get_connection()
        self.assertEqual({}, connection._vms)

        # And goes where it is kept to its promise.
        self.start_host('other', 2.0)
        self._evacuate_server(server, expected_host='other')
        self._start_server(server)
        self.assertEqual(CAPS['fast', 120], self.tunables(server))


class UnshelveTestCase(test_resize.TwoHostsTestCase):

    def test_on_another_host(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self._shelve_server(server)
        self._assert_used(0, 0)
        self.api.put_service(
            self.api.get_services(host='fast', binary='nova-compute')[0][
                'id'], {'status': 'disabled'})
        self._unshelve_server(server)
        self._assert_is(server, 'slow', 60)

    def test_asked_for_a_host_too_slow(self):
        server = self.boot(self.make_flavor(120), 'fast')
        self._shelve_server(server)
        self.api.post_server_action(
            server['id'], {'unshelve': {'host': 'slow'}})
        self._wait_for_server_parameter(server, {
            'status': 'SHELVED_OFFLOADED', 'OS-EXT-STS:task_state': None})
        self.assertEqual({}, self.allocated(server['id']))
        self._unshelve_server(server)
        self._assert_is(server, 'fast', 120)


class SeveralVcpusTestCase(test_resize.TwoHostsTestCase):
    """Each vCPU gets its part of the units, whichever way the server goes."""

    # 120 CU on 2 vCPUs, and 400 on 4: 60 and 100 on each.
    CAPS = {('fast', 120): (15000, 50000, 1229),
            ('slow', 120): (37500, 50000, 1229),
            ('fast', 400): (25000, 50000, 4096)}

    def setUp(self):
        super().setUp()
        self.migrations.hook = self.hook

    def _assert_is(self, server, host, units):
        self.assertEqual(host, self.host_of(server))
        self.assertEqual(self.CAPS[host, units], self.tunables(server))
        self.assertEqual({host: units}, self.allocated(server['id']))

    def test_live_and_anew(self):
        server = self.boot(self.make_flavor(120, vcpus=2), 'slow')
        self._assert_is(server, 'slow', 120)
        self._live_migrate(server, host='fast')
        self._assert_is(server, 'fast', 120)
        self._shelve_server(server)
        self._assert_used(0, 0)
        self.api.post_server_action(
            server['id'], {'unshelve': {'host': 'slow'}})
        self._wait_for_state_change(server, 'ACTIVE')
        self._assert_is(server, 'slow', 120)
        self.host_dies('slow')
        self._evacuate_server(server, expected_host='fast')
        self._start_server(server)
        self.assertEqual(self.CAPS['fast', 120], self.tunables(server))
        self.assertEqual({'fast': 120, 'slow': 120},
                         self.allocated(server['id']))

    def test_cold(self):
        server = self.boot(self.make_flavor(120, vcpus=2), 'slow')
        self._resize_server(server, self.make_flavor(400, vcpus=4))
        self._assert_is(server, 'fast', 400)
        self._revert_resize(server)
        self._assert_is(server, 'slow', 120)
        self._assert_used(0, 120)
        self._migrate_server(server)
        self._confirm_resize(server)
        self._assert_is(server, 'fast', 120)
        self._assert_used(120, 0)


class CrossCellTestCase(test_resize.TwoHostsTestCase):
    """Nova makes the server anew in the other cell."""

    NUMBER_OF_CELLS = 2
    CELLS = {'fast': 'cell1', 'slow': 'cell2'}

    def setUp(self):
        super().setUp()
        self.policy.set_rules({servers.CROSS_CELL_RESIZE:
                               policies.RULE_ADMIN_API}, overwrite=False)
        # Its disk goes by an image.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.LibvirtDriver.snapshot',
            lambda *_args, **_kwargs: None))
        self.server = self.boot(self.make_flavor(60), 'fast')

    def _resize(self):
        self._resize_server(self.server, self.make_flavor(80))
        self._assert_is(self.server, 'slow', 80)
        self._assert_held_by_migration(self.server, 'fast', 60)
        self._assert_used(60, 80)

    def test_confirmed(self):
        self._resize()
        self._confirm_resize(self.server, cross_cell=True)
        self._assert_is(self.server, 'slow', 80)
        self._assert_used(0, 80)

    def test_reverted(self):
        self._resize()
        self._revert_resize(self.server)
        self._assert_is(self.server, 'fast', 60)
        self._assert_used(60, 0)
