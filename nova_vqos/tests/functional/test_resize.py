# SPDX-License-Identifier: Apache-2.0
"""Resize, cold migration: units claimed for old and new until confirmed."""

import fixtures
from oslo_utils.fixture import uuidsentinel
import pytest

from nova import exception
from nova_vqos.tests.functional import base

# 60 and 80 CU on a pCPU of 200 and of 80 CU.
CAPS = {
    ('fast', 60): (15000, 50000, 614), ('slow', 60): (37500, 50000, 614),
    ('fast', 80): (20000, 50000, 819), ('slow', 80): (50000, 50000, 819),
    ('fast', 120): (30000, 50000, 1229),
}


class RefusalMixin:
    """For tests of moves that find no host."""

    def _assert_refused(self, server, action, body=None):
        """It finds no host, and the server is as it was."""
        before = (self.host_of(server), self.tunables(server),
                  self.allocated(server['id']))
        self.api.post_server_action(server['id'], {action: body})
        self._assert_resize_migrate_action_fail(server, action, 'NoValidHost')
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual(before, (
            self.host_of(server), self.tunables(server),
            self.allocated(server['id'])))


class FailedResizeMixin:
    """For tests of what Nova keeps of a resize that failed."""

    def fail_to_resize(self, server, flavor):
        """On the compute host, as where ssh between hosts is refused."""
        def refuse(*_args, **_kwargs):
            raise exception.InstanceFaultRollback(
                exception.ResizeError(reason='no ssh'))
        with fixtures.MonkeyPatch(
                'nova.virt.libvirt.LibvirtDriver.migrate_disk_and_power_off',
                refuse):
            self.api.post_server_action(
                server['id'], {'resize': {'flavorRef': flavor}})
            self._wait_for_migration_status(server, ['error'])
            # NOTE: the server is at rest before: its state is set twice, the
            # second time over that of whatever has begun by then.
            self.notifier.wait_for_versioned_notifications(
                'compute.exception')
            self._wait_for_server_parameter(
                server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})


class TwoHostsTestCase(base.VqosTestCase):

    #: By host, the name of its cell; none: there is one.
    CELLS: dict[str, str] = {}

    def setUp(self):
        super().setUp()
        for host, coefficient in (('fast', 2.0), ('slow', 0.8)):
            self.start_host(host, coefficient, cell=self.CELLS.get(host))

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


