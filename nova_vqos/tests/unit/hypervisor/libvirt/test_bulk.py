# SPDX-License-Identifier: Apache-2.0
"""Requests of domains' devices, from what libvirt answers."""

import threading
import types

import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits

NET, BLOCK = fake_daemon.NET, fake_daemon.BLOCK


def parse(**found):
    return bulk.interfaces(found), bulk.disks(found)


def test_all_counters_are_found():
    found = parse(**NET, **BLOCK)
    assert found == ({'tap0': usage.InterfaceCounters(
        rx_packets=10, rx_bytes=1000, rx_dropped=3, tx_packets=5,
        tx_bytes=500)}, {'vda': usage.DiskCounters(
            read_requests=7, read_bytes=7000, write_requests=4,
            write_bytes=4000)})


def test_a_domain_with_a_foreign_job_returns_no_disks():
    names = {key: value for key, value in BLOCK.items()
             if key in ('block.count', 'block.0.name', 'block.0.path')}
    interfaces, disks = parse(**NET, **names)
    assert disks is None
    assert set(interfaces) == {'tap0'}


def test_a_domain_without_devices_has_none():
    assert parse(**{'net.count': 0, 'block.count': 0}) == ({}, {})
    assert parse() == ({}, {})


def test_a_device_that_is_just_going_is_left_out():
    interfaces, disks = parse(
        **NET | {'net.count': 2, 'net.1.name': 'tap1'},
        **BLOCK | {'block.count': 2, 'block.1.name': 'vdb'})
    assert set(interfaces) == {'tap0'}
    assert set(disks) == {'vda'}


def test_a_count_without_bounds_ends():
    assert parse(**{'net.count': 2**32, 'block.count': 2**32}) == ({}, None)


def test_one_that_is_not_understood_costs_no_other(monkeypatch, caplog):
    monkeypatch.setattr(bulk, '_odd', set())
    odd, other = [types.SimpleNamespace(UUIDString=lambda uuid=uuid: uuid)
                  for uuid in (fakes.UUID, fakes.OTHER_UUID)]
    nameless = {name: value for name, value in NET.items()
                if name != 'net.0.name'}
    for _ in range(3):
        assert bulk.each([(odd, nameless), (other, NET)],
                         lambda _domain, found: bulk.interfaces(found)) == {
            fakes.OTHER_UUID: bulk.interfaces(NET)}
    record, = caplog.records
    assert fakes.UUID in record.getMessage()


class TestSchedule:
    MS_NS = 1_000_000

    @pytest.fixture
    def schedule(self):
        made = bulk.Schedule()
        made.record(fakes.UUID, 'run', 100.0, 5000 * self.MS_NS)
        return made

    @pytest.mark.parametrize('run, after_s, used_ms, due', [
        ('run', 2, 0, False), ('run', 2, 39, False), ('run', 2, 41, True),
        ('run', 29, 579, False), ('run', 29, 581, True), ('run', 30, 0, True),
        ('other', 0, -4000, True)])
    def test_active_ones_are_asked(self, schedule, run, after_s, used_ms, due):
        assert schedule.is_due(fakes.UUID, run, 100.0 + after_s,
                               (5000 + used_ms) * self.MS_NS) is due

    def test_who_never_answered_is_asked(self, schedule):
        assert schedule.is_due(fakes.OTHER_UUID, 'run', 100.0, 0)
        schedule.retain([fakes.UUID])
        assert not schedule.is_due(fakes.UUID, 'run', 101.0, 0)
        schedule.retain([])
        assert schedule.is_due(fakes.UUID, 'run', 101.0, 0)


class TestBulkReader:
    def test_it_answers_what_the_call_did(self):
        assert bulk.BulkReader().read(lambda: [(1, NET), (2, BLOCK)]) == [
            (1, NET), (2, BLOCK)]

    @pytest.mark.parametrize('error, raised', [
        (base.DomainBusy, base.Unavailable),
        (base.Unavailable, base.Unavailable),
        (ZeroDivisionError, ZeroDivisionError)])
    def test_errors_of_libvirt_mean_unavailable(self, error, raised):
        def fail():
            raise error('x')
        with pytest.raises(raised):
            bulk.BulkReader().read(fail)

    def test_it_goes_on_without_a_call_that_hangs(self):
        reader = bulk.BulkReader(limit_s=0.05)
        go_on = threading.Event()
        with pytest.raises(base.Unavailable, match='0.05 s'):
            reader.read(lambda: go_on.wait(waits.LIMIT_S) and [])
        assert reader.read(lambda: [(1, NET)]) == [(1, NET)]
        go_on.set()

    def test_no_more_than_three_hang_at_a_time(self):
        reader = bulk.BulkReader(limit_s=0.05)
        go_on = threading.Event()
        ended = threading.Semaphore(0)

        def hang():
            go_on.wait(waits.LIMIT_S)
            ended.release()
            return []
        for _ in range(3):
            with pytest.raises(base.Unavailable, match='0.05 s'):
                reader.read(hang)
        with pytest.raises(base.Unavailable, match='3 calls'):
            reader.read(list)
        go_on.set()
        for _ in range(3):
            assert ended.acquire(timeout=waits.LIMIT_S)
        # The last of it happens in threads that end by themselves.
        for thread in threading.enumerate():
            if thread.name == 'libvirt-statistics':
                thread.join(waits.LIMIT_S)
        assert reader.read(list) == []
