# SPDX-License-Identifier: Apache-2.0
"""The pCPUs of a host, equal ones and busy ones, and its memory."""

from collections.abc import Collection, Iterable, Mapping
import dataclasses
import functools
import os
import pathlib
import re
import time

from nova_vqos import cpuset
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import procfs

#: Guests that use more of one pCPU than that are at work.
GUESTS_LIMIT = 0.05

# What makes a pCPU unlike another, below its directory in sysfs: the capacity
# that the kernel schedules by (hybrid CPUs), caches, and whether it has a
# sibling. Maximal clock rates are no part of it: on CPUs with preferred cores
# nearly each core has its own, and no two are unlike while all are busy.
_FEATURES = ('cpu_capacity', 'cache/index2/size', 'cache/index3/size')
# Empty where there is no such file.
_read = functools.partial(procfs.read_text, default='')
# Kinds of cores of Intel's hybrid CPUs, each with a PMU of its own.
_KINDS = ('cpu_core', 'cpu_atom', 'cpu_lowpower')


def choose(text: str | None) -> frozenset[int]:
    """The pCPUs to measure.

    :param text: a list such as ``0-3,8``; None: all that may be used
    :raises CalibrationError: when one does not exist, or is not ours to use
    """
    usable = frozenset(os.sched_getaffinity(0))
    if text is None:
        return usable
    try:
        chosen = cpuset.parse_pcpus(text)
    except ValueError as error:
        raise CalibrationError(str(error)) from error
    if not chosen <= usable:
        raise CalibrationError(
            f'pCPUs {cpuset.format_pcpus(chosen - usable)} cannot be used: '
            f'there are {cpuset.format_pcpus(usable)} for this process')
    return chosen


def classes(pcpus: Iterable[int],
            sysroot: str = '/') -> tuple[frozenset[int], ...]:
    """Divide pCPUs into classes of equal ones, the lowest numbered first."""
    root = pathlib.Path(sysroot)
    models = _models(_read(root / 'proc/cpuinfo'))
    kinds = {kind: _read(root / 'sys/devices' / kind / 'cpus')
             for kind in _KINDS}
    found: dict[tuple[str, ...], set[int]] = {}
    for pcpu in sorted(pcpus):
        base = root / f'sys/devices/system/cpu/cpu{pcpu}'
        siblings = _read(base / 'topology/thread_siblings_list')
        key = (models.get(pcpu, ''),
               *(_read(base / name) for name in _FEATURES),
               str(len(cpuset.parse_pcpus(siblings)) if siblings else 1),
               *(kind for kind, members in kinds.items()
                 if members and pcpu in cpuset.parse_pcpus(members)))
        found.setdefault(key, set()).add(pcpu)
    return tuple(frozenset(members) for members in found.values())


@dataclasses.dataclass(frozen=True, slots=True)
class CpuTimes:
    """Time of some pCPUs since the machine started, in clock ticks.

    :ivar busy: spent on anything, steal not included
    :ivar steal: taken by a hypervisor below this machine
    """

    total: int
    busy: int
    steal: int

    def since(self, earlier: 'CpuTimes') -> tuple[float, float]:
        """The share of time that was busy, and that was stolen."""
        total = max(1, self.total - earlier.total)
        return ((self.busy - earlier.busy) / total,
                (self.steal - earlier.steal) / total)


def cpu_times(pcpus: Iterable[int], sysroot: str = '/') -> CpuTimes:
    """How the time of some pCPUs was spent, from /proc/stat."""
    return _cpu_times(pcpus, _read(pathlib.Path(sysroot) / 'proc/stat'))


def busy_shares(pcpus: Collection[int], during_s: float,
                sysroot: str = '/') -> dict[int, float]:
    """Measure for a while how busy each of some pCPUs is."""
    path = pathlib.Path(sysroot) / 'proc/stat'
    before = _read(path)
    time.sleep(during_s)
    after = _read(path)
    return {pcpu: _cpu_times([pcpu], after).since(
        _cpu_times([pcpu], before))[0] for pcpu in pcpus}


def _cpu_times(pcpus: Iterable[int], text: str) -> CpuTimes:
    total = busy = steal = 0
    for pcpu in pcpus:
        found = re.search(rf'^cpu{pcpu} (.+)$', text, re.MULTILINE)
        if not found:
            continue
        # user nice system idle iowait irq softirq steal; guest time, which
        # follows, is part of user already.
        times = [int(n) for n in found[1].split()[:8]]
        total += sum(times)
        steal += times[7]
        busy += sum(times) - times[3] - times[4] - times[7]
    return CpuTimes(total, busy, steal)


