# SPDX-License-Identifier: Apache-2.0
"""A host of unlike pCPUs: each server in one class, capped by its speed."""

import fixtures
from lxml import etree
import testtools.matchers

from nova import exception
from nova_vqos.tests.functional import base

FAST = '0-1'
SLOW = '2-5'
# What 60 CU are on pCPUs of 200 and of 80 CU.
ON_FAST = (15000, 50000, 614)
ON_SLOW = (37500, 50000, 614)


class UnlikeCpusTestCase(base.VqosTestCase):
    """One host of 2 pCPUs of 200 CU and 4 of 80 CU."""

    def setUp(self):
        super().setUp()
        self.start_hybrid('hybrid')

    def start_hybrid(self, hostname):
        """Start a host of 2 pCPUs of 200 CU and 4 of 80 CU."""
        files = self.useFixture(base.host_files.HostFiles(hostname))
        files.calibrate({FAST: 2.0, SLOW: 0.8})
        self.start_host(hostname, None, pcpus=6, files=files)

    def cpuset(self, server, host=None):
        """Of <vcpu> of a server's domain; None: it has none."""
        return cpuset_of(self.domain(server, host).XMLDesc(0))

    def assert_in(self, cpuset, tunables, server):
        self.assertEqual((cpuset, tunables),
                         (self.cpuset(server), self.tunables(server)))


def cpuset_of(xml):
    return etree.fromstring(xml).find('./vcpu').get('cpuset')


class BootTestCase(UnlikeCpusTestCase):

    def test_inventory_traits_and_stats(self):
        self.assertEqual(720, self.inventory('hybrid')['total'])
        traits = self.traits('hybrid')
        self.assertIn('CUSTOM_VQOS_SPEED_200', traits)
        self.assertNotIn('CUSTOM_VQOS_SPEED_250', traits)
        self.assertEqual('80:320:0.64 200:400:1.6',
                         self.stats('hybrid')['vqos_classes'])
        self.boot(self.make_flavor(60))
        self.boot(self.make_flavor(120))
        self._run_periodics()
        self.assertEqual('80:260:0.64 200:280:1.6',
                         self.stats('hybrid')['vqos_classes'])

    def test_each_in_the_slowest_class_that_does(self):
        slow = self.boot(self.make_flavor(60))
        self.assert_in(SLOW, ON_SLOW, slow)
        fast = self.boot(self.make_flavor(160, vcpus=1))
        self.assert_in(FAST, (40000, 50000, 1638), fast)
        self.assertEqual({'hybrid': 60}, self.allocated(slow['id']))

    def test_the_fast_class_when_the_slow_one_is_full(self):
        for _ in range(4):
            self.assert_in(SLOW, (50000, 50000, 819),
                           self.boot(self.make_flavor(80)))
        self.assert_in(FAST, ON_FAST, self.boot(self.make_flavor(60)))

    def test_a_tier_that_only_the_fast_class_has(self):
        server = self.boot(self.make_flavor(
            120, specs={'trait:CUSTOM_VQOS_SPEED_100': 'required'}))
        self.assert_in(FAST, (30000, 50000, 1229), server)

    def _fill(self):
        """Leave 70 CU in the slow class, 80 in the fast one."""
        for units, vcpus in ((250, 4), (320, 2)):
            self.boot(self.make_flavor(units, vcpus=vcpus))
        self._run_periodics()
        self.assertEqual('80:70:0.64 200:80:1.6',
                         self.stats('hybrid')['vqos_classes'])

    def test_room_in_no_single_class_goes_elsewhere(self):
        self._fill()
        flavor = self.make_flavor(140, vcpus=2)
        refused = self.boot(flavor, expected_state='ERROR')
        self.assertIn('No valid host', refused['fault']['message'])
        self.assertThat(self.log(), testtools.matchers.MatchesRegex(
            r'(?s).*hybrid is refused for .*140 CU on 2 vCPUs.*70 CU left on '
            r'pCPUs of 80 CU, 80 CU left on pCPUs of 200 CU'))
        self.assertEqual(570, self.used('hybrid'))

        self.start_host('equal', 1.0)
        self.assertEqual('equal', self.host_of(self.boot(flavor)))

    def test_several_servers_of_one_request(self):
        # Too fast for the slow class: two fit, and Placement has room for 4.
        flavor = self.make_flavor(180)
        self.start_host('equal', 2.0, pcpus=1)
        body = self._build_server(image_uuid=base.IMAGE_ID, flavor_id=flavor,
                                  networks='none')
        body['min_count'] = body['max_count'] = 3
        self.api.post_server({'server': body})
        self.wait_for(lambda: self.used('hybrid') + self.used('equal') == 540,
                      self.log)
        servers = self.api.get_servers()
        for server in servers:
            self._wait_for_state_change(server, 'ACTIVE')
        self.assertEqual(
            ['equal', 'hybrid', 'hybrid'],
            sorted(self.host_of(server) for server in servers))
        self.assertNotIn('was re-scheduled', self.log())


