# SPDX-License-Identifier: Apache-2.0
"""Servers with units of a kind of work, and what they take of a host."""

from fractions import Fraction

import fixtures
import hypothesis
from hypothesis import strategies as st
from nova.compute import provider_tree

from nova import exception
from nova import objects
from nova_vqos import compute_state
from nova_vqos import cputune
from nova_vqos import domain_xml
from nova_vqos import policy
from nova_vqos import units
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import driver
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.unit.virt import test_driver_core_types
from nova_vqos.virt import admission
from nova_vqos.virt import host_state

FIRST = '6f70656e-0000-4000-8000-000000000001'
SECOND = '6f70656e-0000-4000-8000-000000000002'
# 100 CU by both together.
KINDS = {'integer': 2.0, 'hash': 0.5}
FAST = {policy.WORK_KEY: 'integer'}
SLOW = {policy.WORK_KEY: 'hash'}


class WorkTestCase(test_driver_core_types.ClassesTestCase):
    """A host of two pCPUs of 100 CU, with a fast and a slow kind of work."""

    def setUp(self):
        super().setUp()
        self.stub_driver('update_provider_tree', lambda *args: None)
        self.tree = provider_tree.ProviderTree()
        self.tree.new_root(driver.NODE, FIRST)
        self.stub_driver('_get_vcpu_available', lambda this: {0, 1})
        self.files.calibrate({'0-1': KINDS})

    def reserved(self):
        """What Placement gets to know."""
        self.driver.update_provider_tree(self.tree, driver.NODE)
        return self.tree.data(driver.NODE).inventory[
            policy.RESOURCE_CLASS]['reserved']

    def guarantee(self):
        self.stub_out(
            'nova_vqos.profile.fingerprint.of_host', lambda emulator=None: {
                **host_files.FINGERPRINT, 'online_pcpus': '0-1'})
        self.files.agent_lives(guarantee_pcpus=1.0, guarantee_total_pcpus=1.9)

    def assert_cannot(self, units_cu, specs, *texts, uuid=driver.UUID):
        error = self.assertRaises(exception.ComputeResourcesUnavailable,
                                  self.tune, units_cu, specs=specs, uuid=uuid)
        for text in texts:
            self.assertIn(text, str(error))


