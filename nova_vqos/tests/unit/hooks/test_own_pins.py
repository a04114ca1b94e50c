# SPDX-License-Identifier: Apache-2.0
"""Pins that an agent made stay behind where a server migrates to."""

import pytest

from nova_vqos import domain_xml
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit.hooks import test_rewrite

XML = test_domain_xml.MIGRATABLE
MARK = (b'    <nova_vqos:pinned xmlns:nova_vqos="'
        + domain_xml.MARK_NS.encode() + b'"/>\n')
PINS = b"""\
    <vcpupin vcpu='0' cpuset='64-65'/>
    <vcpupin vcpu='1' cpuset='64-65'/>
"""
UNMARKED = XML.replace(b'  </cputune>', PINS + b'  </cputune>')
PINNED = UNMARKED.replace(b'  </metadata>', MARK + b'  </metadata>')

# Fixtures of the hook's tests.
host = test_rewrite.host
logged = test_rewrite.logged


def test_what_is_there():
    assert UNMARKED != XML
    assert PINNED != UNMARKED
    for xml, pcpus, by_others in ((XML, {0, 1}, False),
                                  (UNMARKED, {64, 65}, True),
                                  (PINNED, {64, 65}, False)):
        found = domain_xml.read(xml)
        assert found.pcpus == pcpus
        assert found.pinned_by_others is by_others
        assert found.pinned is (xml is not XML)
        # Whatever is pinned.
        assert found.cpuset == {0, 1}


def test_pins_and_mark_are_removed():
    assert domain_xml.without_own_pins(PINNED) == XML


@pytest.mark.parametrize('xml', [
    XML, UNMARKED,
    # A foreign mark, or ours in another place.
    PINNED.replace(b':pinned', b':other'),
    UNMARKED.replace(b'  </devices>', MARK + b'  </devices>'),
])
def test_nothing_else_is_touched(xml):
    assert domain_xml.without_own_pins(xml) is xml or (
        domain_xml.without_own_pins(xml) == xml)


def test_a_mark_without_pins():
    marked = XML.replace(b'  </metadata>', MARK + b'  </metadata>')
    assert domain_xml.without_own_pins(marked) == XML


def test_in_one_line():
    xml = test_domain_xml.domain(
        cputune='<cputune><vcpupin vcpu="0" cpuset="1"/><shares>9</shares>'
                '</cputune>',
        metadata=f'<metadata><v:pinned xmlns:v="{domain_xml.MARK_NS}">'
                 '</v:pinned></metadata>')
    assert domain_xml.without_own_pins(xml) == test_domain_xml.domain(
        cputune='<cputune><shares>9</shares></cputune>',
        metadata='<metadata></metadata>')


class TestHook:
    def test_the_cap_is_that_of_where_it_may_run_here(self, host, logged):
        host.calibrate(p0=1.25, p1=1.25, p2=0.5)
        status, result = host.run(PINNED)
        assert status == 0
        assert result == XML.replace(b'15000', b'12000')

    def test_pins_of_others_travel(self, host, logged):
        host.calibrate(p64=1.25, p65=1.25)
        assert host.run(UNMARKED) == (0, UNMARKED.replace(b'15000', b'12000'))

    def test_also_when_it_can_do_nothing_else(self, host, logged):
        host.profile_path.unlink()
        assert host.run(PINNED) == (0, XML)
        assert "passed without the other host's pins" in logged[0][1]
        assert host.run(XML) == (0, XML)
        assert 'passed unchanged' in logged[1][1]

    def test_also_of_a_server_that_has_no_units_any_more(self, host, logged):
        stock = test_rewrite.STOCK_XML
        assert host.run(PINNED.replace(
            b'resources:CUSTOM_VQOS_CPU_UNIT', b'hw:x').replace(
            b'vqos:cap', b'hw:y')) == (0, stock)
