# SPDX-License-Identifier: Apache-2.0
"""Reads and changes the XML of a libvirt domain.

:func:`read` finds the flavor in Nova's metadata, and the pCPUs that the vCPUs
may run on; :func:`with_cputune` returns the document with another
``<cputune>``. Used by libvirt's hook and the agent. Imports little of the
standard library and nothing else: the hook starts at each migration.

Pins that an agent made are valid on its host only, but migrate with the
domain. So the agent marks them in the metadata, and on the next host
:func:`without_own_pins` removes them. A limit on disks that an agent made has
the mark in itself: the name of its group.
"""

from collections.abc import Callable, Iterator

from nova_vqos import light_typing
from nova_vqos import xml_edit

NOVA_NS = 'http://openstack.org/xmlns/libvirt/nova/1.1'

#: Namespace and name of the mark that the agent made the vCPUs' pins.
MARK_NS = 'http://openstack.org/xmlns/libvirt/nova_vqos/1.0'
MARK = 'pinned'

#: The elements of <cputune> that we write, in libvirt's order.
TUNED = ('shares', 'period', 'quota')

#: Limits of I/O and emulator threads, and of a whole server.
LIMITS = tuple(f'{of}_{name}' for of in ('global', 'emulator', 'iothread')
               for name in ('period', 'quota'))

#: The group of QEMU's throttling that all disks are in that an agent limits:
#: they share its limit. Nova's own limits name no group.
DISK_GROUP = 'nova-vqos'

# NOTE: libvirt's own bound for pCPUs in a cpuset (VIR_DOMAIN_CPUMASK_LEN).
_MAX_PCPU = 16_383
# Each of them, and each excepted once.
_MOST_LISTED = 2 * (_MAX_PCPU + 1)
_MAX_ID = 255

_NS_END = xml_edit.NS_END
_NOVA = f'{NOVA_NS}{_NS_END}'
_DOMAIN = ('domain',)
_VCPU = ('domain', 'vcpu')
_CPUTUNE = ('domain', 'cputune')
_VCPUPIN = (*_CPUTUNE, 'vcpupin')
_MARK = ('domain', 'metadata', f'{MARK_NS}{_NS_END}{MARK}')
_PROJECT = ('domain', 'metadata', f'{_NOVA}instance', f'{_NOVA}owner',
            f'{_NOVA}project')
_FLAVOR = ('domain', 'metadata', f'{_NOVA}instance', f'{_NOVA}flavor')
_FLAVOR_VCPUS = (*_FLAVOR, f'{_NOVA}vcpus')
_EXTRA_SPEC = (*_FLAVOR, f'{_NOVA}extraSpecs', f'{_NOVA}extraSpec')
_DEVICES = ('domain', 'devices')
_INTERFACE = (*_DEVICES, 'interface')
_DISK = (*_DEVICES, 'disk')
_IOTUNE = (*_DISK, 'iotune')
_IOTUNED = ('group_name', 'total_iops_sec', 'total_bytes_sec')
_MEMORY = ('domain', 'memory')
_BACKING = ('domain', 'memoryBacking')
_ACCESS = (*_BACKING, 'access')
_HUGEPAGES = (*_BACKING, 'hugepages')
_PAGE = (*_HUGEPAGES, 'page')
_CELL = ('domain', 'cpu', 'numa', 'cell')
_KEPT = {
    _VCPU, _CPUTUNE, _VCPUPIN, _MARK, _FLAVOR, _FLAVOR_VCPUS, _EXTRA_SPEC,
    _DOMAIN, ('domain', 'name'), ('domain', 'uuid'), _INTERFACE, _DISK,
    *((*_INTERFACE, name) for name in (
        'source', 'virtualport', 'target', 'model', 'driver')),
    *((*_DISK, name) for name in ('target', 'driver', 'source')), _IOTUNE,
    *((*_IOTUNE, name) for name in _IOTUNED),
    _MEMORY, _ACCESS, _HUGEPAGES, _PAGE, _CELL,
    _PROJECT, *((*_CPUTUNE, name) for name in (*TUNED, *LIMITS)),
}
DomainXmlError = xml_edit.DomainXmlError


class Interface:
    """A network interface in the XML; '' is an attribute that is not there.

    :ivar kind: of the connection, such as ``bridge``
    :ivar network: libvirt's network
    :ivar port: kind of the virtual port, such as ``openvswitch``
    :ivar model: of the device in the guest, such as ``virtio``
    :ivar backend: ``vhost`` or ``qemu``
    """

    __slots__ = ('backend', 'kind', 'model', 'network', 'port')

    def __init__(self, element: xml_edit.Element) -> None:
        self.kind = element.attributes.get('type', '')
        self.network = element.attribute('source', 'network')
        self.port = element.attribute('virtualport', 'type')
        self.model = element.attribute('model', 'type')
        self.backend = element.attribute('driver', 'name')


