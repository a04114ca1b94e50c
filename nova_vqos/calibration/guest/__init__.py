# SPDX-License-Identifier: Apache-2.0
"""Small guests that measure: a kernel, an initramfs and what they print.

In-guest calibration, the host tests and the lab boot the same guest: a
distribution's kernel and an initramfs of busybox, the benchmark and a short
init script. It works with ``-kernel`` and ``-initrd``, and as a Glance image
with kernel_id, ramdisk_id and os_command_line; it needs no disk and no
network, and with sysbench aboard :data:`MEMORY_MIB` of memory.

On its serial console the guest prints, for each round of work::

    vqos-start <kind> <uptime_s>
    vqos-stop <kind> <uptime_s>
    vqos <kind> <uptime_s> <events> <elapsed_s>

and ``vqos-done`` before it powers off, where the rounds are limited. The time
between the first two lines of a round is the work's alone: to start sysbench,
and to read what it says in the end, costs more under emulation than many
rounds of small work do.
"""

from nova_vqos.calibration.guest.console import Round
from nova_vqos.calibration.guest.console import RoundStart
from nova_vqos.calibration.guest.console import RoundStop
from nova_vqos.calibration.guest.console import parse_line
from nova_vqos.calibration.guest.console import rounds
from nova_vqos.calibration.guest.initramfs import build_initramfs
from nova_vqos.calibration.guest.kernels import CACHE_DIR
from nova_vqos.calibration.guest.kernels import find_kernel
from nova_vqos.calibration.guest.kernels import find_kernel_with_modules
from nova_vqos.calibration.guest.kernels import kernel_release
from nova_vqos.calibration.guest.programs import GuestError
from nova_vqos.calibration.guest.work import AWK_PROGRAM
from nova_vqos.calibration.guest.work import EVENTS_PER_ROUND
from nova_vqos.calibration.guest.work import MEMORY_MIB
from nova_vqos.calibration.guest.work import SYSBENCH_MAX_PRIME
from nova_vqos.calibration.guest.work import TEXT_BYTES
from nova_vqos.calibration.guest.work import command_line
from nova_vqos.calibration.guest.work import measuring_init
from nova_vqos.calibration.guest.work import workload

__all__ = [
    'AWK_PROGRAM', 'CACHE_DIR', 'EVENTS_PER_ROUND', 'MEMORY_MIB',
    'SYSBENCH_MAX_PRIME', 'TEXT_BYTES', 'GuestError', 'Round', 'RoundStart',
    'RoundStop', 'build_initramfs', 'command_line', 'find_kernel',
    'find_kernel_with_modules', 'kernel_release', 'measuring_init',
    'parse_line', 'rounds', 'workload',
]
