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

"""The agent's loop, on a host that exists in memory only."""

import json
import threading

import pytest

from nova_vqos import profile as profiles
from nova_vqos.agent import profile_watch
from nova_vqos.agent import reconciler
from nova_vqos.agent import state
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind
P = base.Parameter
# What 60 CU on two vCPUs are on a pCPU of 100 CU.
RIGHT = base.Limit(15_000, 50_000)


class World:
    """A host, its agent's loop, and a clock that a test turns."""

    def __init__(self, directory, hypervisor=None, profile=True,
                 make_biller=lambda _host, _clock: None, executor=None):
        self.now_s = 1000.0
        self.host = hypervisor or fakes.FakeHypervisor()
        self.profile_path = directory / 'profile.yaml'
        if profile:
            profiles.store(fakes.make_profile(), str(self.profile_path))
        self.state_path = directory / 'run' / 'agent.json'
        self.executor = executor or fakes.InlineExecutor()
        self.loop = reconciler.Reconciler(
            self.host,
            profile_watch.ProfileWatch(
                str(self.profile_path), 0.05,
                fingerprint=lambda _emulator: {'tick_us': '4000'}),
            state.Heartbeat(str(self.state_path), 'host'),
            state.ServiceManager({}), period_us=50_000,
            biller=make_biller(self.host, lambda: self.now_s),
            executor=self.executor, clock=lambda: self.now_s)

    def settle(self):
        """Let the loop work until nothing is left to do at this time."""
        self.loop.step()
        while self.executor.work():
            self.loop.step()

    def tick(self, times=1):
        for _ in range(times):
            self.now_s += 1.0
            self.settle()

    def start(self):
        self.settle()
        self.tick()

    def limits(self, uuid=fakes.UUID):
        return set(self.host.tunes[uuid].vcpus.values())

    def report(self, uuid=fakes.UUID):
        return self.ask(lambda: self.loop.server_report(uuid))

    def host_report(self):
        return self.ask(self.loop.host_report)

    def ask(self, question):
        """Ask as RPC does, from another thread."""
        answers = []
        thread = threading.Thread(target=lambda: answers.append(question()))
        thread.start()
        while thread.is_alive():
            self.loop.step()
            thread.join(0.001)
        return answers[0]


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


