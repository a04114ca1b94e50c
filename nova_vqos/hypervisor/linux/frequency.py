# SPDX-License-Identifier: Apache-2.0
"""Whether the kernel counts reserved time by the clock of a CPU.

Where a CPU has the counters APERF and MPERF, the kernel charges a thread with
a reservation for the time that its work would take at full clock, which is the
highest clock with turbo: dl_scaled_delta_exec() in kernel/sched/deadline.c,
scale_freq_tick() in arch/x86/kernel/cpu/aperfmperf.c.
"""

import os

from nova_vqos.hypervisor.linux import procfs

_CPUINFO = 'proc/cpuinfo'
_NO_TURBO = 'sys/devices/system/cpu/intel_pstate/no_turbo'
_FLAGS = 'flags'
_COUNTERS = 'aperfmperf'


def is_counted(sysroot: str = '/') -> bool:
    """Whether reserved time is counted by the clock of the CPU.

    NOTE: of all switches for turbo only that of intel_pstate makes the kernel
    take another clock as the full one (arch_set_max_freq_ratio()). With
    cpufreq/boost off the clock is steady, and still not the full one.

    :param sysroot: where proc and sys are
    """
    no_turbo = procfs.read_text(os.path.join(sysroot, _NO_TURBO), default='')
    return no_turbo != '1' and _COUNTERS in _read_flags(
        os.path.join(sysroot, _CPUINFO))


def _read_flags(path: str) -> list[str]:
    """The features of the first CPU; none where they are not known."""
    try:
        # NOTE: line by line: the kernel makes the text while it is read, and
        # the part of each CPU takes time.
        with open(path, encoding='utf-8', errors='replace') as file:
            for line in file:
                name, _colon, value = line.partition(':')
                if name.strip() == _FLAGS:
                    return value.split()
    except OSError:
        pass
    return []
