# SPDX-License-Identifier: Apache-2.0
"""Servers with units of a kind of work, on hosts that differ in that kind.

libvirt is faked: the hook's own function is applied where libvirt would.
"""

import fixtures
from nova.tests.functional.api import client as api_client
from nova.virt.libvirt import driver as libvirt_driver

from nova import utils
from nova_vqos.tests.functional import base

WORK_KEY = 'vqos:work'
# Of both hosts the mean is 1.
HASHES_SLOWLY = {'integer': 2.0, 'hash': 0.5}
HASHES_FAST = {'integer': 0.5, 'hash': 2.0}
# What 40 CU of hash are on each.
ON_SLOW = (40_000, 50_000, 819)
ON_FAST = (10_000, 50_000, 205)


class WorkTestCase(base.VqosTestCase):
    """Two hosts of 400 CU."""

    def setUp(self):
        super().setUp()
        self.start_host('slow', HASHES_SLOWLY)
        self.start_host('fast', HASHES_FAST)
        self.migrations.hook = self.hook

    def make_work(self, units, work='hash', **kwargs):
        return self.make_flavor(units, specs={WORK_KEY: work}, **kwargs)

    def assert_sells(self, host, used, reserved):
        self._run_periodics()
        self.wait_until_used(host, used)
        self.assertEqual((400, reserved), (
            self.inventory(host)['total'], self.inventory(host)['reserved']))

    def migrate_past_scheduler(self, server, host):
        with utils.temporary_mutation(self.api, microversion='2.67'):
            self.api.post_server_action(server['id'], {'os-migrateLive': {
                'host': host, 'block_migration': 'auto', 'force': True}})

    def assert_stays(self, server, host, tunables, units):
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual([], self.migrations.arrived)
        self.assertEqual(host, self.host_of(server))
        self.assertEqual(tunables, self.tunables(server))
        self.wait_for(
            lambda: self.allocated(server['id']) == {host: units},
            lambda: f'back: {self.allocated(server["id"])}')


class LiveMigrationTestCase(WorkTestCase):

    def test_it_is_as_fast_on_both(self):
        server = self.boot(self.make_work(40), 'slow')
        self.assertEqual(ON_SLOW, self.tunables(server))
        # It claims its units, and takes more.
        self.assertEqual({'slow': 40}, self.allocated(server['id']))
        self.assert_sells('slow', 40, 40)
        for host, other, tunables, reserved in (
                ('fast', 'slow', ON_FAST, 0), ('slow', 'fast', ON_SLOW, 40)):
            self._live_migrate(server, host=host)
            where, _sent, received = self.migrations.arrived[-1]
            self.assertEqual((host, tunables),
                             (where, base.tunables_of(received)))
            self.assertEqual(tunables, self.tunables(server))
            self.assertEqual({host: 40}, self.allocated(server['id']))
            self.assert_sells(host, 40, reserved)
            self.assert_sells(other, 0, 0)

        # What Nova writes anew on this host is the same.
        self._reboot_server(server, hard=True)
        self.assertEqual(ON_SLOW, self.tunables(server))

    def test_where_it_would_take_too_much(self):
        self.boot(self.make_flavor(340, vcpus=4), 'slow')
        server = self.boot(self.make_work(40), 'fast')
        # Placement has 60 CU left, but it takes 80.
        self.migrate_past_scheduler(server, 'slow')
        self.assert_stays(server, 'fast', ON_FAST, 40)
        self.assertIn('340 of the 400 CU', self.log())
        self.wait_until_used('slow', 340)

    def test_where_a_vcpu_is_too_slow_for_the_kind(self):
        server = self.boot(self.make_work(51), 'fast')
        self.migrate_past_scheduler(server, 'slow')
        self.assert_stays(server, 'fast', (12_750, 50_000, 261), 51)


class CorrectedTestCase(WorkTestCase):
    """Servers whose units the agent corrects."""

    def test_it_begins_and_moves_with_the_speed_of_the_mean(self):
        # Of both hosts this is not sold.
        self.flags(correction_reserve_cu=30, group='vqos')
        server = self.boot(self.make_work(40, work='auto'), 'slow')
        for host, other in ('slow', 'fast'), ('fast', 'slow'):
            self.assertEqual((20_000, 50_000, 410), self.tunables(server))
            self.assertEqual({host: 40}, self.allocated(server['id']))
            self.assert_sells(host, 40, 30)
            self._live_migrate(server, host=other)
        # Kinds of work that hosts lack are no matter.
        self.start_host('plain', 1.0)
        self._live_migrate(server, host='plain')
        self.assertEqual((20_000, 50_000, 410), self.tunables(server))