class ArrivingTestCase(WorkTestCase):

    def test_the_cap_is_that_of_the_kind(self):
        for specs, tunables in (
                ({}, (20_000, 50_000, 410)),
                (FAST, (10_000, 50_000, 205)),
                (SLOW, (40_000, 50_000, 819)),
                ({policy.WORK_KEY: 'hash:1,integer:1'},
                 (20_000, 50_000, 410))):
            self.assertEqual(
                tunables, self.tunables(self.tune(40, specs=specs)), specs)

    def test_too_fast_for_the_kind(self):
        self.tune(50, specs=SLOW)
        self.assert_cannot(51, SLOW, '51 CU', '50 CU', 'hash')
        # Faster than the mean of all kinds.
        self.tune(150, specs=FAST)

    def test_a_kind_that_was_not_measured(self):
        self.assert_cannot(1, {policy.WORK_KEY: 'hash:1,gpu:1'}, "'gpu'",
                           'hash, integer')
        self.assertEqual({}, self.driver._vqos_core_types._chosen)

    def test_a_kind_of_which_too_little_is_known(self):
        """As of the mean: it would be no promise."""
        def widen(profile):
            (one,) = profile.cpu_classes
            scores = tuple(
                score._replace(interval_high=score.interval_high * 1.2)
                if score.benchmark == 'hash' else score
                for score in one.busy.scores)
            return profile._replace(cpu_classes=(one._replace(
                busy=one.busy._replace(scores=scores)),))

        known = host_state._load
        self.stub_out('nova_vqos.virt.host_state._load',
                      lambda path: widen(known(path)))
        self.has(30, specs=SLOW)
        for specs in SLOW, {policy.WORK_KEY: 'integer:1,hash:1'}:
            self.assert_cannot(10, specs, "'hash'", 'profile_max_interval')
        self.tune(10, specs=FAST)
        # What its servers take is counted all the same.
        self.assertEqual(30, self.reserved())
        self.assertEqual(
            '100=integer:200', compute_state.load(
                self.files.compute_state_path).stats['vqos_work'])
        self.flags(profile_max_interval=0.5, group='vqos')
        self.driver = type(self.driver)(self.driver.virtapi, False)
        self.tune(10, specs=SLOW)

    def test_it_takes_more_than_its_units(self):
        """50 CU of hash are a whole pCPU."""
        self.has(50, specs=SLOW)
        self.assert_cannot(101, {}, '100 of the 200 CU', '101 CU more')
        self.assert_cannot(51, SLOW)
        self.tune(100, uuid=FIRST)
        self.assert_cannot(1, {}, '200 of the 200 CU')

    def test_it_takes_more_than_is_left(self):
        self.has(101)
        self.assert_cannot(50, SLOW, '101 of the 200 CU', '100 CU more')
        self.tune(49, specs=SLOW)

    def test_what_a_fast_kind_leaves_is_not_sold(self):
        self.has(100, specs=FAST)
        self.assert_cannot(101, {}, '100 of the 200 CU')

    def test_one_whose_work_is_no_longer_measured(self):
        """Its cap is unknown: it counts as a whole pCPU."""
        self.has(10, specs={policy.WORK_KEY: 'gpu'})
        self.assert_cannot(101, {}, '100 of the 200 CU')

    def test_two_before_their_domains_are_there(self):
        self.tune(50, uuid=FIRST, specs=SLOW)
        self.tune(50, uuid=SECOND, specs=SLOW)
        self.assert_cannot(1, {}, '200 of the 200 CU')

    def test_vcpus_that_have_to_pack(self):
        self.flags(packing='exact', group='vqos')
        self.has(30, specs=SLOW)
        self.has(30, specs=SLOW, uuid=FIRST)
        # 60 CU of each pCPU are taken.
        self.assert_cannot(41, {}, 'of at most 40 CU')
        self.assert_cannot(21, SLOW)
        self.tune(20, specs=SLOW)

    def test_a_guarantee_needs_the_time(self):
        self.guarantee()
        required = {policy.GUARANTEE_KEY: 'required'}
        self.tune(60, specs=required)
        self.tune(40, specs={**required, **SLOW}, uuid=FIRST)
        self.assert_cannot(46, {**required, **SLOW}, '92%')


class UnlikeTestCase(WorkTestCase):
    """One core type is fast in each kind."""

    def setUp(self):
        super().setUp()
        self.stub_driver('_get_vcpu_available', lambda this: set(range(4)))
        self.files.calibrate({'0-1': {'integer': 2.0, 'hash': 0.5},
                              '2-3': {'integer': 0.8, 'hash': 1.8}})

    def test_the_one_that_is_fast_enough_for_the_kind(self):
        self.assertEqual({2, 3}, self.tune(100, specs=SLOW).cpuset)
        self.assertEqual({0, 1}, self.tune(100, specs=FAST,
                                           uuid=FIRST).cpuset)
        self.assert_cannot(181, SLOW, 'vqos:work hash')

    def test_room_is_counted_by_the_kind(self):
        self.has(50, '0-1', specs=SLOW)
        self.has(240, '2-3', uuid=FIRST)
        self.assert_cannot(101, {})
        self.assertEqual({0, 1}, self.tune(100, vcpus=2).cpuset)


