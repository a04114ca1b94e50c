# SPDX-License-Identifier: Apache-2.0
import pathlib

from hypothesis import given
from hypothesis import strategies as st
from lxml import etree
import pytest

from nova_vqos import domain_xml
from nova_vqos import xml_edit
from nova_vqos.tests import fixtures

# As libvirt 9.0 gives the XML that Nova 34's own classes made
# (VIR_DOMAIN_XML_MIGRATABLE), of a server with units.
MIGRATABLE = pathlib.Path(fixtures.__file__).with_name('data').joinpath(
    'domain.xml').read_bytes()
CPUTUNE = b"""\
  <cputune>
    <shares>614</shares>
    <period>50000</period>
    <quota>15000</quota>
  </cputune>
"""
FLAVOR = """\
  <metadata>
    <n:instance xmlns:n="http://openstack.org/xmlns/libvirt/nova/1.1">
      <n:flavor name="&gt;'"><n:vcpus>2</n:vcpus>
        <n:extraSpecs>{}</n:extraSpecs>
      </n:flavor>
    </n:instance>
  </metadata>
"""


def domain(cputune='', metadata='', vcpu='<vcpu>2</vcpu>'):
    return (f"<domain type='qemu'>\n{metadata}  {vcpu}\n{cputune}"
            '  <os/>\n</domain>\n').encode()


def with_tuning(xml, shares=100, period_us=50_000, quota_us=30_000):
    return domain_xml.with_cputune(
        xml, shares=shares, period_us=period_us, quota_us=quota_us)


def tuning(xml):
    """What libvirt would read, by XPath as libvirt does."""
    # NOTE: recover, since libxml2 refuses namespaces that are no URI.
    root = etree.fromstring(xml, etree.XMLParser(recover=True))
    return {name: root.xpath(f'string(./cputune/{name})')
            for name in domain_xml.TUNED}


def test_read_what_nova_wrote():
    found = domain_xml.read(MIGRATABLE)
    assert found.name == 'instance-0000002a'
    assert found.uuid == '6c1e8c9e-3a2c-4a4c-9f53-3f4a1c0d2b11'
    assert found.extra_specs == {
        'resources:CUSTOM_VQOS_CPU_UNIT': '60', 'vqos:cap': 'hard'}
    assert found.vcpus == 2
    assert found.pcpus == {0, 1}


def test_text_is_as_good_as_bytes():
    text = MIGRATABLE.decode()
    assert (domain_xml.read(text).extra_specs
            == domain_xml.read(MIGRATABLE).extra_specs)
    declared = '<?xml version="1.0" encoding="iso-8859-1"?>' + text
    assert domain_xml.read(declared).vcpus == 2


def test_only_the_values_change():
    result = with_tuning(MIGRATABLE, 1024, 50_000, 25_000)
    assert result == MIGRATABLE.replace(b'614', b'1024').replace(
        b'15000', b'25000')


def test_nothing_to_change():
    assert with_tuning(MIGRATABLE, 614, 50_000, 15_000) is not None
    assert with_tuning(MIGRATABLE, 614, 50_000, 15_000) == MIGRATABLE


def test_a_limit_is_removed_with_its_lines():
    assert with_tuning(MIGRATABLE, 614, None, None) == MIGRATABLE.replace(
        b'    <period>50000</period>\n    <quota>15000</quota>\n', b'')


def test_a_whole_cputune_is_made():
    bare = MIGRATABLE.replace(CPUTUNE, b'')
    assert with_tuning(bare, 614, 50_000, 15_000) == MIGRATABLE


def test_a_cputune_without_line_breaks_is_made():
    assert with_tuning(b'<domain><vcpu>1</vcpu></domain>') == (
        b'<domain><vcpu>1</vcpu><cputune><shares>100</shares>'
        b'<period>50000</period><quota>30000</quota></cputune></domain>')


