# SPDX-License-Identifier: Apache-2.0
"""The compute driver on a host of unlike pCPUs, on Nova's fake libvirt."""

import fixtures
from nova.compute import task_states
from nova.compute import vm_states
from nova.virt.libvirt import config as vconfig

from nova import exception
from nova import objects
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos.tests.fixtures import driver as driver_case
from nova_vqos.virt import core_type_tracker

FAST = {0, 1}
SLOW = {2, 3, 4, 5}
OTHER = '6f70656e-0000-4000-8000-00000000beef'
# What 60 CU are on each.
ON_FAST = (15_000, 50_000, 614)
ON_SLOW = (37_500, 50_000, 614)

XML = """
<domain type='qemu'><name>vm</name><uuid>%(uuid)s</uuid>
 <metadata><n:instance xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'>
  <n:flavor name='f'><n:vcpus>%(vcpus)s</n:vcpus><n:extraSpecs>
   <n:extraSpec name='resources:CUSTOM_VQOS_CPU_UNIT'>%(units)s</n:extraSpec>
   %(specs)s
  </n:extraSpecs></n:flavor></n:instance></metadata>
 <vcpu%(cpuset)s>%(vcpus)s</vcpu></domain>"""


class FakeGuest:
    """A domain that is there, be it stopped."""

    def __init__(self, uuid, units, pcpus='', vcpus=1, specs=None):
        self.specs = ''.join(
            f"<n:extraSpec name='{key}'>{value}</n:extraSpec>"
            for key, value in (specs or {}).items())
        self.uuid = uuid
        self.units = units
        self.pcpus = pcpus
        self.vcpus = vcpus

    def get_xml_desc(self):
        cpuset = f" cpuset='{self.pcpus}'" if self.pcpus else ''
        return XML % {'uuid': self.uuid, 'units': self.units, 'cpuset': cpuset,
                      'vcpus': self.vcpus, 'specs': self.specs}


class ClassesTestCase(driver_case.DriverTestCase):
    """2 pCPUs of 200 CU, 4 of 80 CU."""

    def setUp(self):
        super().setUp()
        self.stub_driver('_get_vcpu_available', lambda this: set(range(6)))
        self.files.calibrate({'0-1': 2.0, '2-5': 0.8})
        self.guests = []
        self.only_running = []
        self.stub_out('nova.virt.libvirt.host.Host.list_guests', self._list)

    def _list(self, host, only_running=True):
        self.only_running.append(only_running)
        return list(self.guests)

    def has(self, units, pcpus='', uuid=OTHER, vcpus=1, specs=None):
        self.guests.append(FakeGuest(uuid, units, pcpus, vcpus, specs))

    def tune(self, units, vcpus=1, *, guest=None, uuid=driver_case.UUID,
             specs=None):
        """A guest with its tuning."""
        if guest is None:
            guest = vconfig.LibvirtConfigGuest()
        guest.uuid = uuid
        self.driver._update_guest_cputune(
            guest, self.make_flavor(
                {policy.UNITS_KEY: str(units), **(specs or {})}, vcpus))
        return guest

    def assert_runs(self, pcpus, tunables, guest):
        self.assertEqual((pcpus, tunables),
                         (guest.cpuset, self.tunables(guest)))

    def assert_refused(self, units, *texts):
        error = self.assertRaises(exception.ComputeResourcesUnavailable,
                                  self.tune, units)
        for text in texts:
            self.assertIn(text, str(error))


