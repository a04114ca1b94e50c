# SPDX-License-Identifier: Apache-2.0
"""Limits on disks, on a stand-in for a domain of QEMU's."""

import re

import libvirt
import pytest

from nova_vqos import domain_xml
from nova_vqos.billing import throttle
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import disk_limits
from nova_vqos.hypervisor.libvirt import events
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fakes

LIMIT = throttle.DiskLimit(100, 409_600)
OWN = ('<iotune><total_bytes_sec>409600</total_bytes_sec>'
       '<total_iops_sec>100</total_iops_sec>'
       '<group_name>nova-vqos</group_name></iotune>')
FOREIGN = '<iotune><read_iops_sec>70</read_iops_sec></iotune>'
OTHER_GROUP = FOREIGN.replace('</iotune>',
                              '<group_name>x</group_name></iotune>')


def disk(iotune='', target='vda', kind='file', source='<source file="/a"/>'):
    return (f'<disk type="{kind}">{source}<target dev="{target}"/>{iotune}'
            '</disk>')


def domain_of(*disks):
    return f'<domain type="kvm"><devices>{"".join(disks)}</devices></domain>'


class LimitedDomain:
    """A domain that keeps the limits of its disks, as libvirt's do.

    :ivar disks: the XML of each, by its name
    :ivar refused: names of those that QEMU cannot limit
    """

    def __init__(self, **disks):
        self.disks = disks
        self.refused = set()
        self.job = libvirt.VIR_DOMAIN_JOB_NONE
        self.calls = []

    def XMLDesc(self, flags):
        # What is in force.
        assert flags == 0
        return domain_of(*self.disks.values())

    def state(self):
        return [libvirt.VIR_DOMAIN_RUNNING, 1]

    def controlInfo(self):
        return [libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0]

    def jobStats(self):
        return {'type': self.job,
                'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT}

    def setBlockIoTune(self, name, values, flags):
        assert flags == libvirt.VIR_DOMAIN_AFFECT_LIVE
        if name in self.refused:
            raise fake_daemon.libvirt_error('no throttling')
        self.calls.append(name)
        limited = any(value for value in values.values())
        # As libvirt 9.0: with all of them zero it takes no group.
        assert limited is ('group_name' in values)
        self.disks[name] = disk(target=name, iotune='' if not limited else (
            '<iotune>' + ''.join(f'<{key}>{value}</{key}>' for key, value
                                 in values.items()) + '</iotune>'))


@pytest.fixture
def limit(hypervisor, monkeypatch):
    def limit(domain, wanted=LIMIT):
        monkeypatch.setattr(hypervisor._session, 'lookup',
                            lambda _uuid: domain)
        return hypervisor.limit_disks(fakes.UUID, wanted)
    return limit


def limits_of(domain):
    return disk_limits.of_domain(domain_xml.read(domain.XMLDesc(0)))


class TestLimits:
    def test_all_disks_share_one(self, limit):
        domain = LimitedDomain(vda=disk(), vdb=disk(target='vdb'))
        assert limit(domain)
        assert limits_of(domain) == {'vda': LIMIT, 'vdb': LIMIT}
        assert domain.XMLDesc(0).count('nova-vqos') == 2
        assert limit(domain, throttle.DiskLimit(50, 4096))
        assert limits_of(domain)['vda'] == (50, 4096)

    def test_what_is_in_force_is_not_written(self, limit):
        domain = LimitedDomain(vda=disk())
        assert not limit(domain, None)
        assert limit(domain)
        # Nor does a migration matter then.
        domain.job = libvirt.VIR_DOMAIN_JOB_UNBOUNDED
        assert not limit(domain)
        assert domain.calls == ['vda']

    def test_it_ends(self, limit):
        domain = LimitedDomain(vda=disk(OWN), vdb=disk(target='vdb'))
        assert limit(domain, None)
        assert limits_of(domain) == {'vda': None, 'vdb': None}
        assert domain.calls == ['vda']

    @pytest.mark.parametrize('foreign', [FOREIGN, OTHER_GROUP])
    @pytest.mark.parametrize('wanted', [LIMIT, None])
    def test_that_of_another_writer_stays(self, limit, foreign, wanted):
        domain = LimitedDomain(vda=disk(foreign), vdb=disk(target='vdb'))
        limit(domain, wanted)
        assert domain.disks['vda'] == disk(foreign)
        assert limits_of(domain) == {'vdb': wanted}

    @pytest.mark.parametrize('other', [
        disk(target='sda', source=''), disk(target='vdb', kind='vhostuser')])
    def test_what_cannot_be_limited_is_left_out(self, limit, other):
        domain = LimitedDomain(other=other)
        assert not limit(domain)
        assert limits_of(domain) == {}

    def test_one_that_qemu_refuses_costs_the_others_nothing(self, limit):
        domain = LimitedDomain(vda=disk(), vdb=disk(target='vdb'))
        domain.refused = {'vda'}
        with pytest.raises(base.HypervisorError, match='no throttling'):
            limit(domain)
        assert limits_of(domain) == {'vda': None, 'vdb': LIMIT}

    def test_a_domain_that_migrates_is_left_alone(self, limit):
        domain = LimitedDomain(vda=disk())
        domain.job = libvirt.VIR_DOMAIN_JOB_UNBOUNDED
        with pytest.raises(base.DomainBusy):
            limit(domain)
        assert domain.calls == []


def test_each_change_has_the_domain_described_again():
    seen = []
    changed = events.Events(seen.append).callbacks[
        libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE]
    domain = fake_daemon.Domain(fakes.UUID, 'a', 7, {})
    changed(None, domain, {'blkdeviotune.disk': 'vda',
                           'blkdeviotune.total_iops_sec': 100}, None)
    event, = seen
    assert event.kind is base.EventKind.CHANGED
    assert (event.uuid, event.run_id) == (fakes.UUID, 7)


@pytest.mark.parametrize('xml', [
    domain_of(disk(OWN)), domain_of(disk(FOREIGN), disk(OWN, 'vdb')),
    domain_of(disk(), disk(OWN, 'vdb'), disk(OTHER_GROUP, 'vdc'))])
def test_they_can_be_removed_from_xml(xml):
    assert domain_xml.without_own_disk_limits(xml.encode()) == re.sub(
        re.escape(OWN), '', xml).encode()


def test_another_limit_is_not():
    xml = domain_of(disk(FOREIGN), disk(OTHER_GROUP, 'vdb')).replace(
        '<devices>', '<name>nova-vqos</name><devices>').encode()
    assert domain_xml.without_own_disk_limits(xml) == xml
