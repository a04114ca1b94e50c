# SPDX-License-Identifier: Apache-2.0
"""Caps are written where they are wrong, and restored."""

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import agent
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind
P = base.Parameter


class TestEnforcement:
    def test_a_server_that_runs_already_gets_its_cap(self, world):
        world.run()
        assert world.limits() == {agent.RIGHT}
        assert world.host.tunes[fakes.UUID].shares == 614

    def test_a_correct_cap_is_never_written(self, world):
        world.run(quota_us=15_000, period_us=50_000, shares=614)
        world.tick(50)
        assert world.host.written == []
        assert world.reported('right_at_first_sight', 'wrong_ms') == (True, 0)

    def test_a_floor_is_freed(self, world):
        world.run(specs=fakes.make_specs(cap='floor'), quota_us=15_000)
        assert {limit.quota_us for limit in world.limits()} == {None}

    @pytest.mark.parametrize('specs', [None, {}, {'quota:cpu_quota': '7000'}])
    def test_servers_of_others_are_left_alone(self, world, specs):
        world.run(specs=specs, quota_us=7000)
        world.tick(3)
        assert world.host.written == []
        assert world.host.reads == 0

    def test_several_servers_have_their_own(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.run(fakes.OTHER_UUID, specs=fakes.make_specs('100'), vcpus=1,
                  run_id=2)
        assert world.limits() == {agent.RIGHT}
        assert world.limits(fakes.OTHER_UUID) == {base.Limit(50_000, 50_000)}

    def test_the_slowest_pcpu_that_it_may_run_on_counts(self, world):
        slow = fakes.make_profile(0.5, pcpus=(1,)).cpu_classes
        fast = fakes.make_profile(1.0, pcpus=(0,))
        document.store(fast._replace(cpu_classes=fast.cpu_classes + slow),
                       str(world.profile_path))
        world.host.boot(specs=fakes.make_specs(), pcpus=frozenset({0, 1}))
        world.run(fakes.OTHER_UUID, pcpus=frozenset({0}), run_id=2)
        assert world.limits() == {base.Limit(30_000, 50_000)}
        assert world.limits(fakes.OTHER_UUID) == {agent.RIGHT}

    def test_one_that_is_being_started_is_looked_at_when_it_has(self, world):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        world.tick(2)
        assert world.host.reads == 0
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        assert world.limits() == {agent.RIGHT}
        assert world.report()['right_at_first_sight'] is False

    def test_the_window_begins_with_the_first_instruction(self, world):
        world.start()
        world.host.starting.add(fakes.UUID)
        world.host.boot(specs=fakes.make_specs())
        # In libvirt's order.
        world.host.event(KIND.RESUMED, detail='unpaused', at_s=world.now_s)
        world.now_s += 0.04
        world.host.starting.clear()
        world.host.event(KIND.STARTED, detail='booted', at_s=world.now_s)
        world.settle()
        assert world.reported('origin', 'wrong_ms') == (
            'booted', pytest.approx(40))

    def test_hotplugged_vcpus_get_their_cap(self, world):
        world.run(online=1)
        world.host.plug_vcpu(1)
        world.host.event(KIND.CHANGED, detail='device vcpu1')
        world.settle()
        assert world.limits() == {agent.RIGHT}
        assert world.report()['tamperings'] == []

    def test_a_server_too_fast_for_the_host_keeps_its_cap(self, world):
        world.run(specs=fakes.make_specs('300'), quota_us=9000)
        assert world.host.written == []
        assert 'faster than the pCPU' in world.report()['problem']
        assert world.host_report()['wrong'] == [fakes.UUID]

    def test_a_host_without_a_profile_keeps_its_cap(self, tmp_path):
        world = agent.World(tmp_path, profile=False)
        world.run(quota_us=9000)
        assert world.host.written == []
        assert 'no valid profile' in world.report()['problem']

    @pytest.mark.causes_faults
    def test_a_server_that_is_not_understood_costs_no_other(self, world):
        world.host.boot(specs=fakes.make_specs())
        world.host.tunes[fakes.UUID] = None
        world.run(fakes.OTHER_UUID, run_id=2)
        assert world.limits(fakes.OTHER_UUID) == {agent.RIGHT}
        assert 'unexpected: AttributeError' in world.report()['problem']


class TestTrouble:
    @pytest.mark.causes_faults
    @pytest.mark.parametrize('error', [
        base.DomainBusy('it migrates'), base.HypervisorError('refused'),
        ValueError('unexpected')])
    def test_a_write_that_fails_is_repeated_with_pauses(self, world, error):
        attempts = []

        class Refusing(fakes.FakeHypervisor):
            def write(self, uuid, changes):
                attempts.append((uuid, world.now_s))
                raise error
        world.host.__class__ = Refusing
        world.run()
        world.tick(60)
        gaps_s = [after - before for (_, before), (_, after) in zip(
            attempts, attempts[1:], strict=False)]
        # Ticks are a second apart. To be busy is no trouble, and may end at
        # any time; other pauses double, up to half a minute.
        busy = isinstance(error, base.DomainBusy)
        assert gaps_s == ([1] * len(gaps_s) if busy else [1, 1, 2, 4, 8, 16])
        report = world.report()
        assert report['right'] is False
        assert report['writes'] == 0
        assert bool(report['problem']) is not busy
        assert world.host_report()['errors'] == (0 if busy else 7)
        # An event is a reason to try at once, and not to wait as long again.
        before = len(attempts)
        world.host.event(KIND.CHANGED)
        world.settle()
        assert len(attempts) == before + 1
        world.host.__class__ = fakes.FakeHypervisor
        world.tick()
        assert world.reported('right', 'problem', 'writes') == (True, '', 1)
        # After a success, pauses are as short as at first.
        world.host.__class__ = Refusing
        attempts.clear()
        world.host.set_vcpus(30_000)
        world.tick(3)
        assert len(attempts) == 3

    def test_a_write_without_effect_is_repeated_with_pauses(self, world):
        world.host.deaf.add(fakes.UUID)
        world.run()
        report = world.report()
        assert report['problem'] != ''
        assert report['right'] is False
        assert report['in_force']['shares'] == 1024
        world.tick(60)
        assert len(world.host.written) == world.report()['writes'] == 7
        world.host.deaf.clear()
        world.tick(60)
        assert world.reported('right', 'problem', 'tamperings') == (
            True, '', [])
        assert len(world.host.written) == 8

    def test_a_vcpu_plugged_in_a_write_is_no_failure(self, world, monkeypatch):
        write = world.host.write

        def plug(uuid, changes):
            write(uuid, changes)
            if len(world.host.tunes[uuid].vcpus) == 2:
                world.host.plug_vcpu(2)
        monkeypatch.setattr(world.host, 'write', plug)
        world.host.boot(specs=fakes.make_specs(), vcpus=2)
        world.settle()
        assert world.reported('right', 'problem', 'writes') == (True, '', 2)
        assert world.limits() == {base.Limit(10_000, 50_000)}

    @pytest.mark.parametrize('error, problem', [
        (base.HypervisorError('no such cgroup'), True),
        (base.DomainGone(fakes.UUID), False),
        (base.Unavailable('the daemon is down'), False)])
    @pytest.mark.parametrize('reads', [0, 1])
    def test_a_cap_that_cannot_be_read(self, world, monkeypatch, error,
                                       problem, reads):
        """Neither before nor after it is written."""
        read, left = world.host.read, [None] * reads

        def refuse(uuid):
            if uuid == fakes.UUID and not left:
                raise error
            if uuid == fakes.UUID:
                left.pop()
            return read(uuid)
        monkeypatch.setattr(world.host, 'read', refuse)
        world.host.boot(specs=fakes.make_specs())
        world.settle()
        report = world.report()
        assert report['right'] is False
        assert bool(report['problem']) is problem
        assert report['writes'] == len(world.host.written) == reads
        monkeypatch.setattr(world.host, 'read', read)
        world.tick(3)
        assert world.reported('right', 'problem', 'tamperings', 'writes') == (
            True, '', [], 1)

    def test_units_become_too_many_during_a_write(self, world):
        world.run()
        world.executor.held = True
        world.host.set_vcpus(30_000)
        world.tick()
        document.store(fakes.make_profile(0.1), str(world.profile_path))
        world.tick()
        world.executor.held = False
        world.settle()
        report = world.report()
        assert report['right'] is False
        # The write did what it was for.
        assert report['last_recap']['reason'] == 'tampered'
        assert world.limits() == {agent.RIGHT}


class TestTampering:
    def test_it_is_restored_at_the_next_tick(self, world, caplog):
        world.run()
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.limits() == {agent.RIGHT}
        tampering, = world.report()['tamperings']
        assert '30000/50000' in tampering['found']
        assert '15000/50000' in tampering['expected']
        assert 'in the cgroup itself' in tampering['channel']
        host = world.host_report()
        assert (host['restored'], host['writes']) == (1, 2)
        assert world.report()['writes'] == 2
        assert sum('was changed by another writer' in record.getMessage()
                   for record in caplog.records) == 1

    def test_it_was_last_seen_right_at_the_tick_before(self, world):
        world.run()
        world.tick(20)
        world.host.set_vcpus(30_000)
        world.tick()
        assert world.report()['last_recap']['wrong_ms'] == pytest.approx(1000)

    def test_writes_through_libvirt_are_told_from_others(self, world):
        world.run()
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TUNED, values={P.QUOTA_US: 30_000})
        world.settle()
        world.host.set_vcpus(31_000)
        world.tick()
        first, second = world.report()['tamperings']
        assert first['channel'] == 'through libvirt: quota_us 30000'
        assert 'in the cgroup itself' in second['channel']

    def test_the_echo_of_an_own_write_is_no_foreign_write(self, world):
        world.run()
        world.host.event(KIND.TUNED, values={P.QUOTA_US: 15_000})
        world.settle()
        assert world.report()['tamperings'] == []
        assert len(world.host.written) == 1

    def test_the_echo_of_an_own_write_is_no_channel(self, world):
        world.run()
        world.host.event(KIND.TUNED, values={
            P.SHARES: world.host.tunes[fakes.UUID].shares})
        world.settle()
        world.host.set_vcpus(30_000)
        world.tick()
        tampering, = world.report()['tamperings']
        assert 'in the cgroup itself' in tampering['channel']

    def test_two_a_second_are_restored_at_once(self, world, caplog):
        world.run()
        for number in range(120):
            world.now_s += 0.5
            world.host.set_vcpus(30_000 + number % 2)
            world.host.event(KIND.TOUCHED)
            world.settle()
            assert world.limits() == {agent.RIGHT}
        host = world.host_report()
        assert (host['tamperings'], host['restored']) == (120, 120)
        assert (host['writes'], host['alarms']) == (121, [])
        report = world.report()
        assert report['tampering_count'] == 120
        assert len(report['tamperings']) == 10
        assert report['problem'] == ''
        # The log has room for other lines as well: five at once, then one
        # in ten seconds, each with the number of those that were left out.
        assert 10 <= sum('was changed by another writer' in
                         record.getMessage() for record in caplog.records
                         ) <= 12

    def test_a_fight_is_not_fought_without_end(self, world):
        world.run()
        world.host.written.clear()
        for number in range(200):
            world.now_s += 0.05
            world.host.set_vcpus(30_000 + number % 2)
            world.host.event(KIND.TOUCHED)
            world.settle()
        # Twenty at once, then five in a second.
        assert 65 <= len(world.host.written) <= 75
        report = world.report()
        assert 'faster than' in report['problem']
        host = world.host_report()
        assert host['restored'] == len(world.host.written)
        # Also those that were not restored.
        assert host['tamperings'] == report['tampering_count'] == 200
        alarm, = host['alarms']
        assert fakes.UUID in alarm
        assert 'in the cgroup itself' in alarm
        # The last one is restored at the next tick at the latest.
        world.tick()
        assert world.limits() == {agent.RIGHT}
        # What an operator sees does not come and go with each of them.
        assert world.host_report()['alarms'] == [alarm]
        assert world.reported('right', 'problem') == (
            True, report['problem'])
        world.tick(61)
        assert world.host_report()['alarms'] == []
        assert world.reported('right', 'problem') == (True, '')

    def test_one_between_a_write_and_its_reading(self, world, monkeypatch):
        """Another value than before: the write was not without effect."""
        world.run()
        write, left = world.host.write, [31_000]

        def race(uuid, changes):
            write(uuid, changes)
            if left:
                world.host.set_vcpus(left.pop())
        monkeypatch.setattr(world.host, 'write', race)
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TOUCHED)
        world.settle()
        assert world.limits() == {agent.RIGHT}
        assert world.reported('problem', 'tampering_count') == ('', 2)

    def test_what_was_changed_without_an_agent_is_logged(
            self, world, tmp_path, caplog):
        world.run()
        world.host.set_vcpus(45_000)
        again = world.restarted(tmp_path)
        again.start()
        assert again.limits() == {agent.RIGHT}
        line, = [record.getMessage() for record in caplog.records
                 if record.levelname == 'WARNING'
                 and 'before its cap was corrected' in record.getMessage()
                 and '45000/50000' in record.getMessage()]
        assert '15000/50000' in line
        # Nobody knows whose it was: Nova's, or another profile's.
        assert again.report()['tampering_count'] == 0

    def test_a_write_to_its_cgroup_is_seen_between_ticks(self, world):
        world.run()
        world.now_s += 0.1
        world.host.set_vcpus(30_000)
        world.host.event(KIND.TOUCHED)
        world.settle()
        assert world.limits() == {agent.RIGHT}