class ArrivingTestCase(ClassesTestCase):

    def test_the_slowest_class_that_is_fast_enough(self):
        self.assert_runs(SLOW, ON_SLOW, self.tune(60))
        self.assert_runs(FAST, (20_250, 50_000, 829), self.tune(81))
        # Stopped servers count, too.
        self.assertEqual({False}, set(self.only_running))

    def test_the_fast_class_when_the_slow_one_is_full(self):
        self.has(261, '2-5')
        self.assert_runs(FAST, ON_FAST, self.tune(60))

    def test_too_fast_for_all(self):
        self.assert_refused(201, '201 CU', '200 CU', '80 CU')

    def test_room_in_no_single_class(self):
        self.has(341, '0-1')
        self.has(261, '2-5', driver_case.UUID.replace('cafe', 'cafd'))
        self.assert_refused(60, 'pCPUs 0-1', '59 CU left', 'pCPUs 2-5')

    def test_reserved_and_oversold_units_as_in_placement(self):
        self.flags(reserved_cu=720, group='vqos')
        self.assert_refused(60, 'of the 0 CU')
        self.flags(reserved_cu=0, allocation_ratio=0.1, group='vqos')
        self.assert_refused(60, '40 CU left', '32 CU left')
        self.assert_refused(73, 'of the 72 CU')

    def test_another_size_of_the_same_server_does_not_count(self):
        # A resize on the same host: Placement has counted both.
        self.has(320, '2-5', driver_case.UUID)
        self.assertEqual(SLOW, self.tune(60).cpuset)

    def test_a_narrower_set_of_shared_pcpus(self):
        self.stub_driver('_get_vcpu_available', lambda this: {1, 2, 3})
        self.assertEqual({2, 3}, self.tune(60).cpuset)
        self.assertEqual({1}, self.tune(90).cpuset)
        self.stub_driver('_get_vcpu_available', lambda this: {2, 3})
        self.assert_runs(None, ON_SLOW, self.tune(60))

    def pinned(self, *cpusets):
        guest = vconfig.LibvirtConfigGuest()
        guest.cputune = vconfig.LibvirtConfigGuestCPUTune()
        for number, cpuset in enumerate(cpusets):
            pin = vconfig.LibvirtConfigGuestCPUTuneVCPUPin()
            pin.id, pin.cpuset = number, cpuset
            guest.cputune.vcpupin.append(pin)
        return guest

    def pins(self, units, *cpusets):
        """Of a guest that comes with these, and its cap."""
        guest = self.tune(units, len(cpusets), guest=self.pinned(*cpusets))
        self.assertIsNone(guest.cpuset)
        return ([pin.cpuset for pin in guest.cputune.vcpupin],
                guest.cputune.quota)

    def test_pins_are_narrowed_to_one_core_type(self):
        self.assertEqual(([{2, 3}], 37_500), self.pins(60, {0, 1, 2, 3}))
        # All vCPUs on one, be they of several cells.
        self.assertEqual(([{2}, {3, 4}], 37_500),
                         self.pins(120, {1, 2}, {0, 3, 4}))
        self.assertEqual(([{1}], 30_000), self.pins(120, {1, 2}))
        # Nothing to do within one.
        self.assertEqual(([{0}], 15_000), self.pins(60, {0}))

    def test_room_within_the_cell(self):
        self.has(50, '2', OTHER)
        self.assertEqual(([{1}], 25_000), self.pins(100, {1, 2}))
        self.assertRaises(exception.ComputeResourcesUnavailable, self.pins,
                          161, {2}, {2})

    def test_cells_that_share_no_core_type(self):
        error = self.assertRaises(exception.ComputeResourcesUnavailable,
                                  self.pins, 120, {0}, {2})
        self.assertIn('vqos:cap', str(error))

    def test_pins_of_a_server_that_returns(self):
        self.driver._vqos_returning.add(driver_case.UUID)
        self.assertEqual(([{2}], 37_500), self.pins(60, {1, 2}))
        # It starts in any case: by the slowest.
        self.assertEqual(([{0}, {2}], 37_500), self.pins(120, {0}, {2}))
        self.flags(packing='exact', group='vqos')
        self.files.calibrate({'0-5': 0.8})
        self.assertEqual(([{1, 2}], 37_500), self.pins(60, {1, 2}))
        self.assertEqual(([{7}], None), self.pins(60, {7}))

    def test_the_pins_of_a_floor_stay(self):
        guest = self.pinned({1, 2})
        guest.uuid = OTHER
        self.driver._update_guest_cputune(guest, self.make_flavor(
            {policy.UNITS_KEY: '60', policy.CAP_KEY: 'floor'}))
        self.assertEqual({1, 2}, guest.cputune.vcpupin[0].cpuset)
        self.assertEqual((None, None, 614), self.tunables(guest))

    def test_a_server_without_units_is_stock_novas(self):
        guest = vconfig.LibvirtConfigGuest()
        guest.uuid = OTHER
        self.driver._update_guest_cputune(guest, self.make_flavor(
            {policy.QUANTUM_CLASS_KEY: 'default'}))
        self.assertIsNone(guest.cpuset)
        self.assertIsNone(guest.cputune)

    def test_problems_of_the_host_come_first(self):
        self.files.calibrate({'0-1': 2.0, '2-5': 0.8},
                             fingerprint={'kernel': 'old'})
        self.assert_refused(60, 'stale')
        self.assertEqual({}, self.driver._vqos_core_types._chosen)

    def test_a_domain_that_cannot_be_read_does_not_hinder(self):
        class Gone(FakeGuest):
            def get_xml_desc(self):
                raise ZeroDivisionError('gone')

        self.has('0')
        self.assertEqual(SLOW, self.tune(60).cpuset)
        self.assertNotIn('not counted', self.stdlog.logger.output)
        self.guests.append(Gone(OTHER, 60))
        self.assertEqual(SLOW, self.tune(60).cpuset)
        self.assertIn('not counted', self.stdlog.logger.output)
        self.assertIn('gone', self.stdlog.logger.output)


