# SPDX-License-Identifier: Apache-2.0
"""It is remembered when the cap of a server was last set, and why."""

import time

import pytest

from nova_vqos.hypervisor import base
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes

KIND = base.EventKind


def recap_of(world):
    """Reason and window in ms; None: there was none."""
    last = world.report()['last_recap']
    if last is None:
        return None
    assert last['at'].endswith('+00:00')
    window_ms = last['wrong_ms']
    return last['reason'], window_ms and pytest.approx(window_ms)


class TestFirst:
    def test_one_that_ran_already(self, world, monkeypatch):
        monkeypatch.setattr(time, 'time', lambda: 90.0)
        world.run()
        assert recap_of(world) == ('found', None)
        monkeypatch.setattr(time, 'time', lambda: 95.0)
        assert world.report()['last_recap']['at'].startswith(
            '1970-01-01T00:01:30')

    def test_one_that_ran_already_and_has_its_cap(self, world):
        world.run(quota_us=15_000, period_us=50_000, shares=614)
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
        world.run(specs={})
        assert recap_of(world) is None


class TestLater:
    @pytest.fixture
    def running(self, world):
        world.run(quota_us=15_000, period_us=50_000, shares=614)
        return world

    def test_another_writer_changed_it(self, running):
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
        running.change(extra_specs=fakes.make_specs('80'))
        del running.host.refuse[fakes.UUID]
        running.tick(40)
        last = running.report()['last_recap']
        assert last['reason'] == 'tampered'
        assert 30_000 < last['wrong_ms'] < 71_000

    def test_another_flavor(self, running, caplog):
        caplog.set_level('INFO')
        running.change(extra_specs=fakes.make_specs('80'))
        assert recap_of(running) == ('flavor', 0.0)
        assert 'since its flavor changed' in caplog.text

    def test_another_profile(self, running, caplog):
        caplog.set_level('INFO')
        document.store(fakes.make_profile(1.25), str(running.profile_path))
        running.tick()
        assert recap_of(running) == ('profile', 0.0)
        running.tick(5)
        assert caplog.text.count(
            'has another cap for 60 CU (hard), class default, billing off, '
            'since its profile changed: vCPUs 12000/50000 us, shares 614, '
            'after 0 ms') == 1

    def test_a_profile_that_changes_no_cap_is_no_reason(self, running):
        document.store(fakes.make_profile(1.0, pcpus=(0, 1, 2)),
                       str(running.profile_path))
        running.tick(2)
        assert recap_of(running) is None

    def test_another_vcpu(self, running, caplog):
        caplog.set_level('INFO')
        running.host.plug_vcpu(2)
        running.tick()
        assert recap_of(running) == ('vcpus', 0.0)
        assert 'since its vcpus changed' in caplog.text

    def test_other_pcpus(self, running, caplog):
        caplog.set_level('INFO')
        slow = fakes.make_profile(0.5, pcpus=(1,)).cpu_classes
        fast = fakes.make_profile(1.0, pcpus=(0,))
        running.change(pcpus=frozenset({0}), pinned_by_others=True)
        document.store(fast._replace(cpu_classes=fast.cpu_classes + slow),
                       str(running.profile_path))
        running.tick()
        assert recap_of(running) is None
        running.change(pcpus=frozenset({1}))
        assert recap_of(running) == ('pcpus', 0.0)
        assert 'since its pcpus changed' in caplog.text

    def test_a_correction_by_another_sets_no_cap_of_ours(self, running):
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
        world = billing.World(tmp_path)
        world.run()
        world.busy(60)
        assert recap_of(world) == ('debt', 0.0)
        world.ask(lambda: world.loop.lift(fakes.UUID, 30.0))
        world.settle()
        assert recap_of(world) == ('lifted', 0.0)
        world.tick(32)
        assert world.domain().quota_us is not None
        assert recap_of(world) == ('debt', 0.0)
        # No line for each: it changes all the time.
        assert 'has another cap' not in caplog.text

    def test_an_unknown_change_releases_the_limit(self, tmp_path):
        world = billing.World(tmp_path)
        world.run()
        world.busy(60)
        document.store(fakes.make_profile(0.25), str(world.profile_path))
        world.tick(60)
        assert recap_of(world) == ('released', None)
        document.store(fakes.make_profile(), str(world.profile_path))
        world.tick(60)
        assert world.report()['right'] is True
        assert recap_of(world)[0] == 'debt'