@pytest.mark.parametrize('cputune', [
    '  <cputune/>\n',
    '  <cputune />\n',
    '  <cputune></cputune>\n',
    '  <cputune>\r\n  </cputune>\r\n',
    '  <cputune><quota>1</quota><period>2</period></cputune>\n',
    '  <cputune>\n    <quota>\n 1 </quota> <shares/>\n  </cputune>\n',
    '  <cputune><vcpupin vcpu="0" cpuset="1"/><shares>9</shares></cputune>\n',
    '  <cputune><quota>-1</quota></cputune>\n',
    '  <cputune><quota>1</quota><quota>2</quota></cputune>\n',
    '  <cputune><!-- <quota>1</quota> --></cputune>\n',
    '  <cputune><quota>3<!-- 4 -->0000</quota></cputune>\n',
    '  <cputune><quota>300<![CDATA[00]]></quota></cputune>\n',
    '  <cputune a=">" b=\'"/>\'><quota/></cputune>\n',
    '  <cputune><x:quota xmlns:x="urn:x">7</x:quota></cputune>\n',
    '  <cputune><global_quota>7</global_quota></cputune>\n',
    '  <cputune/>\n  <cputune><quota>1</quota></cputune>\n',
    '  <!-- <cputune/> -->\n  <cputune/>\n',
    '',
])
@pytest.mark.parametrize('limit', [(50_000, 30_000), (None, None)])
def test_every_shape_of_cputune(cputune, limit):
    xml = domain(cputune)
    result = with_tuning(xml, 100, *limit)
    wanted = ['100', *('' if value is None else str(value) for value in limit)]
    assert list(tuning(result).values()) == wanted
    assert with_tuning(result, 100, *limit) == result
    assert without_tuning(result) == without_tuning(xml)


def without_tuning(xml):
    """All but what is ours in the first <cputune>, and white space."""
    root = etree.fromstring(xml)
    for name in domain_xml.TUNED:
        for element in root.findall(f'./cputune/{name}'):
            element.getparent().remove(element)
    for element in root.findall('./cputune'):
        if not len(element) and not element.attrib:
            root.remove(element)
    for element in root.iter():
        element.text = (element.text or '').strip()
        element.tail = (element.tail or '').strip()
    return etree.tostring(root, method='c14n')


TEXTS = st.text(
    st.characters(codec='utf-8', exclude_categories=['Cs', 'Cc']), max_size=20)
ESCAPED = TEXTS.map(lambda text: text.replace('&', '&amp;').replace(
    '<', '&lt;').replace('>', '&gt;').replace('"', '&quot;'))
JUNK = st.one_of(
    ESCAPED,
    TEXTS.map(lambda text: f'<!-- {text.replace("-", "")} <cputune/> -->'),
    TEXTS.map(lambda text: f'<![CDATA[<cputune>{text.replace("]", "")}]]>'),
    ESCAPED.map(lambda text: f'<b a="{text}>"><cputune><quota>1</quota>'
                             '</cputune></b>'),
    st.sampled_from(['\r\n', '\t', '<?pi <cputune?>', '<d/>',
                     '<cputune xmlns="urn:other"><quota>1</quota></cputune>',
                     '<e xmlns:q="urn:q" q:cputune="1"/>']))
CHILDREN = st.lists(st.one_of(
    st.builds('<{0}>{1}</{0}>'.format, st.sampled_from(domain_xml.TUNED),
              st.integers(-1, 10**9)),
    st.sampled_from(['\n    ', '<vcpupin vcpu="0" cpuset="0-1"/>',
                     '<emulatorpin cpuset="1"/>', '<!-- x -->'])), max_size=6)


@given(before=st.lists(JUNK, max_size=3), after=st.lists(JUNK, max_size=3),
       children=st.none() | CHILDREN, shares=st.integers(2, 262_144),
       limit=st.none() | st.tuples(st.integers(1000, 10**6),
                                   st.integers(1000, 10**6)))
def test_all_else_passes_byte_for_byte(before, after, children, shares, limit):
    head = f'<domain>{"".join(before)}<vcpu>1</vcpu>'.encode()
    tail = f'{"".join(after)}</domain>'.encode()
    middle = b'' if children is None else (
        f'<cputune>{"".join(children)}</cputune>'.encode())
    period_us, quota_us = limit or (None, None)
    result = with_tuning(head + middle + tail, shares, period_us, quota_us)
    assert result.startswith(head) and result.endswith(tail)
    assert tuning(result) == {
        'shares': str(shares),
        'period': '' if limit is None else str(period_us),
        'quota': '' if limit is None else str(quota_us)}
    assert with_tuning(result, shares, period_us, quota_us) == result
    if children is not None:
        kept = [etree.tostring(element, with_tail=False)
                for element in etree.fromstring(middle)
                if element.tag not in domain_xml.TUNED]
        assert [etree.tostring(element, with_tail=False)
                for element in etree.fromstring(result).findall(
                    './cputune')[0]
                if element.tag not in domain_xml.TUNED] == kept


def test_the_encoding_is_kept():
    xml = ('<?xml version="1.0" encoding="iso-8859-1"?><domain><name>\xe9'
           '</name><vcpu>1</vcpu></domain>').encode('iso-8859-1')
    result = with_tuning(xml)
    assert b'\xe9</name>' in result
    assert tuning(result)['quota'] == '30000'