class ChoicesTestCase(ClassesTestCase):
    """What was chosen holds its room until the domain is there."""

    def setUp(self):
        super().setUp()
        self.now_s = 1000.0
        self.stub_out('nova_vqos.virt.core_type_tracker.time.monotonic',
                      lambda: self.now_s)
        self.assertEqual(SLOW, self.tune(80, uuid=OTHER).cpuset)

    def room(self):
        return [room.whole_room_cu for room in self.driver._vqos_core_types
                .usage(self.driver._vqos_report()).left]

    def servers(self):
        return self.driver._vqos_core_types.usage(
            self.driver._vqos_report()).servers

    def test_it_counts_at_once(self):
        self.assertEqual([400, 240], self.room())

    def test_it_is_among_the_servers_that_the_room_is_without(self):
        """By their number the scheduler knows a room that is out of date."""
        self.assertEqual(1, self.servers())
        self.has(80, '2-5')
        self.assertEqual(1, self.servers())
        self.guests.clear()
        self.assertEqual(0, self.servers())

    def test_it_counts_once_when_the_domain_is_there(self):
        self.has(80, '2-5')
        self.assertEqual([400, 240], self.room())
        self.guests.clear()
        self.assertEqual([400, 320], self.room())

    def test_the_choice_goes_before_a_domain_that_is_to_be_replaced(self):
        self.has(10, '0-1')
        self.assertEqual([400, 240], self.room())
        self.assertEqual([400, 240], self.room())

    def test_it_does_not_come(self):
        self.driver._vqos_core_types.forget_choice(OTHER)
        self.driver._vqos_core_types.forget_choice(OTHER)
        self.assertEqual([400, 320], self.room())

    def test_nothing_was_ever_heard_of_it_again(self):
        moving = {OTHER}

        def drop():
            self.driver._vqos_core_types.drop_old_choices(moving.__contains__)
            return self.room()

        self.now_s += core_type_tracker._CHOICE_LIFE_S + 1
        self.assertEqual([400, 240], drop())
        moving.clear()
        self.assertEqual([400, 320], drop())
        # One that is young does not ask.
        self.tune(80, uuid=OTHER)
        self.now_s += core_type_tracker._CHOICE_LIFE_S
        self.driver._vqos_core_types.drop_old_choices(lambda uuid: 1 / 0)
        self.assertEqual([400, 240], self.room())

    def test_a_clean_up_gives_the_room_up(self):
        passed = []
        self.stub_driver('cleanup', lambda this, *args: passed.append(args))
        instance = self.make_instance({policy.UNITS_KEY: '80'})
        instance.uuid = OTHER
        args = (self.context, instance, [], {}, False, None, True, False)
        self.driver.cleanup(*args)
        self.assertEqual([args], passed)
        self.assertEqual([400, 320], self.room())

    def test_stats_have_the_room_left(self):
        stats = self.driver.get_available_resource(driver_case.NODE)['stats']
        self.assertEqual('80:240:0.64 200:400:1.6', stats['vqos_classes'])
        self.assertEqual('640', stats['vqos_room_cu'])


