# SPDX-License-Identifier: Apache-2.0
"""The agent's loop, on a host that exists in memory only."""

import json
import threading

import pytest

from nova_vqos.agent import server
from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits

KIND = base.EventKind


class TestProfile:
    def test_without_one_caps_are_left_as_they_are(self, tmp_path):
        world = agent.World(tmp_path, profile=False)
        world.run(specs=fakes.make_specs(), quota_us=7000)
        world.tick(3)
        assert world.host.written == []
        assert 'does not exist' in world.host_report()['alarms'][0]
        document.store(fakes.make_profile(), str(world.profile_path))
        world.tick()
        assert world.limits() == {agent.RIGHT}
        assert world.host_report()['alarms'] == []

    def test_a_new_one_is_followed(self, world):
        world.run()
        document.store(fakes.make_profile(0.5), str(world.profile_path))
        world.tick()
        assert world.limits() == {base.Limit(30_000, 50_000)}
        assert world.report()['tamperings'] == []

    @pytest.mark.parametrize('content', [None, b'', b'schema: 99', b'\xff'])
    def test_the_last_good_one_stays_in_use(self, world, content):
        world.run()
        if content is None:
            world.profile_path.unlink()
        else:
            world.profile_path.write_bytes(content)
        world.tick(2)
        assert len(world.host_report()['alarms']) == 1
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {agent.RIGHT}

    def test_a_stale_one_is_used_with_an_alarm(self, world):
        document.store(fakes.make_profile(tick_us=1000),
                       str(world.profile_path))
        world.run()
        assert world.limits() == {agent.RIGHT}
        assert "tick_us was '1000'" in world.host_report()['alarms'][0]


def test_more_units_than_the_host_sells(world):
    """An alarm: 210 of 200 CU, as where a claim is smaller than the flavor."""
    world.run(specs=fakes.make_specs('100'))
    world.boot(fakes.OTHER_UUID, specs=fakes.make_specs('100'))
    world.tick()
    assert world.host_report()['alarms'] == []
    world.boot('third', specs=fakes.make_specs('10'))
    world.tick()
    (alarm,) = world.host_report()['alarms']
    assert '210 CU' in alarm and '200 CU' in alarm
    world.host.stop('third')
    world.tick(2)
    assert world.host_report()['alarms'] == []


class TestTurns:
    """A server that is settled is looked at in turn, and when it changes."""

    MANY = tuple(f'{number:08}-2222-4333-8444-555555555555'
                 for number in range(4 * server.TURNS))

    @pytest.fixture
    def many(self, world):
        for run_id, uuid in enumerate(self.MANY, 1):
            world.boot(uuid, specs=fakes.make_specs('4'), run_id=run_id)
        world.start()
        world.tick(2)
        return world

    @staticmethod
    def turns(world):
        """:returns: whose caps are read, in each tick until all were twice"""
        world.host.read_anew_of.clear()
        world.tick(2 * server.TURNS)
        return world.host.read_anew_of

    def test_in_each_tick_an_equal_part_of_them(self, many):
        turns = self.turns(many)
        assert {len(turn) for turn in turns} == {4}
        for half in turns[:server.TURNS], turns[server.TURNS:]:
            assert set.union(*half) == set(self.MANY)

    def test_one_that_does_not_change_is_looked_at_seldom(self, many):
        # Ten minutes, and up to its next turn.
        ticks = -(-600 // server.TURNS) * server.TURNS
        many.tick(ticks)
        before = many.host.reads
        many.tick(ticks)
        assert many.host.reads - before == len(self.MANY)

    def test_a_write_that_the_kernel_does_not_report(self, many):
        many.host.reports_writes = False
        for uuid in self.MANY:
            many.host.set_vcpus(30_000, uuid=uuid)
        many.tick(server.TURNS)
        assert {limit.quota_us for uuid in self.MANY
                for limit in many.limits(uuid)} == {8000}

    def test_a_write_that_it_reports(self, many):
        uuid = self.MANY[0]
        many.host.set_vcpus(30_000, uuid=uuid)
        many.settle()
        assert {limit.quota_us for limit in many.limits(uuid)} == {8000}

    def test_one_that_is_not_as_it_should_be(self, many):
        """It is looked at in each tick until it is."""
        uuid = self.MANY[0]
        many.host.refuse[uuid] = base.DomainBusy('it migrates')
        many.host.set_vcpus(30_000, uuid=uuid)
        many.tick(5)
        del many.host.refuse[uuid]
        many.tick()
        assert {limit.quota_us for limit in many.limits(uuid)} == {8000}

    def test_those_that_come_later_have_equal_turns(self, many):
        for uuid in self.MANY[::2]:
            many.host.stop(uuid)
        many.tick(2)
        for run_id, uuid in enumerate(self.MANY[::2], 100):
            many.boot(uuid, specs=fakes.make_specs('4'), run_id=run_id)
        many.tick(3)
        turns = self.turns(many)
        assert {len(turn) for turn in turns} == {4}
        assert set.union(*turns) == set(self.MANY)


class TestList:
    """Without an event, servers are found and missed all the same."""

    def test_one_that_comes(self, world):
        world.start()
        world.host.boot(specs=fakes.make_specs())
        world.tick(10)
        assert world.limits() == {agent.RIGHT}

    def test_one_that_goes(self, world):
        world.run()
        del world.host.runs[fakes.UUID]
        world.tick(10)
        assert world.report() is None

    def test_one_that_starts_again(self, world):
        world.run()
        world.host.runs[fakes.UUID] = 2
        world.host.describe_as(extra_specs=fakes.make_specs('120'))
        world.tick(11)
        assert world.limits() == {base.Limit(30_000, 50_000)}

    def test_an_event_has_it_listed_at_once(self, world):
        world.run()
        world.host.stop()
        world.settle()
        assert world.report() is None


class TestConnection:
    def test_it_waits_for_a_daemon_that_is_down(self, world):
        world.host.up = False
        world.run()
        world.tick(30)
        assert world.host_report()['connected'] is False
        world.host.up = True
        world.tick(12)
        assert world.limits() == {agent.RIGHT}

    def test_everything_is_read_again_after_it_was_lost(self, world):
        world.run()
        world.host.up = False
        world.host.event(KIND.CONNECTION_LOST, uuid='', detail='eof')
        world.host.set_vcpus(30_000)
        world.tick(5)
        assert {limit.quota_us for limit in world.limits()} == {30_000}
        world.host.up = True
        described = len(world.host.described)
        world.tick(12)
        assert world.limits() == {agent.RIGHT}
        assert len(world.host.described) == described + 1

    def test_a_bulk_call_that_fails_is_a_lost_connection(self, world):
        world.run()
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
        world.run()
        assert world.limits() == {agent.RIGHT}

    def test_the_loop_runs_until_stopped(self, world):
        world.host.boot(specs=fakes.make_specs())
        thread = threading.Thread(target=world.loop.run)
        thread.start()
        world.loop.stop()
        thread.join(waits.LIMIT_S)
        assert not thread.is_alive()
        assert world.host.closed == 1


def test_who_wakes_it_again_and_again_has_few_looks(world):
    """As any member of the bus can."""
    world.run()
    before = world.host_report()['ticks']
    for _ in range(1000):
        world.now_s += 0.01
        world.loop.wake(fakes.UUID)
        world.settle()
    # Ten at once, ten a second, and its own.
    assert 100 <= world.host_report()['ticks'] - before <= 125