def test_a_byte_order_mark_is_kept():
    result = with_tuning(b'\xef\xbb\xbf' + domain())
    assert result.startswith(b'\xef\xbb\xbf<domain')
    assert tuning(result)['quota'] == '30000'


BOMB = ('<!DOCTYPE domain [<!ENTITY a "ha">' + ''.join(
    f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 9}">' for i in range(20))
    + ']><domain><name>&u;</name></domain>')


@pytest.mark.parametrize('xml, says', [
    (b'', 'no element found'),
    (b'\0', 'a zero byte'),
    (b'garbage', 'syntax error'),
    (MIGRATABLE[:500], 'not the XML of a domain'),
    (MIGRATABLE[:-12], 'not the XML of a domain'),
    (MIGRATABLE + b'<domain/>', 'junk after'),
    (b'<network/>', 'it is a <network>'),
    (b'<domain xmlns="urn:other"/>', 'it is a <urn:other domain>'),
    (b'<domain><vcpu>\xff</vcpu></domain>', 'not well-formed'),
    (domain().decode().encode('utf-16'), 'a zero byte'),
    (b'<?xml version="1.0" encoding="klingon"?><domain/>', 'klingon'),
    (b'<?xml version="1.0" encoding="shift-jis"?><domain/>', 'encoding'),
    (b'<domain><vcpu>&nbsp;</vcpu></domain>', 'undefined entity'),
    (BOMB.encode(), 'document type'),
    (b'<!DOCTYPE domain SYSTEM "file:///etc/passwd"><domain/>',
     'document type'),
])
def test_xml_that_is_no_domain(xml, says):
    for function in domain_xml.read, with_tuning:
        with pytest.raises(domain_xml.DomainXmlError, match=says):
            function(xml)


@given(st.binary(max_size=200))
def test_garbage(xml):
    with pytest.raises(domain_xml.DomainXmlError):
        domain_xml.read(xml)


@given(st.integers(0, len(MIGRATABLE) - 10))
def test_truncated(length):
    with pytest.raises(domain_xml.DomainXmlError):
        domain_xml.read(MIGRATABLE[:length])


@given(st.integers(0, len(MIGRATABLE) - 1), st.binary(max_size=3))
def test_damaged(offset, damage):
    damaged = MIGRATABLE[:offset] + damage + MIGRATABLE[offset + 1:]
    try:
        domain_xml.read(damaged)
        result = with_tuning(damaged)
    except domain_xml.DomainXmlError:
        return
    assert tuning(result)['quota'] == '30000'


def test_deep_nesting():
    depth = 200_000
    xml = domain(metadata='<a>' * depth + '</a>' * depth)
    assert b'<quota>30000</quota>' in with_tuning(xml)


def test_a_domain_without_vcpu():
    with pytest.raises(domain_xml.DomainXmlError, match='no <vcpu>'):
        with_tuning(b'<domain/>')


def test_not_a_server_of_nova():
    assert domain_xml.read(domain()).extra_specs is None


def test_a_flavor_without_extra_specs():
    found = domain_xml.read(domain(metadata=FLAVOR.format('')))
    assert found.extra_specs == {}
    assert found.vcpus == 2
    # As older releases of Nova left it.
    assert (found.flavor_name, found.flavor_id) == (">'", '')


def test_the_name_and_the_id_of_a_flavor_that_nova_34_leaves():
    found = domain_xml.read(MIGRATABLE)
    assert (found.flavor_name, found.flavor_id) == ('vqos.60', 'f1')
    assert domain_xml.read(domain()).flavor_id == ''


def test_values_of_extra_specs_are_literal():
    spec = '<n:extraSpec name="a&amp;b"> x<![CDATA[<]]>&#x41; </n:extraSpec>'
    found = domain_xml.read(domain(metadata=FLAVOR.format(spec)))
    assert found.extra_specs == {'a&b': ' x<A '}


def test_an_extra_spec_given_twice():
    spec = '<n:extraSpec name="vqos:cap">hard</n:extraSpec>'
    with pytest.raises(domain_xml.DomainXmlError, match='vqos:cap twice'):
        domain_xml.read(domain(metadata=FLAVOR.format(spec * 2)))


@pytest.mark.parametrize('elsewhere', [
    '<other xmlns:n="urn:other"><n:flavor/></other>',
    '<instance><flavor><extraSpecs><extraSpec name="vqos:cap">floor'
    '</extraSpec></extraSpecs></flavor></instance>',
    '<x><n:instance xmlns:n="http://openstack.org/xmlns/libvirt/nova/1.1">'
    '<n:flavor/></n:instance></x>',
])
def test_a_flavor_in_the_wrong_place_is_none(elsewhere):
    xml = domain(metadata=f'<metadata>{elsewhere}</metadata>')
    assert domain_xml.read(xml).extra_specs is None


