# SPDX-License-Identifier: Apache-2.0
"""Servers are described, and their policy follows from it."""

from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind


class TestPolicies:
    def test_a_bad_spec_leaves_the_last_good_policy(self, world, caplog):
        world.run()
        world.host.boot(specs=fakes.make_specs('60 '), quota_us=15_000,
                        period_us=50_000, shares=614)
        for _ in range(3):
            world.host.event(KIND.CHANGED, detail='metadata')
            world.tick()
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {agent.RIGHT}
        assert world.host_report()['policy_errors'] == 1
        assert caplog.text.count('cannot be honoured') == 1

    def test_a_bad_spec_from_the_start_leaves_the_cap(self, world):
        world.run(specs=fakes.make_specs('-5'), quota_us=7000)
        world.tick(3)
        assert world.host.written == []
        assert 'must be' in world.report()['policy_error']

    def test_removed_units_leave_the_cap(self, world):
        world.run()
        world.host.describe_as(extra_specs={})
        world.host.event(KIND.CHANGED)
        world.tick(2)
        assert world.limits() == {agent.RIGHT}

    def test_a_domain_is_described_on_events_not_at_each_tick(self, world):
        world.run()
        world.tick(20)
        assert len(world.host.described) == 1

    def test_a_wake_up_is_followed_between_ticks(self, world):
        world.run()
        world.host.describe_as(extra_specs=fakes.make_specs('120'))
        world.loop.wake(fakes.UUID)
        world.settle()
        assert world.limits() == {base.Limit(30_000, 50_000)}

    def test_a_wake_up_for_a_server_not_seen_yet_finds_it(self, world):
        world.start()
        world.host.boot(specs=fakes.make_specs())
        world.loop.wake(fakes.UUID)
        world.settle()
        assert world.limits() == {agent.RIGHT}

    def test_a_domain_that_starts_again_begins_anew(self, world):
        world.run()
        world.host.boot(specs=fakes.make_specs('120'), run_id=2)
        world.tick()
        assert world.limits() == {base.Limit(30_000, 50_000)}
