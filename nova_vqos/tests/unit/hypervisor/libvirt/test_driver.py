# SPDX-License-Identifier: Apache-2.0
"""The libvirt driver, on the driver that libvirt itself brings for tests."""

import libvirt
import pytest

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import driver
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.fixtures import waits


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
            event = events.get(timeout=waits.LIMIT_S)
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
        event = events.get(timeout=waits.LIMIT_S)
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


def test_a_domain_that_is_being_started_is_busy(hypervisor, monkeypatch):
    domain = fake_daemon.FakeDomain((
        libvirt.VIR_DOMAIN_PAUSED, libvirt.VIR_DOMAIN_PAUSED_STARTING_UP))
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
    domain = fake_daemon.FakeDomain(state)
    domain.XMLDesc = lambda _flags: (
        "<domain type='kvm'><name>a</name><vcpu>1</vcpu></domain>")
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    assert hypervisor.describe(fakes.UUID).incoming is incoming
