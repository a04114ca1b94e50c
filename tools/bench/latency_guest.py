# SPDX-License-Identifier: Apache-2.0
"""Guests that serve requests or read a disk, and keep how long each took.

A real QEMU with Linux, whose only program is latency.c. Its disk has an I/O
thread and native asynchronous I/O, as Nova makes them.
"""

from collections.abc import Mapping
import os
import pathlib
import struct
import subprocess
import typing as ty
import uuid as uuids

import lab_host
import libvirt

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import ioguest

REQUEST_MS = 2.0
REQUEST_INTERVAL_MS = 10.0
READ_PAUSE_MS = 4.0
#: Arguments of the program for what a guest is to do.
SERVES: ty.Final = ('serve', REQUEST_INTERVAL_MS, f'{REQUEST_MS * 1000:.0f}')
SERVES_AT_RANDOM: ty.Final = ('serve-at-random', *SERVES[1:])
READS: ty.Final = ('read', READ_PAUSE_MS, '/dev/vda')

_SOURCE = pathlib.Path(__file__).with_name('latency.c')
_MEMORY_MIB = 96
# Left alone by the guest's kernel.
_RESULTS_AT, _RESULTS_BYTES = 64 * 1024 * 1024, 64 * 1024
# As latency.c has it. What boots the guest leaves other words there.
_MOST_SAMPLES = 4096
_MAGIC = 0x76716f73
_DISK_BYTES = 8 * 1024 * 1024
_PERIOD_US = 200_000
_DIRECTORY = '/var/lib/libvirt/bench'

_INIT = """\
#!/bin/busybox sh
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
dmesg -n 1
while read -r module; do
    insmod "/modules/$module"
done < /modules/order
read -r options < /proc/cmdline
exec /latency ${options##*--}
"""
_XML = """
<domain type='qemu'>
  <name>{name}</name>
  <uuid>{uuid}</uuid>
  <metadata>{instance}</metadata>
  <memory unit='MiB'>{memory}</memory>
  <vcpu>1</vcpu>
  <iothreads>1</iothreads>
  <cputune><period>{period}</period><quota>{quota}</quota></cputune>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>{kernel}</kernel>
    <initrd>{directory}/latency.initrd</initrd>
    <cmdline>{command_line}</cmdline>
  </os>
  <features><acpi/></features>
  <devices>
    <disk type='file' device='disk'>
      <driver name='qemu' type='raw' cache='none' io='native' iothread='1'/>
      <source file='{directory}/{name}'/>
      <target dev='vda' bus='virtio'/>
    </disk>
    <serial type='file'><source path='{directory}/{name}.console'/></serial>
    <controller type='usb' model='none'/>
    <memballoon model='none'/>
  </devices>
</domain>
"""


def install(bench: lab_host.BenchHost) -> None:
    """Build what all of them boot, where the host's QEMU finds it."""
    directory = bench.host.path(_DIRECTORY.lstrip('/'))
    os.makedirs(directory, exist_ok=True)
    program = os.path.join(lab_host.DIRECTORY, 'latency')
    subprocess.run(['gcc', '-O2', '-static', '-o', program, str(_SOURCE),
                    '-lm'], check=True)
    _, modules = guest.find_kernel_with_modules()
    guest.build_initramfs(
        os.path.join(directory, 'latency.initrd'), tools=(), init=_INIT,
        files={'/latency': program}, contents={
            '/modules/order': ''.join(
                f'{name}\n' for name in modules).encode(),
            **{f'/modules/{name}': content
               for name, content in modules.items()}})


class LatencyGuest:
    """A server that runs.

    :ivar domain: of libvirt
    """

    def __init__(self, bench: lab_host.BenchHost, name: str, units: int,
                 specs: Mapping[str, str],
                 does: tuple[str, float, str]) -> None:
        """:param specs: of its flavor, beside its units
        :param does: SERVES, SERVES_AT_RANDOM or READS
        """
        directory = bench.host.path(_DIRECTORY.lstrip('/'))
        # Written, so that it is not a hole that is read.
        pathlib.Path(directory, name).write_bytes(os.urandom(_DISK_BYTES))
        kernel, _ = guest.find_kernel_with_modules()
        verb, interval_ms, what = does
        words = ['console=ttyS0', 'quiet', 'panic=-1', 'no_timer_check',
                 'tsc=reliable', f'memmap={_RESULTS_BYTES}${_RESULTS_AT:#x}',
                 '--', verb, f'{_RESULTS_AT:#x}', str(_tsc_khz()),
                 f'{interval_ms * 1000:.0f}', what]
        self.domain = libvirt.open(bench.host.libvirt_uri).createXML(
            _XML.format(
                name=name, uuid=uuids.uuid4(), memory=_MEMORY_MIB,
                period=_PERIOD_US, quota=_PERIOD_US * units // 100,
                kernel=kernel, directory=_DIRECTORY,
                command_line=' '.join(words), instance=ioguest.instance(
                    {policy.UNITS_KEY: str(units), **specs}, 1, 'nova')))

    def done(self) -> int:
        """How many requests or reads it has done since its start."""
        magic, count = struct.unpack('<II', self._peek(0, 8))
        return int(count) if magic == _MAGIC else 0

    def since_ms(self, first: int) -> list[float]:
        """How long they took from a number on, the latest at most.

        :returns: of a request from its arrival to the end of its work, of a
            read from its begin
        """
        last = self.done()
        samples = struct.unpack(f'<{_MOST_SAMPLES}I',
                                self._peek(8, 4 * _MOST_SAMPLES))
        return [samples[number % _MOST_SAMPLES] / 1000 for number in range(
            max(first, last - _MOST_SAMPLES + 1), last)]

    def _peek(self, offset: int, length: int) -> bytes:
        return bytes(self.domain.memoryPeek(
            _RESULTS_AT + offset, length, libvirt.VIR_MEMORY_PHYSICAL))


def _tsc_khz() -> int:
    """Ticks of the TSC in a ms: it counts at the nominal clock."""
    for line in pathlib.Path('/proc/cpuinfo').read_text().splitlines():
        name, _, value = line.partition(':')
        if name.strip() == 'cpu MHz':
            return round(float(value) * 1000)
    raise SystemExit('/proc/cpuinfo does not say the clock of this CPU')
