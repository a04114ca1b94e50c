# SPDX-License-Identifier: Apache-2.0
"""The agent's loop, and the slices and pools of its servers."""

from fractions import Fraction
import uuid as uuids

import pytest

from nova_vqos import policy_override
from nova_vqos import policy_push
from nova_vqos.agent.overrides import store
from nova_vqos.agent.quantum import enforcer
from nova_vqos.agent.quantum import watcher
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.quantum import model
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import quantum_world

UUID = fakes.UUID
OTHER_UUID = fakes.OTHER_UUID
THIRD_UUID = '33333333-2222-4333-8444-555555555555'
CACHE_US = quantum_world.CACHE_US
IO_US = quantum_world.IO_US


@pytest.fixture
def world(tmp_path, monkeypatch):
    return quantum_world.QuantumWorld(tmp_path, monkeypatch)


class TestSlices:
    @pytest.mark.parametrize('quantum_class, slice_us', [
        ('cache', CACHE_US), ('default', None),
        # It gets pCPUs, and no slice.
        ('spin', None),
        # The kernel does not enforce it.
        ('io', None)])
    def test_by_class(self, world, quantum_class, slice_us):
        world.run(quantum_class=quantum_class)
        assert world.host.slices[UUID] == {0: slice_us, -1: slice_us}
        assert world.state()['classes'] == [
            'default', 'neutral', 'spin', 'cache', 'auto']

    @pytest.mark.parametrize('options', [
        {'specs': None}, {'specs': {}},
        # Not before its guest runs here.
        {'specs': fakes.make_specs(quantum_class='cache'), 'incoming': True}])
    def test_servers_that_are_not_touched(self, world, options):
        world.host.boot(**options)
        world.start()
        world.tick(12)
        assert world.host.slices == {}

    def test_a_class_without_units(self, world):
        world.host.boot(specs={'vqos:quantum_class': 'cache'}, vcpus=1)
        world.start()
        assert world.slice_us() == CACHE_US
        assert world.host.written == []

    def test_changes_of_others_are_undone(self, world):
        world.run()
        world.host.slices[UUID][0] = 5000
        world.tick(6)
        assert world.slice_us() == CACHE_US

    @pytest.mark.parametrize('beside', [None, 'cache'])
    def test_without_a_class_it_is_looked_at_seldom(self, tmp_path,
                                                    monkeypatch, beside):
        """Also beside a server that has one."""
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           pool_interval_s=None)
        looks, readings = [], []
        set_slices, vcpu_runs = world.host.set_slices, world.host.vcpu_runs

        def note(uuid, *slices):
            looks.append(uuid)
            return set_slices(uuid, *slices)

        def note_all(asked):
            readings.extend(asked)
            return vcpu_runs(asked)
        monkeypatch.setattr(world.host, 'set_slices', note)
        monkeypatch.setattr(world.host, 'vcpu_runs', note_all)
        if beside:
            world.boot(OTHER_UUID, beside, run_id=2)
        world.run(quantum_class='default')
        world.tick(5)
        looks.clear()
        readings.clear()
        world.tick(1200)
        assert looks.count(UUID) == 2
        assert readings.count(UUID) == 20
        for done in looks, readings:
            assert done.count(OTHER_UUID) == (240 if beside else 0)

    def test_nothing_is_worked_out_again_before_something_changes(
            self, world, monkeypatch):
        planned = []
        plan_host = enforcer.host.plan_host

        def note(servers, *rest):
            planned.append([server.share for server in servers])
            return plan_host(servers, *rest)
        monkeypatch.setattr(enforcer.host, 'plan_host', note)
        world.run()
        world.tick(20)
        assert len(planned) == 1
        world.change(extra_specs=fakes.make_specs(
            '30', quantum_class='cache'))
        world.tick(20)
        assert [share for (share,) in planned] == [
            Fraction(40, 100), Fraction(30, 100)]
        assert world.slice_us() == CACHE_US

    def test_one_that_gets_a_class_has_it_at_once(self, world):
        world.run(quantum_class='default')
        world.tick(20)
        world.change(extra_specs=fakes.make_specs(
            '40', quantum_class='cache'))
        world.tick()
        assert world.slice_us() == CACHE_US

    def test_one_that_loses_it_is_looked_at_once_more(self, world):
        world.run()
        assert world.slice_us() == CACHE_US
        world.change(extra_specs=fakes.make_specs('40'))
        world.tick()
        assert world.slice_us() is None

    def test_what_a_vcpu_ran_between_two_looks(self, world):
        world.run(quantum_class='default')
        for runs, run_ns in ((10, 10**9), (30, 2 * 10**9), (30, 2 * 10**9)):
            world.host.ran[UUID] = {0: base.ThreadRun(run_ns, 5 * 10**8, runs)}
            world.tick(60)
            (slices,) = world.reported('quantum')
            if slices['vcpus']['0']['mean_run_us'] is not None:
                break
        assert slices['vcpus']['0']['mean_run_us'] == 50_000
        assert slices['vcpus']['0']['waited_s'] == 0.5
        # It is known until the next look.
        world.tick(5)
        assert world.reported('quantum') == (slices,)

    def test_a_new_run_gets_it_at_once(self, world):
        world.run()
        world.boot(run_id=2)
        world.host.slices.clear()
        world.tick(2)
        assert world.slice_us() == CACHE_US

    def test_a_vcpu_that_was_plugged_in_gets_it(self, world):
        world.run()
        world.host.plug_vcpu(1)
        world.tick(6)
        assert world.host.slices[UUID] == {
            0: CACHE_US, 1: CACHE_US, -1: CACHE_US}

    def test_a_probe_result_that_comes_later(self, world):
        world.probe_result_path.unlink()
        world.run()
        assert world.slice_us() is None
        assert world.state()['classes'] == [
            'default', 'neutral', 'spin', 'auto']
        world.enforce_classes('cache')
        world.tick(6)
        assert world.slice_us() == CACHE_US

    @pytest.mark.parametrize('quantum_class', ['io', 'auto'])
    def test_one_that_answers_requests_preempts_others(self, world,
                                                       quantum_class):
        """It shares pCPUs with them: the others' pool is beside it."""
        world.enforce_classes('io', 'cache')
        world.watcher.kinds |= {(UUID, 0): model.Kind.IO,
                                (UUID, 1): model.Kind.IO}
        world.boot(quantum_class=quantum_class, vcpus=2)
        world.run(OTHER_UUID, 'cache', run_id=2, vcpus=2)
        assert world.host.slices[UUID] == {0: IO_US, 1: IO_US, -1: IO_US}
        assert world.slice_us(OTHER_UUID) == CACHE_US
        world.host.slices[UUID][0] = 5000
        world.tick(6)
        assert world.slice_us() == IO_US

    @pytest.mark.parametrize('quantum_class', ['io', 'auto'])
    def test_one_that_works_for_too_long_at_a_time(self, world, quantum_class):
        """A slice that is shorter than its work would make it slower."""
        def work(*work_us):
            for number, one_us in enumerate(work_us):
                run = world.host.ran[UUID][number]
                world.host.ran[UUID][number] = run._replace(
                    run_ns=run.run_ns + 1000 * one_us * 1000)
                world.host.slept[UUID][number] += 1000
        world.enforce_classes('io')
        world.watcher.kinds |= {(UUID, 0): model.Kind.IO,
                                (UUID, 1): model.Kind.IO}
        world.host.ran[UUID] = dict.fromkeys((0, 1), base.ThreadRun(0, 0, 0))
        world.host.slept[UUID] = dict.fromkeys((0, 1), 0)
        world.run(quantum_class=quantum_class, vcpus=2)
        work(quantum_world.IO_WORK_US, 2 * quantum_world.IO_WORK_US)
        world.tick(12)
        assert world.host.slices[UUID] == {0: IO_US, 1: None, -1: IO_US}
        vcpus = world.report()['quantum']['vcpus']
        assert (vcpus['0']['awake_us'], vcpus['1']['awake_us']) == (800, 1600)
        assert vcpus['1']['kind'] == 'io'
        assert vcpus['1']['slice_us'] is None
        for _ in range(3):
            work(2 * quantum_world.IO_WORK_US, 2 * quantum_world.IO_WORK_US)
            world.tick(6)
        assert world.host.slices[UUID] == {0: None, 1: None, -1: None}
        # It is read once a minute then.
        for _ in range(3):
            work(300, 2 * quantum_world.IO_WORK_US)
            world.tick(66)
        assert world.host.slices[UUID] == {0: IO_US, 1: None, -1: IO_US}

    def test_whose_sleeps_are_not_known(self, world):
        world.enforce_classes('io')
        world.run(quantum_class='io')
        for ran_s in range(1, 20):
            world.host.ran[UUID] = {0: base.ThreadRun(ran_s * 10**9, 0, 0)}
            world.tick()
        assert world.slice_us() == IO_US
        assert 'awake_us' not in world.report()['quantum']['vcpus']['0']

    def test_of_other_kinds_nothing_is_remembered(self, world):
        def never_sleep(seconds):
            for _ in range(seconds):
                run = world.host.ran[UUID][0]
                world.host.ran[UUID] = {0: run._replace(
                    run_ns=run.run_ns + 10**9)}
                world.tick()
        world.enforce_classes('io')
        world.watcher.kinds[UUID, 0] = model.Kind.IO
        world.host.ran[UUID] = {0: base.ThreadRun(0, 0, 0)}
        world.host.slept[UUID] = {0: 0}
        world.run(quantum_class='auto')
        never_sleep(12)
        assert world.slice_us() is None
        world.watcher.kinds[UUID, 0] = model.Kind.NEUTRAL
        never_sleep(6)
        assert 'awake_us' not in world.report()['quantum']['vcpus']['0']
        world.watcher.kinds[UUID, 0] = model.Kind.IO
        world.tick(6)
        assert world.slice_us() == IO_US

    def test_no_other_kind_is_asked_for_its_sleeps(self, world, monkeypatch):
        asked = []
        monkeypatch.setattr(world.host, 'vcpu_sleeps',
                            lambda uuids: asked.extend(uuids) or {})
        world.enforce_classes('io', 'cache')
        world.boot(quantum_class='cache')
        world.run(OTHER_UUID, 'io', run_id=2)
        world.tick(12)
        assert set(asked) == {OTHER_UUID}

    def test_without_pools_no_server_has_pcpus_of_its_own(self, tmp_path,
                                                          monkeypatch):
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           pool_interval_s=None)
        world.run(quantum_class='spin')
        assert world.state()['classes'] == [
            'default', 'neutral', 'cache', 'auto']

    def test_one_of_its_vcpus_alone(self, world):
        world.enforce_classes('io')
        world.watcher.kinds |= {(UUID, 0): model.Kind.IO,
                                (UUID, 1): model.Kind.NEUTRAL}
        world.run(quantum_class='auto', vcpus=2)
        assert world.host.slices[UUID] == {0: IO_US, 1: None, -1: IO_US}