class ReportTestCase(WorkTestCase):

    def state(self):
        return compute_state.load(self.files.compute_state_path)

    def test_what_units_do_not_cover_is_reserved(self):
        self.flags(reserved_cu=10, group='vqos')
        self.has(30, specs=SLOW)
        self.has(30, specs=FAST, uuid=FIRST)
        self.assertEqual(40, self.reserved())
        self.assertEqual(30, self.state().work_cu)
        # The driver's own sum has what they take, against all that it sells.
        self.tune(100, uuid=SECOND)
        self.assert_cannot(101, {}, '90 of the 190 CU')

    def test_with_a_ratio(self):
        """Placement multiplies what is left."""
        self.has(30, specs=SLOW)
        for ratio, reserved_cu in (1.5, 20), (0.8, 38), (16.0, 2):
            self.flags(allocation_ratio=ratio, group='vqos')
            self.assertEqual(reserved_cu, self.reserved())

    def test_it_does_not_grow_while_the_agent_is_silent(self):
        self.guarantee()
        self.has(30, specs=SLOW)
        self.assertEqual(40, self.reserved())
        self.files.agent_lives()
        self.assertEqual([40] * 3, [self.reserved() for _ in range(3)])

    def test_it_counts_once_while_the_agent_is_silent(self):
        """Also after a restart: the last report says what it was."""
        self.guarantee()
        self.has(30, specs=SLOW)
        self.assertEqual(40, self.reserved())
        self.files.agent_lives()
        for _ in range(2):
            self.assertEqual(40, self.reserved())
            self.assert_cannot(131, {}, '60 of the 190 CU', uuid=FIRST)
            self.tune(100, uuid=FIRST)
            self.driver = type(self.driver)(self.driver.virtapi, False)
        self.guests.clear()
        self.assertEqual(10, self.reserved())
        self.has(50, specs=SLOW)
        self.assertEqual(60, self.reserved())

    def test_domains_are_read_once_for_a_report(self):
        self.has(30, specs=SLOW)
        self.reserved()
        self.only_running.clear()
        self.reserved()
        self.assertEqual([False], self.only_running)

    def test_speeds_of_kinds_are_in_the_stats(self):
        self.reserved()
        self.assertEqual('100=hash:50,integer:200',
                         self.state().stats['vqos_work'])


class LiveMigrationTestCase(WorkTestCase):

    def test_the_pre_check_counts_what_it_takes(self):
        self.stub_driver(
            'check_can_live_migrate_destination',
            lambda *args: objects.LibvirtLiveMigrateData(filename='tmp1'))
        self.has(101)

        def check(cu):
            self.driver.check_can_live_migrate_destination(
                self.context, self.make_instance(
                    {policy.UNITS_KEY: str(cu), **SLOW}), {}, {})

        error = self.assertRaises(exception.MigrationPreCheckError, check, 50)
        self.assertIn('101 of the 200 CU', str(error))
        check(49)


class MoveTestCase(WorkTestCase):
    """Servers of two vCPUs."""

    def claim(self, cu, specs=SLOW, **options):
        """A move that Nova has just claimed here, and our decision on it."""
        move = self.claim_move({policy.UNITS_KEY: str(cu), **specs},
                               **options)
        self.reserved()
        return move, self.decisions()[move.instance_uuid]

    def decisions(self):
        return compute_state.load(self.files.compute_state_path).moves

    def has(self, units, **options):
        super().has(units, vcpus=2, **options)

    def tune(self, units, **options):
        return super().tune(units, 2, **options)


