# SPDX-License-Identifier: Apache-2.0
"""The fingerprint of a host: what its speed depends on.

It is part of the profile. Where it differs from that of the host now, the
profile is stale (:mod:`nova_vqos.profile.validity`).
"""

import functools
import hashlib
import os
import pathlib
import platform
import time

from nova_vqos.profile import kernel

# NOTE: Python names no constant for it. Its resolution is the length of a
# tick (kernel/time/posix-timers.c), which sysconf(_SC_CLK_TCK) is not.
_CLOCK_MONOTONIC_COARSE = 6

_CPUINFO_FIELDS = {
    'vendor_id': 'cpu_vendor',
    'model name': 'cpu_model',
    'cpu family': 'cpu_family',
    'model': 'cpu_model_number',
    'stepping': 'cpu_stepping',
    'microcode': 'microcode',
}
_FILES = {
    'smt': 'sys/devices/system/cpu/smt/active',
    'online_pcpus': 'sys/devices/system/cpu/online',
    'governor': 'sys/devices/system/cpu/cpufreq/policy0/scaling_governor',
    'intel_no_turbo': 'sys/devices/system/cpu/intel_pstate/no_turbo',
    'boost': 'sys/devices/system/cpu/cpufreq/boost',
    'halt_poll_ns': 'sys/module/kvm/parameters/halt_poll_ns',
}


def of_host(emulator: str | None = None,
            sysroot: str = '/') -> dict[str, str]:
    """The fingerprint of this host now.

    :param emulator: path of the emulator of measured guests; None: the host
        itself is measured
    :param sysroot: directory with /proc, /sys and /boot, for tests
    :returns: texts by name, ``unknown`` where one cannot be read
    """
    root = pathlib.Path(sysroot)
    options = kernel.build_options(sysroot)
    fingerprint = {
        **_cpuinfo(root / 'proc/cpuinfo'),
        **{name: _first_line(root / path) for name, path in _FILES.items()},
        'kernel': platform.release(),
        'tick_us': str(tick_us()),
        'preemption': kernel.preemption_at_boot(options, sysroot),
        'irq_time_accounting': kernel.value(
            options, 'CONFIG_IRQ_TIME_ACCOUNTING'),
    }
    if emulator is not None:
        fingerprint['emulator'] = emulator
        fingerprint['emulator_sha256'] = _file_hash(emulator)
    return fingerprint


def tick_us() -> int:
    """Length of this kernel's scheduler tick."""
    return round(time.clock_getres(_CLOCK_MONOTONIC_COARSE) * 1e6)


def _cpuinfo(path: pathlib.Path) -> dict[str, str]:
    """Of the first processor: differing ones show in the measurement."""
    found = dict.fromkeys(_CPUINFO_FIELDS.values(), 'unknown')
    try:
        text = path.read_text()
    except (OSError, ValueError):
        return found
    for line in text.split('\n\n', 1)[0].splitlines():
        name, _, value = line.partition(':')
        if name.strip() in _CPUINFO_FIELDS and value.strip():
            found[_CPUINFO_FIELDS[name.strip()]] = value.strip()
    return found


def _first_line(path: pathlib.Path) -> str:
    try:
        return path.read_text().split('\n', 1)[0].strip() or 'unknown'
    except (OSError, ValueError):
        return 'unknown'


def _file_hash(path: str) -> str:
    try:
        status = os.stat(path)
        return _hash_of_content(path, status.st_size, status.st_mtime_ns,
                                status.st_ino)
    except OSError:
        return 'unknown'


@functools.lru_cache(maxsize=4)
def _hash_of_content(path: str, *_identity: int) -> str:
    with open(path, 'rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()
