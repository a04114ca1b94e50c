# SPDX-License-Identifier: Apache-2.0
"""Small real guests, and what they are given, seen from the machine."""

import contextlib
import ctypes
import os
import re
import struct
import threading
import time
import uuid as uuids
from xml.sax import saxutils

import libvirt
from lxml import etree

from nova_vqos.calibration import guest
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos_lab import cgroups
from nova_vqos_lab import iomeasure
from nova_vqos_lab import process

RUNNING = libvirt.VIR_DOMAIN_RUNNING
PAUSED = libvirt.VIR_DOMAIN_PAUSED
LIMIT_S = 60
#: The cap of a server of 40 CU with one vCPU, on a pCPU of 100 CU and on one
#: of 50, and its weight.
CAP = (20_000, 50_000)
CAP_ON_SLOW = (40_000, 50_000)
SHARES = {1: 410, 2: 40}[cgroup.host_version('/')]

# A guest that wants all of its CPU from its first moment on.
_INIT = '#!/bin/sh\nwhile :; do :; done\n'

_image = {}

_XML = """
<domain type='{kind}'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>
    <nova:instance xmlns:nova="http://openstack.org/xmlns/libvirt/nova/1.1">
      <nova:flavor name="test"{flavor_id}>
        <nova:vcpus>{vcpus}</nova:vcpus>
        <nova:extraSpecs>{specs}</nova:extraSpecs>
      </nova:flavor>{owner}
    </nova:instance>
  </metadata>
  <memory unit='MiB'>{memory_mib}</memory>{memory}
  <vcpu current='{vcpus}'>{most_vcpus}</vcpu>
  <cputune>{cputune}</cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>{boot}
  </os>
  <features><acpi/></features>{cpu}
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <memballoon model='none'/>{devices}
  </devices>
</domain>
"""

_CPU = """
  <cpu mode='custom' match='exact'><model>qemu64</model></cpu>"""
# So that others can read it: see meter.Rounds of the lab.
_SHARED = """
  <memoryBacking>
    <source type='memfd'/>
    <access mode='shared'/>
  </memoryBacking>"""
_OWNER = """
      <nova:owner><nova:project uuid="{}"/></nova:owner>"""
_BOOT = """
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>console=ttyS0 quiet panic=-1</cmdline>"""


def build_image(directory):
    """Build what all guests boot."""
    _image['kernel'] = guest.find_kernel()
    _image['initrd'] = os.path.join(directory, 'initrd')
    guest.build_initramfs(_image['initrd'], tools=(), init=_INIT)


def server(units=40, **specs):
    """:returns: the extra specs of a flavor with units."""
    return {'resources:CUSTOM_VQOS_CPU_UNIT': str(units),
            **{key.replace('_', ':', 1): value
               for key, value in specs.items()}}


def extra_specs(specs):
    """:returns: the XML of a flavor's extra specs."""
    return ''.join(
        f'<nova:extraSpec name={saxutils.quoteattr(name)}>'
        f'{saxutils.escape(value)}</nova:extraSpec>'
        for name, value in specs.items())


