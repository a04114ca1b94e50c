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
"""The agent's loop, and the slices and pools of its servers."""

import dataclasses
import datetime
from fractions import Fraction
import json
import uuid as uuids

import pytest

from nova_vqos import profile as profiles
from nova_vqos.agent import quantum_keeper
from nova_vqos.agent import quantum_subject
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import proof
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

CACHE_US = classes.DEFAULT_SLICES_US['cache']
BOOT_ID = 'boot'


class FakeWatch:
    """Sees what a test tells it to see."""

    def __init__(self):
        self.kinds = {}
        self.polluters = set()
        self.looked_at = []
        self.sources = {'cache': 'there is no PMU'}

    def look(self, servers, now_s):
        self.looked_at.append(dict(servers))

    def kind(self, uuid, vcpu):
        return self.kinds.get((uuid, vcpu))

    def pollutes(self, uuid, vcpu):
        return (uuid, vcpu) in self.polluters

    def status(self):
        return self.sources

    def close(self):
        self.looked_at = None


@pytest.fixture
def watch():
    return FakeWatch()


@pytest.fixture
def world(tmp_path, watch, monkeypatch):
    return make_world(tmp_path, watch, monkeypatch)


def make_world(tmp_path, watch, monkeypatch, store=None, **options):
    """
    :param store: has what was pushed
    :param options: of the keeper
    """
    monkeypatch.setattr(proof, 'boot_id', lambda root='/': BOOT_ID)
    host = fakes.FakeHypervisor()
    clock = []
    made = agent_world.World(
        tmp_path, hypervisor=host, store=store,
        keeper=quantum_keeper.QuantumKeeper(
            host, watch, quantum_keeper.Options(
                slices_us=classes.DEFAULT_SLICES_US,
                proof_path=str(tmp_path / 'proof.json'), **options),
            clock=lambda: clock[0].now_s))
    clock.append(made)
    made.proof_path = tmp_path / 'proof.json'
    prove(made, 'cache')
    return made


def prove(world, *names):
    """Let the kernel have been seen to enforce some classes."""
    proof.store(proof.Proof(
        kernel='6.18', boot_id=BOOT_ID, tick_us=4000,
        measured_at=datetime.datetime.now(datetime.UTC).isoformat(),
        outcomes={name: proof.Outcome(
            slice_us=classes.DEFAULT_SLICES_US[name], mean_run_us=70_000.0,
            enforced=True, reason='') for name in names}),
        str(world.proof_path))


def boot(world, uuid=fakes.UUID, quantum_class='cache', run_id=1, units='40',
         vcpus=1, **options):
    world.host.boot(uuid, specs=fakes.make_specs(
        units, quantum_class=quantum_class), run_id=run_id, vcpus=vcpus,
        **options)


def state(world):
    return json.loads(world.state_path.read_text())


