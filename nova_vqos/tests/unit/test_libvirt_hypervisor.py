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

"""The libvirt driver, on the driver that libvirt itself brings for tests."""

import os
import queue
import threading
import time

import libvirt
import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import iostats
from nova_vqos.hypervisor import libvirt as driver
from nova_vqos.hypervisor import libvirt_session
from nova_vqos.tests.unit import fake_host
from nova_vqos.tests.unit import fake_hypervisor as fakes

# In this process, with one domain that runs: no daemon, no host.
URI = 'test:///default'
LIMIT_S = 20


@pytest.fixture
def events():
    return queue.SimpleQueue()


@pytest.fixture
def hypervisor(events, tmp_path):
    connected = driver.LibvirtHypervisor(
        URI, root=str(tmp_path), run_path=str(tmp_path / 'run'))
    connected.connect(events.put)
    yield connected
    connected.close()


@pytest.fixture
def daemon(hypervisor):
    return hypervisor._session.connected()


class TestLibvirt:
    def test_it_fits_the_contract(self, hypervisor):
        assert isinstance(hypervisor, base.Hypervisor)
        assert hypervisor.cgroup_version == 1

    def test_running_domains_have_a_number_that_grows(self, hypervisor,
                                                      daemon):
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
                flavor_name='f', flavor_id='7', incoming=False)
        finally:
            domain.destroy()

    @pytest.mark.parametrize('network, mode', [
        ('default', 'nat'), ('nowhere', '')])
    def test_its_devices_are_read_from_the_xml(self, hypervisor, daemon,
                                               network, mode):
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

    @pytest.mark.parametrize('method', ['describe', 'read'])
    def test_a_domain_that_is_not_there_is_gone(self, hypervisor, method):
        with pytest.raises(base.DomainGone):
            getattr(hypervisor, method)(fakes.OTHER_UUID)

    def test_a_write_to_a_domain_that_is_not_there_is_gone(self, hypervisor):
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

    def test_without_a_connection_all_is_unavailable(self, hypervisor):
        hypervisor.close()
        for call in (hypervisor.running,
                     lambda: hypervisor.describe(fakes.UUID),
                     lambda: hypervisor.read(fakes.UUID),
                     lambda: hypervisor.write(fakes.UUID, []),
                     lambda: hypervisor.pin(fakes.UUID, {1}),
                     lambda: hypervisor.place(fakes.UUID, {0: {1}}),
                     lambda: hypervisor.set_slices(fakes.UUID, {}, None),
                     lambda: hypervisor.threads(fakes.UUID),
                     lambda: hypervisor.vcpu_runs({fakes.UUID}),
                     lambda: hypervisor.usages({fakes.UUID})):
            with pytest.raises(base.Unavailable):
                call()

    def test_a_daemon_that_is_not_there_is_unavailable(self, tmp_path):
        absent = driver.LibvirtHypervisor('test:///no/such/file')
        with pytest.raises(base.Unavailable, match='no/such/file'):
            absent.connect(lambda _event: None)

    def test_it_connects_again(self, hypervisor, events, daemon):
        hypervisor.connect(events.put)
        assert hypervisor._session.connected() is not daemon
        assert len(hypervisor.running()) == 1


class Statistics:
    """A daemon that answers with what its domains did, and no more.

    :ivar domains: (UUID, name, number) of those that run
    """

    def __init__(self):
        self.domains = []
        self.calls = 0
        self.asked = []

    def lookupByUUIDString(self, uuid):
        for domain in self.domains:
            if domain[0] == uuid:
                return StatisticsDomain(*domain)
        raise libvirt.libvirtError('no such domain')

    def isAlive(self):
        return 1

    def getAllDomainStats(self, kinds, flags):
        self.calls += 1
        assert kinds == libvirt.VIR_DOMAIN_STATS_INTERFACE
        assert flags & libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        return [(StatisticsDomain(*domain), {
            'net.count': 1, 'net.0.name': 'tap0', 'net.0.rx.pkts': 4})
            for domain in self.domains]

    def domainListGetStats(self, domains, kinds, flags):
        assert kinds == libvirt.VIR_DOMAIN_STATS_BLOCK
        assert flags == libvirt.VIR_CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT
        self.asked += [domain.UUIDString() for domain in domains]
        return [(domain, {'block.count': 1, 'block.0.name': 'vda',
                          'block.0.rd.reqs': 6}) for domain in domains]


