# SPDX-License-Identifier: Apache-2.0
"""The compute driver on a host that Placement has sold more of than it has."""

import threading

from nova.compute import provider_tree
from nova.compute import task_states
from nova.compute import vm_states
from nova.virt.libvirt import config as vconfig
from oslo_concurrency import lockutils

from nova import exception
from nova import objects
from nova_vqos import compute_state
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.fixtures import waits
from nova_vqos.tests.unit.virt import test_driver_core_types

FIRST = '6f70656e-0000-4000-8000-000000000001'
SECOND = '6f70656e-0000-4000-8000-000000000002'
THIRD = '6f70656e-0000-4000-8000-000000000003'
# 60 CU on a pCPU of 100.
CAP = (30_000, 50_000, 614)


class RoomTestCase(test_driver_core_types.ClassesTestCase):
    """A host of one pCPU of 100 CU."""

    def setUp(self):
        super().setUp()
        self.stub_driver('_get_vcpu_available', lambda this: {0})
        self.files.calibrate({'0': 1.0})

    def make(self, units, **changes):
        """The guest of a server, by Nova's own way to it."""
        return self.make_guest(self.make_instance(
            {policy.UNITS_KEY: str(units)}, **changes))

    def report(self):
        """Have Placement know the inventory, as from time to time."""
        self.stub_driver('update_provider_tree', lambda *args: None)
        tree = provider_tree.ProviderTree()
        tree.new_root(driver.NODE, FIRST)
        self.driver.update_provider_tree(tree, driver.NODE)

    def pinned(self):
        guest = vconfig.LibvirtConfigGuest()
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
        pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
        pin.id, pin.cpuset = 0, {0}
        guest.cputune.vcpupin.append(pin)
        return guest


class ArrivingTestCase(RoomTestCase):

    def test_as_many_as_the_host_sells(self):
        self.has(60)
        self.assert_refused(41, '60 of the 100 CU', '41 CU more')
        self.tune(40)
        # Stopped servers count, too.
        self.assertEqual({False}, set(self.only_running))

    def test_one_whose_guest_was_made_counts_by_its_domain(self):
        self.stub_driver('_create_guest', lambda this, *args: 'guest')
        self.tune(60, uuid=FIRST)
        instance = self.make_instance({})
        instance.uuid = FIRST
        self.driver._create_guest(self.context, '<domain/>', instance)
        self.tune(41)

    def test_those_that_are_still_to_come(self):
        self.tune(60, uuid=FIRST)
        self.assert_refused(41)
        self.driver._vqos_core_types.forget_choice(FIRST)
        self.tune(41)

    def test_one_that_came_counts_by_its_domain(self):
        for pcpus in ('', '0', '5'):
            self.tune(60, uuid=FIRST)
            self.has(60, pcpus, FIRST)
            self.assert_refused(41)
            self.guests.clear()
            self.tune(100, uuid=SECOND)
            self.driver._vqos_core_types.forget_choice(SECOND)

    def test_a_server_does_not_count_for_itself(self):
        self.has(60, uuid=FIRST)
        self.tune(100, uuid=FIRST)

    def test_pins_of_a_numa_topology(self):
        self.has(60)
        self.assertRaises(exception.ComputeResourcesUnavailable, self.tune,
                          41, guest=self.pinned())
        self.tune(30, guest=self.pinned(), uuid=FIRST)
        self.assert_refused(11)

    def test_what_is_reserved_and_oversold(self):
        self.flags(reserved_cu=10, correction_reserve_cu=20, group='vqos')
        self.assert_refused(71, '0 of the 70 CU')
        self.tune(70)
        self.flags(reserved_cu=0, correction_reserve_cu=0,
                   allocation_ratio=1.5, group='vqos')
        self.has(90)
        self.assert_refused(61, '90 of the 150 CU')
        self.tune(60)

    def test_a_measured_reserve(self):
        """Where Placement does not know it yet."""
        self.files.agent_lives(reserve_cu=30)
        self.assert_refused(101)
        self.flags(dd_reserve='measured', group='vqos')
        self.tune(70)
        self.assert_refused(71, '0 of the 70 CU')

    def test_what_placement_knows_of_the_host(self):
        """The capacity as whole CU, and the inventory that Nova got last."""
        self.files.calibrate({'0': 1.009})
        self.flags(allocation_ratio=16.0, group='vqos')
        self.has(1580)
        self.assert_refused(21, '1580 of the 1600 CU')
        self.tune(20)
        self.report()
        self.flags(allocation_ratio=1.0, group='vqos')
        self.tune(20)

    def test_two_at_the_same_time(self):
        """Only one of them gets the room, however slow libvirt is."""
        reached = threading.Event()
        read, refused = [], []

        def arrive():
            try:
                self.tune(60, uuid=SECOND)
            except exception.ComputeResourcesUnavailable:
                refused.append(SECOND)
            finally:
                reached.set()

        second = threading.Thread(target=arrive)

        def list_guests(host, only_running=True):
            if threading.current_thread() is second:
                read.append(SECOND)
                reached.set()
                return []
            # Until the other one waits for the lock, or would not.
            second.start()
            self.assertTrue(reached.wait(waits.LIMIT_S))
            read.append(FIRST)
            return []

        lock_of = lockutils.internal_lock

        def internal_lock(name, **options):
            lock = lock_of(name, **options)
            if threading.current_thread() is second:
                if lock.acquire(blocking=False):
                    lock.release()
                else:
                    reached.set()
            return lock

        self.stub_out('oslo_concurrency.lockutils.internal_lock',
                      internal_lock)
        # What the host sells is not read again.
        self.report()
        self.stub_out('nova.virt.libvirt.host.Host.list_guests', list_guests)
        self.tune(60, uuid=FIRST)
        second.join()
        self.assertEqual([FIRST, SECOND], read)
        self.assertEqual([SECOND], refused)

    def test_an_evacuated_server(self):
        self.has(60)
        evacuated = {'task_state': task_states.REBUILD_SPAWNING,
                     'migration_context': objects.MigrationContext()}
        self.assertRaises(exception.ComputeResourcesUnavailable,
                          self.make, 41, **evacuated)
        self.make(40, **evacuated)

    def test_one_that_nova_can_bring_nowhere_else(self):
        """A cold migration or a resize: the server is off by now."""
        self.has(60)
        guest = self.make(60, task_state=task_states.RESIZE_FINISH)
        self.assertEqual(CAP, self.tunables(guest))
        self.assertEqual(set(), self.driver._vqos_moved)
        # It counts at once.
        error = self.assertRaises(exception.ComputeResourcesUnavailable,
                                  self.tune, 1, uuid=FIRST)
        self.assertIn('120 of the 100 CU', str(error))