class ColdMoveTestCase(MoveTestCase):
    """Between Nova's claim on the destination and the server's arrival."""

    def test_what_it_takes_beyond_its_claim_is_reserved(self):
        move, refusal = self.claim(30)
        self.assertEqual('', refusal)
        for status in 'pre-migrating', 'migrating', 'post-migrating':
            move.status = status
            self.assertEqual(30, self.reserved(), status)
        # It counts once when it is here.
        self.has(30, specs=SLOW, uuid=driver.UUID)
        self.assertEqual(30, self.reserved())
        move.status = 'finished'
        self.assertEqual(30, self.reserved())

    def test_the_agent_learns_where_it_comes_from(self):
        def sources():
            return compute_state.load(self.files.compute_state_path).sources
        move, _refusal = self.claim(30)
        self.assertEqual({move.instance_uuid: 'there'}, sources())
        move.status = 'finished'
        self.reserved()
        self.assertEqual({move.instance_uuid: 'there'}, sources())
        # A resize on this host.
        self.claim(30, uuid=FIRST, source=driver.NODE)
        self.assertNotIn(FIRST, sources())

    def test_nothing_else_gets_its_room(self):
        self.claim(30)
        self.assert_cannot(141, {}, '60 of the 200 CU', uuid=FIRST)
        self.tune(140, uuid=FIRST)

    def test_of_two_at_once_the_second_is_refused(self):
        self.assertEqual('', self.claim(60)[1])
        _move, refusal = self.claim(41, uuid=FIRST)
        self.assertIn('82 CU more do not fit', refusal)
        # The first one stays accepted, and nothing is held for the second.
        self.assertEqual('', self.decisions()[driver.UUID])
        self.assertEqual('', self.claim(40, uuid=SECOND)[1])

    def test_one_that_failed_holds_nothing(self):
        move, _refusal = self.claim(100)
        move.status = 'error'
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        self.stub_out('nova_vqos.virt.core_type_tracker.time.monotonic',
                      lambda: 1e9)
        self.driver.get_available_resource(driver.NODE)
        self.assertEqual(0, self.reserved())
        self.assertEqual({}, self.decisions())
        self.assertEqual('', self.claim(100, uuid=FIRST)[1])

    def test_one_whose_source_was_killed(self):
        """Nova leaves its migration open for ever."""
        move, _refusal = self.claim(60)
        move.status = 'migrating'
        self.moving[driver.UUID].task_state = None
        self.stub_driver('get_available_resource',
                         lambda this, nodename: {'stats': {}})
        self.stub_out('nova_vqos.virt.core_type_tracker.time.monotonic',
                      lambda: 1e9)
        self.driver.get_available_resource(driver.NODE)
        self.assertEqual(0, self.reserved())
        self.assertEqual({}, self.decisions())
        # And later on it moves again.
        again, refusal = self.claim(60)
        self.assertEqual('', refusal)
        self.assertEqual(60, self.reserved())

    def test_a_restart_of_nova_compute(self):
        self.claim(60)
        for status in 'migrating', 'post-migrating':
            self.migrations[0].status = status
            self.driver = type(self.driver)(self.driver.virtapi, False)
            self.assertEqual(60, self.reserved())
            self.assertEqual({driver.UUID: ''}, self.decisions())
            self.assert_cannot(81, {}, '120 of the 200 CU', uuid=FIRST)

    def test_one_that_comes_though_it_was_refused(self):
        """Its source could not ask: it is off, and has no other host."""
        self.has(150)
        move, refusal = self.claim(30)
        self.assertIn('60 CU more', refusal)
        self.assertEqual(0, self.reserved())
        move.status = 'post-migrating'
        self.assertEqual(30, self.reserved())
        self.assert_cannot(2, {}, '210 of the 200 CU', uuid=FIRST)

    def test_a_migration_of_another_kind(self):
        move, _refusal = self.claim(30)
        self.driver._vqos_core_types.forget_choice(driver.UUID)
        move.migration_type = 'live-migration'
        self.assertEqual(0, self.reserved())
        self.assertEqual({}, self.decisions())

    def test_what_else_the_host_lacks(self):
        for specs, text in (
                ({policy.WORK_KEY: 'gpu'}, "'gpu'"),
                ({policy.QUANTUM_CLASS_KEY: 'cache'}, 'cache'),
                ({policy.WORK_KEY: 'hash:0'}, 'weights above 0')):
            self.assertIn(text, self.claim(10, specs)[1])
            self.migrations[-1].status = 'error'

    def test_without_the_database_what_was_accepted_stays(self):
        self.claim(30)
        for name in ('MigrationList.get_by_filters',
                     'Instance.get_by_uuid'):
            with fixtures.MonkeyPatch(f'nova.objects.{name}',
                                      lambda *args, **options: 1 / 0):
                self.assertEqual(30, self.reserved())
                self.assertEqual({driver.UUID: ''}, self.decisions())

    def test_one_that_was_deleted_on_its_way(self):
        def gone(*args, **options):
            raise exception.InstanceNotFound(instance_id=driver.UUID)
        self.claim(30)
        self.stub_out('nova.objects.Instance.get_by_uuid', gone)
        self.reserved()
        self.assertEqual({}, self.decisions())