class Disk:
    """A disk in the XML; '' is an attribute that is not there.

    :ivar kind: of its source, such as ``file``
    :ivar cache: mode of the host's page cache, such as ``none``
    :ivar is_empty: whether there is no medium in it
    :ivar is_limited: whether its requests have a limit, of any writer
    :ivar own_limit: that of an agent: on requests and on bytes per second;
        None: it has none
    """

    __slots__ = ('cache', 'is_empty', 'is_limited', 'kind', 'own_limit')

    def __init__(self, element: xml_edit.Element) -> None:
        self.kind = element.attributes.get('type', '')
        self.cache = element.attribute('driver', 'cache')
        self.is_empty = 'source' not in element.children
        iotune = element.children.get('iotune')
        self.is_limited = iotune is not None
        self.own_limit: tuple[int, int] | None = None
        if iotune is not None and _is_own(iotune):
            self.own_limit = (
                _number(iotune.children.get('total_iops_sec')) or 0,
                _number(iotune.children.get('total_bytes_sec')) or 0)


class Domain(light_typing.NamedTuple):
    """The CPU and the devices of a domain, by its XML.

    :ivar name: libvirt's name of the domain; '': it has none
    :ivar uuid: of the domain and of its server; '': it has none
    :ivar virt_type: kind of hypervisor, such as ``kvm``
    :ivar extra_specs: of the flavor in Nova's metadata; None: there is no
        flavor, it is not a server of Nova
    :ivar flavor_name: of the flavor in Nova's metadata; '': it has none
    :ivar flavor_id: of Nova's API, likewise
    :ivar shares: weight of the domain; None: the default
    :ivar period_us: of the quota of each vCPU; None: the default
    :ivar quota_us: of each vCPU; None: no limit
    :ivar vcpus: of the flavor; of the domain where the flavor has none
    :ivar vcpus_online: of the domain at its start
    :ivar pcpus: those that the vCPUs may run on; None: all of libvirt's
    :ivar cpuset: :attr:`pcpus` as they were without pins
    :ivar pinned: whether a vCPU has a pin
    :ivar pinned_by_others: whether a vCPU has a pin that the agent did not
        make
    :ivar project_id: of the server's owner; '': Nova's metadata lacks it
    :ivar interfaces: by name on the host, those with a name
    :ivar disks: by name in the guest
    :ivar private_ram_bytes: RAM of the guest that is private memory of its
        emulator, at most; 0: all is shared memory, or huge pages; None: not
        known
    """

    name: str
    uuid: str
    virt_type: str
    extra_specs: dict[str, str] | None
    vcpus: int | None
    vcpus_online: int | None
    pcpus: frozenset[int] | None
    cpuset: frozenset[int] | None
    pinned: bool
    pinned_by_others: bool
    interfaces: dict[str, Interface]
    disks: dict[str, Disk]
    project_id: str
    flavor_name: str
    flavor_id: str
    shares: int | None
    period_us: int | None
    quota_us: int | None
    private_ram_bytes: int | None


def read(xml: bytes | str) -> Domain:
    """The CPU and the devices of a domain, by its XML.

    :raises DomainXmlError: when it is not the XML of a domain
    """
    document = xml_edit.Document(xml, _KEPT)
    flavor = document.first(_FLAVOR)
    vcpu = document.first(_VCPU)
    domain_vcpus = _number(vcpu)
    pins = document.all(_VCPUPIN)
    project = document.first(_PROJECT)
    return Domain(
        name=document.text(('domain', 'name')),
        uuid=document.text(('domain', 'uuid')),
        virt_type=document.all(_DOMAIN)[0].attributes.get('type', ''),
        extra_specs=(None if flavor is None
                     else _extra_specs(document.all(_EXTRA_SPEC))),
        vcpus=_number(document.first(_FLAVOR_VCPUS)) or domain_vcpus,
        vcpus_online=_vcpus_online(vcpu),
        pcpus=_pcpus(vcpu, domain_vcpus, pins), cpuset=_cpuset(vcpu),
        pinned=bool(pins),
        pinned_by_others=bool(pins) and document.first(_MARK) is None,
        interfaces={name: Interface(element)
                    for element in document.all(_INTERFACE)
                    if (name := element.attribute('target', 'dev'))},
        disks={element.attribute('target', 'dev'): Disk(element)
               for element in document.all(_DISK)},
        project_id=_text_of(project, 'uuid'),
        flavor_name=_text_of(flavor, 'name'),
        flavor_id=_text_of(flavor, 'id'),
        shares=_number(document.first((*_CPUTUNE, 'shares'))),
        period_us=_number(document.first((*_CPUTUNE, 'period'))),
        quota_us=_number(document.first((*_CPUTUNE, 'quota'))),
        private_ram_bytes=_private_ram_bytes(document))