class TestEnforcement:
    def test_a_server_that_runs_already_gets_its_cap(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert world.limits() == {RIGHT}
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
        assert world.limits() == {RIGHT}
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
        assert world.limits(fakes.OTHER_UUID) == {RIGHT}

    def test_one_that_is_being_started_is_looked_at_when_it_has(self, world):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        world.tick(2)
        assert world.host.reads == 0
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        assert world.limits() == {RIGHT}
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
        assert world.limits() == {RIGHT}
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
        assert world.limits(fakes.OTHER_UUID) == {RIGHT}
        assert 'unexpected' in world.report()['problem']


class TestTampering:
    def test_it_is_restored_at_the_next_tick(self, world, caplog):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {RIGHT}
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
        assert world.limits() == {RIGHT}

    def test_a_write_to_its_cgroup_is_seen_between_ticks(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.now_s += 0.1
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TOUCHED)
        world.settle()
        assert world.limits() == {RIGHT}


class TestMigration:
    def arrive(self, world, **tune):
        """A server migrates in: its QEMU is there, its guest is not yet."""
        world.host.boot(specs=fakes.make_specs(), **tune)
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        world.host.event(KIND.STARTED, detail='migrated', at_s=world.now_s)
        world.settle()

    def go_on(self, world):
        del world.host.refuse[fakes.UUID]
        world.host.event(KIND.RESUMED, detail='migrated', at_s=world.now_s)

    def test_a_cap_that_the_hook_wrote_is_adopted(self, world):
        world.start()
        self.arrive(world, quota_us=15_000, period_us=50_000, shares=614)
        self.go_on(world)
        world.tick(3)
        report = world.report()
        assert world.host.written == []
        assert report['origin'] == 'migrated'
        assert report['right_at_first_sight'] is True
        assert report['wrong_ms'] == 0

    def test_without_the_hook_it_is_corrected_and_the_window_told(
            self, world, caplog):
        world.start()
        self.arrive(world, quota_us=40_000, period_us=50_000)
        world.tick(4)
        assert world.host.written == []
        self.go_on(world)
        world.now_s += 0.025
        world.settle()
        assert world.limits() == {RIGHT}
        report = world.report()
        assert report['right_at_first_sight'] is False
        assert report['wrong_ms'] == pytest.approx(25)
        assert 'ran for 25 ms before its cap was corrected' in caplog.text

    def test_a_missing_weight_is_no_wrong_cap(self, world):
        world.start()
        self.arrive(world, quota_us=15_000, period_us=50_000, shares=1024)
        self.go_on(world)
        world.settle()
        assert world.host.tunes[fakes.UUID].shares == 614
        assert world.report()['wrong_ms'] == 0

    def test_a_server_that_left_is_forgotten(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        del world.host.runs[fakes.UUID]
        world.host.event(KIND.STOPPED, detail='migrated')
        world.settle()
        assert world.report() is None

    def test_a_busy_server_does_not_hold_up_the_others(self, world):
        world.start()
        self.arrive(world, quota_us=40_000)
        world.tick()
        # The write of the busy one hangs from now on.
        world.executor.held = True
        world.now_s += 30
        world.loop.step()
        hanging, world.executor.jobs = world.executor.jobs, []
        world.executor.held = False
        assert len(hanging) == 1
        world.host.boot(fakes.OTHER_UUID, specs=fakes.make_specs(), run_id=2)
        world.tick(3)
        assert world.limits(fakes.OTHER_UUID) == {RIGHT}
        # And no second job is queued behind the one that hangs.
        assert world.executor.jobs == []


class TestPolicies:
    def test_a_bad_spec_leaves_the_last_good_policy(self, world, caplog):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.boot(specs=fakes.make_specs('60 '), quota_us=15_000,
                        period_us=50_000, shares=614)
        for _ in range(3):
            world.host.event(KIND.CHANGED, detail='metadata')
            world.tick()
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {RIGHT}
        assert world.host_report()['policy_errors'] == 1
        assert caplog.text.count('cannot be honoured') == 1

    def test_a_bad_spec_from_the_start_leaves_the_cap(self, world):
        world.host.boot(specs=fakes.make_specs('-5'), quota_us=7000)
        world.start()
        world.tick(3)
        assert world.host.written == []
        assert 'must be' in world.report()['policy_error']

    def test_units_that_are_taken_away_leave_the_cap(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.domains[fakes.UUID] = base.Domain(
            uuid=fakes.UUID, name='x', extra_specs={}, vcpus=2, pcpus=None)
        world.host.event(KIND.CHANGED)
        world.tick(2)
        assert world.limits() == {RIGHT}

    def test_the_domain_is_described_on_events_and_not_at_each_tick(
            self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.tick(20)
        assert len(world.host.described) == 1

    def test_a_wake_up_is_followed_between_ticks(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.domains[fakes.UUID] = base.Domain(
            uuid=fakes.UUID, name='x', extra_specs=fakes.make_specs('120'),
            vcpus=2, pcpus=None)
        world.loop.wake(fakes.UUID)
        world.settle()
        assert world.limits() == {base.Limit(30_000, 50_000)}

    def test_a_wake_up_for_a_server_not_seen_yet_finds_it(self, world):
        world.start()
        world.host.boot(specs=fakes.make_specs())
        world.loop.wake(fakes.UUID)
        world.settle()
        assert world.limits() == {RIGHT}

    def test_a_domain_that_starts_again_begins_anew(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.boot(specs=fakes.make_specs('120'), run_id=2)
        world.tick()
        assert world.limits() == {base.Limit(30_000, 50_000)}


class TestProfile:
    def test_without_one_caps_are_left_as_they_are(self, tmp_path):
        world = World(tmp_path, profile=False)
        world.host.boot(specs=fakes.make_specs(), quota_us=7000)
        world.start()
        world.tick(3)
        assert world.host.written == []
        assert 'does not exist' in world.host_report()['alarms'][0]
        profiles.store(fakes.make_profile(), str(world.profile_path))
        world.tick()
        assert world.limits() == {RIGHT}
        assert world.host_report()['alarms'] == []

    def test_a_new_one_is_followed(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        profiles.store(fakes.make_profile(0.5), str(world.profile_path))
        world.tick()
        assert world.limits() == {base.Limit(30_000, 50_000)}
        assert world.report()['tamperings'] == []

    @pytest.mark.parametrize('content', [None, b'', b'schema: 99', b'\xff'])
    def test_the_last_good_one_stays_in_use(self, world, content):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        if content is None:
            world.profile_path.unlink()
        else:
            world.profile_path.write_bytes(content)
        world.tick(2)
        assert len(world.host_report()['alarms']) == 1
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {RIGHT}

    def test_a_stale_one_is_used_with_an_alarm(self, world):
        profiles.store(fakes.make_profile(tick_us=1000),
                       str(world.profile_path))
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert world.limits() == {RIGHT}
        assert "tick_us was '1000'" in world.host_report()['alarms'][0]


class TestConnection:
    def test_it_waits_for_a_daemon_that_is_down(self, world):
        world.host.up = False
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.tick(30)
        assert world.host_report()['connected'] is False
        world.host.up = True
        world.tick(12)
        assert world.limits() == {RIGHT}

    def test_everything_is_read_again_after_it_was_lost(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.up = False
        world.host.event(KIND.CONNECTION_LOST, uuid='', detail='eof')
        world.host.set_vcpus(30_000)
        world.tick(5)
        assert {limit.quota_us for limit in world.limits()} == {30_000}
        world.host.up = True
        described = len(world.host.described)
        world.tick(12)
        assert world.limits() == {RIGHT}
        assert len(world.host.described) == described + 1

    def test_a_bulk_call_that_fails_is_a_lost_connection(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.up = False
        world.tick(2)
        assert world.host_report()['connected'] is False


class TestSignsOfLife:
    def test_they_are_left_at_start_and_every_ten_seconds(self, world):
        world.start()
        first = json.loads(world.state_path.read_text())
        assert first['profile_id'] == fakes.make_profile().id
        assert first['version'] == 1
        assert first['hypervisor_connected'] is True
        world.state_path.unlink()
        world.tick(8)
        assert not world.state_path.exists()
        world.tick(3)
        assert world.state_path.exists()

    def test_a_directory_that_is_missing_is_no_end(self, world, tmp_path):
        (tmp_path / 'run').write_text('in the way')
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert world.limits() == {RIGHT}

    def test_forget_finds_a_running_server_again(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert world.ask(lambda: world.loop.forget(fakes.UUID)) is True
        assert world.ask(lambda: world.loop.forget(fakes.UUID)) is False
        world.tick()
        assert world.report()['right'] is True

    def test_the_loop_runs_until_stopped(self, world):
        world.host.boot(specs=fakes.make_specs())
        thread = threading.Thread(target=world.loop.run)
        thread.start()
        world.loop.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert world.host.closed == 1
