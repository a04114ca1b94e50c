# SPDX-License-Identifier: Apache-2.0
"""Guests that cost next to nothing, so that a small machine carries many.

Each is a real QEMU with a tap on a bridge and a disk, made by libvirt. In
place of a firmware it has 64 KiB of ours: an idle guest halts for good with
its first instruction, a busy one reads its disk over and over, and one that
spins does nothing but jump.
"""

from collections.abc import Mapping, Sequence
from concurrent import futures
import dataclasses
import pathlib
import time
import typing as ty
import uuid as uuids

import lab_host
import libvirt

from nova_vqos import policy
from nova_vqos_lab import ioguest
from nova_vqos_lab import rom

MEMORY_MIB = 16
SPARE_MEMORY_MIB = 2048
BRIDGE = 'br-bench'
_DIRECTORY = '/var/lib/libvirt/bench'
_DISK_BYTES = 1024 * 1024
# Started at the same time.
_AT_ONCE = 3
_PROGRESS = 20
_PERIOD_US = 200_000

_BUSY = 0xff80
_JUMP = bytes((0xeb, _BUSY - rom.RESET - 2 & 0xff))
# The first sector of the first IDE disk, word by word, then a pause.
_READ = bytes((
    0xba, 0xf2, 0x01,   # mov dx, 0x1f2
    0xb0, 0x01, 0xee,   # mov al, 1; out dx, al: one sector
    0x42, 0x30, 0xc0,   # inc dx; xor al, al
    0xee,               # out dx, al: number 0, its lowest byte
    0x42, 0xee,         # inc dx; out dx, al
    0x42, 0xee,         # inc dx; out dx, al
    0x42, 0xb0, 0xe0,   # inc dx; mov al, 0xe0
    0xee,               # out dx, al: of the first disk
    0x42, 0xb0, 0x20,   # inc dx; mov al, 0x20
    0xee,               # out dx, al: read
    0xec,               # in al, dx
    0xa8, 0x08,         # test al, 8: is there data?
    0x74, 0xfb,         # jz to the in
    0xb2, 0xf0,         # mov dl, 0xf0
    0xb9, 0x00, 0x01,   # mov cx, 256
    0xed,               # in ax, dx
    0xe2, 0xfd,         # loop to the in
    0xb9, 0x00, 0x00,   # mov cx, 0: 65536 times
    0xe2, 0xfe))        # loop to itself
_BACK = bytes((0xeb, -len(_READ) - 2 & 0xff))

_XML = """
<domain type='qemu'>
  <name>bench-{number}</name>
  <uuid>{uuid}</uuid>
  <metadata>{instance}</metadata>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>{vcpus}</vcpu>
  <cputune><period>{period}</period><quota>{quota}</quota></cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <loader type='rom' readonly='yes'>{directory}/{rom}.rom</loader>
  </os>
  <devices>
    {devices}
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""
_DEVICES = """
    <interface type='bridge'>
      <source bridge='{bridge}'/>
      <target dev='tap-b{number}'/>
      <model type='virtio'/>
      <rom enabled='no'/>
    </interface>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{directory}/{number}'/>
      <target dev='hda' bus='ide'/>
    </disk>
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """What guests are like.

    :ivar vcpus: of each
    :ivar idle_units: of each that halts
    :ivar busy_units: of each that reads its disk
    :ivar has_devices: whether they have a tap and a disk
    :ivar spins: whether the busy ones spin, and have no disk
    """

    vcpus: int = 1
    idle_units: int = 20
    busy_units: int = 4
    has_devices: bool = True
    spins: bool = False


