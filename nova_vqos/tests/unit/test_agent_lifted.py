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


"""Limits end for a migration, and with the agent."""

import threading
import time

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.tests.unit import agent_world
from nova_vqos.tests.unit import billing_world
from nova_vqos.tests.unit import fake_hypervisor as fakes

KIND = base.EventKind


@pytest.fixture
def world(tmp_path):
    return billing_world.World(tmp_path)


class TestMigration:
    def test_nothing_limits_the_threads_that_send_it(self, world):
        world.boot()
        world.start()
        assert not world.ask(lambda: world.loop.is_lifted(fakes.UUID))
        world.loop.lift(fakes.UUID, 30.0)
        world.settle()
        assert world.domain().quota_us is None
        assert world.limits() == {agent_world.RIGHT}
        assert world.ask(lambda: world.loop.is_lifted(fakes.UUID))
        assert world.report()['tamperings'] == []

    def test_the_limit_comes_back_after_one_that_failed(self, world):
        world.boot()
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        world.settle()
        world.host.event(KIND.CHANGED, detail=base.JOB_COMPLETED)
        world.settle()
        world.settle()
        assert world.domain() == billing_world.WHOLE

    def test_and_after_one_that_never_began(self, world):
        world.boot()
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        world.tick(29)
        assert world.domain().quota_us is None
        world.tick(3)
        assert world.domain() == billing_world.WHOLE

    def test_a_server_that_is_not_here_is_no_reason_to_wait(self, world):
        world.start()
        world.loop.lift(fakes.UUID, 30.0)
        assert world.ask(lambda: world.loop.is_lifted(fakes.UUID))


class TestStop:
    @staticmethod
    def limited(directory, threads):
        """From here on as in a service: jobs run on threads."""
        world = billing_world.World(directory)
        world.boot()
        world.start()
        world.busy(60)
        assert world.domain().quota_us < billing_world.WHOLE.quota_us
        world.executor.use_threads(threads)
        return world

    @staticmethod
    def want(world, limit_share):
        """The biller wants another limit: the loop has it written."""
        server = world.loop._known[fakes.UUID]
        server.limit_share = limit_share
        server.reconsider = True
        world.loop.step()
        assert server.working

    @staticmethod
    def stop(world):
        thread = threading.Thread(target=world.loop.run)
        world.loop.stop()
        thread.start()
        thread.join(10)
        assert not thread.is_alive()

    @staticmethod
    def end_jobs(world):
        """What was still under way is done by then, for better or worse."""
        world.executor.shutdown(wait=True)

    def test_a_clean_one_gives_all_of_it_back(self, tmp_path):
        world = self.limited(tmp_path, 1)
        self.stop(world)
        assert world.domain() == billing_world.WHOLE
        assert world.limits() == {agent_world.RIGHT}

    def test_nothing_is_written_to_one_that_has_it(self, tmp_path):
        world = billing_world.World(tmp_path)
        world.boot()
        world.start()
        world.host.written.clear()
        self.stop(world)
        assert world.domain() == billing_world.WHOLE
        assert world.host.written == []

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
        assert world.domain() == billing_world.WHOLE
        assert world.limits() == {agent_world.RIGHT}

    def test_a_raise_that_waits_for_its_turn_is_not_lost(self, tmp_path):
        world = self.limited(tmp_path, 1)
        world.executor.submit(time.sleep, 0.5)
        self.want(world, 1.0)
        self.stop(world)
        self.end_jobs(world)
        assert world.domain() == billing_world.WHOLE

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
        assert world.domain() == billing_world.WHOLE

    def test_one_that_cannot_be_helped_is_told_of(self, tmp_path, caplog):
        world = self.limited(tmp_path, 1)
        world.host.deaf.add(fakes.UUID)
        self.stop(world)
        assert caplog.text.count('keeps the limit on its I/O') == 1

    def test_it_does_not_wait_for_ever(self, tmp_path, monkeypatch):
        world = self.limited(tmp_path, 1)
        end = threading.Event()
        monkeypatch.setattr(world.host, 'write',
                            lambda _uuid, _changes: end.wait(30))
        self.want(world, 0.3)
        self.stop(world)
        end.set()
