# SPDX-License-Identifier: Apache-2.0
"""Pins, on the driver that libvirt itself brings for tests."""

import re

import libvirt
import pytest

from nova_vqos import domain_xml
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import pins
from nova_vqos.tests.fixtures import fakes

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
CONFIG = libvirt.VIR_DOMAIN_AFFECT_CONFIG


class PinnableDomain:
    """A domain of libvirt's test driver, which lacks two things of QEMU's.

    It pins running domains only, without saying so, and knows of no jobs.

    :ivar pinned: what was pinned, (vCPU, flags), in order
    :ivar marked: flags with which metadata was written, in order
    """

    def __init__(self, domain):
        self._domain = domain
        self.pinned = []
        self.marked = []

    def __getattr__(self, name):
        return getattr(self._domain, name)

    def jobStats(self):
        return {'type': libvirt.VIR_DOMAIN_JOB_NONE}

    def setMetadata(self, *arguments):
        self.marked.append(arguments[-1])
        return self._domain.setMetadata(*arguments)

    def pinVcpuFlags(self, vcpu, cpumap, flags):
        self.pinned.append((vcpu, flags))
        if flags == libvirt.VIR_DOMAIN_AFFECT_LIVE:
            self._domain.pinVcpu(vcpu, cpumap)


@pytest.fixture
def domain(hypervisor, daemon, monkeypatch):
    domain = PinnableDomain(daemon.lookupByName('test'))
    monkeypatch.setattr(hypervisor._session, 'lookup', lambda _uuid: domain)
    for vcpu in 0, 1:
        domain.pinVcpu(vcpu, (True, True, True, True))
    yield domain
    # NOTE: it is one for all connections of this process.
    for affected in LIVE, CONFIG:
        domain.setMetadata(libvirt.VIR_DOMAIN_METADATA_ELEMENT, None, None,
                           domain_xml.MARK_NS, affected)


@pytest.fixture(params=['pin', 'place'])
def change(request, hypervisor):
    """Pin the domain to pCPU 1, in either way."""
    if request.param == 'pin':
        return lambda: hypervisor.pin(fakes.UUID, frozenset({1}))
    return lambda: hypervisor.place(fakes.UUID, {0: {1}})


def test_it_stays_behind_in_a_migration(change, domain):
    change()
    left = domain_xml.read(domain_xml.without_own_pins(
        domain.XMLDesc(0).encode()))
    assert left.pcpus is None
    assert not left.pinned_by_others