@pytest.mark.parametrize('vcpu, cputune, pcpus', [
    ('<vcpu>2</vcpu>', '', None),
    ('<vcpu cpuset="0-3,^2,8">2</vcpu>', '', {0, 1, 3, 8}),
    ('<vcpu placement="auto" cpuset="1">2</vcpu>', '', None),
    ('<vcpu cpuset="0">2</vcpu>', '<vcpupin vcpu="0" cpuset="5"/>', {0, 5}),
    ('<vcpu>2</vcpu>', '<vcpupin vcpu="0" cpuset="5"/>', None),
    ('<vcpu cpuset="0">2</vcpu>', '<vcpupin vcpu="0" cpuset="5"/>'
     '<vcpupin vcpu="1" cpuset="6"/>', {5, 6}),
    ('<vcpu>999999999999</vcpu>', '<vcpupin vcpu="0" cpuset="5"/>', None),
    ('<vcpu>1</vcpu>', '<vcpupin vcpu="0" cpuset="5"/>'
     '<vcpupin vcpu="0" cpuset="6"/>', {5}),
    ('<vcpu cpuset="0-16383,^0-16382">1</vcpu>', '', {16383}),
])
def test_pcpus(vcpu, cputune, pcpus):
    xml = domain(f'<cputune>{cputune}</cputune>', vcpu=vcpu)
    assert domain_xml.read(xml).pcpus == pcpus


@pytest.mark.parametrize('cpuset', [
    '', 'all', '1-', '-1', '3-1', '0-99999999999', '1,,2', '^', '1;2',
    '\u0661', '0-16383,0-16383,1'])
def test_cpusets_that_are_none(cpuset):
    with pytest.raises(domain_xml.DomainXmlError, match='cpuset'):
        domain_xml.parse_cpuset(cpuset)


class CountingBytes(bytes):
    """Counts the bytes that slices of it copy."""

    copied = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.copied += len(found) if isinstance(key, slice) else 1
        return found


@pytest.mark.parametrize('separator', ['', ' ', '\n  ', '\r\n\t'])
def test_edits_are_linear_in_the_size_of_the_xml(separator):
    children = separator.join(['<global_quota>1</global_quota>'] * 2000)
    document = xml_edit.Document(
        domain(f'<cputune>{children}</cputune>'),
        [('domain', 'cputune', 'global_quota')])
    document.bytes = CountingBytes(document.bytes)
    found = document.all(('domain', 'cputune', 'global_quota'))
    edited = document.edited(list(document.removed(found)))
    assert b'global_quota' not in edited
    assert document.bytes.copied < 2 * len(document.bytes)


RAM = '<memory unit="KiB">1048576</memory>'
GIB = 2**30


@pytest.mark.parametrize('inner, ram_bytes', [
    (RAM, GIB),
    ('<memory>1048576</memory>', GIB),
    ('<memory unit="GiB">1</memory>', None),
    ('', None),
    # A private mapping of a file has pages of its own once it is written.
    (f'{RAM}<memoryBacking><source type="file"/></memoryBacking>', GIB),
    (f'{RAM}<memoryBacking><source type="memfd"/><access mode="shared"/>'
     '</memoryBacking>', 0),
    (f'{RAM}<memoryBacking><hugepages/></memoryBacking>', 0),
    (f'{RAM}<memoryBacking><hugepages><page size="2048"/></hugepages>'
     '</memoryBacking>', 0),
])
def test_ram_that_may_be_private_memory_of_the_emulator(inner, ram_bytes):
    found = domain_xml.read(domain(metadata=inner))
    assert found.private_ram_bytes == ram_bytes


@pytest.mark.parametrize('backing, cells, ram_bytes', [
    ('<hugepages><page nodeset="0-1"/></hugepages>', ('', ''), 0),
    ('<hugepages><page nodeset="0"/></hugepages>', ('', ''), GIB),
    ('', ('memAccess="shared"', 'memAccess="shared"'), 0),
    ('', ('memAccess="shared"', ''), GIB),
    ('<access mode="shared"/>', ('', 'memAccess="private"'), GIB),
    ('<access mode="shared"/>', ('', ''), 0),
])
def test_ram_of_several_nodes(backing, cells, ram_bytes):
    cpu = ''.join(f'<cell id="{number}" {attributes}/>'
                  for number, attributes in enumerate(cells))
    found = domain_xml.read(domain(
        metadata=f'{RAM}<memoryBacking>{backing}</memoryBacking>',
        cputune=f'<cpu><numa>{cpu}</numa></cpu>'))
    assert found.private_ram_bytes == ram_bytes
