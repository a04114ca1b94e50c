# SPDX-License-Identifier: Apache-2.0
"""Disks of overdrawn servers, held back by an agent on a fake host."""

import dataclasses
import logging

import pytest

from nova_vqos.billing import throttle
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import billing
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.agent.billing import test_accounted

FOUND = throttle.DiskLimit(7, 7000)


class World(billing.World):
    """A host with a server that reads its disk as much as it can.

    A request costs 5 us of the kernel's time, by its profile.
    """

    def __init__(self, directory, *, throttles=True, **options):
        super().__init__(directory, throttles=throttles, **options)
        test_accounted.World.measure(self, test_accounted.COSTS)

    def boot(self, uuid=fakes.UUID, limits=None, **others):
        super().boot(uuid, disks={'vda': usage.DiskKind('file', False)},
                     **others)
        self.host.describe_as(uuid, disk_limits={'vda': None}
                              if limits is None else limits)
        self.host.used[uuid] = dataclasses.replace(
            self.host.used[uuid],
            disks={'vda': usage.DiskCounters(0, 0, 0, 0)})

    def read(self, seconds, per_s=400_000, uuid=fakes.UUID):
        """Let it read blocks of 4 KiB, within the limit in force.

        As many as it can cost two pCPUs of the kernel's time.
        """
        for _ in range(seconds):
            limit = self.limit(uuid)
            done = per_s if limit is None else min(per_s,
                                                   limit.requests_per_s)
            before = self.host.used[uuid].disks['vda'].read_requests
            self.use(uuid=uuid, vcpu_ns=3 * 10**8)
            self.host.used[uuid] = dataclasses.replace(
                self.host.used[uuid], disks={'vda': usage.DiskCounters(
                    before + done, (before + done) * 4096, 0, 0)})

    def limit(self, uuid=fakes.UUID):
        return self.host.domains[uuid].disk_limits.get('vda')


@pytest.fixture
def world(tmp_path):
    made = World(tmp_path)
    made.run()
    return made


@pytest.fixture
def held(world):
    """One whose server is held back."""
    world.read(60)
    assert world.limit() is not None
    return world


def test_it_is_held_back_and_reported(world, caplog):
    world.read(60)
    limit = world.limit()
    # 0.9 of a half of 60 CU, at 5 us each.
    assert limit.requests_per_s == pytest.approx(0.27 / 5e-6, rel=0.05)
    assert limit.bytes_per_s == pytest.approx(4096 * limit.requests_per_s,
                                              rel=0.01)
    report = world.report()['disk_limit']
    assert (report['requests_per_s'], report['bytes_per_s']) == limit
    assert report['since'] and report['problem'] == ''
    assert caplog.text.count('its disks are held back to') == 1
    world.read(300)
    assert world.report()['bill']['used_lately_cu']['disk'] < 30
    assert len(world.host.disk_writes) <= 3


def test_it_ends_with_its_debt(held, caplog):
    caplog.set_level(logging.INFO)
    held.use(900, vcpu_ns=10**7)
    assert held.limit() is None
    assert held.report()['disk_limit'] is None
    assert caplog.text.count('not held back any more') == 1


def test_it_is_off_by_default(tmp_path):
    world = World(tmp_path, throttles=False)
    world.run()
    world.read(120)
    assert world.report()['bill']['overdrawn'] is True
    assert world.host.disk_writes == []


@pytest.mark.parametrize('specs', [
    fakes.make_specs(), fakes.make_specs(dd_billing='account'),
    fakes.make_specs(dd_billing='charge', cap='floor'), {}, None])
def test_another_flavor_ends_it(held, specs):
    held.change(extra_specs=specs)
    held.tick(3)
    assert held.limit() is None


def test_use_that_cannot_be_read_ends_it(held):
    del held.host.used[fakes.UUID]
    held.tick(70)
    assert held.limit() is None


class TestOtherAgents:
    """What another agent left, before a restart or on another host."""

    def begin(self, directory, *, throttles, **options):
        world = World(directory, throttles=throttles)
        world.run(limits={'vda': FOUND}, **options)
        return world

    def test_one_that_may_keeps_it_until_it_is_not_needed(self, tmp_path):
        world = self.begin(tmp_path, throttles=True)
        world.tick(50)
        assert world.limit() == FOUND
        world.use(60, vcpu_ns=10**7)
        assert world.limit() is None

    @pytest.mark.parametrize('dd_billing', ['charge', 'account', 'off'])
    def test_one_that_is_not_to_set_any_ends_it(self, tmp_path, dd_billing):
        world = self.begin(tmp_path, throttles=False, dd_billing=dd_billing)
        world.tick(5)
        assert world.limit() is None

    def test_that_of_an_arriving_server_waits_for_its_arrival(self, tmp_path):
        world = World(tmp_path, throttles=False)
        world.run(limits={'vda': FOUND}, incoming=True)
        world.tick(20)
        assert world.limit() == FOUND
        world.host.describe_as(incoming=False)
        world.host.event(base.EventKind.RESUMED, detail='migrated')
        world.settle()
        world.tick(3)
        assert world.limit() is None


class TestRefused:
    def test_a_disk_with_another_limit_is_left_alone(self, tmp_path, caplog):
        world = World(tmp_path)
        world.run(limits={})
        world.read(120)
        assert world.host.disk_writes == []
        report = world.report()['disk_limit']
        assert 'another writer' in report['problem']
        assert report['since'] is None
        assert caplog.text.count('are not held back') == 1
        # Until that has gone.
        world.change(disk_limits={'vda': None})
        world.tick(3)
        assert world.limit() is not None
        assert world.report()['disk_limit']['problem'] == ''

    def test_what_qemu_refuses_is_reported_and_tried_rarely(self, world,
                                                            caplog):
        world.host.refuse_disks[fakes.UUID] = base.HypervisorError('cannot')
        tried = []
        refusing = world.host.limit_disks
        world.host.limit_disks = lambda *call: (tried.append(call),
                                                refusing(*call))
        world.read(300)
        assert world.report()['disk_limit']['problem'] == 'cannot'
        assert world.report()['right'] is True
        assert caplog.text.count('are not held back') == 1
        assert 2 <= len(tried) <= 7
        world.host.refuse_disks.clear()
        world.read(320)
        assert world.limit() is not None

    def test_one_that_migrates_is_tried_when_it_has_ended(self, world):
        world.host.refuse_disks[fakes.UUID] = base.DomainBusy('it migrates')
        world.read(60)
        assert world.limit() is None
        world.host.refuse_disks.clear()
        world.read(3)
        assert world.limit() is not None

    def test_one_that_was_taken_off_is_set_again(self, held):
        limit = held.limit()
        held.change(disk_limits={'vda': None})
        held.read(3)
        assert held.limit() == limit


class TestStop:
    @staticmethod
    def stop(world):
        world.executor.use_threads(2)
        world.loop.stop()
        world.loop.run()

    def test_it_ends_with_the_agent(self, held):
        self.stop(held)
        assert held.limit() is None

    def test_or_that_is_logged(self, held, caplog):
        held.host.refuse_disks[fakes.UUID] = base.DomainBusy('it migrates')
        self.stop(held)
        assert 'keeps the limit on its disks' in caplog.text
