# SPDX-License-Identifier: Apache-2.0
"""Evacuation and unshelving: capped by where the server comes to be."""

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
