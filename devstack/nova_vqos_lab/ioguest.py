# SPDX-License-Identifier: Apache-2.0
"""Guests that do I/O: a tap on the host's bridge and a disk, both of virtio.

A guest serves a page over HTTP, and has processes that read its disk, as many
as asked for. It is a server as Nova would have made it, with the flavor in its
metadata; what its CPU time is, is read from the kernel here, and from nothing
of nova_vqos.

    image = ioguest.build_image(directory)
    server = ioguest.IoGuest(host, image, number=1, specs={...})
    server.wait_ready()
"""

from collections.abc import Mapping
import contextlib
import dataclasses
import importlib.resources
import os
import typing as ty
import uuid as uuids

# It only escapes, and parses nothing.
from xml.sax import saxutils  # nosec B406

import libvirt

from nova_vqos.calibration import guest
from nova_vqos_lab import cgroups
from nova_vqos_lab import host as hosts
from nova_vqos_lab import ionet
from nova_vqos_lab import process

PAGE_BYTES = 4096
DISK_BYTES = 16 * 1024 * 1024
BOOT_LIMIT_S = 90
# Within the host, whose own it is.
_DIRECTORY = '/var/lib/libvirt/io'
_CLOCK_TICKS_S = os.sysconf('SC_CLK_TCK')
#: Namespace of what Nova leaves in the metadata of a domain.
NOVA = 'http://openstack.org/xmlns/libvirt/nova/1.1'

_INSTANCE = """\
<{p}instance{xmlns}>
  <{p}flavor name="io">
    <{p}vcpus>{vcpus}</{p}vcpus>
    <{p}extraSpecs>{specs}</{p}extraSpecs>
  </{p}flavor>
</{p}instance>"""
_XML = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{instance}</metadata>
  <memory unit='MiB'>96</memory>
  <vcpu>1</vcpu>
  {iothreads}
  <cputune>{cputune}</cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{initrd}</initrd>
    <cmdline>{command_line}</cmdline>
  </os>
  <features><acpi/></features>
  <cpu mode='custom' match='exact'><model>qemu64</model></cpu>
  <on_poweroff>destroy</on_poweroff>
  <devices>
    <emulator>/usr/bin/qemu-system-x86_64</emulator>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
    <serial type='file'><source path='{console}'/></serial>
    <interface type='bridge'>
      <mac address='{mac}'/>
      <source bridge='{bridge}'/>
      <target dev='{tap}'/>
      <model type='virtio'/>
      <driver name='qemu'/>
    </interface>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='{cache}' io='threads'{iothread}/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
  </devices>
</domain>
"""


def instance(specs: Mapping[str, str], vcpus: int = 1,
             prefix: str = '') -> str:
    """What Nova leaves in a server's metadata, as far as it matters here.

    :param specs: the flavor's extra specs
    :param prefix: of its elements; '': none, as libvirt wants it of metadata
        that is changed
    """
    p = prefix and f'{prefix}:'
    return _INSTANCE.format(
        p=p, xmlns=prefix and f' xmlns:{prefix}="{NOVA}"', vcpus=vcpus,
        specs=''.join(
            f'<{p}extraSpec name={saxutils.quoteattr(name)}>'
            f'{saxutils.escape(value)}</{p}extraSpec>'
            for name, value in specs.items()))


@dataclasses.dataclass(frozen=True, slots=True)
class Image:
    """What guests boot.

    :ivar kernel: path of the kernel
    :ivar initrd: path of the initramfs
    """

    kernel: str
    initrd: str


def build_image(directory: str) -> Image:
    """Build what all guests boot.

    :param directory: for the initramfs
    :raises nova_vqos.calibration.guest.GuestError: when it cannot be built
    """
    kernel, modules = guest.find_kernel_with_modules()
    initrd = os.path.join(directory, 'initrd-io')
    init = importlib.resources.files('nova_vqos_lab').joinpath(
        'ioguest_init.sh').read_text()
    guest.build_initramfs(initrd, tools=('bash',), init=init, contents={
        '/www/page': guest.workload('text')[:PAGE_BYTES],
        **module_files(modules)})
    return Image(kernel, initrd)


def module_files(modules: Mapping[str, bytes]) -> dict[str, bytes]:
    """:returns: modules of a guest's kernel, as its init finds them"""
    return {
        '/modules/order': ''.join(
            f'{name}\n' for name in modules).encode(),
        **{f'/modules/{name}': content for name, content in modules.items()},
    }


