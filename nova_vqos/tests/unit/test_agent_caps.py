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


"""Caps are written where they are wrong, and restored."""

import pytest

from nova_vqos import profile as profiles
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind
P = base.Parameter


@pytest.fixture
def world(tmp_path):
    return agent_world.World(tmp_path)


class TestEnforcement:
    def test_a_server_that_runs_already_gets_its_cap(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert world.limits() == {agent_world.RIGHT}
        assert world.host.tunes[fakes.UUID].shares == 614

    def test_what_is_right_is_never_written(self, world):
        world.host.boot(specs=fakes.make_specs(), quota_us=15_000,
                        period_us=50_000, shares=614)
        world.start()
        world.tick(50)
        assert world.host.written == []
        report = world.report()
        assert report['right_at_first_sight'] is True
        assert report['wrong_ms'] == 0

    def test_it_is_written_once(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.tick(50)
        assert len(world.host.written) == 1

    def test_a_floor_is_freed(self, world):
        world.host.boot(specs=fakes.make_specs(cap='floor'), quota_us=15_000)
        world.start()
        assert {limit.quota_us for limit in world.limits()} == {None}

    @pytest.mark.parametrize('specs', [None, {}, {'quota:cpu_quota': '7000'}])
    def test_servers_of_others_are_left_alone(self, world, specs):
        world.host.boot(specs=specs, quota_us=7000)
        world.start()
        world.tick(3)
        assert world.host.written == []
        assert world.host.reads == 0

    def test_several_servers_have_their_own(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.host.boot(fakes.OTHER_UUID, specs=fakes.make_specs('100'),
                        vcpus=1, run_id=2)
        world.start()
        assert world.limits() == {agent_world.RIGHT}
        assert world.limits(fakes.OTHER_UUID) == {base.Limit(50_000, 50_000)}

    def test_the_slowest_pcpu_that_it_may_run_on_counts(self, world):
        slow = fakes.make_profile(0.5, pcpus=(1,)).cpu_classes
        fast = fakes.make_profile(1.0, pcpus=(0,))
        profiles.store(fast._replace(cpu_classes=fast.cpu_classes + slow),
                       str(world.profile_path))
        world.host.boot(specs=fakes.make_specs(), pcpus=frozenset({0, 1}))
        world.host.boot(fakes.OTHER_UUID, specs=fakes.make_specs(),
                        pcpus=frozenset({0}), run_id=2)
        world.start()
        assert world.limits() == {base.Limit(30_000, 50_000)}
        assert world.limits(fakes.OTHER_UUID) == {agent_world.RIGHT}

    def test_one_that_is_being_started_is_looked_at_when_it_has(self, world):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        world.tick(2)
        assert world.host.reads == 0
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        assert world.limits() == {agent_world.RIGHT}
        assert world.report()['right_at_first_sight'] is False

    def test_the_window_of_a_start_begins_with_the_first_instruction(
            self, world):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        # In libvirt's order.
        world.host.event(KIND.RESUMED, detail='unpaused', at_s=world.now_s)
        world.now_s += 0.04
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        report = world.report()
        assert report['origin'] == 'booted'
        assert report['wrong_ms'] == pytest.approx(40)

    def test_hotplugged_vcpus_get_their_cap(self, world):
        world.host.boot(specs=fakes.make_specs(), online=1)
        world.start()
        tune = world.host.tunes[fakes.UUID]
        world.host.tunes[fakes.UUID] = base.InForce(
            vcpus={**tune.vcpus, 1: base.Limit(None, 100_000)},
            shares=tune.shares, domain=tune.domain)
        world.host.event(KIND.CHANGED, detail='device vcpu1')
        world.settle()
        assert world.limits() == {agent_world.RIGHT}
        assert world.report()['tamperings'] == []

    def test_a_server_too_fast_for_the_host_keeps_its_cap(self, world):
        world.host.boot(specs=fakes.make_specs('300'), quota_us=9000)
        world.start()
        assert world.host.written == []
        assert 'faster than the pCPU' in world.report()['problem']
        assert world.host_report()['wrong'] == [fakes.UUID]

    def test_a_write_without_effect_is_told_and_not_repeated_soon(
            self, world):
        world.host.deaf.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert 'not in force' in world.report()['problem']
        world.tick(60)
        assert len(world.host.written) < 12

    def test_one_server_that_is_not_understood_does_not_cost_others(
            self, world):
        world.host.boot(specs=fakes.make_specs())
        world.host.tunes[fakes.UUID] = None
        world.host.boot(fakes.OTHER_UUID, specs=fakes.make_specs(), run_id=2)
        world.start()
        assert world.limits(fakes.OTHER_UUID) == {agent_world.RIGHT}
        assert 'unexpected' in world.report()['problem']


class TestTampering:
    def test_it_is_restored_at_the_next_tick(self, world, caplog):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {agent_world.RIGHT}
        tampering, = world.report()['tamperings']
        assert '30000/50000' in tampering['found']
        assert '15000/50000' in tampering['expected']
        assert 'in the cgroup itself' in tampering['channel']
        assert world.host_report()['restored'] == 1
        assert sum('Somebody else changed' in record.getMessage()
                   for record in caplog.records) == 1

    def test_who_used_libvirt_is_told_from_who_did_not(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TUNED, values={P.QUOTA_US: 30_000})
        world.settle()
        world.host.set_vcpus(31_000)
        world.tick()
        first, second = world.report()['tamperings']
        assert first['channel'] == 'through libvirt: quota_us 30000'
        assert 'in the cgroup itself' in second['channel']

    def test_the_echo_of_an_own_write_is_nobody_elses(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.event(KIND.TUNED, values={P.QUOTA_US: 15_000})
        world.settle()
        assert world.report()['tamperings'] == []
        assert len(world.host.written) == 1

    def test_a_fight_is_not_fought_at_every_tick(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.written.clear()
        for _ in range(60):
            world.host.set_vcpus(30_000)
            world.tick()
        assert 5 <= len(world.host.written) <= 12
        world.tick(20)
        assert world.limits() == {agent_world.RIGHT}

    def test_a_write_to_its_cgroup_is_seen_between_ticks(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.now_s += 0.1
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TOUCHED)
        world.settle()
        assert world.limits() == {agent_world.RIGHT}