@pytest.mark.smoke
class ResizeTestCase(RefusalMixin, TwoHostsTestCase):

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

    def test_what_finds_no_host(self):
        server = self.boot(self.make_flavor(120), 'fast')
        # Faster than any host.
        self._assert_refused(server, 'resize',
                             {'flavorRef': self.make_flavor(201)})
        # A flavor that cannot be honoured.
        self._assert_refused(server, 'resize', {'flavorRef': self.make_flavor(
            60, specs={'quota:cpu_quota': '20000'},
            version=base.NOT_VALIDATED)})
        # The other host is too slow.
        self._assert_refused(server, 'migrate')
        self._assert_is(server, 'fast', 120)
        self._assert_used(120, 0)

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

    def test_cold_migration(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self._migrate_server(server)
        self._assert_is(server, 'slow', 60)
        self._assert_held_by_migration(server, 'fast', 60)
        self._revert_resize(server)
        self._assert_is(server, 'fast', 60)
        self._assert_used(60, 0)
        self._migrate_server(server)
        self._confirm_resize(server)
        self._assert_is(server, 'slow', 60)
        self._assert_used(0, 60)


class SameHostTestCase(RefusalMixin, base.VqosTestCase):

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
        self._assert_refused(self.server, 'resize',
                             {'flavorRef': self.make_flavor(51)})
        self.assertEqual(270, self.used('slow'))


class RefusalAtDestinationTestCase(base.VqosTestCase):
    """The scheduler did not know that the destination cannot take it."""

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.start_host('other', 2.0)
        self.server = self.boot(self.make_flavor(60), 'fast')

    def _act(self, action, body=None):
        self.api.post_server_action(self.server['id'], {action: body})

    def _assert_stayed(self, action, reason, used_there=0):
        event = self._wait_for_action_fail_completion(
            self.server, action, 'compute_resize_instance')
        self.assertIn(reason, event['details'])
        self._wait_for_server_parameter(
            self.server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None,
                          'OS-EXT-STS:power_state': 1})
        self.assertEqual('fast', self.host_of(self.server))
        self.assertTrue(self.domain(self.server, 'fast').isActive())
        self.assertEqual(CAPS['fast', 60], self.tunables(self.server))
        self.wait_until_used('other', used_there)
        self.wait_until_used('fast', 60)
        self.assertEqual({'fast': 60}, self.allocated(self.server['id']))

    def _fill(self):
        """Servers of 750 CU of the 800 CU of other; Placement counts 350."""
        large = [self.boot(self.make_flavor(units, vcpus=4), 'other')
                 for units in (400, 350)]
        self.placement.delete(f'/allocations/{large[0]["id"]}')
        self.wait_until_used('other', 350)
        return large

    def test_there_is_less_room_than_placement_counts(self):
        self.start_agent('other')
        large = self._fill()
        self._act('migrate')
        self._assert_stayed('migrate', '750 of the 800 CU', 350)
        self._act('resize', {'flavorRef': self.make_flavor(80)})
        self._assert_stayed('resize', '80 CU', 350)
        # Those that are stopped have their room all the same.
        self._stop_server(large[0])
        self._run_periodics()
        self._act('migrate')
        self._assert_stayed('migrate', '750 of the 800 CU', 350)
        self._delete_server(large[0])
        self._migrate_server(self.server)
        self.assertEqual({'other': 60}, self.allocated(self.server['id']))

    def test_what_just_fits(self):
        self.start_agent('other')
        self._fill()
        self._resize_server(self.server, self.make_flavor(50))
        self.assertEqual({'other': 50}, self.allocated(self.server['id']))

    def test_cold_migration(self):
        self.start_agent('other')
        self.host_files['other'].lose_profile()
        self._act('migrate')
        self._assert_stayed('migrate', 'profile')
        # And once more, when it works.
        self.host_files['other'].calibrate({'0-3': 2.0})
        self._run_periodics()
        self._migrate_server(self.server)
        self.assertEqual(CAPS['fast', 60], self.tunables(self.server, 'other'))

    def test_resize(self):
        self.start_agent('other')
        self.host_files['other'].calibrate({'0-3': 0.5})
        self._act('resize', {'flavorRef': self.make_flavor(80)})
        self._assert_stayed('resize', '50 CU')

    def test_resize_of_a_stopped_server(self):
        self.start_agent('other')
        self._stop_server(self.server)
        self.host_files['other'].lose_profile()
        self._act('resize', {'flavorRef': self.make_flavor(80)})
        self._wait_for_action_fail_completion(
            self.server, 'resize', 'compute_resize_instance')
        self._wait_for_server_parameter(
            self.server, {'status': 'SHUTOFF', 'OS-EXT-STS:task_state': None})
        self.wait_until_used('other', 0)

    def _arrive_refused(self):
        """Without an agent that answers the destination's driver refuses."""
        self.host_files['other'].lose_profile()
        self._act('migrate')
        self._wait_for_server_parameter(
            self.server, {'status': 'ERROR', 'OS-EXT-STS:task_state': None})
        self.assertEqual('other', self.host_of(self.server))

    def _reboot_hard(self, status):
        self._act('reboot', {'type': 'HARD'})
        return self._wait_for_server_parameter(
            self.server, {'status': status, 'OS-EXT-STS:task_state': None})

    def test_what_was_refused_is_no_returning_server(self):
        self._arrive_refused()
        self._act('reboot', {'type': 'HARD'})
        self._wait_for_action_fail_completion(
            self.server, 'reboot', 'compute_reboot_instance')
        shown = self._wait_for_server_parameter(
            self.server, {'status': 'ERROR', 'OS-EXT-STS:task_state': None})
        self.assertIn('profile', shown['fault']['message'])
        connection = self.computes['other'].driver._host.get_connection()
        self.assertEqual([], connection.listAllDomains(0))

        # Also by a service that was not there then.
        self.restart_compute_service('other')
        self._act('reboot', {'type': 'HARD'})
        self.wait_for(lambda: self.log().count('Cannot reboot instance') >= 2,
                      self.log)
        self._wait_for_server_parameter(
            self.server, {'status': 'ERROR', 'OS-EXT-STS:task_state': None})
        connection = self.computes['other'].driver._host.get_connection()
        self.assertEqual([], connection.listAllDomains(0))

    def test_and_starts_once_the_host_can_take_it(self):
        self._arrive_refused()
        self.host_files['other'].calibrate({'0-3': 2.0})
        self._reboot_hard('ACTIVE')
        self.assertEqual(CAPS['fast', 60], self.tunables(self.server, 'other'))
        # From here on it is a server of this host.
        self.host_files['other'].calibrate({'0-3': 0.5})
        self._reboot_hard('ACTIVE')
        self.assertEqual((None, None, 614),
                         self.tunables(self.server, 'other'))


