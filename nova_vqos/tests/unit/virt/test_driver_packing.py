# SPDX-License-Identifier: Apache-2.0
"""The compute driver on a host whose servers' vCPUs have to pack."""

from nova.compute import task_states
from nova.compute import vm_states
from nova.virt.libvirt import config as vconfig

from nova import exception
from nova import objects
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.unit.virt import test_driver_core_types

FIRST = '6f70656e-0000-4000-8000-000000000001'
SECOND = '6f70656e-0000-4000-8000-000000000002'
THIRD = '6f70656e-0000-4000-8000-000000000003'
# 60 CU on a pCPU of 100.
CAP = (30_000, 50_000, 614)


class PackingTestCase(test_driver_core_types.ClassesTestCase):
    """2 pCPUs of 100 CU."""

    def setUp(self):
        super().setUp()
        self.stub_driver('_get_vcpu_available', lambda this: {0, 1})
        self.files.calibrate({'0-1': 1.0})
        self.flags(packing='exact', group='vqos')

    def has_two(self, pcpus=''):
        """Of 60 CU each, so that each pCPU has 40 CU left."""
        self.has(60, pcpus, FIRST)
        self.has(60, pcpus, SECOND)

    def stats(self):
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        return self.driver.get_available_resource(driver.NODE)['stats']


class ArrivingTestCase(PackingTestCase):

    def test_what_packs_runs_on_all_pcpus(self):
        self.has(60, uuid=FIRST)
        self.assert_runs(None, CAP, self.tune(60))
        self.assertEqual({False}, set(self.only_running))

    def test_what_does_not_pack(self):
        self.has_two()
        self.assert_refused(60, '60 CU each', '80 CU left', 'at most 40 CU')
        self.tune(40)
        self.tune(80, 2)

    def test_a_sum_is_all_that_counts_otherwise(self):
        self.flags(packing='sum', group='vqos')
        self.has_two()
        self.assert_runs(None, CAP, self.tune(60))

    def test_each_vcpu_of_a_server_needs_a_place(self):
        self.has(60, uuid=FIRST)
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.tune, 120, 2)
        self.tune(120, 3)

    def test_the_vcpus_of_a_server_share_its_units(self):
        self.has(120, uuid=FIRST, vcpus=2)
        self.assert_refused(41)
        self.tune(40)

    def test_units_of_the_host_need_no_piece(self):
        self.flags(reserved_cu=100, group='vqos')
        self.tune(100)
        self.has(60, uuid=FIRST)
        self.assert_refused(41)
        self.tune(40)

    def test_a_larger_size_of_the_same_server(self):
        self.has_two()
        self.tune(100, uuid=FIRST)

    def test_those_that_are_still_to_come(self):
        self.tune(60, uuid=FIRST)
        self.tune(60, uuid=SECOND)
        self.assert_refused(60)
        self.driver._vqos_core_types.forget_choice(FIRST)
        self.tune(60)

    def test_one_that_came_counts_by_its_domain(self):
        for pcpus in ('', '0-1'):
            self.guests.clear()
            self.tune(60, uuid=FIRST)
            self.has(60, pcpus, FIRST)
            self.assertEqual('140', self.stats()['vqos_room_cu'])
            self.assertEqual({}, self.driver._vqos_core_types._chosen)

    def test_servers_that_do_not_pack_keep_others_out(self):
        self.has_two()
        self.has(60, uuid=THIRD)
        self.assert_refused(1, 'at most 0 CU')

    def test_the_pins_of_a_numa_topology(self):
        def pinned():
            guest = vconfig.LibvirtConfigGuest()
            guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
            pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
            pin.id, pin.cpuset = 0, {0, 1}
            guest.cputune.vcpupin.append(pin)
            return guest

        self.has_two()
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.tune, 60, guest=pinned())
        self.assert_runs(None, (20_000, 50_000, 410),
                         self.tune(40, guest=pinned()))
        self.flags(packing='sum', group='vqos')
        self.assert_runs(None, CAP, self.tune(60, guest=pinned()))

    def test_unlike_pcpus(self):
        self.stub_driver('_get_vcpu_available', lambda this: set(range(6)))
        self.files.calibrate({'0-1': 2.0, '2-5': 0.8})
        for uuid in (FIRST, SECOND, THIRD, test_driver_core_types.OTHER):
            self.has(50, '2-5', uuid)
        self.assertEqual(test_driver_core_types.SLOW, self.tune(30).cpuset)
        self.assertEqual(test_driver_core_types.FAST, self.tune(31).cpuset)


