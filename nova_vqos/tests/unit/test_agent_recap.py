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
"""It is remembered when the cap of a server was last set, and why."""

import dataclasses

import pytest

from nova_vqos import profile as profiles
from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind


@pytest.fixture
def world(tmp_path):
    return agent_world.World(tmp_path)


def recap_of(world):
    """Reason and window in ms; None: there was none."""
    last = world.report()['last_recap']
    if last is None:
        return None
    assert last['at'].endswith('+00:00')
    window_ms = last['wrong_ms']
    return last['reason'], window_ms and pytest.approx(window_ms)


class TestFirst:
    def test_one_that_ran_already(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        assert recap_of(world) == ('found', None)

    def test_one_that_ran_already_and_has_its_cap(self, world):
        world.host.boot(specs=fakes.make_specs(), quota_us=15_000,
                        period_us=50_000, shares=614)
        world.start()
        assert recap_of(world) is None

    @pytest.mark.parametrize('origin', ['booted', 'migrated', 'restored'])
    @pytest.mark.parametrize('quota_us, window_ms', [
        (15_000, 0.0), (40_000, 40.0)])
    def test_one_that_comes(self, world, origin, quota_us, window_ms):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs(), quota_us=quota_us,
                        period_us=50_000, shares=614)
        world.host.event(KIND.RESUMED, detail='unpaused', at_s=world.now_s)
        world.now_s += 0.04
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail=origin, at_s=world.now_s)
        world.settle()
        assert recap_of(world) == (origin, window_ms)

    def test_one_of_others_has_none(self, world):
        world.host.boot(specs={})
        world.start()
        assert recap_of(world) is None


class TestLater:
    @pytest.fixture
    def running(self, world):
        world.host.boot(specs=fakes.make_specs(), quota_us=15_000,
                        period_us=50_000, shares=614)
        world.start()
        return world

    @staticmethod
    def change(world, **changes):
        world.host.domains[fakes.UUID] = dataclasses.replace(
            world.host.domains[fakes.UUID], **changes)
        world.host.event(KIND.CHANGED)
        world.settle()
        world.settle()

    def test_somebody_else_changed_it(self, running):
        running.tick(5)
        running.host.set_vcpus(40_000)
        running.tick()
        # It was seen right a second before.
        assert recap_of(running) == ('tampered', 1000.0)

    def test_of_several_windows_the_first_cause_counts(self, running):
        running.host.refuse[fakes.UUID] = base.DomainBusy('migrating')
        running.host.set_vcpus(40_000)
        running.tick(30)
        assert recap_of(running) is None
        self.change(running, extra_specs=fakes.make_specs('80'))
        del running.host.refuse[fakes.UUID]
        running.tick(40)
        last = running.report()['last_recap']
        assert last['reason'] == 'tampered'
        assert 30_000 < last['wrong_ms'] < 71_000

    def test_another_flavor(self, running):
        self.change(running, extra_specs=fakes.make_specs('80'))
        assert recap_of(running) == ('flavor', 0.0)

    def test_another_profile(self, running, caplog):
        caplog.set_level('INFO')
        profiles.store(fakes.make_profile(1.25), str(running.profile_path))
        running.tick()
        assert recap_of(running) == ('profile', 0.0)
        running.tick(5)
        assert caplog.text.count(
            'has another cap for 60 CU (hard), class default, billing off, '
            'since its profile changed: vCPUs 12000/50000 us, shares 614, '
            'after 0 ms') == 1

    def test_a_profile_that_changes_no_cap_is_no_reason(self, running):
        profiles.store(fakes.make_profile(1.0, pcpus=(0, 1, 2)),
                       str(running.profile_path))
        running.tick(2)
        assert recap_of(running) is None

    def test_another_vcpu(self, running):
        tune = running.host.tunes[fakes.UUID]
        running.host.tunes[fakes.UUID] = dataclasses.replace(tune, vcpus={
            **tune.vcpus, 2: base.Limit(None, 100_000)})
        running.tick()
        assert recap_of(running) == ('vcpus', 0.0)

    def test_other_pcpus(self, running):
        slow = fakes.make_profile(0.5, pcpus=(1,)).cpu_classes
        fast = fakes.make_profile(1.0, pcpus=(0,))
        self.change(running, pcpus=frozenset({0}), pinned_by_others=True)
        profiles.store(fast._replace(cpu_classes=fast.cpu_classes + slow),
                       str(running.profile_path))
        running.tick()
        assert recap_of(running) is None
        self.change(running, pcpus=frozenset({1}))
        assert recap_of(running) == ('pcpus', 0.0)

    def test_whoever_else_puts_it_right_sets_no_cap_of_ours(self, running):
        running.host.refuse[fakes.UUID] = base.DomainBusy('migrating')
        running.host.set_vcpus(40_000)
        running.tick()
        running.host.set_vcpus(15_000)
        running.tick()
        assert running.report()['right'] is True
        assert recap_of(running) is None


class TestCharged:
    def test_what_its_io_leaves_it(self, tmp_path, caplog):
        caplog.set_level('INFO')
        world = billing_world.World(tmp_path)
        world.boot()
        world.start()
        world.busy(60)
        assert recap_of(world) == ('debt', 0.0)
        world.loop.lift(fakes.UUID, 30.0)
        world.settle()
        assert recap_of(world) == ('lifted', 0.0)
        world.tick(32)
        assert world.domain().quota_us is not None
        assert recap_of(world) == ('debt', 0.0)
        # No line for each: it changes all the time.
        assert 'has another cap' not in caplog.text

    def test_where_it_cannot_be_told_the_limit_is_released(self, tmp_path):
        world = billing_world.World(tmp_path)
        world.boot()
        world.start()
        world.busy(60)
        profiles.store(fakes.make_profile(0.25), str(world.profile_path))
        world.tick(60)
        assert recap_of(world) == ('released', None)
        profiles.store(fakes.make_profile(), str(world.profile_path))
        world.tick(60)
        assert world.report()['right'] is True
        assert recap_of(world)[0] == 'debt'
