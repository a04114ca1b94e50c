# SPDX-License-Identifier: Apache-2.0
"""What domains used, by the counters of a host in files."""

import os
import shutil
import threading
import time

import libvirt
import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import bulk
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.hypervisor.libvirt import session
from nova_vqos.tests.fixtures import counter_file
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fake_host
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits

ABSENT = '00000000-2222-4333-8444-555555555555'
BLOCK = libvirt.VIR_DOMAIN_STATS_BLOCK
INTERFACE = libvirt.VIR_DOMAIN_STATS_INTERFACE


def opened_files():
    """:returns: the paths of the files that this process has open"""
    found = set()
    for handle in os.listdir('/proc/self/fd'):
        try:
            found.add(os.readlink(f'/proc/self/fd/{handle}'))
        except FileNotFoundError:
            # That of the listing.
            continue
    return found


class TestUsages:
    @pytest.fixture
    def host(self, tmp_path):
        made = fake_host.FakeHost(tmp_path, 1, 'machine/a')
        made.time('', 50)
        made.time('vcpu0', 30, 2)
        made.time('emulator', 20)
        made.write('run/a.pid', f'{fake_host.PID}\n')
        made.time_of(made.mount, 90)
        made.time_of(made.mount / 'system.slice', 40)
        made.time_of(made.mount / 'machine', 50)
        return made

    @pytest.fixture
    def statistics(self, monkeypatch, host):
        answers = fake_daemon.FakeDaemon()
        monkeypatch.setattr(session.Session, 'connected',
                            lambda _self: answers)
        return answers

    @pytest.fixture
    def reader(self, host, statistics):
        made = driver.LibvirtHypervisor(
            root=str(host.root), run_path=str(host.root / 'run'),
            instructions_path=str(host.root / 'instructions'))
        yield made
        made.close()

    def test_all_counters_of_a_domain(self, reader):
        before_s = time.monotonic()
        found = reader.usages([fakes.UUID], {})[fakes.UUID]
        assert before_s <= found.read_at_s <= time.monotonic()
        assert found == usage.Usage(
            run='boot-1/42/1234', read_at_s=found.read_at_s,
            vcpu_ns=30_000_000, emulator_ns=20_000_000, iothread_ns=0,
            vhost_ns=0, migration_ns=0, throttled_ns=2_000_000,
            interfaces={'tap0': usage.InterfaceCounters(10, 1000, 3, 5, 500)},
            disks={'vda': usage.DiskCounters(7, 7000, 4, 4000)})

    def test_what_vcpus_used(self, reader, statistics, host):
        before_s = time.monotonic()
        found = reader.vcpu_times({fakes.UUID: 7})[fakes.UUID]
        assert before_s <= found.read_at_s <= time.monotonic()
        assert found == usage.VcpuTime(
            'boot-1/42/1234', found.read_at_s, 30_000_000, 2_000_000, 1,
            total_ns=50_000_000, held_ns=0)
        # The biller has the same files.
        opened = len(os.listdir('/proc/self/fd'))
        reader.usages([fakes.UUID], {})
        assert reader.vcpu_times({fakes.UUID: 7})
        assert len(os.listdir('/proc/self/fd')) == opened

    def test_what_guests_retired(self, reader, statistics, host):
        for count in 100, 400:
            counter_file.write(host.root / 'instructions', fake_host.PID,
                               count)
            found = reader.guest_work({fakes.UUID: 7})
        assert found[fakes.UUID] == usage.GuestWork(
            found[fakes.UUID].run, found[fakes.UUID].read_at_s, 400,
            30_000_000, 2_000_000, 1)
        assert reader.guest_work_problems() == {}

    def test_why_they_are_not_counted(self, reader, statistics):
        assert reader.guest_work({fakes.UUID: 7}) == {}
        assert set(reader.guest_work_problems()) == {fakes.UUID}

    def test_its_counters_are_closed_with_it(self, reader, statistics, host):
        path = counter_file.write(host.root / 'instructions',
                                  fake_host.PID, 1)
        reader.guest_work({fakes.UUID: 7})
        assert str(path) in opened_files()
        reader.close()
        assert str(path) not in opened_files()

    def test_libvirt_is_asked_for_new_domains_alone(self, reader, statistics):
        reader.vcpu_times({fakes.UUID: 7})
        statistics.lookupByUUIDString = None
        assert reader.vcpu_times({fakes.UUID: 7})

    def test_usage_needs_no_libvirt(self, reader, statistics, monkeypatch):
        reader.vcpu_times({fakes.UUID: 7})

        def lost(_self):
            raise base.Unavailable('not connected')
        monkeypatch.setattr(session.Session, 'connected', lost)
        assert set(reader.vcpu_times(
            {fakes.UUID: 7, fakes.OTHER_UUID: 8})) == {fakes.UUID}

    @pytest.mark.parametrize('read', [
        lambda reader: reader.usages(
            [fakes.UUID, fakes.OTHER_UUID, ABSENT], {}),
        lambda reader: reader.vcpu_times(
            {fakes.UUID: 7, fakes.OTHER_UUID: 8, ABSENT: 9})])
    def test_unreadable_domains_are_left_out(self, reader, statistics, read):
        statistics.run(fakes.OTHER_UUID, 'no such process', 8)
        assert set(read(reader)) == {fakes.UUID}

    @pytest.mark.parametrize('read', [
        lambda reader, _run_id: reader.usages([fakes.UUID], {}),
        lambda reader, run_id: reader.vcpu_times({fakes.UUID: run_id})])
    def test_a_new_run_begins_anew(self, reader, statistics, host, read):
        read(reader, 7)
        host.start('5678')
        host.time('', 3)
        host.time('emulator', 1)
        statistics.run(fakes.UUID, 'a', 8)
        found = read(reader, 8)[fakes.UUID]
        assert (found.run, found.vcpu_ns) == ('boot-1/42/5678', 2_000_000)

    def test_nothing_wanted_is_nothing_asked(self, reader, statistics):
        assert reader.usages([], {}) == {}
        assert statistics.calls == []

    def test_unwanted_statistics_are_not_read(self, reader, statistics):
        statistics.run(fakes.OTHER_UUID, 'no such process', 8)
        assert set(reader.usages([fakes.UUID], {})) == {fakes.UUID}
        assert reader.usages([ABSENT], {}) == {}
        # Nor is its QEMU asked for anything.
        assert [uuids for groups, uuids in statistics.calls
                if groups == BLOCK] == [{fakes.UUID}]

    def test_disks_without_an_answer(self, reader, statistics, monkeypatch):
        go_on = threading.Event()
        monkeypatch.setattr(
            statistics, 'domainListGetStats',
            lambda *_arguments: go_on.wait(waits.LIMIT_S) and [])
        reader._qemus._bulk = bulk.BulkReader(0.05)
        found = reader.usages([fakes.UUID], {})[fakes.UUID]
        assert found.disks is None
        assert found.vcpu_ns == 30_000_000
        assert set(found.interfaces) == {'tap0'}
        go_on.set()

    def test_qemus_are_asked_on_a_connection_of_their_own(
            self, reader, monkeypatch):
        main, qemus = fake_daemon.FakeDaemon(), fake_daemon.FakeDaemon()
        monkeypatch.setattr(
            session.Session, 'connected', lambda connection: (
                qemus if connection is reader._qemu_session else main))
        reader.usages([fakes.UUID], {})
        reader.activity([fakes.UUID])
        assert [groups for groups, _uuids in main.calls] == [INTERFACE]
        assert [groups & BLOCK for groups, _uuids in qemus.calls] == [
            BLOCK] * 2

    def test_an_idle_domain_is_not_asked_again(self, reader, statistics, host):
        assert reader.usages([fakes.UUID], {})[fakes.UUID].disks
        assert reader.usages([fakes.UUID], {})[fakes.UUID].disks is None
        host.time('', 5_000_000)
        host.time('vcpu0', 4_999_980)
        assert reader.usages([fakes.UUID], {})[fakes.UUID].disks
        assert [groups for groups, _uuids in statistics.calls].count(
            BLOCK) == 2

    def test_an_idle_domain_is_left_out(self, reader, statistics, host):
        idle = {fakes.UUID: base.Idle(0.5, 30.0)}
        assert reader.usages([fakes.UUID], idle)
        statistics.calls.clear()
        assert reader.usages([fakes.UUID], idle) == {}
        assert statistics.calls == []
        assert reader.usages([fakes.UUID], {})[fakes.UUID].disks is None
        host.time('', 5_000_000)
        host.time('vcpu0', 4_999_980)
        assert reader.usages([fakes.UUID], idle)[fakes.UUID].disks

    def test_it_is_read_after_a_while_in_any_case(self, reader, monkeypatch):
        idle = {fakes.UUID: base.Idle(0.5, 60.0)}
        assert reader.usages([fakes.UUID], idle)[fakes.UUID].disks
        now_s = time.monotonic()
        monkeypatch.setattr(time, 'monotonic', lambda: now_s + 59.0)
        assert reader.usages([fakes.UUID], idle) == {}
        monkeypatch.setattr(time, 'monotonic', lambda: now_s + 61.0)
        assert reader.usages([fakes.UUID], idle)[fakes.UUID].disks

    def test_a_reading_of_others_changes_nothing(self, reader, host):
        idle = {fakes.UUID: base.Idle(0.5, 30.0)}
        assert reader.usages([fakes.UUID], idle)
        assert reader.usages([ABSENT], {}) == {}
        assert reader.usages([fakes.UUID], idle) == {}

    def test_one_of_which_nothing_is_known_is_read(self, reader, host,
                                                     caplog):
        idle = {fakes.UUID: base.Idle(0.5, 30.0)}
        assert reader.usages([fakes.UUID], idle)
        for path in {host.domain, host.tuned}:
            shutil.rmtree(path)
        reader._domains.close()
        assert reader.usages([fakes.UUID], idle) == {}
        assert 'cannot be read' in caplog.text

    def test_only_those_read_are_asked_for(self, reader, statistics):
        statistics.run(fakes.OTHER_UUID, 'no such process', 8)
        for _ in range(2):
            reader.usages([fakes.UUID], {})
        asked = [uuids for groups, uuids in statistics.calls
                 if groups == INTERFACE]
        assert asked == [{fakes.UUID, fakes.OTHER_UUID}, {fakes.UUID}]

    def test_a_new_connection_is_asked_for_all(self, reader, monkeypatch):
        reader.usages([fakes.UUID], {})
        other = fake_daemon.FakeDaemon()
        monkeypatch.setattr(other, 'domainListGetStats', None)
        monkeypatch.setattr(session.Session, 'connected', lambda _self: other)
        assert reader.usages([fakes.UUID], {})
        assert [groups for groups, _uuids in other.calls] == [INTERFACE]

    def test_qemus_that_hang_leave_two_of_five_places(self, reader, statistics,
                                                      monkeypatch):
        """As many calls libvirtd takes on a connection."""
        reader._qemus._bulk = bulk.BulkReader(0.05)
        go_on, asked, answer = (
            threading.Event(), [], statistics.domainListGetStats)

        def hang(domains, groups, flags):
            if groups == INTERFACE:
                return answer(domains, groups, flags)
            asked.append(groups)
            go_on.wait(waits.LIMIT_S)
            return []
        monkeypatch.setattr(statistics, 'domainListGetStats', hang)
        for _ in range(3):
            assert reader.usages([fakes.UUID], {})[fakes.UUID].disks is None
            with pytest.raises(base.Unavailable):
                reader.activity([fakes.UUID])
        go_on.set()
        assert len(asked) == 3

    def test_one_that_was_shut_off_is_left_out(self, reader, statistics,
                                               caplog):
        reader.usages([fakes.UUID], {})
        statistics.run(fakes.UUID, 'a', -1)
        assert reader.usages([fakes.UUID], {}) == {}
        assert caplog.records == []

    def test_that_is_logged_once_each_time(self, reader, host, caplog):
        for times in (1, 2):
            host.write('run/a.pid', 'x')
            reader._domains.close()
            for _ in range(3):
                assert reader.usages([fakes.UUID], {}) == {}
            assert [record.levelname for record in caplog.records
                    if record.levelname == 'WARNING'] == ['WARNING'] * times
            host.write('run/a.pid', f'{fake_host.PID}\n')
            assert reader.usages([fakes.UUID], {})

    def test_counters_outlast_a_new_connection(self, reader, host):
        host.time('iothread1', 10)
        reader.usages([fakes.UUID], {})
        reader._disconnect()
        host.remove('iothread1')
        found = reader.usages([fakes.UUID], {})[fakes.UUID]
        assert found.iothread_ns == 10_000_000

    def test_an_error_of_libvirts_is_unavailable(self, reader, statistics):
        statistics.error = fake_daemon.libvirt_error('unsupported')
        with pytest.raises(base.Unavailable, match='unsupported'):
            reader.usages([fakes.UUID], {})

    def test_the_hosts_cpu_time(self, reader):
        found = reader.host_usage()
        assert (found.total_ns, found.domains_ns, found.own_ns) == (
            90_000_000, 50_000_000, 40_000_000)

    def test_a_host_that_does_not_count_is_an_error(self, hypervisor):
        with pytest.raises(base.HypervisorError):
            hypervisor.host_usage()
