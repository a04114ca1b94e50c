# SPDX-License-Identifier: Apache-2.0
"""Live migration: refused where too slow, capped anew where it arrives.

libvirt is faked: that it runs the hook on ``migrate begin``, and takes its
answer, is shown by the host tests. Here the hook's own function is applied
where libvirt would.
"""

from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.api import client as api_client
import pytest

from nova import utils
from nova_vqos import compute_state
from nova_vqos.tests.functional import base
from nova_vqos.tests.functional import fakes

# What 60 CU are on the hosts of these tests.
ON_FAST = (15000, 50000, 614)
ON_SLOW = (37500, 50000, 614)

CHECK_EVENT = 'compute_check_can_live_migrate_destination'


class LiveMigrationTestCase(base.VqosTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('fast', 2.0)
        self.start_host('slow', 0.8)
        self.migrations.hook = self.hook

    def _force(self, server, host, version):
        """An administrator's migration past the scheduler."""
        with utils.temporary_mutation(self.api, microversion=version):
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': host, 'block_migration': 'auto', 'force': True}})

    def _begin(self, server):
        self.api.post_server_action(server['id'], {'os-migrateLive': {
            'host': 'slow', 'block_migration': 'auto'}})

    def _assert_rolled_back(self, server):
        # NOTE: Nova 33 and 34 roll back, and then still set the server to
        # ERROR for whatever libvirt raised (future.result() at the end of
        # LibvirtDriver._live_migration), while its guest runs on.
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_state_change(server, 'ERROR', wait_for_fault_key=False)
        self.api.post_server_action(
            server['id'], {'os-resetState': {'state': 'active'}})
        self._assert_stayed(server, ON_FAST, 60)
        self.assertTrue(self.domain(server, 'fast').isActive())

    def _assert_stayed(self, server, cap, units):
        shown = self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual('fast', shown['OS-EXT-SRV-ATTR:host'])
        self.assertEqual(cap, self.tunables(server, 'fast'))
        self.wait_for(
            lambda: self.allocated(server['id']) == {'fast': units},
            lambda: 'back: %s' % self.allocated(server['id']))
        self.wait_until_used('slow', 0)
        self.assertEqual(units, self.used('fast'))


@pytest.mark.smoke
class RecapTestCase(LiveMigrationTestCase):

    def test_both_ways(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self.assertEqual(ON_FAST, self.tunables(server))

        self._live_migrate(server, host='slow')
        host, sent, received = self.migrations.arrived[0]
        self.assertEqual('slow', host)
        # Nova copies quota and period, and strips shares.
        self.assertEqual((15000, 50000, None), base.tunables_of(sent))
        self.assertEqual(ON_SLOW, base.tunables_of(received))
        self.assertEqual('slow', self.host_of(server))
        self.assertEqual(ON_SLOW, self.tunables(server))
        self.assertEqual({'slow': 60}, self.allocated(server['id']))
        self.wait_until_used('fast', 0)

        self._live_migrate(server, host='fast')
        self.assertEqual(ON_FAST, self.tunables(server))
        self.assertEqual({'fast': 60}, self.allocated(server['id']))
        self.wait_until_used('slow', 0)

        # What Nova writes anew on this host is the same.
        self._reboot_server(server, hard=True)
        self.assertEqual(ON_FAST, self.tunables(server))

    def test_a_soft_reboot_starts_from_what_nova_sent(self):
        # No driver and no hook sees it: the agent puts it right (host tests).
        server = self.boot(self.make_flavor(60), 'fast')
        self._live_migrate(server, host='slow')
        domain = self.domain(server)
        kept = domain.XMLDesc(fakelibvirt.VIR_DOMAIN_XML_INACTIVE)
        self.assertEqual((15000, 50000, None), base.tunables_of(kept))
        self.assertEqual(ON_SLOW, self.tunables(server))
        domain.destroy()
        domain.create()
        self.assertEqual((15000, 50000, None), self.tunables(server))
        self._reboot_server(server, hard=True)
        self.assertEqual(ON_SLOW, self.tunables(server))

    def test_units_are_claimed_on_both_hosts_meanwhile(self):
        server = self.boot(self.make_flavor(60), 'fast')
        seen = {}

        def hook(hostname, xml):
            seen.update(fast=self.used('fast'), slow=self.used('slow'),
                        server=self.allocated(server['id']))
            return self.hook(hostname, xml)

        self.migrations.hook = hook
        self._live_migrate(server, host='slow')
        self.assertEqual(
            {'fast': 60, 'slow': 60, 'server': {'slow': 60}}, seen)

    def test_without_the_hook_the_cap_travels(self):
        # The window that the agent closes, and that it reports.
        self.migrations.hook = None
        server = self.boot(self.make_flavor(60), 'fast')
        self._live_migrate(server, host='slow')
        self.assertEqual((15000, 50000, None), self.tunables(server))

    def test_stock_quota_travels_also_with_the_hook(self):
        self.flags(servers_without_units='allow', group='vqos')
        server = self.boot(
            self.make_flavor(specs={'quota:cpu_quota': '10000',
                                    'quota:cpu_period': '20000'}), 'fast')
        self._live_migrate(server, host='slow')
        _host, sent, received = self.migrations.arrived[0]
        self.assertEqual(sent, received)
        self.assertEqual((10000, 20000, None), self.tunables(server))

    def test_the_scheduler_picks_a_host_that_is_fast_enough(self):
        self.start_host('faster', 4.0)
        server = self.boot(self.make_flavor(90), 'fast')
        self._live_migrate(server)
        self.assertEqual('faster', self.host_of(server))
        self.assertEqual((11250, 50000, 922), self.tunables(server))


class AnotherPolicyTestCase(LiveMigrationTestCase):
    """The other host sends a guest with another policy than its flavor's."""

    def _arrive(self, change):
        self.server = self.boot(self.make_flavor(60), 'fast')
        self.migrations.hook = lambda hostname, xml: self.hook(
            hostname, change(xml))
        self._live_migrate(self.server, host='slow')

    def _alarms(self):
        return compute_state.load(
            self.host_files['slow'].compute_state_path).alarms

    def test_more_units(self):
        self._arrive(lambda xml: xml.replace('>60<', '>70<'))
        alarm, = self._alarms()
        self.assertIn(self.server['id'], alarm)
        self.assertIn('units 70, by Nova 60', alarm)
        # It lasts for as long as it is true.
        self._run_periodics()
        self.assertEqual((alarm,), self._alarms())
        self.migrations.hook = self.hook
        self._reboot_server(self.server, hard=True)
        self._run_periodics()
        self.assertEqual((), self._alarms())
        self.assertEqual(ON_SLOW, self.tunables(self.server))

    def test_one_that_leaves_again(self):
        self._arrive(lambda xml: xml.replace('>60<', '>5<'))
        alarm, = self._alarms()
        self.assertIn('units 5, by Nova 60', alarm)
        self._delete_server(self.server)
        self._run_periodics()
        self.assertEqual((), self._alarms())

    def test_no_policy_at_all(self):
        self._arrive(lambda xml: xml.replace('CUSTOM_VQOS', 'CUSTOM_OTHER'
                                             ).replace('vqos:', 'other:'))
        alarm, = self._alarms()
        self.assertIn('units unset, by Nova 60', alarm)

    def test_what_its_flavor_says(self):
        self._arrive(lambda xml: xml)
        self.assertEqual((), self._alarms())


@pytest.mark.smoke
class RollbackTestCase(LiveMigrationTestCase):

    def _fails(self, server):
        self._begin(server)
        self._assert_rolled_back(server)

    def test_broken_transfer(self):
        server = self.boot(self.make_flavor(60), 'fast')
        self.migrations.fail = True
        self._fails(server)
        self.assertEqual(ON_SLOW, base.tunables_of(
            self.migrations.arrived[0][2]))

        # And once more, when it works.
        self.migrations.fail = False
        self._live_migrate(server, host='slow')
        self.assertEqual(ON_SLOW, self.tunables(server))
        self.assertEqual({'slow': 60}, self.allocated(server['id']))

    def test_hook_refuses(self):
        def refuse(hostname, xml):
            raise fakes.MigrationRefused('no profile on %s' % hostname)

        server = self.boot(self.make_flavor(60), 'fast')
        self.migrations.hook = refuse
        self._fails(server)
        self.assertEqual([], self.migrations.arrived)


class TooSlowTestCase(LiveMigrationTestCase):
    """The destination cannot give the speed, whoever asks for it."""

    def setUp(self):
        super().setUp()
        self.server = self.boot(self.make_flavor(90))
        self.assertEqual('fast', self.host_of(self.server))

    def _assert_stayed_put(self):
        self._assert_stayed(self.server, (22500, 50000, 922), 90)
        self.assertEqual([], self.migrations.arrived)

    def test_forced_to_2_33_says_why(self):
        for version in ('2.30', '2.33'):
            error = self.assertRaises(
                api_client.OpenStackApiException,
                self._force, self.server, 'slow', version)
            self.assertEqual(400, error.response.status_code)
            message = error.response.json()['badRequest']['message']
            for part in ('90', '80', 'slow'):
                self.assertIn(part, message)
            self._assert_stayed_put()

    def test_forced_from_2_34_says_why_in_the_event(self):
        self._force(self.server, 'slow', '2.67')
        event = self._wait_for_action_fail_completion(
            self.server, 'live-migration', CHECK_EVENT)
        for part in ('90', '80'):
            self.assertIn(part, event['details'])
        self._assert_stayed_put()

    def test_from_2_68_there_is_no_force(self):
        # So that the filter says why.
        self.flags(placement_prefilter=False, group='vqos')
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {
            'host': 'slow', 'block_migration': 'auto'}})
        self._wait_for_migration_status(self.server, ['error'])
        self._assert_stayed_put()
        self.assertRegex(self.log(), r'slow.*90.*80')


class TargetWithoutProfileTestCase(LiveMigrationTestCase):
    """Anything but a refusal would put a running server into ERROR."""

    def test_lost_since_the_last_report(self):
        server = self.boot(self.make_flavor(60), 'fast')
        files = self.host_files['slow']
        for spoil in (files.lose_profile, files.truncate_profile,
                      files.spoil_profile):
            files.calibrate({'0-3': 0.8})
            spoil()
            self._force(server, 'slow', '2.67')
            event = self._wait_for_action_fail_completion(
                server, 'live-migration', CHECK_EVENT)
            self._assert_stayed(server, ON_FAST, 60)
            self.assertEqual([], self.migrations.arrived)
            self.assertIn('profile', event['details'])