class Guest:
    """A server as Nova would have made it, running on a host.

    :ivar name: of the domain
    :ivar uuid: of the domain, and so of the server
    :ivar host: it was started on
    """

    def __init__(self, host, specs=None, cap=None, shares=None, vcpus=1,
                 pinned_to=None, spare_vcpus=0, flavor_id=None, initrd=None,
                 memory_mib=48, persistent=False, devices='', rom=None,
                 kind=None, shares_memory=False, project=None):
        """:param specs: the flavor's extra specs
        :param cap: quota and period that its XML has, None: none
        :param shares: that its XML has, None: none
        :param pinned_to: pCPU of its first vCPU, None: it has no pin
        :param spare_vcpus: that can be plugged in
        :param flavor_id: of its flavor, whose name is test; None: as older
            releases of Nova left it
        :param initrd: path of what it boots, None: what spins
        :param memory_mib: NOTE: Linux 6.1 needs more than 64 to boot; with
            less its loader resets the guest again and again, which takes all
            CPU time, too
        :param devices: XML of further ones
        :param rom: path of firmware that is all it runs; None: it boots Linux
        :param kind: of libvirt; None: kvm for firmware, otherwise qemu, which
            is emulated
        :param shares_memory: whether its memory is a memfd that others see
        :param project: id of its owner, None: its XML has none
        """
        self.uuid = str(uuids.uuid4())
        self.name = f'instance-{self.uuid[:8]}'
        self.host = host
        cputune = f'<shares>{shares}</shares>' if shares else ''
        if cap:
            cputune += '<quota>{}</quota><period>{}</period>'.format(*cap)
        if pinned_to is not None:
            cputune += f'<vcpupin vcpu="0" cpuset="{pinned_to}"/>'
        xml = _XML.format(
            name=self.name, uuid=self.uuid, vcpus=vcpus,
            specs=extra_specs(specs or {}),
            most_vcpus=vcpus + spare_vcpus, cputune=cputune,
            owner=_OWNER.format(project) if project else '',
            flavor_id=f' id="{flavor_id}"' if flavor_id else '',
            memory_mib=memory_mib, devices=devices,
            memory=_SHARED if shares_memory else '',
            kind=kind or ('kvm' if rom else 'qemu'), cpu='' if rom else _CPU,
            boot=(f'<loader type="rom" readonly="yes">{rom}</loader>' if rom
                  else _BOOT.format(kernel=_image['kernel'],
                                    initrd=initrd or _image['initrd'])))
        connection = connect(host)
        if persistent:
            connection.defineXML(xml).create()
        else:
            connection.createXML(xml)

    def domain(self, host=None):
        """:returns: libvirt's domain on a host, its first by default."""
        return connect(host or self.host).lookupByName(self.name)

    def state(self, host=None):
        return self.domain(host).state()[0]

    def cap(self, host=None, vcpu=0):
        """:returns: quota and period in force, as the kernel has them."""
        return (host or self.host).vcpu_cap(self.name, vcpu)

    def group(self, host=None, vcpu=0):
        """:returns: the group of a vCPU."""
        return (host or self.host).vcpu_cgroup(self.name, vcpu)

    def thread(self, vcpu, host=None):
        """:returns: the id of a vCPU's thread, as the machine sees it."""
        return cgroups.threads((host or self.host).hierarchy,
                               self.group(host, vcpu))[0]

    @property
    def emulator(self):
        """The process id of its emulator, as the machine sees it."""
        group = f'{os.path.dirname(self.group())}/emulator'
        return next(iter(cgroups.members(self.host.hierarchy, group)))

    def libvirt_cap(self, host=None):
        """:returns: quota and period in force, as libvirt has them."""
        found = self.domain(host).schedulerParameters()
        return found['vcpu_quota'], found['vcpu_period']

    def shares(self, host=None):
        """:returns: the weight of the domain, as the kernel has it."""
        host = host or self.host
        return cgroups.read_shares(
            host.hierarchy, cgroups.weight_group(self.group(host)))

    def meddle(self, quota_us, host=None):
        """Change its cap behind libvirt's back."""
        host = host or self.host
        cgroups.write_quota(host.hierarchy, self.group(host), quota_us)

    def cpu_time_ns(self, host=None, vcpu=0):
        """:returns: the CPU time that a vCPU has had."""
        host = host or self.host
        return cgroups.cpu_time_ns(host.hierarchy, self.group(host, vcpu))

    def throttled_periods(self):
        """:returns: periods in which its vCPU used up its quota"""
        return cgroups.throttled_periods(self.host.hierarchy, self.group())

    def delivered_share(self, window_s):
        """:returns: the part of a pCPU's time that its vCPU gets."""
        cpu_ns, began_ns = self.cpu_time_ns(), time.monotonic_ns()
        # Not a wait for anything: the length of the measurement.
        time.sleep(window_s)
        cpu_ns = self.cpu_time_ns() - cpu_ns
        return cpu_ns / (time.monotonic_ns() - began_ns)

    def migrate(self, target, flags=0, **parameters):
        """Migrate it live.

        :param parameters: libvirt's, by name
        :raises libvirt.libvirtError: when libvirt cancels it
        """
        self.domain().migrateToURI3(
            f'qemu+tcp://{target.name}/system', parameters,
            libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER | flags)

    def migrate_as_nova(self, target):
        """Migrate one that is persistent as Nova does; it is on target then.

        Nova has libvirt keep the XML that it sends, which no hook sees, and
        leaves out the weight (nova/virt/libvirt/guest.py, migration.py).
        """
        domain = self.domain()
        xml = re.sub(r'\s*<shares>\d+</shares>', '', domain.XMLDesc(
            libvirt.VIR_DOMAIN_XML_MIGRATABLE))
        domain.migrateToURI3(
            f'qemu+tcp://{target.name}/system',
            {'destination_xml': xml, 'persistent_xml': xml},
            libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
            | libvirt.VIR_MIGRATE_PERSIST_DEST
            | libvirt.VIR_MIGRATE_UNDEFINE_SOURCE)
        self.host = target

    def next_start(self):
        """:returns: quota, period and shares of its next soft reboot; None:
            it has no such limit
        """
        tune = etree.fromstring(self.domain().XMLDesc(
            libvirt.VIR_DOMAIN_XML_INACTIVE)).find('cputune')
        return tuple(None if tune is None or tune.find(name) is None
                     else int(tune.find(name).text)
                     for name in ('quota', 'period', 'shares'))

    def soft_reboot(self):
        """Let it start again from what libvirt keeps of it.

        Nova shuts it down and launches it; this guest would not shut down.
        """
        domain = self.domain()
        domain.destroy()
        domain.create()

    def wait_cap(self, cap, host=None, limit_s=LIMIT_S):
        """Wait until a cap is in force."""
        process.wait_until(
            lambda: self.cap(host) == cap, limit_s,
            f'a cap of {cap} for {self.name}, which has {self.cap(host)}')


