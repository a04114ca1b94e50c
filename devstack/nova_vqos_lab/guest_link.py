# SPDX-License-Identifier: Apache-2.0
"""A link from guests to their host, for what clouds offer at 169.254.169.254.

The lab has no Neutron that could make a port, so its servers have none. What
they get instead is an interface of libvirt's, while they run, on a bridge that
leads nowhere but to the host. Nova does not know of it: the interface follows
a live migration, and is gone after a hard reboot.
"""

import contextlib
import ipaddress

import libvirt

from nova_vqos_lab import host as hosts
from nova_vqos_lab import process

#: Of the host, for its guests.
ADDRESS = '169.254.169.254'
_LENGTH = 16
_BRIDGE = 'br-guest-link'
# The same on all hosts: a guest that has migrated finds what it knew.
_BRIDGE_MAC = '52:54:00:71:a9:fe'
_MAC_BEGINS = '52:54:00:71'
# Link-local addresses begin with 169.254.1.0: RFC 3927.
_FIRST = int(ipaddress.IPv4Address('169.254.1.1'))
_MOST = int(ipaddress.IPv4Address('169.254.168.254')) - _FIRST
_XML = f"""
<interface type='bridge'>
  <mac address='{{mac}}'/>
  <source bridge='{_BRIDGE}'/>
  <model type='virtio'/>
</interface>
"""


def create(namespace: str) -> None:
    """Make the bridge of a host, unless there is one.

    :param namespace: of the host's network
    :raises LabError: when the machine does not let us
    """
    def ip(*arguments: str, check: bool = True) -> int:
        return process.run(['ip', '-netns', namespace, *arguments],
                           check=check).returncode

    if ip('link', 'show', _BRIDGE, check=False):
        ip('link', 'add', _BRIDGE, 'address', _BRIDGE_MAC, 'type', 'bridge',
           'forward_delay', '0', 'mcast_snooping', '0')
    ip('address', 'replace', f'{ADDRESS}/{_LENGTH}', 'dev', _BRIDGE)
    ip('link', 'set', _BRIDGE, 'up')


def attach(host: hosts.Host, domain: str) -> None:
    """Give a guest that runs an interface on the bridge.

    :param domain: its name
    :raises LabError: when libvirt does not
    """
    try:
        with contextlib.closing(libvirt.open(host.libvirt_uri)) as connection:
            connection.lookupByName(domain).attachDeviceFlags(
                _XML.format(mac=mac_of(address_of(domain))),
                libvirt.VIR_DOMAIN_AFFECT_LIVE)
    except libvirt.libvirtError as error:
        raise process.LabError(
            f'{domain} of host {host.name} gets no interface: {error}'
        ) from error


def address_of(domain: str) -> str:
    """:returns: the address that a guest has by that of its interface

    :param domain: its name by Nova, which ends in a number of its own
    """
    number = int(domain.rpartition('-')[2], 16)
    return str(ipaddress.IPv4Address(_FIRST + number % _MOST))


def mac_of(address: str) -> str:
    """:returns: the MAC address of the interface that has an address"""
    third, fourth = ipaddress.IPv4Address(address).packed[2:]
    return f'{_MAC_BEGINS}:{third:02x}:{fourth:02x}'