class TestSlices:
    def test_a_server_gets_the_slice_of_its_class(self, world):
        boot(world)
        world.start()
        assert world.host.slices[fakes.UUID] == {0: CACHE_US, -1: CACHE_US}

    def test_one_of_no_class_has_the_kernels(self, world):
        boot(world, quantum_class='default')
        world.start()
        assert set(world.host.slices[fakes.UUID].values()) == {None}

    @pytest.mark.parametrize('specs', [None, {}])
    def test_servers_without_units_are_left_alone(self, world, specs):
        world.host.boot(specs=specs)
        world.start()
        world.tick(12)
        assert world.host.slices == {}

    def test_one_with_a_class_alone_gets_its_slice(self, world):
        world.host.boot(specs={'vqos:quantum_class': 'cache'}, vcpus=1)
        world.start()
        assert world.host.slices[fakes.UUID][0] == CACHE_US
        assert world.host.written == []

    def test_what_somebody_changed_is_restored(self, world):
        boot(world)
        world.start()
        world.host.slices[fakes.UUID][0] = 5000
        world.tick(6)
        assert world.host.slices[fakes.UUID][0] == CACHE_US

    def test_a_new_run_gets_it_at_once(self, world):
        boot(world)
        world.start()
        boot(world, run_id=2)
        world.host.slices.clear()
        world.tick(2)
        assert world.host.slices[fakes.UUID][0] == CACHE_US

    def test_a_vcpu_that_was_plugged_in_gets_it(self, world):
        boot(world)
        world.start()
        tune = world.host.tunes[fakes.UUID]
        world.host.tunes[fakes.UUID] = dataclasses.replace(
            tune, vcpus=dict.fromkeys((0, 1), tune.vcpus[0]))
        world.tick(6)
        assert world.host.slices[fakes.UUID] == {
            0: CACHE_US, 1: CACHE_US, -1: CACHE_US}

    def test_one_that_is_still_coming_in_is_not_touched(self, world):
        boot(world, incoming=True)
        world.start()
        world.tick(12)
        assert world.host.slices == {}

    def test_a_class_that_was_not_seen_to_work_is_not_set(self, world):
        boot(world, quantum_class='io')
        world.start()
        assert world.host.slices[fakes.UUID][0] is None
        assert state(world)['classes'] == [
            'default', 'neutral', 'cache', 'auto']

    def test_without_any_proof_none_is(self, world):
        world.proof_path.unlink()
        boot(world)
        world.start()
        assert world.host.slices[fakes.UUID][0] is None
        assert state(world)['classes'] == ['default', 'neutral', 'auto']

    def test_a_proof_that_comes_later_is_found(self, world):
        world.proof_path.unlink()
        boot(world)
        world.start()
        prove(world, 'cache')
        world.tick(6)
        assert world.host.slices[fakes.UUID][0] == CACHE_US


class TestFailures:
    def test_a_kernel_without_slices_is_told_once(self, world, caplog):
        boot(world)
        boot(world, fakes.OTHER_UUID)
        for uuid in (fakes.UUID, fakes.OTHER_UUID):
            world.host.refuse_slices[uuid] = base.SlicesUnsupported(
                'it has none')
        world.start()
        world.tick(30)
        assert caplog.text.count('it has none') == 1
        assert any('it has none' in alarm
                   for alarm in world.host_report()['alarms'])

    def test_one_server_does_not_cost_the_others(self, world, caplog):
        boot(world)
        boot(world, fakes.OTHER_UUID)
        world.host.refuse_slices[fakes.UUID] = base.SlicesDenied('no right to')
        world.start()
        assert world.host.slices[fakes.OTHER_UUID][0] == CACHE_US
        assert world.report()['quantum']['problem'] == 'no right to'
        del world.host.refuse_slices[fakes.UUID]
        world.tick(6)
        assert world.host.slices[fakes.UUID][0] == CACHE_US
        assert world.report()['quantum']['problem'] == ''
        assert world.host_report()['alarms'] == []

    def test_the_hypervisor_comes_back(self, world):
        boot(world)
        world.start()
        world.host.up = False
        world.tick(7)
        world.host.slices.clear()
        world.host.up = True
        world.tick(20)
        assert world.host.slices[fakes.UUID][0] == CACHE_US

    def test_a_topology_that_cannot_be_read_costs_no_slices(
            self, world, monkeypatch, caplog):
        def fail():
            raise base.HypervisorError('no /sys')
        boot(world)
        monkeypatch.setattr(world.host, 'topology', fail)
        world.start()
        world.tick(20)
        assert world.host.slices[fakes.UUID][0] == CACHE_US
        assert caplog.text.count('no /sys') == 1
        assert world.host_report()['alarms'] == [
            'no server is kept apart: no /sys']
        monkeypatch.undo()
        world.tick(6)
        assert world.host_report()['alarms'] == []