class ColdMoveTestCase(RoomTestCase):
    """What the agent learns, which answers the sources of cold moves."""

    def decide(self, units, **specs):
        """The decision on a server whose move was claimed."""
        self.claim_move({policy.UNITS_KEY: str(units), **specs}, vcpus=1)
        self.report()
        found = compute_state.load(self.files.compute_state_path).moves
        self.migrations[-1].status = 'error'
        return found[driver.UUID]

    def test_servers_and_those_that_are_to_come(self):
        self.flags(reserved_cu=10, allocation_ratio=1.5, group='vqos')
        self.has(60)
        self.tune(20, uuid=SECOND)
        self.assertIn('80 of the 135 CU', self.decide(56))
        self.assertEqual('', self.decide(55))
        self.assertEqual({False}, set(self.only_running))

    def test_too_fast(self):
        self.assertIn('101 CU', self.decide(101))

    def test_nothing_is_asked(self):
        self.claim_move({})
        self.report()
        found = compute_state.load(self.files.compute_state_path).moves
        self.assertEqual({driver.UUID: ''}, found)

    def test_what_is_not_known(self):
        self.stub_out('nova.virt.libvirt.host.Host.list_guests',
                      lambda *args, **kwargs: 1 / 0)
        self.claim_move({policy.UNITS_KEY: '60'})
        self.report()
        found = compute_state.load(self.files.compute_state_path).moves
        self.assertEqual({}, found)

    def test_a_host_that_is_closed(self):
        self.files.lose_profile()
        self.assertIn('profile', self.decide(10))


class ReturningTestCase(RoomTestCase):
    """A guest that is made anew, on a host that is oversold."""

    def setUp(self):
        super().setUp()
        self.existing = test_driver_core_types.FakeGuest(driver.UUID, 60)
        self.stub_out('nova.virt.libvirt.host.Host.get_guest',
                      lambda host, instance: self.existing)
        self.stub_driver('_get_existing_guest_config',
                         lambda this, instance: 'old')
        self.instance = self.make_instance(
            {policy.UNITS_KEY: '60'}, task_state=task_states.POWERING_ON,
            vm_state=vm_states.ACTIVE)

    def test_it_always_starts(self):
        self.has(60, uuid=FIRST)
        self.driver._get_existing_guest_config(self.instance)
        self.assert_runs(None, CAP, self.make_guest(self.instance))
        self.assertEqual({}, self.driver._vqos_core_types._last)

    def test_its_room_is_its_own_while_it_has_no_domain(self):
        for make in (lambda: None, lambda: self.make_guest(self.instance)):
            self.driver._get_existing_guest_config(self.instance)
            make()
            self.assertRaises(exception.ComputeResourcesUnavailable,
                              self.tune, 41, uuid=FIRST)


class LiveMigrationTestCase(RoomTestCase):

    def setUp(self):
        super().setUp()
        self.stub_driver(
            'check_can_live_migrate_destination',
            lambda *args: objects.LibvirtLiveMigrateData(filename='tmp1'))

    def check(self, units, uuid=driver.UUID, **changes):
        instance = self.make_instance({policy.UNITS_KEY: str(units)},
                                      **changes)
        instance.uuid = uuid
        self.driver.check_can_live_migrate_destination(
            self.context, instance, {}, {})

    def test_one_that_does_not_fit(self):
        self.has(60)
        error = self.assertRaises(exception.MigrationPreCheckError,
                                  self.check, 41)
        self.assertIn('60 of the 100 CU', str(error))
        self.check(40)

    def test_one_that_came_and_moved_on_holds_none(self):
        self.stub_driver('post_live_migration_at_destination',
                         lambda this, *args: None)
        self.check(60, FIRST)
        instance = self.make_instance({})
        instance.uuid = FIRST
        self.driver.post_live_migration_at_destination(
            self.context, instance, [])
        self.check(41, SECOND)

    def test_one_that_is_refused_holds_none(self):
        self.stub_driver('_get_vcpu_available', lambda this: {0, 1})
        self.files.calibrate({'0-1': 1.0})
        self.assertRaises(exception.MigrationPreCheckError, self.check, 101)
        self.assertRaises(exception.MigrationPreCheckError, self.check, 101,
                          numa_topology=objects.InstanceNUMATopology(cells=[]))
        self.check(100, FIRST)
        self.check(100, SECOND)

    def test_it_holds_its_room(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        self.check(50, FIRST, numa_topology=topology)
        self.check(40, SECOND)
        self.assertRaises(exception.MigrationPreCheckError, self.check, 11,
                          THIRD, numa_topology=topology)
        self.assertRaises(exception.MigrationPreCheckError, self.check, 11,
                          THIRD)
        self.check(10, THIRD)