class StatsTestCase(PackingTestCase):

    def test_the_largest_vcpu_that_packs(self):
        self.assertEqual('100', self.stats()['vqos_largest_vcpu_cu'])
        self.has_two()
        self.assertEqual('40', self.stats()['vqos_largest_vcpu_cu'])
        self.flags(packing='sum', group='vqos')
        self.assertEqual('', self.stats()['vqos_largest_vcpu_cu'])

    def test_the_pieces_that_are_left(self):
        def found():
            stats = self.stats()
            return stats['vqos_pieces'], stats['vqos_stranded_cu']

        self.assertEqual(('100:2', '0'), found())
        self.has(60, uuid=FIRST)
        self.assertEqual(('100:1 40:1', '40'), found())
        self.has(60, uuid=SECOND)
        self.assertEqual(('40:2', '80'), found())
        self.flags(reserved_cu=30, group='vqos')
        self.assertEqual(('40:2', '50'), found())
        self.flags(packing='sum', group='vqos')
        self.assertEqual(('', ''), found())


class ReturningTestCase(PackingTestCase):

    def setUp(self):
        super().setUp()
        self.instance = self.make_instance(
            {policy.UNITS_KEY: '60'}, task_state=task_states.POWERING_ON,
            vm_state=vm_states.ACTIVE)
        self.existing = test_driver_core_types.FakeGuest(
            self.instance.uuid, 60)
        self.stub_out('nova.virt.libvirt.host.Host.get_guest',
                      lambda host, instance: self.existing)
        self.stub_driver('_get_existing_guest_config',
                         lambda this, instance: 'old')

    def test_it_always_starts(self):
        self.has_two()
        self.driver._get_existing_guest_config(self.instance)
        self.assert_runs(None, CAP, self.make_guest(self.instance))
        # It counts before its domain is there.
        self.assertEqual('0', self.stats()['vqos_largest_vcpu_cu'])
        self.assertNotIn('core types', self.stdlog.logger.output)

    def test_its_room_is_its_own_while_it_has_no_domain(self):
        self.driver._get_existing_guest_config(self.instance)
        self.tune(60, uuid=FIRST)
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.tune, 60, uuid=SECOND)


class LiveMigrationTestCase(PackingTestCase):

    def setUp(self):
        super().setUp()
        self.stub_driver(
            'check_can_live_migrate_destination', lambda *args:
            objects.LibvirtLiveMigrateData(
                filename='tmp1', dst_cpu_shared_set_info={7, 8}))

    def check(self, uuid, **changes):
        instance = self.make_instance({policy.UNITS_KEY: '60'}, **changes)
        instance.uuid = uuid
        return self.driver.check_can_live_migrate_destination(
            self.context, instance, {}, {}).dst_cpu_shared_set_info

    def test_one_that_packs_holds_its_room(self):
        self.assertEqual({7, 8}, self.check(FIRST))
        self.assertEqual({7, 8}, self.check(SECOND))
        error = self.assertRaises(exception.MigrationPreCheckError,
                                  self.check, THIRD)
        self.assertIn('at most 40 CU', str(error))

    def test_one_with_a_numa_topology(self):
        self.has_two()
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        self.assertRaises(exception.MigrationPreCheckError, self.check, THIRD,
                          numa_topology=topology)