class StatisticsDomain:
    def __init__(self, uuid, name, number):
        self._uuid = uuid
        self._name = name
        self._number = number

    def UUIDString(self):
        return self._uuid

    def name(self):
        return self._name

    def ID(self):
        return self._number


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
        answers = Statistics()
        answers.domains = [(fakes.UUID, 'a', 7)]
        monkeypatch.setattr(libvirt_session.Session, 'connected',
                            lambda _self: answers)
        return answers

    @pytest.fixture
    def reader(self, host, statistics):
        made = driver.LibvirtHypervisor(
            URI, root=str(host.root), run_path=str(host.root / 'run'))
        yield made
        made.close()

    def test_all_counters_of_a_domain(self, reader):
        before_s = time.monotonic()
        found = reader.usages([fakes.UUID])[fakes.UUID]
        assert before_s <= found.read_at_s <= time.monotonic()
        assert found == usage.Usage(
            run='boot-1/42/1234', read_at_s=found.read_at_s,
            vcpu_ns=30_000_000, emulator_ns=20_000_000, iothread_ns=0,
            vhost_ns=0, migration_ns=0, throttled_ns=2_000_000,
            interfaces={'tap0': usage.InterfaceCounters(4, 0, 0, 0, 0)},
            disks={'vda': usage.DiskCounters(6, 0, 0, 0)})

    def test_what_vcpus_used(self, reader, statistics, host):
        before_s = time.monotonic()
        found = reader.vcpu_times({fakes.UUID: 7})[fakes.UUID]
        assert before_s <= found.read_at_s <= time.monotonic()
        assert found == usage.VcpuTime(
            'boot-1/42/1234', found.read_at_s, 30_000_000, 2_000_000, 1)
        # Whoever bills has the same files.
        opened = len(os.listdir('/proc/self/fd'))
        reader.usages([fakes.UUID])
        assert reader.vcpu_times({fakes.UUID: 7})
        assert len(os.listdir('/proc/self/fd')) == opened

    def test_libvirt_is_asked_for_new_domains_alone(self, reader, statistics):
        reader.vcpu_times({fakes.UUID: 7})
        statistics.lookupByUUIDString = None
        assert reader.vcpu_times({fakes.UUID: 7})

    def test_what_vcpus_used_is_read_without_libvirt(self, reader, statistics,
                                                     monkeypatch):
        reader.vcpu_times({fakes.UUID: 7})

        def lost(_self):
            raise base.Unavailable('not connected')
        monkeypatch.setattr(libvirt_session.Session, 'connected', lost)
        assert set(reader.vcpu_times(
            {fakes.UUID: 7, fakes.OTHER_UUID: 8})) == {fakes.UUID}

    def test_vcpus_that_cannot_be_read_are_left_out(self, reader, statistics):
        statistics.domains.append((fakes.OTHER_UUID, 'no such process', 8))
        absent = '00000000-2222-4333-8444-555555555555'
        assert set(reader.vcpu_times({
            fakes.OTHER_UUID: 8, absent: 9, fakes.UUID: 7})) == {fakes.UUID}

    def test_another_run_of_a_domain_begins_anew(self, reader, statistics,
                                                 host):
        reader.vcpu_times({fakes.UUID: 7})
        host.start('5678')
        host.time('', 1)
        host.time('emulator', 0)
        assert reader.vcpu_times({fakes.UUID: 8})[fakes.UUID][::2] == (
            'boot-1/42/5678', 1_000_000, 1)

    def test_nothing_is_asked_where_nothing_is_wanted(self, reader,
                                                      statistics):
        assert reader.usages([]) == {}
        assert statistics.calls == 0

    def test_what_is_not_wanted_is_not_read(self, reader, statistics):
        statistics.domains.append((fakes.OTHER_UUID, 'no such process', 8))
        assert set(reader.usages([fakes.UUID])) == {fakes.UUID}
        # Nor is its QEMU asked for anything.
        assert statistics.asked == [fakes.UUID]
        assert reader.usages(['00000000-2222-4333-8444-555555555555']) == {}
        assert statistics.asked == [fakes.UUID]

    def test_without_an_answer_disks_are_not_known(self, reader, statistics,
                                                   monkeypatch):
        go_on = threading.Event()
        monkeypatch.setattr(
            statistics, 'domainListGetStats',
            lambda *_arguments: go_on.wait(LIMIT_S) and [])
        reader._usages._disk_io = iostats.BulkReader(0.05)
        found = reader.usages([fakes.UUID])[fakes.UUID]
        assert found.disks is None
        assert found.vcpu_ns == 30_000_000
        assert set(found.interfaces) == {'tap0'}
        go_on.set()

    def test_a_domain_that_did_nothing_is_not_asked_again(
            self, reader, statistics, host):
        assert reader.usages([fakes.UUID])[fakes.UUID].disks
        assert reader.usages([fakes.UUID])[fakes.UUID].disks is None
        assert statistics.asked == [fakes.UUID]
        host.time('', 5_000_000)
        host.time('vcpu0', 4_999_980)
        assert reader.usages([fakes.UUID])[fakes.UUID].disks
        assert statistics.asked == [fakes.UUID] * 2

    def test_a_domain_that_cannot_be_read_is_left_out(self, reader,
                                                      statistics):
        statistics.domains.append((fakes.OTHER_UUID, 'no such process', 8))
        absent = '00000000-2222-4333-8444-555555555555'
        assert set(reader.usages(
            [fakes.UUID, fakes.OTHER_UUID, absent])) == {fakes.UUID}

    def test_that_is_said_once_each_time(self, reader, host, caplog):
        for times in (1, 2):
            host.write('run/a.pid', 'x')
            reader._usages._accounts.close()
            for _ in range(3):
                assert reader.usages([fakes.UUID]) == {}
            assert [record.levelname for record in caplog.records
                    if record.levelname == 'WARNING'] == ['WARNING'] * times
            host.write('run/a.pid', f'{fake_host.PID}\n')
            assert reader.usages([fakes.UUID])

    def test_another_run_is_told_from_the_last(self, reader, host,
                                               statistics):
        reader.usages([fakes.UUID])
        host.start('99')
        host.time('', 3)
        host.time('emulator', 1)
        statistics.domains = [(fakes.UUID, 'a', 8)]
        found = reader.usages([fakes.UUID])[fakes.UUID]
        assert (found.run, found.vcpu_ns) == ('boot-1/42/99', 2_000_000)

    def test_counters_outlast_a_new_connection(self, reader, host):
        host.time('iothread1', 10)
        reader.usages([fakes.UUID])
        reader._disconnect()
        host.remove('iothread1')
        found = reader.usages([fakes.UUID])[fakes.UUID]
        assert found.iothread_ns == 10_000_000

    def test_an_error_of_libvirts_is_unavailable(self, reader, statistics,
                                                 monkeypatch):
        def fail(_kinds, _flags):
            raise libvirt.libvirtError('unsupported')
        monkeypatch.setattr(statistics, 'getAllDomainStats', fail)
        statistics.isAlive = lambda: 1
        with pytest.raises(base.Unavailable, match='unsupported'):
            reader.usages([fakes.UUID])

    def test_the_hosts_cpu_time(self, reader):
        found = reader.host_usage()
        assert (found.total_ns, found.domains_ns, found.own_ns) == (
            90_000_000, 50_000_000, 40_000_000)

    def test_a_host_that_does_not_count_is_an_error(self, hypervisor):
        with pytest.raises(base.HypervisorError):
            hypervisor.host_usage()