class TestFailures:
    def test_a_kernel_without_slices_is_logged_once(self, world, caplog):
        for uuid in (UUID, OTHER_UUID):
            world.boot(uuid)
            world.host.refuse_slices[uuid] = base.SlicesUnsupported(
                'it has none')
        world.start()
        world.tick(30)
        assert caplog.text.count('it has none') == 1
        assert any('it has none' in alarm
                   for alarm in world.host_report()['alarms'])

    def test_one_server_does_not_affect_others(self, world):
        world.boot()
        world.boot(OTHER_UUID)
        world.host.refuse_slices[UUID] = base.SlicesDenied('no right to')
        world.start()
        assert world.slice_us(OTHER_UUID) == CACHE_US
        assert world.report()['quantum']['problem'] == 'no right to'
        assert len(world.host_report()['alarms']) == 1
        del world.host.refuse_slices[UUID]
        world.tick(6)
        assert world.slice_us() == CACHE_US
        assert world.report()['quantum']['problem'] == ''
        assert world.host_report()['alarms'] == []

    def test_the_hypervisor_comes_back(self, world):
        world.run()
        world.host.up = False
        world.tick(7)
        world.host.slices.clear()
        world.host.up = True
        world.tick(20)
        assert world.slice_us() == CACHE_US

    def test_without_a_topology_slices_work(self, world, monkeypatch, caplog):
        def fail():
            raise base.HypervisorError('no /sys')
        world.boot()
        monkeypatch.setattr(world.host, 'topology', fail)
        world.start()
        world.tick(20)
        assert world.slice_us() == CACHE_US
        assert caplog.text.count('no /sys') == 1
        alarm, = world.host_report()['alarms']
        assert 'no /sys' in alarm
        monkeypatch.undo()
        world.tick(6)
        assert world.host_report()['alarms'] == []