def with_cputune(xml: bytes, *, shares: int, period_us: int | None,
                 quota_us: int | None) -> bytes:
    """The document with another CPU tuning.

    A value of None is removed. Where nothing changes, the result is the same
    bytes.

    :param shares: weight of the whole domain
    :param period_us: of the quota of each vCPU
    :param quota_us: of each vCPU
    :raises DomainXmlError: when it is not the XML of a domain
    """
    document = xml_edit.Document(xml, _KEPT)
    values = dict(zip(TUNED, (shares, period_us, quota_us), strict=True))
    edits: list[tuple[int, int, bytes]] = []
    missing: list[bytes] = []
    for name, value in values.items():
        found = document.all((*_CPUTUNE, name))
        element = f'<{name}>{value}</{name}>'.encode()
        if value is not None and not found:
            missing.append(element)
        elif value is not None:
            # libvirt reads the first of several.
            kept, *found = found
            if _number(kept) != value:
                edits.append((kept.start, kept.end, element))
        edits.extend(document.removed(found))
    if missing:
        edits.append(_insertion(document, missing))
    return document.edited(edits)


def without_limits(xml: bytes) -> bytes:
    """The document without LIMITS; the same bytes where there are none.

    :raises DomainXmlError: when it is not the XML of a domain
    """
    document = xml_edit.Document(xml, _KEPT)
    return document.edited([
        edit for name in LIMITS
        for edit in document.removed(document.all((*_CPUTUNE, name)))])


def without_own_pins(xml: bytes) -> bytes:
    """The document without an agent's pins and their mark.

    The same bytes where there is no mark.

    :raises DomainXmlError: when it is not the XML of a domain
    """
    # NOTE: few domains have the mark, and each migration waits for this.
    if MARK_NS.encode() not in xml:
        return xml
    document = xml_edit.Document(xml, _KEPT)
    marks = document.all(_MARK)
    pins = document.all(_VCPUPIN) if marks else []
    return document.edited([*document.removed(marks),
                            *document.removed(pins)])


def without_own_disk_limits(xml: bytes) -> bytes:
    """The document without an agent's limits on disks.

    The same bytes where there are none.

    :raises DomainXmlError: when it is not the XML of a domain
    """
    # NOTE: few domains have one, and each migration waits for this.
    if DISK_GROUP.encode() not in xml:
        return xml
    document = xml_edit.Document(xml, _KEPT)
    return document.edited(list(document.removed(
        filter(_is_own, document.all(_IOTUNE)))))


def _is_own(iotune: xml_edit.Element) -> bool:
    """Whether an agent made a limit on a disk."""
    group = iotune.children.get('group_name')
    return group is not None and group.text == DISK_GROUP


def _insertion(document: xml_edit.Document,
               children: list[bytes]) -> tuple[int, int, bytes]:
    """The edit that adds children to <cputune>, which may be missing."""
    cputune = document.first(_CPUTUNE)
    if cputune is None:
        vcpu = document.first(_VCPU)
        if vcpu is None:
            raise DomainXmlError('the domain has no <vcpu>')
        line = document.new_line(vcpu.start)
        return vcpu.end, vcpu.end, b''.join((
            line, b'<cputune>', *_lines(line and line + b'  ', children),
            line, b'</cputune>'))
    line = document.new_line(cputune.start)
    added = b''.join(_lines(line and line + b'  ', children))
    if cputune.end == cputune.tag_end:
        start_tag = document.bytes[cputune.start:cputune.tag_end - 2].rstrip()
        return cputune.start, cputune.end, b''.join((
            start_tag, b'>', added, line, b'</cputune>'))
    return cputune.tag_end, cputune.tag_end, added


def _lines(line: bytes, elements: list[bytes]) -> Iterator[bytes]:
    for element in elements:
        yield line
        yield element


