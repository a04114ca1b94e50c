# SPDX-License-Identifier: Apache-2.0
"""The description of a domain, and what its packets and requests cost."""

from collections.abc import Callable
import functools
import logging
import os
import re

from nova_vqos import domain_xml
from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.libvirt import disk_limits
from nova_vqos.hypervisor.libvirt import session as libvirt_session
from nova_vqos.hypervisor.linux import bridges
from nova_vqos.hypervisor.linux import procfs

LOG = logging.getLogger(__name__)

# What libvirt calls the ways in which its own networks reach the world.
_FORWARD_MODES = {'nat': 'nat', 'route': 'routed', 'open': 'routed'}
# Their packets or requests never get to the host's kernel: a device is handed
# to the guest, or to a switch or a driver in user space.
_BYPASSING_INTERFACES = ('hostdev', 'vdpa', 'vhostuser')
_FORWARD = re.compile(r"<forward\b[^>]*\bmode='(\w+)'")
_DISK_SOURCES = {'file': 'file', 'dir': 'file', 'block': 'block',
                 'network': 'network'}
_UNBUFFERED = ('none', 'directsync')


def describe(session: libvirt_session.Session, root: str,
             uuid: str) -> base.Domain:
    """As :meth:`base.CapDriver.describe`.

    :param root: where /sys is looked for
    """
    domain = session.lookup(uuid)
    state = tuple(session.call(domain.state))
    if state == libvirt_session.STARTING:
        # Its cgroups are being made.
        raise base.DomainBusy('it is being started')
    xml = session.call(domain.XMLDesc, 0)
    try:
        found = domain_xml.read(xml)
    except domain_xml.DomainXmlError as error:
        raise base.HypervisorError(
            f'the XML of domain {uuid} cannot be understood: {error}'
        ) from error
    return base.Domain(
        uuid=uuid, name=found.name, extra_specs=found.extra_specs,
        vcpus=found.vcpus or 0, pcpus=found.pcpus,
        pinned_by_others=found.pinned_by_others, cpuset=found.cpuset,
        pinned=found.pinned,
        project_id=found.project_id, flavor_name=found.flavor_name,
        flavor_id=found.flavor_id,
        interfaces=interface_kinds(
            found, root, functools.partial(_forward_mode, session)),
        disks=disk_kinds(found),
        incoming=state == libvirt_session.INCOMING,
        private_ram_bytes=found.private_ram_bytes,
        disk_limits=disk_limits.of_domain(found))


def _forward_mode(session: libvirt_session.Session, name: str) -> str:
    """Ask how a network of libvirt's reaches the world, '' if it doesn't.

    :returns: ``unknown`` where libvirt does not answer
    """
    try:
        network = session.call(session.connected().networkLookupByName, name)
        return forward_mode(session.call(network.XMLDesc, 0))
    except base.Unavailable:
        raise
    except base.HypervisorError as error:
        LOG.warning('Forward mode of network %s is unknown: %s', name, error)
        return 'unknown'


def interface_kinds(found: domain_xml.Domain, root: str,
                    forward_mode: Callable[[str], str]
                    ) -> dict[str, usage.InterfaceKind]:
    """Find the kinds of a domain's interfaces, by their names on the host.

    :param root: where /proc and /sys are looked for
    :param forward_mode: finds how a network of libvirt's own reaches the
        world, in libvirt's word; '' where it does not
    """
    return {
        name: usage.InterfaceKind(
            _mode(name, interface, root, forward_mode),
            _backend(interface, found.virt_type, root))
        for name, interface in found.interfaces.items()
        if interface.kind not in _BYPASSING_INTERFACES}


def disk_kinds(found: domain_xml.Domain) -> dict[str, usage.DiskKind]:
    """Find the kinds of a domain's disks, by their names in the guest."""
    kinds = {}
    for name, disk in found.disks.items():
        source = _DISK_SOURCES.get(disk.kind)
        if source is not None:
            # libvirt's default is QEMU's: writeback, which buffers. Network
            # disks bypass the page cache.
            kinds[name] = usage.DiskKind(
                source, source != 'network'
                and disk.cache not in _UNBUFFERED)
    return kinds


def forward_mode(xml: str) -> str:
    """Parse how a network of libvirt's reaches the world, '' if it doesn't.

    :param xml: of the network, as libvirt writes it
    """
    found = _FORWARD.search(xml)
    return '' if found is None else found[1]


def _mode(name: str, interface: domain_xml.Interface, root: str,
          forward_mode: Callable[[str], str]) -> str:
    if interface.kind == 'bridge' and interface.port != 'openvswitch':
        return 'bridge'
    if interface.kind == 'network':
        # One that reaches nothing is a bridge all the same.
        mode = forward_mode(interface.network) or 'bridge'
        return _FORWARD_MODES.get(mode, mode if mode == 'bridge' else '')
    mode = _link_mode(name, root)
    if interface.kind == 'bridge':
        # Open vSwitch in user space (datapath_type=netdev) has no master.
        return mode if mode == 'openvswitch' else ''
    return mode if interface.kind == 'ethernet' else ''


def _link_mode(name: str, root: str) -> str:
    """How the kernel connects an interface.

    Nova plugs those on Open vSwitch and on routed networks itself, so that
    libvirt does not say it.
    """
    link = os.path.join(root, 'sys/class/net', name)
    try:
        master = os.path.basename(os.readlink(os.path.join(link, 'master')))
    except OSError:
        forwarding = procfs.read_text(os.path.join(
            root, 'proc/sys/net/ipv4/conf', name, 'forwarding'), '')
        return 'routed' if forwarding == '1' else ''
    if master == bridges.OPENVSWITCH:
        return 'openvswitch'
    return 'bridge' if os.path.isdir(
        os.path.join(link, 'master', 'bridge')) else ''


def _backend(interface: domain_xml.Interface, virt_type: str,
             root: str) -> str:
    """Which backend moves an interface's packets, as libvirt decides it.

    NOTE: qemuInterfaceOpenVhostNet in src/qemu/qemu_interface.c: by default
    vhost where it is there, for KVM and virtio only, silently QEMU elsewhere.
    The XML does not show the result.
    """
    if (virt_type != 'kvm' or interface.backend == 'qemu'
            or not interface.model.startswith('virtio')):
        return 'qemu'
    # Not /dev/vhost-net, which the hardened agent cannot see, and which may be
    # there before its module; a domain that uses vhost has loaded that.
    there = os.path.exists(os.path.join(root, 'sys/class/misc/vhost-net'))
    return 'vhost' if there or interface.backend == 'vhost' else 'qemu'