class TestPools:
    def test_unlike_servers_are_separated(self, world):
        world.run_unlike()
        pins = world.host.pins
        assert pins[UUID][0].isdisjoint(pins[OTHER_UUID][0])
        assert world.state()['quantum'] == {
            'pools': {'cache': [1, 2], 'default': [1, 2]}}
        assert world.report()['quantum']['vcpus']['0']['pcpus'] in '01'

    def test_equal_servers_are_not_pinned(self, world):
        world.boot(vcpus=2)
        world.run(OTHER_UUID, run_id=2, vcpus=2)
        world.tick(60)
        assert world.host.pins == {}
        # There is room for others of their class.
        assert world.state()['quantum'] == {'pools': {'cache': [2, 4]}}

    def test_switched_off(self, tmp_path, monkeypatch):
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           pool_interval_s=None)
        world.run_unlike()
        assert world.host.pins == {}
        assert world.slice_us() == CACHE_US

    def test_the_last_server_may_run_anywhere_again(self, world):
        world.run_unlike()
        del world.host.runs[OTHER_UUID]
        world.tick(40)
        assert world.host.pins[UUID][0] == {0, 1}

    def test_pins_of_an_earlier_agent_are_widened(self, world):
        world.run(vcpus=2, pcpus=frozenset({1}), pinned=True)
        assert world.host.pins[UUID][0] == {0, 1}

    def test_affinity_changes_rarely(self, world):
        world.run_unlike()
        before = world.host_report()['quantum']['servers_placed']
        world.host.pins[UUID][0] = frozenset({0, 1})
        world.tick(20)
        assert world.host.pins[UUID][0] == {0, 1}
        world.tick(20)
        assert world.host.pins[UUID][0] != {0, 1}
        assert world.host_report()['quantum']['servers_placed'] == before + 1

    def test_a_server_that_others_pinned_gets_slices_alone(self, world):
        world.run_unlike(pcpus=frozenset({1}), pinned=True,
                         pinned_by_others=True)
        assert UUID not in world.host.pins
        assert world.slice_us() == CACHE_US
        assert 'pinned' in world.report()['quantum']['left_alone']

    @pytest.mark.parametrize('guarantees_speed', [True, False])
    def test_one_that_is_to_be_guaranteed_leaves_its_pool_at_once(
            self, tmp_path, monkeypatch, guarantees_speed):
        overrides = store.OverrideStore(str(tmp_path / 'pushed.json'))
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch, overrides,
                                           guarantees_speed)

        def push(generation, guarantee):
            overrides.merge(policy_push.of_overrides({
                'f1': policy_override.Override(generation, 'small', 2, 40,
                                               'cache', 'off', guarantee)}))
            world.ask(world.loop.follow_pushed)
        for uuid, quantum_class in ((UUID, 'cache'), (OTHER_UUID, 'default')):
            world.boot(uuid, quantum_class, vcpus=2, flavor=('large', 'f2'))
        world.run(THIRD_UUID, vcpus=2)
        assert len(world.host.pins[THIRD_UUID][0]) == 1
        push(1, 'preferred')
        world.tick(2)
        pins = world.host.pins[THIRD_UUID]
        if not guarantees_speed:
            assert len(pins[0]) == 1
            return
        assert pins == dict.fromkeys((0, 1), {0, 1})
        assert 'guaranteed' in world.report(THIRD_UUID)['quantum'][
            'left_alone']
        assert THIRD_UUID in world.host.reservations
        # It is in none as long as it has a reservation.
        push(2, 'off')
        world.tick(60)
        assert pins == dict.fromkeys((0, 1), {0, 1})

    def test_a_server_that_migrates_is_placed_after(self, world):
        real, busy = world.host.place, [True]

        def place(uuid, pcpus):
            if busy and uuid == UUID:
                raise base.DomainBusy('it migrates')
            return real(uuid, pcpus)
        world.host.place = place
        world.run_unlike()
        assert UUID not in world.host.pins
        assert world.report()['quantum']['problem'] == ''
        busy.clear()
        world.tick(6)
        assert UUID in world.host.pins

    def test_a_pcpu_that_went_offline(self, world):
        world.run_unlike()
        world.host.sockets = (model.Socket(0, ((1,),)),)
        world.tick(40)
        assert all(0 not in pcpus or pcpus == {0, 1}
                   for pins in world.host.pins.values()
                   for pcpus in pins.values())

    def test_a_cpuset_that_shrinks(self, world):
        world.run_unlike()
        for uuid in (UUID, OTHER_UUID):
            world.host.describe_as(uuid, cpuset=frozenset({1}), pinned=True)
        world.loop.refresh()
        world.tick(40)
        assert all(pcpus == {1} for pins in world.host.pins.values()
                   for pcpus in pins.values())

    def test_five_hundred_servers(self, world):
        pcpus = range(8)
        document.store(fakes.make_profile(pcpus=pcpus),
                       str(world.profile_path))
        world.host.sockets = (
            model.Socket(0, tuple((pcpu,) for pcpu in pcpus)),)
        servers = [str(uuids.UUID(int=number)) for number in range(500)]
        for number, server in enumerate(servers):
            world.boot(server, ('cache', 'default')[number % 2],
                       run_id=number + 1, units='1')
        world.start()
        world.tick(2)
        assert list(map(world.slice_us, servers)) == [CACHE_US, None] * 250
        pins = world.host.pins
        assert {pins[server][0] for server in servers[::2]}.isdisjoint(
            pins[server][0] for server in servers[1::2])
        before = world.host_report()['quantum']
        world.tick(60)
        after = world.host_report()['quantum']
        assert after['slices_written'] == before['slices_written']
        assert after['servers_placed'] == before['servers_placed']


