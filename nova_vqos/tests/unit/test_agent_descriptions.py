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


"""Servers are described, and their policy follows from it."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind


@pytest.fixture
def world(tmp_path):
    return agent_world.World(tmp_path)


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
        assert world.limits() == {agent_world.RIGHT}
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
        assert world.limits() == {agent_world.RIGHT}

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
        assert world.limits() == {agent_world.RIGHT}

    def test_a_domain_that_starts_again_begins_anew(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.start()
        world.host.boot(specs=fakes.make_specs('120'), run_id=2)
        world.tick()
        assert world.limits() == {base.Limit(30_000, 50_000)}
