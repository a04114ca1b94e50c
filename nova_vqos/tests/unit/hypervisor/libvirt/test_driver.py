# SPDX-License-Identifier: Apache-2.0
"""The libvirt driver, on the driver that libvirt itself brings for tests."""

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

LIMIT_S = 20


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


class TestLibvirt:
    def test_it_fits_the_contract(self, hypervisor):
        assert isinstance(hypervisor, base.Hypervisor)
        assert hypervisor.cgroup_version == 1

    def test_running_domains_have_growing_numbers(self, hypervisor, daemon):
        before = hypervisor.running()
        domain = daemon.lookupByName('test')
        assert before == {domain.UUIDString(): domain.ID()}
        domain.destroy()
        assert hypervisor.running() == {}
        domain.create()
        after = hypervisor.running()
        assert after[domain.UUIDString()] > before[domain.UUIDString()]

    def test_the_flavor_is_read_from_the_metadata(self, hypervisor, daemon):
        domain = daemon.createXML(f"""
            <domain type='test'><name>a</name><uuid>{fakes.UUID}</uuid>
            <metadata><n:instance
               xmlns:n='http://openstack.org/xmlns/libvirt/nova/1.1'>
             <n:flavor name='f' id='7'><n:vcpus>2</n:vcpus><n:extraSpecs>
              <n:extraSpec name='resources:CUSTOM_VQOS_CPU_UNIT'
                >60</n:extraSpec></n:extraSpecs></n:flavor>
            </n:instance></metadata>
            <memory>8192</memory><vcpu cpuset='1'>2</vcpu>
            <os><type>hvm</type></os></domain>""")
        try:
            assert hypervisor.describe(fakes.UUID) == base.Domain(
                uuid=fakes.UUID, name='a', vcpus=2, pcpus=frozenset({1}),
                cpuset=frozenset({1}),
                extra_specs={'resources:CUSTOM_VQOS_CPU_UNIT': '60'},
                flavor_name='f', flavor_id='7', incoming=False,
                private_ram_bytes=8192 * 1024)
        finally:
            domain.destroy()

    @pytest.mark.parametrize('network, mode', [
        ('default', 'nat'), ('nowhere', '')])
    def test_devices_are_in_the_xml(self, hypervisor, daemon, network, mode):
        domain = daemon.createXML(f"""
            <domain type='test'><name>a</name><uuid>{fakes.UUID}</uuid>
            <memory>8192</memory><vcpu>1</vcpu><os><type>hvm</type></os>
            <devices><disk type='block'><driver cache='none'/>
             <source dev='/dev/x'/><target dev='vdb'/></disk>
             <interface type='network'><source network='{network}'/>
              <target dev='tap9'/><model type='virtio'/></interface>
            </devices></domain>""")
        try:
            described = hypervisor.describe(fakes.UUID)
        finally:
            domain.destroy()
        assert described.interfaces == {
            'tap9': usage.InterfaceKind(mode, 'qemu')}
        assert described.disks == {'vdb': usage.DiskKind('block', False)}

    def test_a_domain_of_others_has_no_flavor(self, hypervisor):
        uuid, = hypervisor.running()
        assert hypervisor.describe(uuid).extra_specs is None

    def test_the_connection_that_asks_qemus_is_needed(self, hypervisor):
        hypervisor._qemu_session.close()
        with pytest.raises(base.Unavailable, match='asks QEMUs'):
            hypervisor.running()

    def test_without_it_there_is_none(self, hypervisor, monkeypatch):
        def refuse(*_arguments):
            raise base.Unavailable('x')
        monkeypatch.setattr(hypervisor._qemu_session, 'open', refuse)
        with pytest.raises(base.Unavailable):
            hypervisor.connect(lambda _event: None)
        assert hypervisor._session.connection is None

    def test_a_domain_that_is_gone_is_looked_up_no_more(
            self, hypervisor, daemon, monkeypatch):
        uuid, = hypervisor.running()
        asked = fake_daemon.FakeDaemon()
        monkeypatch.setattr(hypervisor._qemu_session, '_connection', asked)
        asked.run(uuid, 'test', 1)
        for _ in range(2):
            hypervisor.activity([uuid])
        assert asked.lookups == [uuid]
        domain = daemon.lookupByName('test')
        domain.destroy()
        try:
            assert hypervisor.running() == {}
            hypervisor.activity([uuid])
            assert asked.lookups == [uuid] * 2
        finally:
            domain.create()

    def test_events_arrive(self, hypervisor, daemon, events):
        domain = daemon.lookupByName('test')
        run_id = domain.ID()
        domain.suspend()
        domain.resume()
        domain.destroy()
        domain.create()
        found = {}
        while base.EventKind.STARTED not in found:
            event = events.get(timeout=LIMIT_S)
            found[event.kind] = event
        assert found[base.EventKind.RESUMED].uuid == domain.UUIDString()
        assert found[base.EventKind.RESUMED].detail == 'unpaused'
        assert base.EventKind.STOPPED in found
        assert found[base.EventKind.STARTED].detail == 'booted'
        assert found[base.EventKind.STARTED].run_id > run_id

    @pytest.mark.parametrize('number', [
        libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
        libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED])
    def test_a_device_that_comes_or_goes_is_a_change(
            self, hypervisor, daemon, events, number):
        """libvirt's driver for tests has no devices to plug."""
        domain = daemon.lookupByName('test')
        hypervisor._events.callbacks[number](daemon, domain, 'net0', None)
        event = events.get(timeout=LIMIT_S)
        assert event.kind is base.EventKind.CHANGED
        assert event.uuid == domain.UUIDString()

    @pytest.mark.parametrize('method', ['describe', 'read'])
    def test_an_absent_domain_is_gone(self, hypervisor, method):
        with pytest.raises(base.DomainGone):
            getattr(hypervisor, method)(fakes.OTHER_UUID)

    def test_a_write_to_an_absent_domain_is_gone(self, hypervisor):
        with pytest.raises(base.DomainGone):
            hypervisor.write(fakes.OTHER_UUID, [])

    def test_a_value_that_is_refused_is_an_error(self, hypervisor):
        uuid, = hypervisor.running()
        with pytest.raises(base.HypervisorError) as caught:
            hypervisor.write(uuid, [base.Change(base.Parameter.QUOTA_US, 1)])
        assert type(caught.value) is base.HypervisorError

    def test_a_domain_without_a_process_cannot_be_read(self, hypervisor):
        uuid, = hypervisor.running()
        with pytest.raises(base.HypervisorError, match='process'):
            hypervisor.read(uuid)

    def test_a_domain_that_has_just_ended_is_gone(self, hypervisor, daemon):
        uuid, = hypervisor.running()
        domain = daemon.lookupByName('test')
        domain.destroy()
        try:
            with pytest.raises(base.DomainGone):
                hypervisor.read(uuid)
        finally:
            domain.create()

    def test_without_a_connection_all_is_unavailable(self, hypervisor):
        hypervisor.close()
        for call in (hypervisor.running,
                     lambda: hypervisor.describe(fakes.UUID),
                     lambda: hypervisor.read(fakes.UUID),
                     lambda: hypervisor.write(fakes.UUID, []),
                     lambda: hypervisor.pin(fakes.UUID, {1}),
                     lambda: hypervisor.place(fakes.UUID, {0: {1}}),
                     lambda: hypervisor.set_slices(fakes.UUID, {}, None),
                     lambda: hypervisor.vcpu_threads(fakes.UUID),
                     lambda: hypervisor.vcpu_runs({fakes.UUID}),
                     lambda: hypervisor.usages({fakes.UUID}, {})):
            with pytest.raises(base.Unavailable):
                call()

    def test_an_absent_daemon_is_unavailable(self, tmp_path):
        absent = driver.LibvirtHypervisor('test:///no/such/file')
        with pytest.raises(base.Unavailable, match='no/such/file'):
            absent.connect(lambda _event: None)

    def test_it_connects_again(self, hypervisor, events, daemon):
        hypervisor.connect(events.put)
        assert hypervisor._session.connected() is not daemon
        assert len(hypervisor.running()) == 1