@dataclasses.dataclass(frozen=True, slots=True)
class CpuTime:
    """CPU time of a guest by the cgroups that libvirt made, in nanoseconds.

    :ivar whole: of the domain's group
    :ivar vcpu: of its vCPUs' groups
    :ivar emulator: of the emulator's, workers for the disk included
    :ivar iothread: of its I/O threads' groups
    """

    whole: int
    vcpu: int
    emulator: int
    iothread: int


class IoGuest:
    """A server with a tap and a disk, running on a host.

    :ivar host: that it runs on
    :ivar uuid: of the domain, and so of the server
    :ivar name: of the domain
    :ivar tap: name of its interface on the host
    :ivar address: of its interface
    :ivar mac: of its interface
    """

    def __init__(self, host: hosts.Host, image: Image, *, number: int = 0,
                 specs: Mapping[str, str] | None = None,
                 cap: tuple[int, int] | None = None, readers: int = 0,
                 spin: bool = False, iothread: bool = False,
                 send: str | None = None) -> None:
        """Start it; see :meth:`wait_ready`.

        :param number: from 0, another one for each guest on a bridge
        :param specs: the flavor's extra specs
        :param cap: quota and period that its XML has, None: none
        :param readers: processes that read its disk all the time
        :param spin: whether another one only spins
        :param iothread: whether its disk has an I/O thread of its own
        :param send: address that another process sends datagrams to all the
            time, each a frame of 1000 bytes
        """
        self.host = host
        self.uuid = str(uuids.uuid4())
        self.name = f'instance-{self.uuid[:8]}'
        self.tap = f'tap-io{number}'
        address = ionet.ClientNetwork.address(number)
        self.address = address.partition('/')[0]
        self.mac = f'52:54:00:76:71:{number:02x}'
        self._specs = dict(specs or {})
        self._connection = libvirt.open(host.libvirt_uri)
        os.makedirs(host.path(_DIRECTORY.lstrip('/')), exist_ok=True)
        self._console = f'{_DIRECTORY}/{self.name}.console'
        disk = f'{_DIRECTORY}/{self.name}.raw'
        # Written, so that it is not a hole that is read.
        with open(host.path(disk.lstrip('/')), 'wb') as stream:
            stream.write(os.urandom(DISK_BYTES))
        words = ['console=ttyS0', 'quiet', 'panic=-1', 'no_timer_check',
                 'tsc=reliable', f'vqos.address={address}',
                 f'vqos.readers={readers}']
        if spin:
            words.append('vqos.spin=1')
        if send:
            words.append(f'vqos.send={send}')
        self._domain = self._connection.createXML(_XML.format(
            name=self.name, uuid=self.uuid, mac=self.mac, tap=self.tap,
            instance=instance(self._specs, prefix='nova'), kernel=image.kernel,
            initrd=image.initrd, command_line=' '.join(words),
            bridge=ionet.BRIDGE, console=self._console, disk=disk,
            cache='none' if _takes_direct(host.path(disk.lstrip('/')))
            else 'writethrough',
            cputune=('<quota>{}</quota><period>{}</period>'.format(*cap)
                     if cap else ''),
            iothreads='<iothreads>1</iothreads>' if iothread else '',
            iothread=" iothread='1'" if iothread else ''))

    @property
    def domain(self) -> ty.Any:
        """libvirt's domain."""
        return self._domain

    def wait_ready(self) -> None:
        """Wait until it serves.

        :raises LabError: when it does not in time, or something in it failed
        """
        path = self.host.path(self._console.lstrip('/'))

        def ready() -> bool:
            with contextlib.suppress(FileNotFoundError), \
                    open(path, encoding='utf-8', errors='replace') as stream:
                text = stream.read()
                if 'vqos-failed' in text:
                    raise process.LabError(
                        f'guest {self.name}: {text[-500:]}')
                return 'vqos-ready' in text
            return False
        process.wait_until(ready, BOOT_LIMIT_S, f'guest {self.name}',
                           log=path, alive=lambda: bool(
                               self._domain.isActive()))

    def set_specs(self, **specs: str) -> None:
        """Change its flavor's extra specs, as if Nova had.

        :param specs: with an underscore in place of the first colon
        """
        self._specs |= {name.replace('_', ':', 1): value
                        for name, value in specs.items()}
        # libvirt puts all of it into the namespace itself.
        self._domain.setMetadata(
            libvirt.VIR_DOMAIN_METADATA_ELEMENT, instance(self._specs), 'nova',
            NOVA, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def set_cpu(self, **parameters: int) -> None:
        """Write its CPU tuning, as virsh schedinfo does."""
        for name, value in parameters.items():
            self._domain.setSchedulerParametersFlags(
                {name: value}, libvirt.VIR_DOMAIN_AFFECT_LIVE)

    @property
    def runs(self) -> bool:
        """Whether it is neither paused nor gone."""
        return self._domain.state()[0] == libvirt.VIR_DOMAIN_RUNNING

    def pause(self) -> None:
        """Have it do nothing, if it does anything."""
        if self.runs:
            self._domain.suspend()

    def resume(self) -> None:
        """Have it go on, if it is paused."""
        if not self.runs:
            self._domain.resume()

    def migrate(self, target: hosts.Host) -> None:
        """Migrate it live to a host that has its bridge and its files.

        :raises libvirt.libvirtError: when it stays where it is
        """
        self._domain.migrateToURI3(
            f'qemu+tcp://{target.name}/system', {},
            # libvirt does not see that the hosts share the disk.
            libvirt.VIR_MIGRATE_LIVE | libvirt.VIR_MIGRATE_PEER2PEER
            | libvirt.VIR_MIGRATE_UNSAFE)
        self.host = target
        self._connection = libvirt.open(target.libvirt_uri)
        self._domain = self._connection.lookupByName(self.name)

    def destroy(self) -> None:
        """End it."""
        self._domain.destroy()

    # What the kernel says about it.

    def group(self, vcpu: int = 0) -> str:
        """:returns: the group of a vCPU, for the functions of cgroups.py"""
        found = self.host.vcpu_cgroup(self.name, vcpu)
        if found is None:
            raise process.LabError(f'guest {self.name} has no cgroup')
        return found

    def cpu_time(self) -> CpuTime:
        """:returns: what it has used so far, by its cgroups"""
        hierarchy = self.host.hierarchy
        whole = os.path.dirname(self.group())
        parts = dict.fromkeys(('vcpu', 'emulator', 'iothread'), 0)
        for name in os.listdir(hierarchy.directory('cpuacct', whole)):
            part = name.rstrip('0123456789')
            if part in parts:
                parts[part] += cgroups.cpu_time_ns(hierarchy,
                                                   f'{whole}/{name}')
        return CpuTime(whole=cgroups.cpu_time_ns(hierarchy, whole), **parts)

    def process_cpu_ns(self) -> int:
        """:returns: CPU time of its process, threads that ended included, in
            steps of a clock tick
        """
        with open(f'/proc/{self.pid}/stat', encoding='utf-8',
                  errors='replace') as stat:
            fields = stat.read().rpartition(')')[2].split()
        ticks = int(fields[11]) + int(fields[12])
        return ticks * 1_000_000_000 // _CLOCK_TICKS_S

    def switches(self) -> int:
        """:returns: how often its threads were given a pCPU so far"""
        directory = f'/proc/{self.pid}/task'
        found = 0
        for thread in os.listdir(directory):
            # One of its workers may just have ended.
            with contextlib.suppress(OSError), open(
                    f'{directory}/{thread}/schedstat',
                    encoding='ascii') as statistics:
                found += int(statistics.read().split()[2])
        return found

    @property
    def pid(self) -> int:
        """Of its emulator, as the machine sees it."""
        emulator = f'{os.path.dirname(self.group())}/emulator'
        return next(iter(cgroups.members(self.host.hierarchy, emulator)))

    def limits(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """:returns: quota (-1: none) and period of domain and first vCPU"""
        hierarchy, vcpu = self.host.hierarchy, self.group()
        return (cgroups.read_cap(hierarchy, os.path.dirname(vcpu)),
                cgroups.read_cap(hierarchy, vcpu))

    def packets(self) -> Mapping[str, int]:
        """What passed its tap so far.

        :returns: rx, tx and dropped, in the words of the guest
        """
        # The network namespace of the process, and so of its host.
        with open(f'/proc/{self.pid}/net/dev', encoding='ascii') as table:
            line = next(line for line in table
                        if line.strip().startswith(f'{self.tap}:'))
        counted = [int(word) for word in line.partition(':')[2].split()]
        # What the tap sends, the guest receives.
        return {'rx_bytes': counted[8], 'rx': counted[9],
                'dropped': counted[11],
                'tx_bytes': counted[0], 'tx': counted[1]}

    def disk_requests(self) -> Mapping[str, int]:
        """:returns: read and write requests of its disk, and their bytes"""
        read, read_bytes, write, write_bytes, _ = self._domain.blockStats(
            'vda')
        return {'read': read, 'read_bytes': read_bytes,
                'write': write, 'write_bytes': write_bytes}


def _takes_direct(path: str) -> bool:
    """Whether its file system can be read past the page cache."""
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        return False
    return True