class RomGuest:
    """A server that runs.

    :ivar uuid: of the server
    :ivar domain: of libvirt
    :ivar is_busy: whether it reads its disk
    """

    def __init__(self, connection: ty.Any, number: int, kind: Kind, *,
                 is_busy: bool,
                 specs: Mapping[str, str] | None = None) -> None:
        """:param specs: of its flavor, beside its units"""
        self.uuid = str(uuids.uuid4())
        self.is_busy = is_busy
        units = kind.busy_units if is_busy else kind.idle_units
        self._specs = {policy.UNITS_KEY: str(units), **(specs or {})}
        self.domain = connection.createXML(_XML.format(
            number=number, uuid=self.uuid, memory=MEMORY_MIB,
            vcpus=kind.vcpus, period=_PERIOD_US,
            quota=_PERIOD_US * units // kind.vcpus // 100,
            directory=_DIRECTORY, rom=(
                'idle' if not is_busy else 'spin' if kind.spins else 'busy'),
            instance=ioguest.instance(self._specs, kind.vcpus, 'nova'),
            devices=_DEVICES.format(
                bridge=BRIDGE, number=number, directory=_DIRECTORY)
            if kind.has_devices else ''))
        self._vcpus = kind.vcpus

    def set_billing(self, billing: str) -> None:
        """Change how it is billed, as if Nova had."""
        self.set_flavor({policy.DD_BILLING_KEY: billing})

    def set_flavor(self, specs: Mapping[str, str]) -> None:
        """Change its flavor, as if Nova had.

        :param specs: extra specs beside its units
        """
        self.domain.setMetadata(
            libvirt.VIR_DOMAIN_METADATA_ELEMENT, ioguest.instance(
                {**self._specs, **specs}, self._vcpus),
            'nova', ioguest.NOVA, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def start(bench: lab_host.BenchHost, wanted: int, kind: Kind, *,
          busy: int = 0, limit_s: float,
          specs: Mapping[str, str] | None = None) -> list[RomGuest]:
    """Start guests until there are enough, or no room or time for more.

    :param busy: how many of them read their disks: the last ones
    :param specs: of their flavor, beside its units
    """
    host = bench.host
    host.run(['ip', 'link', 'add', BRIDGE, 'type', 'bridge'])
    host.run(['ip', 'link', 'set', BRIDGE, 'up'])
    directory = install_roms(bench)
    for number in range(wanted):
        with (directory / str(number)).open('wb') as disk:
            disk.truncate(_DISK_BYTES)
    began_s = time.monotonic()
    connection = libvirt.open(host.libvirt_uri)

    def start_one(number: int) -> RomGuest | None:
        if time.monotonic() - began_s > limit_s:
            return None
        if lab_host.available_mib() < SPARE_MEMORY_MIB:
            return None
        made = RomGuest(connection, number, kind,
                        is_busy=number >= wanted - busy, specs=specs)
        if number % _PROGRESS == _PROGRESS - 1:
            lab_host.say(f'{number + 1} guests, '
                         f'{time.monotonic() - began_s:.0f} s')
        return made

    with futures.ThreadPoolExecutor(_AT_ONCE) as executor:
        started = [made for made in executor.map(start_one, range(wanted))
                   if made is not None]
    if len(started) < wanted:
        lab_host.say(f'only {len(started)} of {wanted} guests: no memory, or '
                     f'no time')
    return started


def install_roms(bench: lab_host.BenchHost) -> pathlib.Path:
    """Make the directory that guests are started from."""
    directory = pathlib.Path(bench.host.path(_DIRECTORY.lstrip('/')))
    directory.mkdir()
    for name, code in (('idle', rom.first(rom.HALT)),
                       ('spin', rom.first(rom.SPIN)),
                       ('busy', _busy_rom())):
        (directory / f'{name}.rom').write_bytes(code)
    return directory


def requests(guests: Sequence[RomGuest]) -> list[int]:
    """What the disk of each was asked for so far."""
    return [guest.domain.blockStats('hda')[0] for guest in guests]


def _busy_rom() -> bytes:
    code = (_READ + _BACK).ljust(rom.RESET - _BUSY, b'\0')
    return bytes(_BUSY) + code + _JUMP.ljust(rom.SIZE_BYTES - rom.RESET, b'\0')