class StatsOfBeforeTestCase(UnlikeCpusTestCase):
    HOST_WEIGHTS = {'hybrid': 2, 'equal': 1}

    def test_the_driver_refuses_and_another_host_is_tried(self):
        self.start_host('equal', 1.0)
        self.boot(self.make_flavor(250, vcpus=4), 'hybrid')
        self.boot(self.make_flavor(320, vcpus=2), 'hybrid')
        self.assertEqual('80:320:0.64 200:400:1.6',
                         self.stats('hybrid')['vqos_classes'])
        server = self.boot(self.make_flavor(140, vcpus=2))
        self.assertEqual('equal', self.host_of(server))
        self.assertIn('pCPUs 0-1 of 200 CU each have 80 CU left', self.log())
        self.assertEqual({'equal': 140}, self.allocated(server['id']))
        self.wait_until_used('hybrid', 570)


class KeptTestCase(UnlikeCpusTestCase):
    """What makes the guest anew leaves it in its class."""

    def setUp(self):
        super().setUp()
        # It was put into the fast class while the slow one was full.
        filler = self.boot(self.make_flavor(320, vcpus=4))
        self.server = self.boot(self.make_flavor(60))
        self._assert_kept()
        self._delete_server(filler)

    def _assert_kept(self):
        self.assert_in(FAST, ON_FAST, self.server)

    def test_in_its_class(self):
        self._reboot_server(self.server, hard=True)
        self._assert_kept()
        self._stop_server(self.server)
        # Its room is kept.
        self._run_periodics()
        self.assertEqual('80:320:0.64 200:340:1.6',
                         self.stats('hybrid')['vqos_classes'])
        self._start_server(self.server)
        self._assert_kept()
        self.restart_compute_service('hybrid')
        self._reboot_server(self.server, hard=True)
        self._assert_kept()

    def test_a_rebuild_chooses_again(self):
        # NOTE: Nova has undone the guest before it makes the new one.
        self._rebuild_server(self.server, base.IMAGE_ID)
        self.assert_in(SLOW, ON_SLOW, self.server)