ABSENT = '00000000-2222-4333-8444-555555555555'
BLOCK = libvirt.VIR_DOMAIN_STATS_BLOCK
INTERFACE = libvirt.VIR_DOMAIN_STATS_INTERFACE


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
            lambda *_arguments: go_on.wait(LIMIT_S) and [])
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
            go_on.wait(LIMIT_S)
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


def test_limits_of_whole_domains_are_written_in_order(hypervisor, monkeypatch):
    domain = FakeDomain()
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    hypervisor.write(fakes.UUID, [
        base.Change(base.Parameter.QUOTA_US, 15_000),
        base.Change(base.Parameter.DOMAIN_PERIOD_US, 50_000),
        base.Change(base.Parameter.DOMAIN_QUOTA_US, 30_000)])
    assert domain.set == [[('vcpu_quota', 15_000), ('global_period', 50_000),
                           ('global_quota', 30_000)]]


class FakeDomain:
    """What a write asks of a domain of libvirt."""

    def __init__(self, state=(libvirt.VIR_DOMAIN_RUNNING, 1), job=None,
                 refuse=(), control=(libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0)):
        self._state = state
        self._control = control
        self._job = job or {'type': libvirt.VIR_DOMAIN_JOB_NONE}
        self._refuse = refuse
        self.set = []

    def state(self):
        return list(self._state)

    def jobStats(self):
        return self._job

    def controlInfo(self):
        return list(self._control)

    def isActive(self):
        return 1

    def UUIDString(self):
        return fakes.UUID

    def name(self):
        return 'a'

    def setSchedulerParametersFlags(self, values, flags):
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        if set(values.values()) & set(self._refuse):
            raise fake_daemon.libvirt_error('refused')
        self.set.append(list(values.items()))


