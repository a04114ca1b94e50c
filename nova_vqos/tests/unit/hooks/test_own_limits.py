# SPDX-License-Identifier: Apache-2.0
"""Limits on a server's I/O, which travel with the domain, and must not."""

import pytest

from nova_vqos import domain_xml
from nova_vqos.tests.unit.hooks import test_own_pins
from nova_vqos.tests.unit.hooks import test_rewrite
from nova_vqos.tests.unit.hypervisor.libvirt import test_disk_limits

XML = test_rewrite.XML
LIMITS = b''.join(
    b'\n    <%s>%d</%s>' % (name.encode(), 30_000, name.encode())
    for name in domain_xml.LIMITS)
LIMITED = XML.replace(b'</quota>', b'</quota>' + LIMITS)

# They bring the hook's host along.
host = test_rewrite.host
logged = test_rewrite.logged


def test_they_are_removed():
    assert LIMITED != XML
    assert domain_xml.without_limits(LIMITED) == XML


def test_nothing_else_is():
    assert domain_xml.without_limits(XML) == XML


@pytest.mark.parametrize('name', domain_xml.LIMITS)
def test_each_of_them_by_itself(name):
    added = b'<%s> 17 </%s>' % (name.encode(), name.encode())
    assert domain_xml.without_limits(
        XML.replace(b'</quota>', b'</quota>' + added)) == XML


def test_the_owner_is_found():
    assert domain_xml.read(XML).project_id == 'p'
    assert domain_xml.read(b'<domain/>').project_id == ''


class TestHook:
    def test_they_end_with_the_host_that_set_them(self, host, logged):
        host.calibrate(p0=1.25, p1=1.25)
        assert host.run(LIMITED) == (0, XML.replace(b'15000', b'12000'))

    def test_also_when_it_can_do_nothing_else(self, host, logged):
        host.profile_path.unlink()
        assert host.run(LIMITED) == (0, XML)
        assert "without the other host's pins and limits" in logged[0][1]

    def test_those_of_a_server_without_units_travel(self, host, logged):
        xml = LIMITED.replace(b'resources:CUSTOM_VQOS_CPU_UNIT', b'hw:x'
                              ).replace(b'vqos:cap', b'hw:y')
        assert host.run(xml) == (0, xml)

    def test_together_with_pins(self, host, logged):
        pinned = test_own_pins.PINNED.replace(b'</quota>',
                                              b'</quota>' + LIMITS)
        host.profile_path.unlink()
        assert host.run(pinned) == (0, XML)

    def test_together_with_a_limit_on_disks(self, host, logged):
        limited = LIMITED.replace(b'</domain>', b'<devices>%s</devices>'
                                  b'</domain>' % test_disk_limits.disk(
                                      test_disk_limits.OWN).encode())
        host.profile_path.unlink()
        assert host.run(limited) == (0, XML.replace(
            b'</domain>', b'<devices>%s</devices></domain>'
            % test_disk_limits.disk().encode()))