class LiveMigrationTestCase(UnlikeCpusTestCase):

    def setUp(self):
        super().setUp()
        self.start_host('equal', 1.0)
        self.migrations.hook = self.hook

    def _migrate(self, server, host):
        """:returns: the cpuset that the guest arrives with"""
        self._live_migrate(server, host=host)
        arrived, _sent, received = self.migrations.arrived[-1]
        self.assertEqual(host, arrived)
        self.assertEqual(base.tunables_of(received), self.tunables(server))
        return cpuset_of(received)

    def test_both_ways(self):
        server = self.boot(self.make_flavor(60), 'equal')
        self.assert_in(None, (30000, 50000, 614), server)

        self.assertEqual(SLOW, self._migrate(server, 'hybrid'))
        self.assert_in(SLOW, ON_SLOW, server)

        # Without [compute] cpu_shared_set a guest there has no cpuset.
        self.assertIsNone(self._migrate(server, 'equal'))
        self.assert_in(None, (30000, 50000, 614), server)

    def test_to_the_fast_class(self):
        server = self.boot(self.make_flavor(95), 'equal')
        self.assertEqual(FAST, self._migrate(server, 'hybrid'))
        self.assert_in(FAST, (23750, 50000, 973), server)
        self._run_periodics()
        self.assertEqual('80:320:0.64 200:305:1.6',
                         self.stats('hybrid')['vqos_classes'])
        self._reboot_server(server, hard=True)
        self.assert_in(FAST, (23750, 50000, 973), server)

    def test_between_two_of_a_kind(self):
        self.start_hybrid('second')
        self.boot(self.make_flavor(320, vcpus=4), 'second')
        server = self.boot(self.make_flavor(60), 'hybrid')
        self.assert_in(SLOW, ON_SLOW, server)
        self.assertEqual(FAST, self._migrate(server, 'second'))
        self.assert_in(FAST, ON_FAST, server)

    def test_a_set_of_shared_cpus_at_the_destination(self):
        # One configuration for all hosts of this process.
        self.flags(cpu_shared_set='0-3', group='compute')
        server = self.boot(self.make_flavor(60), 'equal')
        self.assert_in('0-3', (30000, 50000, 614), server)
        self.assertEqual('2-3', self._migrate(server, 'hybrid'))
        self.assert_in('2-3', ON_SLOW, server)
        self.assertEqual('0-3', self._migrate(server, 'equal'))
        self.assert_in('0-3', (30000, 50000, 614), server)

    def test_no_class_has_room(self):
        self.boot(self.make_flavor(250, vcpus=4), 'hybrid')
        self.boot(self.make_flavor(320, vcpus=2), 'hybrid')
        server = self.boot(self.make_flavor(140, vcpus=2), 'equal')
        # The stats are from before: the destination itself refuses.
        self.api.post_server_action(server['id'], {'os-migrateLive': {
            'host': 'hybrid', 'block_migration': 'auto'}})
        self._wait_for_migration_status(server, ['error'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual('equal', self.host_of(server))
        self.assertIn('70 CU left', self.log())
        self.assertEqual([], self.migrations.arrived)


class ColdMigrationTestCase(UnlikeCpusTestCase):

    def test_into_core_types_that_filled_since(self):
        self.start_host('equal', 1.0)
        self.start_agent('hybrid')
        self.start_agent('equal')
        server = self.boot(self.make_flavor(140, vcpus=2), 'equal')
        self.boot(self.make_flavor(250, vcpus=4), 'hybrid')
        self.boot(self.make_flavor(320, vcpus=2), 'hybrid')
        # The scheduler's stats are from before.
        self.assertEqual('80:320:0.64 200:400:1.6',
                         self.stats('hybrid')['vqos_classes'])
        self.api.post_server_action(server['id'], {'migrate': None})
        event = self._wait_for_action_fail_completion(
            server, 'migrate', 'compute_resize_instance')
        self.assertIn('70 CU left', event['details'])
        self._wait_for_server_parameter(
            server, {'status': 'ACTIVE', 'OS-EXT-STS:task_state': None})
        self.assertEqual('equal', self.host_of(server))
        self.assertTrue(self.domain(server, 'equal').isActive())
        self.wait_until_used('hybrid', 570)


class FailedMigrationTestCase(UnlikeCpusTestCase):
    """A migration that failed holds no room."""

    def setUp(self):
        super().setUp()
        self.start_host('equal', 1.0)
        self.migrations.hook = self.hook
        self.server = self.boot(self.make_flavor(60), 'equal')

    def _migrate(self):
        self.api.post_server_action(self.server['id'], {'os-migrateLive': {
            'host': 'hybrid', 'block_migration': 'auto'}})
        self._wait_for_migration_status(self.server, ['error'])

    def _room(self):
        self._run_periodics()
        return self.stats('hybrid')['vqos_classes']

    def test_the_source_disagrees(self):
        def disagree(*args, **kwargs):
            raise exception.MigrationPreCheckError(reason='not this one')

        self.useFixture(fixtures.MonkeyPatch(
            'nova.virt.libvirt.LibvirtDriver.check_can_live_migrate_source',
            disagree))
        self._migrate()
        self.assertEqual('80:320:0.64 200:400:1.6', self._room())

    def test_the_destination_is_not_told(self):
        # As where the disks are shared.
        self.useFixture(fixtures.MonkeyPatch(
            'nova.compute.manager.ComputeManager.'
            '_live_migration_cleanup_flags',
            lambda *args, **kwargs: (False, False)))
        self.useFixture(fixtures.MonkeyPatch(
            'nova_vqos.virt.core_type_tracker._CHOICE_LIFE_S', 0.0))
        during = []

        def hook(hostname, xml):
            # NOTE: not by a run of all periodic tasks: Nova's fixture would
            # wait for the thread that this is, and this one for the fixture.
            found = self.computes['hybrid'].driver.get_available_resource(
                'hybrid')
            during.append(found['stats']['vqos_classes'])
            return self.hook(hostname, xml)

        self.migrations.hook = hook
        self.migrations.fail = True
        self._migrate()
        # While it moves its room is its own, for however long.
        self.assertEqual(['80:260:0.64 200:400:1.6'], during)
        self.assertEqual('80:320:0.64 200:400:1.6', self._room())


class NumaTestCase(UnlikeCpusTestCase):
    """Nova pins the vCPUs of a cell to all of its pCPUs."""

    def _pins(self, server):
        xml = etree.fromstring(self.domain(server).XMLDesc(0))
        return [pin.get('cpuset') for pin in xml.findall('./cputune/vcpupin')]

    def _flavor(self, units, vcpus=1, **specs):
        return self.make_flavor(units, vcpus, {
            'hw:numa_nodes': '1',
            **{f'vqos:{key}': value for key, value in specs.items()}})

    def test_a_hard_cap_is_hard(self):
        server = self.boot(self._flavor(120, 2))
        self.assertEqual(([SLOW] * 2, (37500, 50000, 1229)),
                         (self._pins(server), self.tunables(server)))
        self._run_periodics()
        self.assertEqual('80:200:0.64 200:400:1.6',
                         self.stats('hybrid')['vqos_classes'])
        self._reboot_server(server, hard=True)
        self.assertEqual([SLOW] * 2, self._pins(server))

    def test_one_that_only_the_fast_cores_serve(self):
        server = self.boot(self._flavor(120))
        self.assertEqual(([FAST], (30000, 50000, 1229)),
                         (self._pins(server), self.tunables(server)))

    def test_a_floor_keeps_all_of_its_cell(self):
        server = self.boot(self._flavor(60, cap='floor'))
        self.assertEqual((['0-5'], (None, None, 614)),
                         (self._pins(server), self.tunables(server)))

    def test_live_migration(self):
        self.start_host('equal', 1.0)
        self.migrations.hook = self.hook
        server = self.boot(self._flavor(120, 2), 'equal')
        self.assertEqual((30000, 50000, 1229), self.tunables(server))
        self._live_migrate(server, host='hybrid')
        _host, _sent, received = self.migrations.arrived[-1]
        self.assertEqual([SLOW] * 2, [
            pin.get('cpuset') for pin in etree.fromstring(
                received).findall('./cputune/vcpupin')])
        self.assertEqual((37500, 50000, 1229), base.tunables_of(received))

    def test_a_cold_move_into_core_types_that_filled_since(self):
        self.start_host('equal', 1.0)
        self.start_agent('hybrid')
        server = self.boot(self._flavor(140, 2), 'equal')
        self.boot(self.make_flavor(250, vcpus=4), 'hybrid')
        self.boot(self.make_flavor(320, vcpus=2), 'hybrid')
        self.api.post_server_action(server['id'], {'migrate': None})
        self._wait_for_action_fail_completion(
            server, 'migrate', 'compute_resize_instance')
        self.assertTrue(self.domain(server, 'equal').isActive())