def is_confined(world, uuid=UUID):
    """Whether a server may not run on both pCPUs."""
    return any(len(pcpus) < 2
               for pcpus in world.host.pins.get(uuid, {}).values())


class TestPreemptions:
    def test_of_servers_that_spin(self, world):
        world.boot(vcpus=2, quantum_class='spin')
        world.run(OTHER_UUID, 'cache', run_id=2)
        assert world.preempted.threads == set(
            world.host.vcpu_threads(UUID).values())
        slices = world.report()['quantum']
        assert 'sibling_preemptions_per_s' not in slices
        world.preempted.per_s = 1.5
        world.tick(6)
        assert world.report()['quantum']['sibling_preemptions_per_s'] == 1.5
        assert 'sibling_preemptions_per_s' not in world.report(OTHER_UUID)[
            'quantum']

    def test_it_is_closed_at_the_end(self, world):
        world.run()
        world.loop._quantum.close()
        assert world.preempted.threads is None
        assert world.watcher.observed is None


class TestAuto:
    def test_kinds_that_change_all_the_time_move_servers_rarely(self, world):
        world.run_unlike(quantum_class='auto')
        placed = world.host_report()['quantum']['servers_placed']
        for number in range(60):
            for vcpu in (0, 1):
                world.watcher.kinds[UUID, vcpu] = (
                    model.Kind.CACHE, model.Kind.IO)[number % 2]
            world.tick(1)
        # Two servers, a minute, and half a minute from one move to the next.
        assert world.host_report()['quantum']['servers_placed'] <= placed + 4

    def test_recognised_kinds_count(self, world):
        world.run(quantum_class='auto')
        assert world.slice_us() is None
        assert 'recognised_after_s' not in world.report()[
            'quantum']['vcpus']['0']
        world.watcher.kinds[UUID, 0] = model.Kind.CACHE
        world.watcher.after_s[UUID, 0] = 25.0
        world.tick(6)
        assert world.slice_us() == CACHE_US
        assert world.watcher.observed[-1] == {UUID: {0: 100}}
        vcpu = world.report()['quantum']['vcpus']['0']
        assert (vcpu['kind'], vcpu['recognised_after_s']) == ('cache', 25.0)
        assert world.report()['quantum']['recognised_class'] == 'cache'

    @pytest.mark.parametrize('sensitive, slice_us', [
        (True, None), (False, CACHE_US)])
    @pytest.mark.parametrize('kind', [
        model.Kind.CACHE, model.Kind.NEUTRAL, model.Kind.POLLUTER])
    def test_busy_ones_alone_are_in_pools_of_long_slices(
            self, world, kind, sensitive, slice_us):
        world.boot(vcpus=3, units='60')
        world.watcher.kinds[OTHER_UUID, 0] = kind
        if sensitive:
            world.watcher.sensitive.add((OTHER_UUID, 0))
        world.run(OTHER_UUID, 'auto', run_id=2)
        assert world.slice_us() == CACHE_US
        assert world.slice_us(OTHER_UUID) == slice_us
        vcpu = world.report(OTHER_UUID)['quantum']['vcpus']['0']
        assert vcpu['kind'] == kind.value

    @pytest.mark.parametrize('waits_ms', [0, 400])
    @pytest.mark.parametrize('quantum_class', ['default', 'auto'])
    def test_idle_ones_confine_nobody(self, world, quantum_class, waits_ms):
        """Those that are seen to want little, whatever their class."""
        world.boot(vcpus=2, units='60')
        world.run(OTHER_UUID, quantum_class, run_id=2, vcpus=2)
        assert is_confined(world)
        for second in range(150):
            for uuid, ran_ms in ((UUID, 500), (OTHER_UUID, 1)):
                world.host.ran[uuid] = dict.fromkeys((0, 1), base.ThreadRun(
                    second * ran_ms * 10**6, second * waits_ms * 10**6,
                    second))
            world.tick()
        assert is_confined(world) is bool(waits_ms)

    def test_idle_ones_confine_nobody_where_looks_are_rare(
            self, tmp_path, monkeypatch):
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           interval_s=600.0)
        world.run_unlike(units='60')
        assert is_confined(world)
        for minute in range(35):
            for uuid, ran_s in ((UUID, 30), (OTHER_UUID, 0)):
                world.host.ran[uuid] = dict.fromkeys((0, 1), base.ThreadRun(
                    minute * ran_s * 10**9, 0, minute))
            world.tick(60)
        assert not is_confined(world)

    def test_none_is_confined_to_fewer_pcpus_than_it_has_vcpus(self, world):
        """Where recognition may not see that they wait for each other."""
        world.watcher.kinds |= {(UUID, 0): model.Kind.CACHE,
                                (UUID, 1): model.Kind.CACHE}
        world.run_unlike(quantum_class='auto')
        assert not is_confined(world)
        assert world.slice_us() is None
        assert 'fewer pCPUs' in world.report()['quantum']['left_alone']

    def test_a_flavor_may_say_that_any_slice_suits(self, world):
        world.boot(vcpus=3, units='60')
        world.watcher.sensitive.add((OTHER_UUID, 0))
        world.run(OTHER_UUID, 'neutral', run_id=2)
        assert world.slice_us(OTHER_UUID) == CACHE_US

    def test_servers_of_other_classes_are_not_observed(self, world):
        world.run()
        assert world.watcher.observed[-1] == {}

    def test_a_source_that_is_unavailable(self, world, caplog):
        caplog.set_level('INFO')
        world.run(quantum_class='auto')
        world.tick(30)
        assert caplog.text.count('there is no PMU') == 1
        assert world.host_report()['quantum']['sources'] == {
            'cache': 'there is no PMU'}
        assert 'polluters' not in world.state()['quantum']
        world.watcher.sources['cache'] = ''
        caplog.clear()
        world.tick(30)
        assert caplog.text.count('source cache') == 1

    def test_polluters_are_counted(self, world):
        world.watcher.sources = {'cache': ''}
        world.watcher.kinds[UUID, 0] = model.Kind.POLLUTER
        world.run(quantum_class='auto')
        assert world.state()['quantum']['polluters'] == 1