def test_a_domain_that_is_being_started_is_busy(hypervisor, monkeypatch):
    domain = FakeDomain((libvirt.VIR_DOMAIN_PAUSED,
                         libvirt.VIR_DOMAIN_PAUSED_STARTING_UP))
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    with pytest.raises(base.DomainBusy):
        hypervisor.describe(fakes.UUID)


@pytest.mark.parametrize('state, incoming', [
    ((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION), True),
    ((libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_USER), False),
    ((libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_MIGRATED),
     False),
    ((libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY),
     False)])
def test_a_domain_to_come_is_marked(hypervisor, monkeypatch, state, incoming):
    domain = FakeDomain(state)
    domain.XMLDesc = lambda _flags: (
        "<domain type='kvm'><name>a</name><vcpu>1</vcpu></domain>")
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    assert hypervisor.describe(fakes.UUID).incoming is incoming


def unsupported():
    """:returns: what the target of a migration answers about its job"""
    return fake_daemon.libvirt_error(
        'unsupported', libvirt.VIR_ERR_OPERATION_UNSUPPORTED)


class TestWrite:
    def write(self, hypervisor, monkeypatch, domain, *changes):
        monkeypatch.setattr(hypervisor._session, 'lookup',
                            lambda _uuid: domain)
        hypervisor.write(fakes.UUID, [
            base.Change(base.Parameter[name], value)
            for name, value in changes])

    def test_the_order_is_kept(self, hypervisor, monkeypatch):
        for order in (['QUOTA_US', 'PERIOD_US'], ['PERIOD_US', 'QUOTA_US']):
            domain = FakeDomain()
            self.write(hypervisor, monkeypatch, domain,
                       *((name, 2000) for name in order))
            assert [name for name, _value in domain.set[0]] == [
                {'QUOTA_US': 'vcpu_quota', 'PERIOD_US': 'vcpu_period'}[name]
                for name in order]

    @pytest.mark.parametrize('state', [
        (libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_MIGRATION),
        (libvirt.VIR_DOMAIN_RUNNING, libvirt.VIR_DOMAIN_RUNNING_POSTCOPY)])
    def test_arriving_ones_are_not_asked(self, hypervisor, monkeypatch, state):
        domain = FakeDomain(state)
        # Even to ask for the job would block there for 30 s.
        domain.jobStats = None
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    @pytest.mark.parametrize('job_type', [
        libvirt.VIR_DOMAIN_JOB_BOUNDED, libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
        libvirt.VIR_DOMAIN_JOB_COMPLETED])
    def test_no_write_in_a_migration(self, hypervisor, monkeypatch, job_type):
        domain = FakeDomain(job={
            'type': job_type,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT})
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    @pytest.mark.parametrize('since_ms', [
        # One that hangs, and one that is asked again and again.
        2000, 0])
    def test_no_write_while_a_monitor_hangs(self, hypervisor, monkeypatch,
                                            since_ms):
        """It would wait for 30 s: a few of them hold up all others."""
        if not since_ms:
            monkeypatch.setattr(session, '_HANGS_AFTER_MS', 30)
        domain = FakeDomain(
            control=(libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, since_ms))
        # Even to ask for the job would block.
        domain.jobStats = None
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    def test_a_monitor_that_answers_is_waited_for(self, hypervisor,
                                                  monkeypatch):
        domain = FakeDomain()
        answers = [(libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0),
                   (libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, 1990),
                   (libvirt.VIR_DOMAIN_CONTROL_OCCUPIED, 0, 1980)]
        monkeypatch.setattr(domain, 'controlInfo', lambda: answers.pop())
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert answers == []
        assert domain.set == [[('cpu_shares', 600)]]

    def test_one_that_arrives_is_waited_for(self, hypervisor, monkeypatch):
        """Its guest runs already, and libvirt still takes no writes."""
        domain = FakeDomain()
        errors = [unsupported() for _ in range(3)]

        def job_stats():
            if errors:
                raise errors.pop()
            return {'type': libvirt.VIR_DOMAIN_JOB_NONE}
        domain.jobStats = job_stats
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert errors == []
        assert domain.set == [[('cpu_shares', 600)]]

    def test_one_that_arrives_for_long_is_busy(self, hypervisor, monkeypatch):
        monkeypatch.setattr(session, '_ARRIVAL_TIMEOUT_S', 0.03)
        domain = FakeDomain()

        def job_stats():
            raise unsupported()
        domain.jobStats = job_stats
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    def test_a_backup_delays_no_other_domain(self, hypervisor, monkeypatch):
        domain = FakeDomain(job={
            'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP})
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == [[('cpu_shares', 600)]]

    def test_bursts_are_cleared_first_and_named_once(
            self, tmp_path, hypervisor, monkeypatch, caplog):
        host = fake_host.FakeHost(tmp_path, *fake_host.LAYOUTS['v1'])
        host.write('run/a.pid', f'{fake_host.PID}\n')
        path = host.tuned / 'emulator' / 'cpu.cfs_burst_us'
        domain = FakeDomain()
        for _ in range(2):
            path.write_text('7')
            self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', 15_000))
            assert path.read_text() == '0'
        (warning,) = [one for one in caplog.records
                      if one.levelname == 'WARNING']
        for part in fakes.UUID, str(path), '7 us':
            assert part in warning.getMessage()

    def test_a_write_needs_no_burst(self, hypervisor, monkeypatch, caplog):
        """Nor that the domain's cgroup be found."""
        domain = FakeDomain()
        self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', 15_000))
        assert domain.set == [[('vcpu_quota', 15_000)]]
        assert fakes.UUID in caplog.text

    def test_unlimited_has_another_name_on_v2(self, tmp_path, monkeypatch):
        (tmp_path / 'sys/fs/cgroup').mkdir(parents=True)
        (tmp_path / 'sys/fs/cgroup/cgroup.controllers').write_text('cpu\n')
        hypervisor = driver.LibvirtHypervisor(
            'test:///default', root=str(tmp_path), run_path=str(tmp_path))
        hypervisor.connect(lambda _event: None)
        domain = FakeDomain(refuse=[-1])
        self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
        assert domain.set == [[('vcpu_quota', 17_592_186_044_415)]]
        hypervisor.close()

    def test_a_refused_limit_on_v1_is_an_error(self, hypervisor, monkeypatch):
        domain = FakeDomain(refuse=[-1])
        with pytest.raises(base.HypervisorError, match='refused'):
            self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
