# SPDX-License-Identifier: Apache-2.0
"""Servers that come to the agent's host, and leave it."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind


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
        assert world.host.written == []
        assert world.reported('right_at_first_sight', 'wrong_ms') == (True, 0)
        assert world.report()['origin'] == 'migrated'

    def test_without_the_hook_the_window_is_logged(self, world, caplog):
        world.start()
        self.arrive(world, quota_us=40_000, period_us=50_000)
        world.tick(4)
        assert world.host.written == []
        self.go_on(world)
        world.now_s += 0.025
        world.settle()
        assert world.limits() == {agent.RIGHT}
        assert world.reported('right_at_first_sight', 'wrong_ms') == (
            False, pytest.approx(25))
        assert 'ran for 25 ms before its cap was corrected' in caplog.text

    def test_a_missing_weight_is_no_wrong_cap(self, world):
        world.start()
        self.arrive(world, quota_us=15_000, period_us=50_000, shares=1024)
        self.go_on(world)
        world.settle()
        assert world.host.tunes[fakes.UUID].shares == 614
        assert world.report()['wrong_ms'] == 0

    def test_a_server_that_left_is_forgotten(self, world):
        world.run()
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
        # Its own, and a look at what all servers use.
        assert len(hanging) == 2
        world.boot(fakes.OTHER_UUID, run_id=2)
        world.tick(3)
        assert world.limits(fakes.OTHER_UUID) == {agent.RIGHT}
        # And no second job is queued behind the one that hangs.
        assert world.executor.jobs == []