def _extra_specs(elements: list[xml_edit.Element]) -> dict[str, str]:
    extra_specs: dict[str, str] = {}
    for element in elements:
        name = element.attributes.get('name', '')
        if name in extra_specs:
            raise DomainXmlError(f'the flavor has {name} twice')
        extra_specs[name] = ''.join(element.chunks)
    return extra_specs


def _text_of(element: xml_edit.Element | None, name: str) -> str:
    """An attribute, cut to Nova's greatest length; '': there is none."""
    return ('' if element is None
            else element.attributes.get(name, '')[:_MAX_ID])


def _number(element: xml_edit.Element | None) -> int | None:
    if element is None or not _is_number(element.text):
        return None
    return int(element.text)


def _vcpus_online(vcpu: xml_edit.Element | None) -> int | None:
    """The vCPUs at the start: others may be hotplugged later."""
    if vcpu is None:
        return None
    current = vcpu.attributes.get('current', '')
    return int(current) if _is_number(current) else _number(vcpu)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 20


def _private_ram_bytes(document: xml_edit.Document) -> int | None:
    """The guest's RAM, as far as it may be private memory of its emulator.

    Where only a part of the RAM is of another kind, this is all of it.
    """
    cells = document.all(_CELL)
    access = document.first(_ACCESS)
    mode = 'private' if access is None else access.attributes.get('mode', '')
    if cells:
        is_shared = all(cell.attributes.get('memAccess', mode) == 'shared'
                        for cell in cells)
    else:
        is_shared = mode == 'shared'
    if is_shared or _has_only_huge_pages(document, len(cells)):
        return 0
    memory = document.first(_MEMORY)
    kib = _number(memory)
    # NOTE: libvirt itself writes no other unit.
    if (memory is None or kib is None
            or memory.attributes.get('unit', 'KiB') != 'KiB'):
        return None
    return kib * 1024


def _has_only_huge_pages(document: xml_edit.Document, cells: int) -> bool:
    """
    :param cells: number of the guest's NUMA nodes; 0: it has none
    """
    if document.first(_HUGEPAGES) is None:
        return False
    nodes: set[int] = set()
    pages = document.all(_PAGE)
    for page in pages:
        nodeset = page.attributes.get('nodeset')
        if nodeset is None:
            return True
        nodes |= parse_cpuset(nodeset)
    return not pages or len(nodes) >= max(1, cells)


def _pcpus(vcpu: xml_edit.Element | None, vcpus: int | None,
           pins: list[xml_edit.Element]) -> frozenset[int] | None:
    """The pCPUs that at least one vCPU may run on.

    A vCPU with a pin of its own runs there, the others where <vcpu> says.
    """
    pinned: dict[str, frozenset[int]] = {}
    parsed: dict[str, frozenset[int]] = {}
    for pin in pins:
        number = pin.attributes.get('vcpu', '')
        cpuset = pin.attributes.get('cpuset', '')
        if cpuset not in parsed:
            parsed[cpuset] = parse_cpuset(cpuset)
        # libvirt reads the first of several.
        pinned.setdefault(number, parsed[cpuset])
    others = _cpuset(vcpu)
    if vcpus is None or len(pinned) < vcpus:
        if others is None:
            return None
        pinned[''] = others
    return frozenset[int]().union(*pinned.values())


def _cpuset(vcpu: xml_edit.Element | None) -> frozenset[int] | None:
    if vcpu is None or vcpu.attributes.get('placement') == 'auto':
        return None
    cpuset = vcpu.attributes.get('cpuset')
    return None if cpuset is None else parse_cpuset(cpuset)


def parse_cpuset(text: str) -> frozenset[int]:
    """pCPUs from libvirt's notation, such as ``0-3,^2,8``.

    :raises DomainXmlError: when it is something else
    """
    pcpus: set[int] = set()
    listed = 0
    for part in text.split(','):
        part = part.strip()
        change: Callable[[range], None] = pcpus.update
        if part.startswith('^'):
            part, change = part[1:], pcpus.difference_update
        first, dash, last = part.partition('-')
        last = last if dash else first
        if not (_is_number(first) and _is_number(last)
                and int(first) <= int(last) <= _MAX_PCPU):
            raise DomainXmlError(
                f'cpuset {text[:80]!r} is no list of pCPUs such as 0-3,^2,8')
        # A text of ranges that repeat could keep its reader busy for long.
        listed += int(last) - int(first) + 1
        if listed > _MOST_LISTED:
            raise DomainXmlError(f'cpuset {text[:80]!r} lists pCPUs again and '
                                 'again')
        change(range(int(first), int(last) + 1))
    return frozenset(pcpus)