class TestTrials:
    """Of servers of class auto that wait in their pools."""

    # Of 0.4 pCPUs: its cap.
    IN_POOL, WITHOUT = 0.2, 0.36

    @pytest.fixture
    def world(self, world):
        # Progress follows from where it is.
        observe = world.watcher.observe

        def look(servers, now_s):
            world.watcher.progress = {UUID: watcher.Progress(
                self.IN_POOL if is_confined(world) else self.WITHOUT, 1.0, 1)}
            return observe(servers, now_s)
        world.watcher.observe = look
        world.watcher.kinds[UUID, 0] = model.Kind.CACHE
        return world

    @staticmethod
    def run(world):
        """One of class auto, beside another of its kind."""
        world.boot(THIRD_UUID, run_id=3)
        world.run_unlike(quantum_class='auto', vcpus=1)

    def undone(self, world):
        return world.host_report()['quantum']['undone']

    def test_one_that_gets_on_better_without_stays_out(self, world, caplog):
        caplog.set_level('INFO')
        self.run(world)
        assert is_confined(world)
        assert world.slice_us() == CACHE_US
        world.tick(200)
        assert not is_confined(world)
        assert world.slice_us() is None
        report = world.report()['quantum']
        assert '50%' in report['left_alone']
        assert '90%' in report['left_alone']
        # What it does is recognised as before; it counts in the plan.
        assert report['recognised_class'] == 'cache'
        assert is_confined(world, OTHER_UUID)
        found = world.host_report()['quantum']
        assert (found['undone'], found['left_alone']) == (1, 1)
        world.tick(950)
        assert not is_confined(world)
        assert caplog.text.count('stays out of its pool for 1 h') == 1
        world.tick(2600)
        assert is_confined(world)
        assert world.report()['quantum']['left_alone'] == ''
        world.tick(200)
        assert caplog.text.count('stays out of its pool for 2 h') == 1

    def test_one_that_does_not_goes_back(self, world, monkeypatch):
        monkeypatch.setattr(TestTrials, 'WITHOUT', 0.2)
        self.run(world)
        world.tick(61)
        seen = []
        for _ in range(240):
            world.tick()
            seen.append(is_confined(world))
        assert not all(seen)
        assert all(seen[150:])
        assert self.undone(world) == 0
        assert world.slice_us() == CACHE_US

    def test_one_that_its_cap_alone_holds_up_is_not_tried(
            self, world, monkeypatch):
        monkeypatch.setattr(TestTrials, 'IN_POOL', 0.4)
        self.run(world)
        before = world.host_report()['quantum']['servers_placed']
        world.tick(300)
        assert world.host_report()['quantum']['servers_placed'] == before

    def test_it_goes_back_at_once(self, tmp_path, monkeypatch):
        """However seldom servers move otherwise."""
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           pool_interval_s=3600)
        world.watcher.kinds[UUID, 0] = model.Kind.CACHE
        world.watcher.progress = {UUID: watcher.Progress(0.2, 1.0, 1)}
        self.run(world)
        seen = []
        for _ in range(300):
            world.tick()
            seen.append(is_confined(world))
        assert not all(seen)
        assert seen[-1]

    def test_a_class_that_its_flavor_has_is_not_tried(self, world):
        world.run_unlike()
        world.tick(300)
        assert is_confined(world)
        assert self.undone(world) == 0

    def test_nor_is_one_that_spins(self, world):
        world.enforce_classes('cache')
        world.watcher.kinds[UUID, 1] = model.Kind.SPIN
        world.run_unlike(quantum_class='auto')
        before = world.host_report()['quantum']['servers_placed']
        world.tick(300)
        assert world.host_report()['quantum']['servers_placed'] == before

    def test_nor_without_pools(self, tmp_path, monkeypatch):
        world = quantum_world.QuantumWorld(tmp_path, monkeypatch,
                                           pool_interval_s=None)
        world.watcher.progress = {UUID: watcher.Progress(0.1, 1.0, 1)}
        world.watcher.kinds[UUID, 0] = model.Kind.CACHE
        world.run(quantum_class='auto')
        world.tick(300)
        assert world.slice_us() == CACHE_US
        assert world.report()['quantum']['left_alone'] == ''

    def test_one_that_another_pinned_is_left_alone(self, world):
        world.run_unlike(quantum_class='auto', pcpus=frozenset({1}),
                         pinned=True, pinned_by_others=True)
        world.tick(300)
        assert self.undone(world) == 0
        assert 'pinned' in world.report()['quantum']['left_alone']

    def test_a_failure_forgets_nothing(self, world, monkeypatch):
        self.run(world)
        world.tick(200)
        assert self.undone(world) == 1
        with monkeypatch.context() as patch:
            def fail(_uuid):
                raise base.HypervisorError('of this test')
            patch.setattr(world.host, 'vcpu_threads', fail)
            world.tick(12)
        world.tick(300)
        assert not is_confined(world)
        assert self.undone(world) == 1


class TestReport:
    @pytest.mark.parametrize('now, mean_run_us', [
        (base.ThreadRun(10**9 + 160_000_000, 0, 102), 80_000.0),
        # It did not run, or its thread is another one.
        (base.ThreadRun(10**9, 0, 100), None),
        (base.ThreadRun(10**6, 0, 3), None),
        (base.ThreadRun(10**6, 0, 300), None)])
    def test_mean_runs(self, world, now, mean_run_us):
        world.boot()
        world.host.ran[UUID] = {0: base.ThreadRun(10**9, 0, 100)}
        world.start()
        world.host.ran[UUID] = {0: now}
        world.tick(6)
        vcpu = world.report()['quantum']['vcpus']['0']
        assert vcpu['mean_run_us'] == mean_run_us
        assert vcpu['slice_us'] == CACHE_US

    def test_a_cap_cuts_the_slice(self, world):
        # 20 CU on one pCPU of 100: no period that is allowed holds 90 ms.
        world.run(units='20')
        vcpu = world.report()['quantum']['vcpus']['0']
        assert vcpu['slice_us'] == CACHE_US
        assert vcpu['obtainable_us'] == 10_000