def test_a_domain_that_migrates_is_left_alone(change, domain, monkeypatch):
    monkeypatch.setattr(domain, 'jobStats', lambda: {
        'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
        'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT})
    with pytest.raises(base.DomainBusy):
        change()
    assert domain.pinned == []
    assert domain_xml.MARK_NS not in domain.XMLDesc(0)


class TestPin:
    def test_live_and_persistent(self, hypervisor, domain):
        hypervisor.pin(fakes.UUID, frozenset({1, 3}))
        assert domain.pinned == [(0, LIVE), (1, LIVE),
                                 (0, CONFIG), (1, CONFIG)]
        described = hypervisor.describe(fakes.UUID)
        assert described.pcpus == {1, 3}
        assert not described.pinned_by_others
        for flags in (0, libvirt.VIR_DOMAIN_XML_INACTIVE):
            assert domain_xml.MARK_NS in domain.XMLDesc(flags)

    def test_once_more(self, hypervisor, domain):
        hypervisor.pin(fakes.UUID, frozenset({1, 3}))
        hypervisor.pin(fakes.UUID, frozenset({0}))
        assert hypervisor.describe(fakes.UUID).pcpus == {0}
        assert domain.XMLDesc(0).count(domain_xml.MARK_NS) == 1

    def test_a_pin_ends_with_its_run(self, hypervisor, domain, monkeypatch):
        monkeypatch.setattr(domain, 'isPersistent', lambda: 0, raising=False)
        hypervisor.pin(fakes.UUID, frozenset({1, 3}))
        assert domain.pinned == [(0, LIVE), (1, LIVE)]

    def test_pins_of_others(self, hypervisor, domain):
        domain.pinVcpu(0, (True, False))
        assert hypervisor.describe(fakes.UUID).pinned_by_others


class TestPlace:
    def test_single_vcpus_live(self, hypervisor, domain):
        assert hypervisor.place(fakes.UUID, {1: {2, 3}})
        assert domain.pinned == [(1, LIVE)]
        described = hypervisor.describe(fakes.UUID)
        assert described.pcpus == {0, 1, 2, 3}
        assert not described.pinned_by_others
        assert domain_xml.MARK_NS not in domain.XMLDesc(
            libvirt.VIR_DOMAIN_XML_INACTIVE)
        assert domain.vcpuPinInfo()[1][:4] == (False, False, True, True)

    def test_equal_pins_are_not_written(self, hypervisor, domain, monkeypatch):
        hypervisor.place(fakes.UUID, {0: {0}, 1: {1}})
        domain.pinned.clear()
        # Nor does a migration matter then.
        monkeypatch.setattr(domain, 'jobStats', None, raising=False)
        assert not hypervisor.place(fakes.UUID, {0: {0}, 1: {1}})
        assert domain.pinned == []

    def test_the_mark_is_written_once(self, hypervisor, domain):
        hypervisor.place(fakes.UUID, {0: {0}})
        assert hypervisor.place(fakes.UUID, {0: {1}, 1: {1}})
        assert domain.pinned == [(0, LIVE), (0, LIVE), (1, LIVE)]
        assert domain.marked == [LIVE]

    def test_foreign_pins_are_written_again(self, hypervisor, domain):
        hypervisor.place(fakes.UUID, {0: {0}, 1: {1}})
        domain.pinVcpu(0, (False, True))
        domain.pinned.clear()
        assert hypervisor.place(fakes.UUID, {0: {0}, 1: {1}})
        assert domain.pinned == [(0, LIVE)]

    def test_no_pcpu(self, hypervisor, domain):
        with pytest.raises(ValueError, match='vCPU 1'):
            hypervisor.place(fakes.UUID, {0: {1}, 1: set()})
        assert domain.pinned == []

    def test_an_absent_vcpu(self, hypervisor, domain):
        with pytest.raises(base.HypervisorError):
            hypervisor.place(fakes.UUID, {70: {1}})


class TestRestore:
    """vCPUs that libvirt has confined without a record of it."""

    ALL = frozenset({0, 1, 2, 3})

    @pytest.fixture
    def restore(self, hypervisor, domain):
        def restore(*vcpus):
            pins.restore(hypervisor._session, fakes.UUID, vcpus, self.ALL)
            return domain.pinned
        return restore

    def test_what_is_on_record_is_applied_again(self, restore, caplog):
        assert restore(1) == [(1, LIVE)]
        assert 'pCPUs 0-3' in caplog.text

    def test_a_pin_on_record_is_left_alone(self, restore, domain):
        domain.pinVcpu(0, (True, False, False, False))
        assert restore(0) == []

    def test_pins_of_others_are_not_marked(self, restore, domain):
        domain.pinVcpu(0, (True, False, False, False))
        assert restore(1) == [(1, LIVE)]
        assert domain.marked == []

    def test_one_without_pins_leaves_the_new_one_behind(self, restore, domain,
                                                        monkeypatch):
        # The test driver keeps pins that are as wide as the host.
        xml = domain.XMLDesc(0)
        monkeypatch.setattr(
            domain, 'XMLDesc', lambda _flags: re.sub(
                '<vcpupin [^>]*>', '', xml), raising=False)
        assert restore(0, 1) == [(0, LIVE), (1, LIVE)]
        assert domain.marked == [LIVE]

    def test_one_that_migrates_waits(self, restore, domain, monkeypatch):
        monkeypatch.setattr(domain, 'jobStats', lambda: {
            'type': libvirt.VIR_DOMAIN_JOB_UNBOUNDED,
            'operation': libvirt.VIR_DOMAIN_JOB_OPERATION_MIGRATION_OUT})
        with pytest.raises(base.DomainBusy):
            restore(0)
        assert domain.pinned == []