def throttle_count(pcpus: Iterable[int], sysroot: str = '/') -> int:
    """How often heat slowed these pCPUs since the machine started.

    Of each core and of each package; 0 where the CPU has no counters.
    """
    root = pathlib.Path(sysroot) / 'sys/devices/system/cpu'
    cores = 0
    packages = {}
    for pcpu in pcpus:
        base = root / f'cpu{pcpu}'
        counts = base / 'thermal_throttle'
        cores += int(_read(counts / 'core_throttle_count') or 0)
        # Each pCPU has the count of its package.
        packages[_read(base / 'topology/physical_package_id')] = int(
            _read(counts / 'package_throttle_count') or 0)
    return cores + sum(packages.values())


def guest_ticks(pcpus: Iterable[int], sysroot: str = '/') -> dict[int, int]:
    """CPU time of guests' threads that may run on some of these pCPUs.

    :returns: in clock ticks, since its start, by thread id
    """
    chosen = frozenset(pcpus)
    found = {}
    for process in (pathlib.Path(sysroot) / 'proc').glob('[0-9]*'):
        if not _read(process / 'comm').startswith('qemu'):
            continue
        # One by one: each may be pinned elsewhere.
        for task in (process / 'task').glob('[0-9]*'):
            allowed = re.search(r'^Cpus_allowed_list:\s*(\S+)$',
                                _read(task / 'status'), re.MULTILINE)
            # The name, which may hold anything, ends with the last
            # parenthesis.
            fields = _read(task / 'stat').rpartition(')')[2].split()
            if (allowed and len(fields) > 12
                    and chosen & cpuset.parse_pcpus(allowed[1])):
                found[int(task.name)] = int(fields[11]) + int(fields[12])
    return found


def guest_pcpus(before: Mapping[int, int], after: Mapping[int, int],
                ticks: float) -> float:
    """How many pCPUs guests used between two readings.

    A thread that the first reading lacks has begun since.

    :param ticks: that went by for each pCPU: no thread used more
    """
    ticks = max(1, ticks)
    return sum(min(now - before.get(thread, 0), ticks)
               for thread, now in after.items()) / ticks


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
    """How busy some pCPUs are.

    :ivar busy: share of their time that was spent on anything
    :ivar guests_pcpus: how many of them guests used
    """

    busy: float
    guests_pcpus: float

    @property
    def guests_at_work(self) -> bool:
        return self.guests_pcpus > GUESTS_LIMIT

    def refuse_guests(self, pcpus: Iterable[int]) -> None:
        """
        :raises CalibrationError: when guests are at work
        """
        if self.guests_at_work:
            raise CalibrationError(
                f'guests use {self.guests_pcpus:.2f} pCPUs of '
                f'{cpuset.format_pcpus(pcpus)}, and would be slowed '
                'down: move them away, or give --beside-guests to measure '
                'all the same')


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What some pCPUs have done since the machine started.

    :ivar guests: see :func:`guest_ticks`
    """

    pcpus: Collection[int]
    times: CpuTimes
    guests: Mapping[int, int]

    def since(self, before: 'Reading') -> Load:
        """How busy they were between two readings."""
        busy, _steal = self.times.since(before.times)
        return Load(busy, guest_pcpus(
            before.guests, self.guests,
            (self.times.total - before.times.total) / len(self.pcpus)))


def read(pcpus: Collection[int], sysroot: str = '/') -> Reading:
    """Read what some pCPUs have done."""
    return Reading(pcpus, cpu_times(pcpus, sysroot),
                   guest_ticks(pcpus, sysroot))


def load(pcpus: Collection[int], during_s: float,
         sysroot: str = '/') -> Load:
    """Measure for a while how busy some pCPUs are."""
    before = read(pcpus, sysroot)
    time.sleep(during_s)
    return read(pcpus, sysroot).since(before)


def thread_runs(threads: Iterable[int]) -> list[base.ThreadRun]:
    """How long threads have run, and how often.

    :raises CalibrationError: when the kernel does not count that
    """
    found = []
    for thread in threads:
        try:
            found.append(procfs.read_run(thread))
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f'runs of thread {thread} cannot be read, it has ended or the '
                f'kernel has no CONFIG_SCHED_INFO: {error}') from error
    return found


def available_bytes(sysroot: str = '/') -> int:
    """Memory that programs can have."""
    found = re.search(r'^MemAvailable:\s+(\d+) kB', _read(
        pathlib.Path(sysroot) / 'proc/meminfo'), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _models(cpuinfo: str) -> dict[int, str]:
    models = {}
    for block in cpuinfo.split('\n\n'):
        fields = dict(re.findall(r'^(.+?)\s*: *(.*)$', block, re.MULTILINE))
        if 'processor' in fields:
            models[int(fields['processor'])] = '/'.join(
                fields.get(name, '')
                for name in ('cpu family', 'model', 'stepping', 'model name'))
    return models