class Arrival:
    """Looks at a guest from the moment its cgroup appears on a host.

    :ivar seen: (quota, period, CPU time in ns) of its first vCPU, whenever
        it was another than before
    """

    def __init__(self, domain, host):
        self.seen = []
        self._name = domain.name
        self._host = host
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_exception):
        self._stop.set()
        self._thread.join()

    def _look(self):
        hierarchy = self._host.hierarchy
        while not self._stop.wait(0.0005):
            group = self._host.vcpu_cgroup(self._name)
            if group is None:
                continue
            try:
                # The time first: what it has run so far, it ran under a cap
                # no newer than the one that is read then.
                cpu_ns = cgroups.cpu_time_ns(hierarchy, group)
                now = (*cgroups.read_cap(hierarchy, group), cpu_ns)
            except OSError:
                # The migration failed, and took the group along.
                continue
            if not self.seen or now != self.seen[-1]:
                self.seen.append(now)


class Writes:
    """Counts what is written to a guest's tuning, by whomever.

    The kernel tells of each write, whatever it changes, and whatever
    namespace it comes from.
    """

    _IN_MODIFY = 0x2
    _EVENT = struct.Struct('iIII')

    def __init__(self, domain):
        host = domain.host
        group = domain.group()
        v1 = host.hierarchy.version == 1
        names = (('cpu.cfs_quota_us', 'cpu.cfs_period_us') if v1
                 else ('cpu.max',))
        paths = [host.hierarchy.directory('cpu', f'{directory}/{name}')
                 for directory in (group, os.path.dirname(group))
                 for name in names]
        paths.append(host.hierarchy.directory(
            'cpu', f'{cgroups.weight_group(group)}/'
                   f'{"cpu.shares" if v1 else "cpu.weight"}'))
        libc = ctypes.CDLL(None, use_errno=True)
        self._handle = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in paths:
            watch = libc.inotify_add_watch(
                self._handle, path.encode(), self._IN_MODIFY)
            assert watch >= 0, os.strerror(ctypes.get_errno())

    def __enter__(self):
        return self

    def __exit__(self, *_exception):
        os.close(self._handle)

    def take(self):
        """:returns: how many writes there were since the last call; equal
            ones in a row may be counted as one
        """
        try:
            content = os.read(self._handle, 65536)
        except BlockingIOError:
            return 0
        return len(content) // self._EVENT.size


def connect(host):
    """:returns: a connection to a host's libvirtd."""
    return libvirt.open(host.libvirt_uri)


def destroy_all(host):
    """End all guests of a host."""
    connection = connect(host)

    def are_gone():
        found = connection.listAllDomains()
        for domain in found:
            # One may have ended by itself, or libvirt is about to see that.
            with contextlib.suppress(libvirt.libvirtError):
                if domain.isPersistent():
                    domain.undefine()
                if domain.isActive():
                    domain.destroy()
        return not found
    process.wait_until(are_gone, LIMIT_S, 'the end of all guests')


def used_by(server, seconds):
    """:returns: what a server of ioguest uses, see :func:`iomeasure.use`"""
    (samples,) = iomeasure.watch([server], seconds)
    return iomeasure.use(samples)
