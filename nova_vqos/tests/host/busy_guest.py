# SPDX-License-Identifier: Apache-2.0
"""A guest that has booted Linux and keeps all of its vCPUs busy.

It is booted once, saved, and restored for each test: that takes half a second.
It changes its memory faster than a slow migration sends it, and it brings
vCPUs online that are plugged in.
"""

import os
import re

import libvirt

from nova_vqos.calibration import guest
from nova_vqos.tests.host import guests
from nova_vqos_lab import process

VCPUS = 2
SPARE_VCPUS = 1

_BOOT_LIMIT_S = 120
# libvirt writes what has no content as one tag.
_EXTRA_SPECS = re.compile('<nova:extraSpecs/>')
_CONSOLE = '/var/lib/libvirt/busy-guest.console'
_DEVICES = f"<serial type='file'><source path='{_CONSOLE}'/></serial>"
# All the time it changes more of its memory than a migration of 1 MiB/s can
# send while QEMU may stop a guest for its last step, 0.3 s. Zeros would cost
# next to nothing.
_INIT = f"""#!/bin/sh
mount -t sysfs sys /sys
for number in {' '.join(map(str, range(VCPUS + SPARE_VCPUS)))}; do
    while :; do :; done &
done
tr '\\0' x < /dev/zero | head -c 4194304 > /tmp/text
while :; do dd if=/tmp/text of=/tmp/copy bs=1M conv=notrunc 2>/tmp/dd; done &
echo guest-ready
while :; do
    for state in /sys/devices/system/cpu/cpu*/online; do
        read -r online < $state
        if [ "$online" = 0 ]; then echo 1 > $state; fi
    done
    sleep 0.1
done
"""


class BusyGuest:
    """A saved guest, to be started again and again as the same server.

    :ivar guest: it
    """

    def __init__(self, host, directory):
        """Boot it on a host, which has no agent, and save it.

        :param directory: where its image is, on the machine
        """
        self._image = os.path.join(directory, 'busy-guest.image')
        initrd = os.path.join(directory, 'initrd-busy')
        guest.build_initramfs(initrd, tools=(), init=_INIT)
        self.guest = guests.Guest(
            host, vcpus=VCPUS, spare_vcpus=SPARE_VCPUS,
            initrd=initrd, memory_mib=96, devices=_DEVICES)
        console = host.path(_CONSOLE.lstrip('/'))

        def is_ready():
            with open(console, encoding='utf-8', errors='replace') as stream:
                return 'guest-ready' in stream.read()
        process.wait_until(is_ready, _BOOT_LIMIT_S, 'the busy guest',
                           log=console)
        self.guest.domain().save(self._image)

    def start(self, host, specs, *, persistent=False):
        """Start it on a host, which it may never have been on.

        :param specs: the flavor's extra specs
        :returns: the guest
        """
        connection = guests.connect(host)
        xml = connection.saveImageGetXMLDesc(
            self._image, libvirt.VIR_DOMAIN_XML_SECURE)
        xml = _EXTRA_SPECS.sub(
            f'<nova:extraSpecs>{guests.extra_specs(specs)}</nova:extraSpecs>',
            xml)
        if persistent:
            connection.defineXML(xml)
        connection.restoreFlags(self._image, xml)
        self.guest.host = host
        return self.guest
