# SPDX-License-Identifier: Apache-2.0
"""What libvirt keeps of a domain, on a stand-in for a domain of QEMU's."""

import re

import libvirt
import pytest

from nova_vqos import domain_xml
from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.tests.fixtures import fake_daemon
from nova_vqos.tests.fixtures import fakes
from nova_vqos.tests.unit.hypervisor.libvirt import test_disk_limits

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG
CAP = units.CpuCap(40_000, 50_000)
MARK = f'<v:pinned xmlns:v="{domain_xml.MARK_NS}"/>'
# As libvirt gives them: 0 of what is not in the definition.
NOTHING = {f'{of}_{name}': 0 for of in ('global', 'emulator', 'iothread')
           for name in ('quota', 'period')}
SOURCE = {**NOTHING, 'cpu_shares': 0, 'vcpu_quota': 20_000,
          'vcpu_period': 50_000}
RIGHT = {**SOURCE, 'cpu_shares': 410, 'vcpu_quota': 40_000}


class KeptDomain:
    """A domain, and what libvirt keeps of it.

    :ivar kept: parameters of its definition
    :ivar marks: flags of where the mark is
    :ivar pins: pCPUs of each vCPU, by flag
    :ivar calls: what changed anything, in order
    """

    def __init__(self, **kept):
        self.kept = {**SOURCE, **kept}
        self.marks = set()
        self.pins = {LIVE: [{0, 1, 2, 3}] * 2, CONFIG: [{0, 1, 2, 3}] * 2}
        self.devices = ''
        self.persistent = 1
        self.job = libvirt.VIR_DOMAIN_JOB_NONE
        self.calls = []

    def isPersistent(self):
        return self.persistent

    def state(self):
        return [libvirt.VIR_DOMAIN_RUNNING, 1]

    def jobStats(self):
        return {'type': self.job,
                'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT}

    def controlInfo(self):
        return [libvirt.VIR_DOMAIN_CONTROL_OK, 0, 0]

    def schedulerParametersFlags(self, flags):
        assert flags == CONFIG
        return dict(self.kept)

    def setSchedulerParametersFlags(self, values, flags):
        # Live, it would write to the cgroups.
        assert flags == CONFIG
        self.calls.append(dict(values))
        self.kept.update(values)

    def metadata(self, _kind, namespace, flags):
        assert namespace == domain_xml.MARK_NS
        if flags not in self.marks:
            raise fake_daemon.libvirt_error(
                'no metadata', libvirt.VIR_ERR_NO_DOMAIN_METADATA)
        return MARK

    def vcpuPinInfo(self, flags):
        return [tuple(pcpu in pcpus for pcpu in range(4))
                for pcpus in self.pins[flags]]

    def XMLDesc(self, flags):
        assert flags == (libvirt.VIR_DOMAIN_XML_INACTIVE
                         | libvirt.VIR_DOMAIN_XML_SECURE)
        pins = ''.join(f'<vcpupin vcpu="{vcpu}" cpuset="'
                       f'{",".join(map(str, pcpus))}"/>' for vcpu, pcpus
                       in enumerate(self.pins[CONFIG]))
        return (f'<domain type="kvm"><metadata>{MARK}</metadata><vcpu>2</vcpu>'
                f'<cputune>{pins}</cputune><devices>{self.devices}<graphics '
                'passwd="secret"/></devices></domain>')

    def defineXML(self, xml):
        self.calls.append(xml)


@pytest.fixture
def domain(hypervisor, monkeypatch):
    made = KeptDomain()
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: made)
    monkeypatch.setattr(hypervisor._session, 'connected', lambda: made)
    return made


@pytest.fixture
def persist(hypervisor, domain):
    return lambda cap=CAP, shares=410: hypervisor.persist(
        fakes.UUID, cap, shares)


class TestTune:
    def test_that_of_the_source_is_replaced(self, persist, domain):
        assert persist()
        assert domain.calls == [{'cpu_shares': 410, 'vcpu_quota': 40_000}]
        assert domain.kept == RIGHT

    def test_what_is_right_is_not_written(self, persist, domain):
        persist()
        domain.calls.clear()
        # Nor does a migration matter then.
        domain.jobStats = None
        assert not persist()
        assert domain.calls == []

    def test_a_floor_has_no_quota(self, persist, domain):
        assert persist(cap=None)
        assert domain.kept['vcpu_quota'] == 0
        # The period of what has no limit means nothing.
        assert 'vcpu_period' not in domain.calls[0]
        assert not persist(cap=None)

    @pytest.mark.parametrize('limit', sorted(NOTHING))
    def test_limits_of_the_source_are_removed(self, persist, domain, limit):
        domain.kept.update({**RIGHT, limit: 30_000})
        assert persist()
        assert domain.calls == [{limit: 0}]

    def test_what_this_libvirt_does_not_know_is_left_out(self, persist,
                                                         domain):
        del domain.kept['iothread_quota'], domain.kept['iothread_period']
        persist()
        assert not {'iothread_quota', 'iothread_period'} & set(
            domain.calls[0])

    def test_a_transient_domain_has_no_definition(self, persist, domain):
        domain.persistent = 0
        domain.schedulerParametersFlags = None
        assert not persist()

    def test_a_domain_that_migrates_is_left_alone(self, persist, domain):
        domain.job = libvirt.VIR_DOMAIN_JOB_UNBOUNDED
        with pytest.raises(base.DomainBusy):
            persist()
        assert domain.calls == []


class TestPins:
    @pytest.fixture(autouse=True)
    def right(self, domain):
        domain.kept = dict(RIGHT)

    def test_those_of_another_host_are_removed(self, persist, domain):
        domain.marks = {CONFIG}
        domain.pins[CONFIG] = [{2, 3}] * 2
        assert persist()
        (xml,) = domain.calls
        assert not re.search('vcpupin|pinned', xml)
        assert 'secret' in xml

    @pytest.mark.parametrize('live, foreign', [
        ([{2, 3}, {2, 3}], False), ([{2}, {3}], False),
        ([{2}, {0}], True), ([{0, 1}, {0, 1}], True)])
    def test_those_of_this_host_stay(self, persist, domain, live, foreign):
        # Its agent may have pinned more narrowly what runs.
        domain.marks = {CONFIG, LIVE}
        domain.pins = {LIVE: live, CONFIG: [{2, 3}] * 2}
        assert persist() is foreign
        assert bool(domain.calls) is foreign

    def test_those_of_nova_stay(self, persist, domain):
        domain.pins[CONFIG] = [{2, 3}] * 2
        assert not persist()
        assert domain.calls == []


class TestDisks:
    @pytest.fixture(autouse=True)
    def right(self, domain):
        domain.kept = dict(RIGHT)

    def test_a_limit_of_another_host_is_removed(self, persist, domain):
        domain.devices = test_disk_limits.disk(test_disk_limits.OWN)
        assert persist()
        (xml,) = domain.calls
        assert 'iotune' not in xml
        assert 'secret' in xml

    def test_that_of_nova_stays(self, persist, domain):
        domain.devices = test_disk_limits.disk(test_disk_limits.FOREIGN)
        assert not persist()
        assert domain.calls == []