class ResizeTestCase(MoveTestCase):
    """On the same host."""

    def setUp(self):
        super().setUp()
        self.off = []
        self.stub_driver('migrate_disk_and_power_off',
                         lambda *args: self.off.append(True))
        self.stub_out('nova.objects.Migration.get_by_id',
                      lambda *args: self.migrations[args[-1] - 1])

    def resize(self, cu, old_cu=10, old=None, **specs):
        move, _refusal = self.claim(
            cu, specs, source=driver.NODE,
            old_specs={policy.UNITS_KEY: str(old_cu), **(old or {})})
        try:
            self.driver.migrate_disk_and_power_off(
                self.context, self.moving[driver.UUID], 'here',
                self.moving[driver.UUID].new_flavor, None)
        except exception.InstanceFaultRollback:
            move.status = 'error'
            raise
        return move

    def finish(self, move):
        """As Nova's ComputeManager._finish_resize."""
        move.status = 'finished'
        instance = self.moving[driver.UUID]
        instance.task_state = None
        instance.old_flavor = instance.flavor
        instance.flavor = instance.new_flavor
        self.driver._vqos_core_types.forget_choice(driver.UUID)

    def test_it_is_refused_before_it_is_off(self):
        self.has(91, uuid=FIRST)
        self.has(10, uuid=driver.UUID)
        error = self.assertRaises(exception.InstanceFaultRollback,
                                  self.resize, 50, **SLOW)
        self.assertIn('100 CU more do not fit', str(error.inner_exception))
        self.assertEqual([], self.off)
        self.resize(49, **SLOW)
        self.assertEqual([True], self.off)

    def test_what_others_take_counts_without_work_too(self):
        """Placement did not know that when it counted the claim."""
        self.flags(reserved_cu=10, group='vqos')
        self.has(50, uuid=FIRST, specs=SLOW)
        self.has(10, uuid=driver.UUID)
        self.assertEqual(60, self.reserved())
        self.assertRaises(exception.InstanceFaultRollback, self.resize, 81)
        self.assertEqual([], self.off)
        self.resize(80)
        self.assertEqual([True], self.off)

    def test_what_it_reverts_to_is_held(self):
        """Until it is confirmed: Placement keeps its units, not the rest."""
        self.has(30, uuid=driver.UUID, specs=SLOW)
        self.assertEqual(30, self.reserved())
        move = self.resize(20, 30, SLOW, **FAST)
        self.assertEqual(30, self.reserved())
        self.guests.clear()
        self.has(20, uuid=driver.UUID, specs=FAST)
        self.finish(move)
        for _ in range(2):
            self.assertEqual(30, self.reserved())
            self.assert_cannot(121, {}, '80 of the 200 CU', uuid=FIRST)
            # Nova's database has it, whatever becomes of nova-compute.
            self.driver = type(self.driver)(self.driver.virtapi, False)
        move.status = 'confirmed'
        self.assertEqual(0, self.reserved())
        self.tune(180, uuid=FIRST)

    def test_it_counts_once_when_it_is_back(self):
        self.has(20, uuid=driver.UUID, specs=FAST)
        move = self.resize(20, 30, SLOW, **FAST)
        self.finish(move)
        self.assertEqual(30, self.reserved())
        # The domain comes before Nova says so.
        self.guests.clear()
        self.has(30, uuid=driver.UUID, specs=SLOW)
        self.assertEqual(30, self.reserved())
        move.status = 'reverted'
        self.assertEqual(30, self.reserved())

    def test_what_it_becomes_and_what_it_was(self):
        """Both claims count, and so does what both take beyond them."""
        self.has(30, uuid=driver.UUID, specs=SLOW)
        self.assertRaises(exception.InstanceFaultRollback, self.resize, 71,
                          30, SLOW, **SLOW)
        self.resize(70, 30, SLOW, **SLOW)
        self.assertEqual(100, self.reserved())