class EqualCpusTestCase(ClassesTestCase):
    """6 pCPUs of 100 CU: what is left is for the weigher alone."""

    def setUp(self):
        super().setUp()
        self.files.calibrate({'0-5': 1.0})

    def stats(self):
        # Stock Nova's part needs guests that are more real.
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        return self.driver.get_available_resource(driver_case.NODE)['stats']

    def test_stats_have_the_room_left(self):
        self.assertEqual('600', self.stats()['vqos_room_cu'])
        self.has(90)
        self.flags(reserved_cu=60, group='vqos')
        stats = self.stats()
        self.assertEqual(('450', ''), (stats['vqos_room_cu'],
                                       stats['vqos_classes']))

    def test_unknown_room_refuses_no_server(self):
        def fail(host, only_running=True):
            raise ZeroDivisionError('by our bug')

        self.stub_out('nova.virt.libvirt.host.Host.list_guests', fail)
        stats = self.stats()
        self.assertEqual(('valid', ''), (stats['vqos_profile'],
                                         stats['vqos_room_cu']))
        self.files.calibrate({'0-1': 2.0, '2-5': 0.8})
        self.assertIn('by our bug', self.stats()['vqos_profile'])


class ReturningTestCase(ClassesTestCase):
    """A guest that is made anew, by Nova's own way to it."""

    def setUp(self):
        super().setUp()
        self.existing = None
        self.stub_out('nova.virt.libvirt.host.Host.get_guest', self._get)

    def _get(self, host, instance):
        if self.existing is None:
            raise exception.InstanceNotFound(instance_id=instance.uuid)
        return self.existing

    def make(self, units, task_state=task_states.POWERING_ON, pcpus=None):
        """The guest of a server that was on these pCPUs."""
        instance = self.make_instance(
            {policy.UNITS_KEY: str(units)}, task_state=task_state,
            vm_state=vm_states.ACTIVE)
        if pcpus is not None:
            self.existing = FakeGuest(instance.uuid, units, pcpus)
            self.stub_driver('_get_existing_guest_config',
                             lambda this, instance: 'old')
            self.assertEqual(
                'old', self.driver._get_existing_guest_config(instance))
        guest = self.make_guest(instance)
        self.assertEqual({}, self.driver._vqos_core_types._last)
        return guest

    def test_it_stays_in_its_class(self):
        for pcpus, tunables in (('0-1', ON_FAST), ('2-5', ON_SLOW)):
            guest = self.make(60, pcpus=pcpus)
            self.assertEqual(domain_xml.parse_cpuset(pcpus), guest.cpuset)
            self.assertEqual(tunables, self.tunables(guest))

    def test_of_all_its_domain_is_the_only_one_that_does_not_count(self):
        self.has(320, '2-5', driver_case.UUID)
        self.assertEqual(SLOW, self.make(60, pcpus='2-5').cpuset)

    def test_one_that_had_none_gets_one(self):
        for pcpus in ('0-5', '', None):
            self.assertEqual(SLOW, self.make(60, pcpus=pcpus).cpuset)

    def test_another_where_its_own_is_too_slow_by_now(self):
        guest = self.make(90, pcpus='2-5')
        self.assertEqual(FAST, guest.cpuset)

    def test_its_room_is_its_own_while_it_has_no_domain(self):
        instance = self.make_instance({policy.UNITS_KEY: '300'})
        self.existing = FakeGuest(instance.uuid, 300, '2-5')
        self.stub_driver('_get_existing_guest_config',
                         lambda this, instance: 'old')
        self.driver._get_existing_guest_config(instance)
        # It is undone, and another server asks.
        self.assertEqual(FAST, self.tune(60, uuid=OTHER).cpuset)
        # But not for ever: it may never come back.
        self.stub_out('time.monotonic', lambda: float('inf'))
        self.assertEqual(SLOW, self.tune(60, uuid=OTHER).cpuset)

    def test_it_is_never_refused(self):
        self.has(400, '0-1')
        self.has(320, '2-5', driver_case.UUID.replace('cafe', 'cafd'))
        self.assert_runs(FAST, ON_FAST, self.make(60, pcpus='0-1'))
        # As before there were classes: on all, by the slowest.
        self.assert_runs(None, ON_SLOW, self.make(60, pcpus='0-5'))
        self.assertIn('runs on all core types', self.stdlog.logger.output)
        self.assertIn('0 CU left', self.stdlog.logger.output)

    def test_a_stale_profile_is_good_enough(self):
        self.files.calibrate({'0-1': 2.0, '2-5': 0.8},
                             fingerprint={'kernel': 'old'})
        self.assertEqual(FAST, self.make(60, pcpus='0-1').cpuset)

    def test_without_a_profile(self):
        self.lose_profile()
        self.assert_runs(None, (None, None, 614), self.make(60, pcpus='0-1'))

    def test_a_domain_that_is_gone(self):
        self.existing = None
        self.assertIsNone(self.driver._get_existing_guest_config(
            self.make_instance({policy.UNITS_KEY: '60'})))