class TestPools:
    def test_unlike_servers_are_kept_apart(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        pins = world.host.pins
        assert pins[fakes.UUID][0].isdisjoint(pins[fakes.OTHER_UUID][0])
        assert state(world)['quantum'] == {
            'pools': {'cache': [1, 2], 'default': [1, 2]}}
        assert world.report()['quantum']['vcpus']['0']['pcpus'] in '01'

    def test_servers_that_are_alike_are_not_pinned(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, run_id=2, vcpus=2)
        world.start()
        world.tick(60)
        assert world.host.pins == {}
        # Others of their class are welcome.
        assert state(world)['quantum'] == {'pools': {'cache': [2, 4]}}

    def test_they_can_be_switched_off(self, tmp_path, watch, monkeypatch):
        world = make_world(tmp_path, watch, monkeypatch, pool_interval_s=None)
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        assert world.host.pins == {}
        assert world.host.slices[fakes.UUID][0] == CACHE_US

    def test_what_is_left_alone_may_run_anywhere_again(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        del world.host.runs[fakes.OTHER_UUID]
        world.tick(40)
        assert world.host.pins[fakes.UUID][0] == {0, 1}

    def test_pins_of_an_agent_before_this_one_are_widened(self, world):
        boot(world, vcpus=2, pcpus=frozenset({1}), pinned=True)
        world.start()
        assert world.host.pins[fakes.UUID][0] == {0, 1}

    def test_affinity_is_changed_rarely(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        before = world.host_report()['quantum']['servers_placed']
        world.host.pins[fakes.UUID][0] = frozenset({0, 1})
        world.tick(20)
        assert world.host.pins[fakes.UUID][0] == {0, 1}
        world.tick(20)
        assert world.host.pins[fakes.UUID][0] != {0, 1}
        assert world.host_report()['quantum']['servers_placed'] == before + 1

    def test_a_server_that_others_pinned_is_left_alone(self, world):
        boot(world, vcpus=2, pcpus=frozenset({1}), pinned=True,
             pinned_by_others=True)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        assert fakes.UUID not in world.host.pins
        # Its slice does not depend on that.
        assert world.host.slices[fakes.UUID][0] == CACHE_US
        assert 'pinned' in world.report()['quantum']['left_alone']

    def test_one_that_migrates_is_placed_after(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        real, busy = world.host.place, [True]

        def place(uuid, pcpus):
            if busy and uuid == fakes.UUID:
                raise base.DomainBusy('it migrates')
            return real(uuid, pcpus)
        world.host.place = place
        world.start()
        assert fakes.UUID not in world.host.pins
        assert world.report()['quantum']['problem'] == ''
        busy.clear()
        world.tick(6)
        assert fakes.UUID in world.host.pins

    def test_a_pcpu_that_went_is_no_ones(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        world.host.sockets = (model.Socket(0, ((1,),)),)
        world.tick(40)
        assert all(0 not in pcpus or pcpus == {0, 1}
                   for pins in world.host.pins.values()
                   for pcpus in pins.values())


    def test_a_cpuset_that_shrinks_is_followed(self, world):
        boot(world, vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        for uuid in (fakes.UUID, fakes.OTHER_UUID):
            world.host.domains[uuid] = dataclasses.replace(
                world.host.domains[uuid], cpuset=frozenset({1}), pinned=True)
        world.loop.refresh()
        world.tick(40)
        assert all(pcpus == {1} for pins in world.host.pins.values()
                   for pcpus in pins.values())

    def test_five_hundred_servers(self, world):
        pcpus = range(8)
        profiles.store(fakes.make_profile(pcpus=pcpus),
                       str(world.profile_path))
        world.host.sockets = (
            model.Socket(0, tuple((pcpu,) for pcpu in pcpus)),)
        servers = [str(uuids.UUID(int=number)) for number in range(500)]
        for number, server in enumerate(servers):
            boot(world, server, ('cache', 'default')[number % 2],
                 run_id=number + 1, units='1')
        world.start()
        world.tick(2)
        slices = [world.host.slices[server][0] for server in servers]
        assert slices == [CACHE_US, None] * 250
        pins = world.host.pins
        assert {pins[server][0] for server in servers[::2]}.isdisjoint(
            pins[server][0] for server in servers[1::2])
        before = world.host_report()['quantum']
        world.tick(60)
        after = world.host_report()['quantum']
        assert after['slices_written'] == before['slices_written']
        assert after['servers_placed'] == before['servers_placed']


class TestAuto:
    def test_kinds_that_change_all_the_time_move_nobody_often(self, world,
                                                              watch):
        boot(world, quantum_class='auto', vcpus=2)
        boot(world, fakes.OTHER_UUID, 'default', run_id=2, vcpus=2)
        world.start()
        placed = world.host_report()['quantum']['servers_placed']
        for number in range(60):
            for vcpu in (0, 1):
                watch.kinds[fakes.UUID, vcpu] = (
                    model.Kind.CACHE, model.Kind.IO)[number % 2]
            world.tick(1)
        # Two servers, a minute, and half a minute from one move to the next.
        assert world.host_report()['quantum']['servers_placed'] <= placed + 4

    def test_what_is_recognised_counts(self, world, watch):
        boot(world, quantum_class='auto')
        world.start()
        assert world.host.slices[fakes.UUID][0] is None
        watch.kinds[fakes.UUID, 0] = model.Kind.CACHE
        world.tick(6)
        assert world.host.slices[fakes.UUID][0] == CACHE_US
        assert watch.looked_at[-1] == {fakes.UUID: {0: 100}}
        assert world.report()['quantum']['vcpus']['0']['kind'] == 'cache'
        assert world.report()['quantum']['recognised_class'] == 'cache'

    def test_servers_of_a_class_are_not_watched(self, world, watch):
        boot(world)
        world.start()
        assert watch.looked_at[-1] == {}

    def test_a_source_that_is_missing_is_named(self, world, caplog):
        boot(world, quantum_class='auto')
        world.start()
        world.tick(30)
        assert caplog.text.count('there is no PMU') == 1
        assert world.host_report()['quantum']['sources'] == {
            'cache': 'there is no PMU'}
        assert 'polluters' not in state(world)['quantum']

    def test_polluters_are_counted_where_they_can_be_told(self, world,
                                                          watch):
        watch.sources = {'cache': ''}
        watch.kinds[fakes.UUID, 0] = model.Kind.POLLUTER
        boot(world, quantum_class='auto')
        world.start()
        assert state(world)['quantum']['polluters'] == 1


class TestRuns:
    def test_what_it_really_runs_is_told(self, world):
        boot(world)
        world.host.ran[fakes.UUID] = {0: schedstat.ThreadRun(10**9, 0, 100)}
        world.start()
        world.host.ran[fakes.UUID] = {
            0: schedstat.ThreadRun(10**9 + 160_000_000, 0, 102)}
        world.tick(6)
        vcpu = world.report()['quantum']['vcpus']['0']
        assert vcpu['mean_run_us'] == 80_000.0
        assert vcpu['slice_us'] == CACHE_US

    @pytest.mark.parametrize('now', [
        schedstat.ThreadRun(10**9, 0, 100),
        schedstat.ThreadRun(10**6, 0, 3),
        schedstat.ThreadRun(10**6, 0, 300)])
    def test_what_cannot_be_told_is_not(self, world, now):
        boot(world)
        world.host.ran[fakes.UUID] = {0: schedstat.ThreadRun(10**9, 0, 100)}
        world.start()
        world.host.ran[fakes.UUID] = {0: now}
        world.tick(6)
        assert world.report()['quantum']['vcpus']['0']['mean_run_us'] is None

    def test_what_its_cap_leaves_of_the_slice(self, world):
        # 20 CU on one pCPU of 100: no period that is allowed holds 90 ms.
        boot(world, units='20')
        world.start()
        vcpu = world.report()['quantum']['vcpus']['0']
        assert vcpu['slice_us'] == CACHE_US
        assert vcpu['obtainable_us'] == 10_000


def test_a_subject_knows_what_its_server_was_promised(world):
    boot(world, units='40')
    world.start()
    server = world.loop._known[fakes.UUID]
    subject = quantum_subject.subject_of(server, world.loop._host.terms())
    assert subject.share == Fraction(40, 100)