class AnySequenceTestCase(WorkTestCase):

    @hypothesis.settings(max_examples=60, deadline=None)
    @hypothesis.given(
        st.lists(st.fixed_dictionaries(dict.fromkeys(
            KINDS, st.floats(0.1, 9.0))), min_size=1, max_size=2),
        st.lists(st.tuples(
            st.integers(1, 300), st.integers(1, 3), st.sampled_from(
                ('', 'integer', 'hash', 'integer:1,hash:3')),
            st.booleans()), max_size=10),
        st.sampled_from(('sum', 'exact')), st.integers(0, 100))
    def test_caps_never_exceed_the_host(self, classes, servers, packing,
                                        reserved_cu):
        """Whatever comes, goes and asks: the driver's own way to a cap."""
        self.flags(packing=packing, reserved_cu=reserved_cu, group='vqos')
        self.stub_driver('_get_vcpu_available',
                         lambda this: set(range(2 * len(classes))))
        self.files.calibrate({f'{2 * number}-{2 * number + 1}': kinds
                              for number, kinds in enumerate(classes)})
        self.start_compute()
        self.guests.clear()
        profile = document.load(self.files.profile_path)
        report = self.driver._vqos_report()
        for number, (cu, vcpus, work, leaves) in enumerate(servers):
            if leaves and self.guests:
                self.guests.pop(0)
            uuid = FIRST[:-2] + f'{number:02}'
            specs = {policy.WORK_KEY: work} if work else {}
            try:
                guest = self.tune(max(cu, vcpus), vcpus, uuid=uuid,
                                  specs=specs)
            except exception.ComputeResourcesUnavailable:
                continue
            self.driver._vqos_core_types.forget_choice(uuid)
            self.has(max(cu, vcpus), ','.join(map(str, guest.cpuset or ())),
                     uuid, vcpus, specs)
        used = dict.fromkeys((one.pcpus for one in report.all_core_types),
                             Fraction(0))
        for guest in self.guests:
            domain = domain_xml.read(guest.get_xml_desc())
            flavor = policy.parse(domain.extra_specs, domain.vcpus)
            pcpus = domain.pcpus or report.pcpus
            used[pcpus] += flavor.vcpus * units.share(
                flavor.units, flavor.vcpus,
                profile.slowest(pcpus, flavor.mix))
        taken_cu = sum(time * units.pcpu_cu(profile.slowest(pcpus))
                       for pcpus, time in used.items())
        self.assertLessEqual(taken_cu, report.capacity_cu - min(
            reserved_cu, report.capacity_cu))
        for pcpus, time in used.items():
            self.assertLessEqual(time, len(pcpus))


class ReturningTestCase(WorkTestCase):

    def test_it_keeps_its_cap_where_its_work_is_unknown(self):
        guest = self.tune(40, specs=SLOW)
        report = self.driver._vqos_report()
        former = admission.Former(units.CpuCap(40_000, 50_000), 819, None)
        found = admission.readmit(
            admission.Candidate(guest.uuid, policy.ServerPolicy(
                1, 40, work='gpu'), report.pcpus, False), report,
            self.driver._vqos_core_types, periods=cputune.DEFAULT_PERIODS,
            former=former)
        self.assertEqual((former.cap, 410), found.tune[:2])
