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

"""Resize, cold migration: units claimed for old and new until confirmed."""

from nova_vqos.tests.functional import base

# 60 and 80 CU on a pCPU of 200 and of 80 CU.
CAPS = {
    ('fast', 60): (15000, 50000, 614), ('slow', 60): (37500, 50000, 614),
    ('fast', 80): (20000, 50000, 819), ('slow', 80): (50000, 50000, 819),
    ('fast', 120): (30000, 50000, 1229),
}


class TwoHostsTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.start_host('slow', 0.8)

    def _assert_is(self, server, host, units):
        self.assertEqual(host, self.host_of(server))
        self.assertEqual(CAPS[host, units], self.tunables(server))
        self.assertEqual({host: units}, self.allocated(server['id']))

    def _assert_held_by_migration(self, server, host, units):
        self.assertEqual({host: units}, self.allocated(
            self.get_migration_uuid_for_instance(server['id'])))

    def _assert_used(self, fast, slow):
        self.wait_until_used('fast', fast)
        self.wait_until_used('slow', slow)


class ResizeTestCase(TwoHostsTestCase):

    def test_up_and_confirm(self):
        server = self.boot(self.make_flavor(60), 'slow')
        # 120 CU are only to be had on the other host.
        self._resize_server(server, self.make_flavor(120))
        self._assert_is(server, 'fast', 120)
        self._assert_held_by_migration(server, 'slow', 60)
        self._assert_used(120, 60)
        self._confirm_resize(server)
        self._assert_is(server, 'fast', 120)
        self._assert_used(120, 0)

    def test_up_and_revert(self):
        server = self.boot(self.make_flavor(60), 'slow')
        self._resize_server(server, self.make_flavor(120))
        self._revert_resize(server)
        self._assert_is(server, 'slow', 60)
        self._assert_used(0, 60)

    def test_down_and_confirm(self):
        server = self.boot(self.make_flavor(120), 'fast')
        self._resize_server(server, self.make_flavor(60))
        self._assert_is(server, 'slow', 60)
        self._assert_used(120, 60)
        self._confirm_resize(server)
        self._assert_used(0, 60)

    def test_faster_than_any_host(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self.api.post_server_action(server['id'], {
            'resize': {'flavorRef': self.make_flavor(201)}})
        self._assert_resize_migrate_action_fail(
            server, 'resize', 'NoValidHost')
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self._assert_is(server, 'fast', 60)
        self._assert_used(60, 0)

    def test_onboarding_an_old_server(self):
        # Its embedded flavor knows no units: a resize gives it some.
        self.flags(servers_without_units='allow', group='vqos')
        server = self.boot(self.make_flavor(), 'slow')
        self.assertEqual((None, None, None), self.tunables(server))
        self._resize_server(server, self.make_flavor(120))
        self._confirm_resize(server)
        self._assert_is(server, 'fast', 120)
        self._assert_used(120, 0)

    def test_to_a_flavor_without_units(self):
        self.start_host('plain', None)
        server = self.boot(self.make_flavor(60), 'fast')
        self._resize_server(server, self.make_flavor())
        self.assertEqual('plain', self.host_of(server))
        self._confirm_resize(server)
        self.assertEqual((None, None, None), self.tunables(server))
        self.assertEqual({'plain': 0}, self.allocated(server['id']))
        self._assert_used(0, 0)

    def test_to_a_flavor_that_cannot_be_honoured(self):
        server = self.boot(self.make_flavor(60), 'fast')
        bad = self.make_flavor(
            60, specs={'quota:cpu_quota': '20000'},
            version=base.NOT_VALIDATED)
        self.api.post_server_action(
            server['id'], {'resize': {'flavorRef': bad}})
        self._assert_resize_migrate_action_fail(
            server, 'resize', 'NoValidHost')
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self._assert_is(server, 'fast', 60)

    def test_cold_migration(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self._migrate_server(server)
        self._assert_is(server, 'slow', 60)
        self._assert_held_by_migration(server, 'fast', 60)
        self._revert_resize(server)
        self._assert_is(server, 'fast', 60)
        self._assert_used(60, 0)

    def test_cold_migration_confirmed(self):
        server = self.boot(self.make_flavor(60), 'slow')
        self._migrate_server(server)
        self._confirm_resize(server)
        self._assert_is(server, 'fast', 60)
        self._assert_used(60, 0)

    def test_cold_migration_to_a_host_too_slow(self):
        server = self.boot(self.make_flavor(120), 'fast')
        self.api.post_server_action(server['id'], {'migrate': None})
        self._assert_resize_migrate_action_fail(
            server, 'migrate', 'NoValidHost')
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self._assert_is(server, 'fast', 120)


class SameHostTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.flags(allow_resize_to_same_host=True)
        # Four pCPUs of 80 CU.
        self.start_host('slow', 0.8)
        self.server = self.boot(self.make_flavor(60), 'slow')

    def test_old_and_new_until_confirmed(self):
        self._resize_server(self.server, self.make_flavor(80))
        self.assertEqual(140, self.used('slow'))
        self.assertEqual(CAPS['slow', 80], self.tunables(self.server))
        self._run_periodics()
        self.assertEqual(140, self.used('slow'))
        self._confirm_resize(self.server)
        self.wait_until_used('slow', 80)

    def test_old_and_new_until_reverted(self):
        self._resize_server(self.server, self.make_flavor(80))
        self._revert_resize(self.server)
        self.assertEqual(CAPS['slow', 60], self.tunables(self.server))
        self.wait_until_used('slow', 60)

    def test_no_room_for_old_and_new(self):
        for _ in range(3):
            self.boot(self.make_flavor(70), 'slow')
        # 270 of 320 are used: 51 more would fit only in place of the 60.
        self.api.post_server_action(self.server['id'], {
            'resize': {'flavorRef': self.make_flavor(51)}})
        self._assert_resize_migrate_action_fail(
            self.server, 'resize', 'NoValidHost')
        self._wait_for_server_parameter(
            self.server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual(270, self.used('slow'))
        self.assertEqual(CAPS['slow', 60], self.tunables(self.server))
