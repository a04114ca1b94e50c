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

"""What decides what a packet or a disk request of a domain costs its host."""

from collections.abc import Callable
import os
import re

from nova_vqos import domain_xml
from nova_vqos.billing import usage

# What libvirt calls the ways in which its own networks reach the world.
_FORWARD_MODES = {'nat': 'nat', 'route': 'routed', 'open': 'routed'}
# NOTE: the kernel's Open vSwitch has one device that is the master of all its
# ports (net/openvswitch/vport-netdev.c).
_OPENVSWITCH = 'ovs-system'
# Their packets or requests never get to the host's kernel: a device is handed
# to the guest, or to a switch or a driver in user space.
_BYPASSING_INTERFACES = ('hostdev', 'vdpa', 'vhostuser')
_FORWARD = re.compile(r"<forward\b[^>]*\bmode='(\w+)'")
_DISK_SOURCES = {'file': 'file', 'dir': 'file', 'block': 'block',
                 'network': 'network'}
_UNBUFFERED = ('none', 'directsync')


def interface_kinds(found: domain_xml.Domain, root: str,
                    forward_mode: Callable[[str], str]
                    ) -> dict[str, usage.InterfaceKind]:
    """The kinds of a domain's interfaces, by their names on the host.

    :param root: where /proc and /sys are looked for
    :param forward_mode: tells how a network of libvirt's own reaches the
        world, in libvirt's word; '' where it does not
    """
    return {
        name: usage.InterfaceKind(
            _mode(name, interface, root, forward_mode),
            _backend(interface, found.virt_type, root))
        for name, interface in found.interfaces.items()
        if interface.kind not in _BYPASSING_INTERFACES}


def disk_kinds(found: domain_xml.Domain) -> dict[str, usage.DiskKind]:
    """The kinds of a domain's disks, by their names in the guest."""
    kinds = {}
    for name, disk in found.disks.items():
        source = _DISK_SOURCES.get(disk.kind)
        if source is not None:
            # libvirt's default is QEMU's: writeback, which buffers. What
            # comes over the network is in no page cache.
            kinds[name] = usage.DiskKind(
                source, source != 'network'
                and disk.cache not in _UNBUFFERED)
    return kinds


def forward_mode(xml: str) -> str:
    """How a network of libvirt's reaches the world, '' if it doesn't.

    :param xml: of the network, as libvirt writes it
    """
    found = _FORWARD.search(xml)
    return '' if found is None else found[1]


def _mode(name: str, interface: domain_xml.Interface, root: str,
          forward_mode: Callable[[str], str]) -> str:
    if interface.kind == 'bridge':
        return 'openvswitch' if interface.port == 'openvswitch' else 'bridge'
    if interface.kind == 'network':
        # One that reaches nothing is a bridge all the same.
        mode = forward_mode(interface.network) or 'bridge'
        return _FORWARD_MODES.get(mode, mode if mode == 'bridge' else '')
    if interface.kind == 'ethernet':
        return _link_mode(name, root)
    return ''


def _link_mode(name: str, root: str) -> str:
    """How the kernel connects an interface that somebody else plugged.

    That is how Nova starts servers on Open vSwitch and on routed networks.
    """
    link = os.path.join(root, 'sys/class/net', name)
    try:
        master = os.path.basename(os.readlink(os.path.join(link, 'master')))
    except OSError:
        return 'routed' if _forwards(name, root) else ''
    if master == _OPENVSWITCH:
        return 'openvswitch'
    return 'bridge' if os.path.isdir(
        os.path.join(link, 'master', 'bridge')) else ''


def _forwards(name: str, root: str) -> bool:
    path = os.path.join(root, 'proc/sys/net/ipv4/conf', name, 'forwarding')
    try:
        with open(path, encoding='ascii') as file:
            return file.read().strip() == '1'
    except OSError:
        return False


def _backend(interface: domain_xml.Interface, virt_type: str,
             root: str) -> str:
    """Who moves an interface's packets, as libvirt decides it.

    NOTE: qemuInterfaceOpenVhostNet in src/qemu/qemu_interface.c: by default
    vhost where it is there, for KVM and virtio only, silently QEMU elsewhere.
    The XML does not tell which it became.
    """
    if (virt_type != 'kvm' or interface.backend == 'qemu'
            or not interface.model.startswith('virtio')):
        return 'qemu'
    # Not /dev/vhost-net, which the hardened agent cannot see; and that may be
    # there before its module is, which a domain that uses it has loaded.
    there = os.path.exists(os.path.join(root, 'sys/class/misc/vhost-net'))
    return 'vhost' if there or interface.backend == 'vhost' else 'qemu'