class RefusalOnSameHostTestCase(base.VqosTestCase):

    def test_resize(self):
        self.flags(allow_resize_to_same_host=True)
        self.start_host('fast', 2.0)
        server = self.boot(self.make_flavor(60), 'fast')
        self.host_files['fast'].calibrate({'0-3': 0.7})
        self.api.post_server_action(server['id'], {'resize': {
            'flavorRef': self.make_flavor(80)}})
        self._wait_for_action_fail_completion(
            server, 'resize', 'compute_resize_instance')
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None,
                     'OS-EXT-STS:power_state': 1})
        self.assertTrue(self.domain(server, 'fast').isActive())
        self.wait_until_used('fast', 60)


class FailedResizeTestCase(FailedResizeMixin, TwoHostsTestCase):
    """Nova's next claim is of the flavor that failed: the driver corrects it.
    """

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.make_flavor(60), 'slow')
        self.smaller = self.make_flavor(30)
        self.migrations.hook = self.hook

    def test_live_migration(self):
        self.fail_to_resize(self.server, self.smaller)
        self._live_migrate(self.server)
        self._assert_is(self.server, 'fast', 60)
        self._assert_used(60, 0)
        self.assertIn('claim was corrected', self.log())

    def test_a_larger_flavor(self):
        self.fail_to_resize(self.server, self.make_flavor(120))
        self._live_migrate(self.server)
        self._assert_is(self.server, 'fast', 60)
        self._assert_used(60, 0)

    def test_unshelving(self):
        self.fail_to_resize(self.server, self.smaller)
        self._shelve_server(self.server, expected_state='SHELVED_OFFLOADED')
        self._unshelve_server(self.server)
        host = self.host_of(self.server)
        self._assert_is(self.server, host, 60)

    def test_evacuation(self):
        self.fail_to_resize(self.server, self.smaller)
        self.host_dies('slow')
        self._evacuate_server(self.server, expected_host='fast')
        self._assert_used(60, 60)

    def fill(self):
        """Leave 50 CU of 800 in Placement: for a claim of 30, not of 60."""
        self.placement.put(f'/allocations/{uuidsentinel.other}', {
            'allocations': {self.compute_rp_uuids['fast']: {
                'resources': {base.RESOURCE_CLASS: 750}}},
            'project_id': 'p', 'user_id': 'u', 'consumer_generation': None},
            version='1.28')
        self._assert_used(750, 60)

    def test_live_migration_without_room(self):
        self.fail_to_resize(self.server, self.smaller)
        self.fill()
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {
            'host': None, 'block_migration': 'auto'}})
        self._wait_for_migration_status(self.server, ['error'])
        self._wait_for_server_parameter(
            self.server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self._assert_is(self.server, 'slow', 60)
        self._assert_used(750, 60)
        self.assertIn('its flavor has 60', self.log())

    def test_a_placement_that_fails(self):
        """It moves all the same, with the claim that Nova made."""
        self.fail_to_resize(self.server, self.smaller)
        # Of the driver alone: Nova's own requests succeed.
        with fixtures.MonkeyPatch('nova_vqos.virt.claim.report', None):
            self._live_migrate(self.server)
        self.assertEqual(CAPS['fast', 60], self.tunables(self.server))
        self.assertEqual({'fast': 30}, self.allocated(self.server['id']))