class ColdMigrationTestCase(WorkTestCase):

    def test_where_it_would_take_too_much(self):
        """The agent of the destination says it before anything is off."""
        self.start_agent('slow')
        taker = self.boot(self.make_flavor(340, vcpus=4), 'slow')
        server = self.boot(self.make_work(40), 'fast')
        # As where the filter judged by older stats.
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.scheduler.fitness.Judge._no_room_for_work',
            lambda *_args: ''))
        self.api.post_server_action(server['id'], {'migrate': None})
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual(('fast', ON_FAST),
                         (self.host_of(server), self.tunables(server)))
        self.assertIn('80 CU more do not fit', self.log())
        self._delete_server(taker)
        self._run_periodics()
        self.flags(allow_resize_to_same_host=False)
        self._migrate_server(server)
        self._confirm_resize(server)
        self.assertEqual(('slow', ON_SLOW),
                         (self.host_of(server), self.tunables(server)))


    def start_move(self, server):
        self.api.post_server_action(server['id'], {'migrate': None})

    def in_power_off(self, server, act):
        """Act where the source powers a server off, which it was asked for.

        :returns: whether it did so
        """
        stock = libvirt_driver.LibvirtDriver.migrate_disk_and_power_off
        done = []

        def power_off(driver, context, instance, *args, **kwargs):
            if instance.uuid == server['id']:
                act()
                done.append(instance.uuid)
            return stock(driver, context, instance, *args, **kwargs)

        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.LibvirtDriver.migrate_disk_and_power_off',
            power_off))
        return done

    def test_its_room_is_held_on_its_way(self):
        self.flags(allow_resize_to_same_host=False)
        self.start_agent('slow')
        server = self.boot(self.make_work(100, vcpus=4), 'fast')
        other = self.boot(self.make_work(101, vcpus=4), 'fast')
        seen = []

        def look():
            seen.append(self.inventory('slow')['reserved'])
            # What it takes is neither sold by Placement
            self.boot(self.make_flavor(201, vcpus=4), 'slow',
                      expected_state='ERROR')
            # nor given to another one that asks meanwhile. The filter judges
            # by older stats.
            with fixtures.MonkeyPatch(
                    'nova_vqos.scheduler.fitness.Judge._no_room_for_work',
                    lambda *_args: ''):
                self.start_move(other)
                self._wait_for_migration_status(other, ['error'])

        done = self.in_power_off(server, look)
        self.start_move(server)
        self._wait_for_state_change(server, 'VERIFY_RESIZE')
        self.assertEqual(([server['id']], [100]), (done, seen))
        self.assertIn('202 CU more do not fit', self.log())
        self._wait_for_server_parameter(
            other, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual(('slow', 'fast'),
                         (self.host_of(server), self.host_of(other)))
        self.assert_sells('slow', 100, 100)

    def test_what_a_resize_reverts_to_is_held(self):
        """On one host Placement keeps the claim, and the driver the rest."""
        self.flags(allow_resize_to_same_host=True)
        server = self.boot(self.make_work(40), 'slow')
        self.assert_sells('slow', 40, 40)
        # The other one is too slow.
        self._resize_server(server, self.make_work(150, 'integer'))
        self.assertEqual('slow', self.host_of(server))
        self.assert_sells('slow', 190, 40)
        self.boot(self.make_flavor(171, vcpus=4), 'slow',
                  expected_state='ERROR')
        self.boot(self.make_flavor(171, vcpus=4), az='nova:slow',
                  expected_state='ERROR')
        self._revert_resize(server)
        self.assertEqual(ON_SLOW, self.tunables(server))
        self.assert_sells('slow', 40, 40)
        self._resize_server(server, self.make_work(150, 'integer'))
        self._confirm_resize(server)
        self.assert_sells('slow', 150, 0)


class BootTestCase(WorkTestCase):

    def test_what_it_takes_is_not_sold_to_others(self):
        """4 times 80 of 400 CU, for 160 units."""
        flavor = self.make_work(40)
        for _ in range(4):
            self.boot(flavor, 'slow')
        self.assert_sells('slow', 160, 160)
        self.boot(self.make_flavor(81), 'slow', expected_state='ERROR')
        # Placement has these units, not what they take: the filter, and
        # where none is asked the driver, refuses.
        asked = self.make_work(50)
        self.boot(asked, 'slow', expected_state='ERROR')
        self.assertIn('50 CU of hash take 100 CU', self.log())
        self.boot(asked, az='nova:slow', expected_state='ERROR')
        self.assertIn('100 CU more do not fit', self.log())
        self.assert_sells('slow', 160, 160)
        # The last one takes all that is left.
        last = self.boot(flavor, 'slow')
        self.assertEqual(ON_SLOW, self.tunables(last))
        self.assert_sells('slow', 200, 200)
        self.boot(self.make_flavor(1), 'slow', expected_state='ERROR')
        self._delete_server(last)
        self.assert_sells('slow', 160, 160)
        self.boot(self.make_flavor(80), 'slow')

    def test_at_once_after_another_left(self):
        """The host reports its room once a minute."""
        flavor = self.make_work(200, vcpus=4)
        server = self.boot(flavor, 'slow')
        # It takes all.
        self.assert_sells('slow', 200, 200)
        self._delete_server(server)
        self.wait_until_used('slow', 0)
        self.boot(flavor, 'slow')

    def test_the_scheduler_finds_the_host_that_is_fast_enough(self):
        """Also one that the traits of speed, of the mean, would exclude."""
        for work, host in ('hash', 'fast'), ('integer', 'slow'):
            server = self.boot(self.make_work(180, work))
            self.assertEqual(host, self.host_of(server))
        self.boot(self.make_work(201), expected_state='ERROR')

    def test_a_mix(self):
        server = self.boot(self.make_work(60, 'hash:1,integer:1'), 'slow')
        self.assertEqual((30_000, 50_000, 614), self.tunables(server))
        self.assert_sells('slow', 60, 0)

    def test_a_kind_that_no_host_was_measured_with(self):
        asked = self.make_work(1, 'hash:1,gpu:1')
        self.boot(asked, expected_state='ERROR')
        self.assertIn("vqos:work has 'gpu'", self.log())
        self.boot(asked, az='nova:slow', expected_state='ERROR')
        self.assertEqual((0, 0), (self.used('slow'), self.used('fast')))

    def test_the_api_says_what_it_may_be(self):
        error = self.assertRaises(
            api_client.OpenStackApiException, self.make_work, 40, 'hash:0')
        self.assertIn('weights above 0', str(error))
        self.boot(self.make_work(40, 'hash:0', version=base.NOT_VALIDATED),
                  expected_state='ERROR')
