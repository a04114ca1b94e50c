# SPDX-License-Identifier: Apache-2.0
"""A guest that serves requests, and keeps how long each took.

A real QEMU; its program is the boot sector latency.S.
"""

from collections.abc import Mapping
import os
import pathlib
import struct
import subprocess
import uuid as uuids

import lab_host
import libvirt

from nova_vqos import policy
from nova_vqos_lab import ioguest

REQUEST_MS = 2.0
INTERVAL_MS = 10.0
_SOURCE = pathlib.Path(__file__).with_name('latency.S')
_DISK_BYTES = 1024 * 1024
_PERIOD_US = 200_000

# In the boot sector, which the firmware loads to there.
_LOADED_AT = 0x7c00
_INTERVAL, _COUNT = 4, 12
_SAMPLES_AT, _SAMPLE_BYTES, _MOST_SAMPLES = 0x10000, 4, 4096
# The guest keeps ticks of the TSC by 1024.
_TICKS = 1024

_XML = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{instance}</metadata>
  <memory unit='MiB'>16</memory>
  <vcpu>1</vcpu>
  <cputune><period>{period}</period><quota>{quota}</quota></cputune>
  <os><type arch='x86_64' machine='pc'>hvm</type></os>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw'/>
      <source file='{disk}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


class LatencyGuest:
    """A server that runs.

    :ivar domain: of libvirt
    """

    def __init__(self, bench: lab_host.BenchHost, name: str, units: int,
                 specs: Mapping[str, str]) -> None:
        """:param specs: of its flavor, beside its units"""
        directory = bench.host.path('var/lib/libvirt/bench')
        disk = os.path.join(directory, name)
        self._ticks_ms = _tsc_khz()
        pathlib.Path(disk).write_bytes(_image(self._ticks_ms))
        self.domain = libvirt.open(bench.host.libvirt_uri).createXML(
            _XML.format(
                name=name, uuid=uuids.uuid4(), disk=os.path.join(
                    '/var/lib/libvirt/bench', name), period=_PERIOD_US,
                quota=_PERIOD_US * units // 100,
                instance=ioguest.instance(
                    {policy.UNITS_KEY: str(units), **specs}, 1, 'nova')))

    def served(self) -> int:
        """How many requests it has served since its start."""
        (count,) = struct.unpack('<I', self._peek(_LOADED_AT + _COUNT, 4))
        return int(count)

    def since_ms(self, first: int) -> list[float]:
        """How long requests took from a number on, the latest at most.

        :returns: from the arrival of each to the end of its work
        """
        last = self.served()
        content = self._peek(_SAMPLES_AT, _SAMPLE_BYTES * _MOST_SAMPLES)
        samples = struct.unpack(f'<{_MOST_SAMPLES}I', content)
        return [samples[number % _MOST_SAMPLES] * _TICKS / self._ticks_ms
                for number in range(max(first, last - _MOST_SAMPLES + 1),
                                    last)]

    def _peek(self, address: int, length: int) -> bytes:
        return bytes(self.domain.memoryPeek(
            address, length, libvirt.VIR_MEMORY_PHYSICAL))


def _image(ticks_ms: float) -> bytes:
    """Its disk: the boot sector with its parameters."""
    target = os.path.join(lab_host.DIRECTORY, 'latency')
    subprocess.run(['as', '--32', '-o', f'{target}.o', str(_SOURCE)],
                   check=True)
    subprocess.run(['ld', '-m', 'elf_i386', '-Ttext', hex(_LOADED_AT),
                    '--oformat', 'binary', '-o', target, f'{target}.o'],
                   check=True)
    sector = bytearray(pathlib.Path(target).read_bytes())
    struct.pack_into('<II', sector, _INTERVAL, round(INTERVAL_MS * ticks_ms),
                     round(REQUEST_MS * ticks_ms))
    return bytes(sector).ljust(_DISK_BYTES, b'\0')


def _tsc_khz() -> float:
    """Ticks of the TSC in a ms: it counts at the nominal clock."""
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
        name, _, value = line.partition(':')
        if name.strip() == 'cpu MHz':
            return float(value) * 1000
    raise SystemExit('/proc/cpuinfo does not say the clock of this CPU')