def test_the_limit_of_a_whole_domain_is_written_in_order(hypervisor,
                                                         monkeypatch):
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
                 refuse=()):
        self._state = state
        self._job = job or {'type': libvirt.VIR_DOMAIN_JOB_NONE}
        self._refuse = refuse
        self.set = []

    def state(self):
        return list(self._state)

    def jobStats(self):
        return self._job

    def isActive(self):
        return 1

    def UUIDString(self):
        return fakes.UUID

    def setSchedulerParametersFlags(self, values, flags):
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        if set(values.values()) & set(self._refuse):
            raise libvirt.libvirtError('refused')
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
def test_a_domain_whose_guest_is_yet_to_come_is_told(hypervisor, monkeypatch,
                                                     state, incoming):
    domain = FakeDomain(state)
    domain.XMLDesc = lambda _flags: (
        "<domain type='kvm'><name>a</name><vcpu>1</vcpu></domain>")
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    assert hypervisor.describe(fakes.UUID).incoming is incoming


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
    def test_nothing_is_asked_of_a_domain_that_migrates_in(
            self, hypervisor, monkeypatch, state):
        domain = FakeDomain(state)
        # Even to ask for the job would block there for 30 s.
        domain.jobStats = None
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    @pytest.mark.parametrize('job_type', [
        libvirt.VIR_DOMAIN_JOB_BOUNDED, libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
        libvirt.VIR_DOMAIN_JOB_COMPLETED])
    def test_nothing_is_written_while_a_domain_migrates_out(
            self, hypervisor, monkeypatch, job_type):
        domain = FakeDomain(job={
            'type': job_type,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT})
        with pytest.raises(base.DomainBusy):
            self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == []

    def test_a_backup_hinders_nobody(self, hypervisor, monkeypatch):
        domain = FakeDomain(job={
            'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_BACKUP})
        self.write(hypervisor, monkeypatch, domain, ('SHARES', 600))
        assert domain.set == [[('cpu_shares', 600)]]

    def test_no_limit_has_another_name_on_some_stacks_of_v2(
            self, tmp_path, monkeypatch):
        (tmp_path / 'sys/fs/cgroup').mkdir(parents=True)
        (tmp_path / 'sys/fs/cgroup/cgroup.controllers').write_text('cpu\n')
        hypervisor = driver.LibvirtHypervisor(URI, root=str(tmp_path))
        hypervisor.connect(lambda _event: None)
        domain = FakeDomain(refuse=[-1])
        self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
        assert domain.set == [[('vcpu_quota', 17_592_186_044_415)]]
        hypervisor.close()

    def test_no_limit_that_is_refused_on_v1_is_an_error(
            self, hypervisor, monkeypatch):
        domain = FakeDomain(refuse=[-1])
        with pytest.raises(base.HypervisorError, match='refused'):
            self.write(hypervisor, monkeypatch, domain, ('QUOTA_US', None))