class LiveMigrationTestCase(ClassesTestCase):

    def setUp(self):
        super().setUp()
        self.fails = False
        self.stub_driver('check_can_live_migrate_destination', self._check)

    def _check(self, driver, *args):
        if self.fails:
            raise exception.MigrationPreCheckError(reason='by Nova')
        return objects.LibvirtLiveMigrateData(
            filename='tmp1', dst_cpu_shared_set_info={7, 8})

    def check(self, units, **changes):
        return self.driver.check_can_live_migrate_destination(
            self.context, self.make_instance(
                {policy.UNITS_KEY: str(units)} if units else {}, **changes),
            {}, {}).dst_cpu_shared_set_info

    def test_the_source_gets_the_class(self):
        self.assertEqual(SLOW, self.check(60))
        self.assertEqual(FAST, self.check(120))
        # Who comes next finds its room taken.
        self.assertEqual('80:320:0.64 200:280:1.6',
                         self.driver.get_available_resource(
                             driver_case.NODE)['stats']['vqos_classes'])

    def test_no_class_fits(self):
        self.has(301, '0-1')
        error = self.assertRaises(exception.MigrationPreCheckError,
                                  self.check, 100)
        self.assertIn('99 CU left', str(error))

    def test_what_stock_nova_set_stays_otherwise(self):
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        self.assertEqual({7, 8}, self.check(60, numa_topology=topology))
        self.assertEqual({7, 8}, self.check(None))
        self.files.calibrate({'0-5': 2.0})
        self.assertEqual({7, 8}, self.check(60))

    def test_a_refusal_of_novas_own_gives_the_room_up(self):
        self.fails = True
        self.assertRaises(exception.MigrationPreCheckError, self.check, 60)
        self.assertEqual({}, self.driver._vqos_core_types._chosen)

    def test_a_refusal_of_the_source_gives_the_room_up(self):
        self.stub_driver('cleanup_live_migration_destination_check',
                         lambda *args: None)
        data = objects.LibvirtLiveMigrateData(filename='tmp1')
        for agrees, room in ((False, '80:320:0.64 200:400:1.6'),
                             (True, '80:260:0.64 200:400:1.6')):
            self.check(60)
            if agrees:
                self.assertIs(data, (
                    self.driver.check_source_migrate_data_at_dest(
                        self.context, self.make_instance(), data, None, None,
                        {})))
            for _again in range(2):
                self.driver.cleanup_live_migration_destination_check(
                    self.context, data)
            self.assertEqual(room, self.driver.get_available_resource(
                driver_case.NODE)['stats']['vqos_classes'])

    def claim(self, units, pins):
        """The pins after Nova has claimed cells."""
        self.stub_driver(
            'post_claim_migrate_data', lambda driver, context, instance, data,
            claim: data)
        info = objects.LibvirtLiveMigrateNUMAInfo()
        if pins is not None:
            info.cpu_pins = pins
        data = objects.LibvirtLiveMigrateData(dst_numa_info=info)
        topology = objects.InstanceNUMATopology(cells=[
            objects.InstanceNUMACell(id=0, cpuset={0}, pcpuset=set(),
                                     memory=512)])
        found = self.driver.post_claim_migrate_data(
            self.context, self.make_instance(
                {policy.UNITS_KEY: str(units)} if units else {},
                vcpus=2, numa_topology=topology),
            data, None).dst_numa_info
        return found.cpu_pins if 'cpu_pins' in found else None

    def test_pins_at_the_destination(self):
        everywhere = set(range(6))
        self.assertEqual({'0': SLOW, '1': {3}}, self.claim(
            60, {'0': everywhere, '1': {0, 3}}))
        both = {'0': {0}, '1': {2}}
        self.assertRaises(exception.MigrationPreCheckError, self.claim, 60,
                          both)
        self.assertEqual(both, self.claim(None, both))
        self.assertIsNone(self.claim(60, None))
        self.files.calibrate({'0-5': 1.0})
        self.assertEqual(both, self.claim(60, both))

    def test_nothing_else_is_ever_raised(self):
        with fixtures.MonkeyPatch('nova.virt.libvirt.host.Host.list_guests',
                                  lambda *args, **kwargs: 1 / 0):
            error = self.assertRaises(exception.MigrationPreCheckError,
                                      self.check, 60)
        self.assertIn('division by zero', str(error))
