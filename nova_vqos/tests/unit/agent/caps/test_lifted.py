# SPDX-License-Identifier: Apache-2.0
"""Limits end for a migration, and with the agent."""

import threading
import time

import pytest

from nova_vqos.agent import loop
from nova_vqos.agent.caps import controller
from nova_vqos.agent.messages import moves
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


@pytest.fixture
def world(tmp_path):
    return billing.World(tmp_path)


class TestMigration:
    def test_nothing_limits_the_threads_that_send_it(self, world):
        world.run()
        assert world.ask(lambda: world.loop.lift(fakes.UUID, 30.0)) == (
            moves.Lifted(lifted=False, is_pending=True))
        world.settle()
        assert world.domain().quota_us is None
        assert world.limits() == {agent.RIGHT}
        assert world.ask(lambda: world.loop.lift(fakes.UUID, 30.0)).lifted
        assert world.report()['tamperings'] == []

    def test_the_limit_comes_back_after_one_that_never_began(self, world):
        world.run()
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.tick(29)
        assert world.domain().quota_us is None
        world.tick(3)
        assert world.domain() == billing.WHOLE

    @pytest.mark.parametrize('seconds', [3, 100])
    def test_the_limit_comes_back_with_the_end_of_one(self, world, seconds):
        """libvirt sends no event where it fails."""
        world.run()
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.settle()
        world.host.refuse[fakes.UUID] = base.DomainBusy('it migrates')
        world.tick(seconds)
        assert world.domain().quota_us is None
        assert world.report()['problem'] == ''
        world.host.refuse.clear()
        world.tick(2)
        assert world.domain() == billing.WHOLE

    def test_who_asks_often_lifts_it_rarely(self, world, caplog):
        """As another host may do that wants it to have no limit."""
        world.run()
        lifted_s = 0
        for _ in range(60):
            world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
            for _ in range(30):
                world.tick()
                lifted_s += world.domain().quota_us is None
        assert lifted_s <= 32 * (4 + 2)
        assert 'too often' in caplog.text
        assert world.domain() == billing.WHOLE

    def test_after_a_while_it_is_lifted_again(self, world):
        world.run()
        for _ in range(10):
            world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
            world.tick(40)
        assert world.domain() == billing.WHOLE
        world.tick(900)
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.settle()
        assert world.domain().quota_us is None

    def test_one_that_was_left_alone_for_a_while_is_written_at_once(
            self, world):
        world.host.refuse[fakes.UUID] = base.DomainBusy('a job runs on it')
        world.run()
        world.tick(20)
        world.host.refuse.clear()
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.settle()
        assert world.limits() == {agent.RIGHT}

    def test_a_server_that_is_not_here_is_no_reason_to_wait(self, world):
        world.start()
        assert world.ask(lambda: world.loop.lift(fakes.UUID, 30.0)).lifted

    def test_to_ask_again_is_no_other_lift(self, world):
        world.run()
        for _ in range(50):
            world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.tick(32)
        assert world.domain() == billing.WHOLE
        # One of four is spent.
        for _ in range(3):
            assert world.ask(
                lambda: world.loop.lift(fakes.UUID, 30.0)).is_pending
            world.tick(32)
        assert world.ask(lambda: world.loop.lift(fakes.UUID, 30.0)) == (
            moves.Lifted(lifted=False))


class TestStop:
    @pytest.fixture(autouse=True)
    def no_haste(self, monkeypatch):
        for module, name in ((loop, '_SETTLE_TIMEOUT_S'),
                             (controller, '_GIVE_BACK_TIMEOUT_S')):
            monkeypatch.setattr(module, name, waits.LIMIT_S)

    @staticmethod
    def limited(directory, threads):
        """From here on as in a service: jobs run on threads."""
        world = billing.World(directory)
        world.run()
        world.busy(60)
        assert world.domain().quota_us < billing.WHOLE.quota_us
        world.executor.use_threads(threads)
        return world

    @staticmethod
    def want(world, limit_share):
        """The biller wants another limit: the loop has it written."""
        server = world.loop._servers[fakes.UUID]
        world.loop._billing._limits.change(server, limit_share)
        world.loop.step()
        assert world.loop._jobs.is_busy(server)

    @staticmethod
    def stop(world):
        thread = threading.Thread(target=world.loop.run)
        world.loop.stop()
        thread.start()
        thread.join(waits.LIMIT_S)
        assert not thread.is_alive()

    @staticmethod
    def end_jobs(world):
        """What was still under way is done by then, for better or worse."""
        world.executor.shutdown(wait=True)

    def test_nothing_is_written_to_one_that_has_it(self, tmp_path):
        world = billing.World(tmp_path)
        world.run()
        world.host.written.clear()
        self.stop(world)
        assert world.domain() == billing.WHOLE
        assert world.host.written == []

    def test_nor_to_one_whose_cap_was_never_known(self, tmp_path, caplog):
        world = agent.World(tmp_path, profile=False)
        world.run()
        world.loop.stop()
        world.loop.run()
        assert world.host.written == []
        assert not any(record.exc_info for record in caplog.records)

    def test_a_write_under_way_comes_first(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 2)
        write = world.host.write
        slow = iter([0.5])

        def write_slowly(uuid, changes):
            time.sleep(next(slow, 0))
            write(uuid, changes)

        monkeypatch.setattr(world.host, 'write', write_slowly)
        self.want(world, 0.3)
        self.stop(world)
        self.end_jobs(world)
        assert world.domain() == billing.WHOLE
        assert world.limits() == {agent.RIGHT}

    def test_a_raise_that_waits_for_its_turn_is_not_lost(self, tmp_path):
        world = self.limited(tmp_path, 1)
        world.executor.submit(time.sleep, 0.5)
        self.want(world, 1.0)
        self.stop(world)
        self.end_jobs(world)
        assert world.domain() == billing.WHOLE

    def test_a_write_that_fails_is_tried_again(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 1)
        write = world.host.write
        errors = iter([base.DomainBusy('it migrates')])

        def fail_once(uuid, changes):
            for error in errors:
                raise error
            write(uuid, changes)

        monkeypatch.setattr(world.host, 'write', fail_once)
        self.stop(world)
        assert world.domain() == billing.WHOLE

    def test_one_that_cannot_be_helped_is_reported(self, tmp_path, caplog):
        world = self.limited(tmp_path, 1)
        world.host.deaf.add(fakes.UUID)
        self.stop(world)
        assert caplog.text.count('keeps the limit on its I/O') == 1

    def test_it_does_not_wait_for_ever(self, tmp_path, monkeypatch, caplog):
        for module, name in ((loop, '_SETTLE_TIMEOUT_S'),
                             (controller, '_GIVE_BACK_TIMEOUT_S')):
            monkeypatch.setattr(module, name, 0.5)
        world = self.limited(tmp_path, 1)
        end = threading.Event()
        monkeypatch.setattr(world.host, 'write',
                            lambda _uuid, _changes: end.wait(waits.LIMIT_S))
        self.want(world, 0.3)
        self.stop(world)
        end.set()
        assert caplog.text.count('keeps the limit on its I/O') == 1
