# SPDX-License-Identifier: Apache-2.0
"""Tries things with a libvirt as the user that runs it, prints what came out.

A program for test_agent_rights: arguments are the UUID of a guest, ``manage``
for a connection that may write, and names of groups of attempts. It prints
JSON: libvirt's or the kernel's number of the
error by the attempt's name, 0 where there was none.
"""

import json
import os
import sys

import libvirt
import libvirt_qemu

LIVE = libvirt.VIR_DOMAIN_AFFECT_LIVE
_POOL = ('<pool type="dir"><name>vqos-attempt</name>'
         '<target><path>/etc</path></target></pool>')
_DOMAIN = ('<domain type="qemu"><name>vqos-attempt</name><memory>1024</memory>'
           '<os><type>hvm</type></os></domain>')
_DISK = ('<disk type="file" device="disk"><source file="/etc/shadow"/>'
         '<target dev="sdz" bus="usb"/></disk>')
_NETWORK = '<network><name>vqos-attempt</name></network>'
_SECRET = '<secret ephemeral="yes" private="no"/>'
_STATISTICS = (libvirt.VIR_DOMAIN_STATS_INTERFACE
               | libvirt.VIR_DOMAIN_STATS_BLOCK
               | libvirt.VIR_DOMAIN_STATS_VCPU)


def reads(connection, uuid):
    """All calls of nova_vqos.hypervisor.libvirt but those of its writer."""
    libvirt.virEventRegisterDefaultImpl()

    def domain():
        return connection.lookupByUUIDString(uuid)
    return {
        'list': connection.listDomainsID,
        'look up': domain,
        'register': lambda: connection.domainEventRegisterAny(
            None, libvirt.VIR_DOMAIN_EVENT_ID_TUNABLE, lambda *_: None, None),
        'state': lambda: domain().state(),
        'job': lambda: domain().jobStats(),
        'describe': lambda: domain().XMLDesc(0),
        'statistics': lambda: connection.getAllDomainStats(_STATISTICS),
        'network': lambda: connection.networkLookupByName(
            'vqos-network').XMLDesc(0),
    }


def changes(connection, uuid):
    """What changes the host, a guest, or shows their secrets."""
    domain = connection.lookupByUUIDString(uuid)
    return {
        'define a pool': lambda: connection.storagePoolDefineXML(_POOL),
        'start a pool': lambda: connection.storagePoolCreateXML(_POOL),
        'define a domain': lambda: connection.defineXML(_DOMAIN),
        'start a domain': lambda: connection.createXML(_DOMAIN),
        'define a network': lambda: connection.networkDefineXML(_NETWORK),
        'define a secret': lambda: connection.secretDefineXML(_SECRET),
        'monitor command': lambda: libvirt_qemu.qemuMonitorCommand(
            domain, '{"execute": "query-status"}', 0),
        'command in the guest': lambda: libvirt_qemu.qemuAgentCommand(
            domain, '{"execute": "guest-ping"}', 5, 0),
        'attach a file': lambda: domain.attachDeviceFlags(_DISK, LIVE),
        'show secrets': lambda: domain.XMLDesc(
            libvirt.VIR_DOMAIN_XML_SECURE),
        'dump memory': lambda: domain.coreDump('/var/tmp/vqos-attempt'),
        'see memory': lambda: domain.memoryPeek(
            0, 16, libvirt.VIR_MEMORY_PHYSICAL),
        'save': lambda: domain.save('/var/tmp/vqos-attempt'),
        'suspend': domain.suspend,
        'destroy': domain.destroy,
        'set a cap': lambda: domain.setSchedulerParametersFlags(
            {'vcpu_quota': 45_000}, LIVE),
        'pin': lambda: domain.pinVcpuFlags(0, (True,), LIVE),
        'mark': lambda: domain.setMetadata(
            libvirt.VIR_DOMAIN_METADATA_ELEMENT, '<a/>', 'a', 'urn:a', LIVE),
    }


def files(_connection, _uuid):
    """What of the host only root may open."""
    return {
        'shadow': lambda: open('/etc/shadow', 'rb'),
        'cron': lambda: open('/etc/cron.d/vqos-attempt', 'wb'),
        'sockets': lambda: libvirt.open('qemu:///system'),
        'emulator': lambda: os.listdir('/proc/1/fd'),
    }


def main(uuid, *groups):
    libvirt.registerErrorHandler(lambda *_: None, None)
    connect = libvirt.open if 'manage' in groups else libvirt.openReadOnly
    try:
        connection = connect('qemu:///system')
    except libvirt.libvirtError as error:
        print(json.dumps({'connect': error.get_error_code()}))
        return
    found = {}
    for group in groups:
        if group != 'manage':
            for name, work in globals()[group](connection, uuid).items():
                found[name] = try_(work)
    print(json.dumps(found))


def try_(work):
    """:returns: number of the error, 0: there was none"""
    try:
        work()
    except libvirt.libvirtError as error:
        return error.get_error_code()
    except OSError as error:
        return error.errno
    return 0


if __name__ == '__main__':
    main(*sys.argv[1:])
