# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""Calibration of a host's I/O: from samples to the profile's part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import datetime
import logging
import math
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import time

from nova_vqos import io_profile
from nova_vqos import profile as profiles
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import disk
from nova_vqos.calibration.io import fit
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import system
from nova_vqos.calibration.io import traffic

LOG = logging.getLogger(__name__)

#: Where Nova keeps disks of servers, by default.
DISK_DIRECTORY = '/var/lib/nova/instances'

# Of the time, where disks are measured, too.
_NETWORK_SHARE = 0.5
_PROGRESS_S = 3
_STEAL_WARNING = 0.01
_BUSY_WARNING = 0.05
# Of a cost: what the independent check may be off by for sure.
_TOLERATED_GAP = 0.05
_PROGRAM_S = 10
_VHOST = '/dev/vhost-net'

# A way that is measured: names of its kind, and of its direction.
Way = tuple[str, str]
_WOKEN: Way = network.WOKEN, 'rx'
# Samples by size.
Samples = dict[int, list[network.Sample]]


@dataclasses.dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure.

    :ivar max_sweeps: over all sizes, of each kind and direction
    :ivar max_s: wall time of all; each has the least sweeps that an interval
        needs, however long they take
    """

    max_sweeps: int = 150
    max_s: float = 240


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What to measure, and where.

    :ivar pcpus: two: of who sends and makes requests, and of who reads
    :ivar modes: of :data:`traffic.MODES`
    :ivar disk_directory: where a file is made; None: no file is measured
    :ivar block_device: None: none is measured
    :ivar busy_before: share of the pCPUs' time that others used
    :ivar interrupts_apart: whether the kernel accounts for interrupts apart
        from threads (CONFIG_IRQ_TIME_ACCOUNTING)
    """

    pcpus: tuple[int, int]
    modes: Sequence[str] = traffic.MODES
    disk_directory: str | None = DISK_DIRECTORY
    block_device: str | None = None
    busy_before: float = 0.0
    interrupts_apart: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was measured, and what people should know about it."""

    io: io_profile.IoProfile
    warnings: tuple[str, ...]


def choose_pcpus(held: profiles.Profile, text: str | None) -> tuple[int, int]:
    """The two pCPUs to measure with.

    :param text: a list such as ``2,3``; None: the first two of the profile
        that may be used
    :raises CalibrationError: when there are not two, or not in the profile
    """
    if text is None:
        chosen = held.pcpus & host_cpus.choose(None)
    else:
        chosen = host_cpus.choose(text)
        if not chosen <= held.pcpus:
            raise CalibrationError(
                f'--pcpus {text}: the profile has '
                f'{profiles.format_pcpus(held.pcpus)}, I/O is measured on '
                'pCPUs of servers')
    if len(chosen) < 2 or (text is not None and len(chosen) > 2):
        raise CalibrationError(
            f'I/O is measured with two pCPUs, and here are {len(chosen)}: '
            'give two with --pcpus')
    first, second = sorted(chosen)[:2]
    return first, second


def calibrate(setting: Setting, effort: Effort) -> Result:
    """Measure all that can be measured here.

    :raises CalibrationError: when nothing can be, or something breaks
    """
    started_s = time.monotonic()
    with system.network_namespace():
        # That it can be made is seen before a file is.
        pass
    unmeasured: dict[str, str] = {}
    modes = choose_modes(setting.modes, unmeasured)
    disks = _disks(setting, unmeasured)
    warnings: list[str] = []
    before = host_cpus.cpu_times(setting.pcpus)
    own_pcpus, own_policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    own_parameter = os.sched_getparam(0)
    try:
        until_s = started_s + effort.max_s * (_NETWORK_SHARE if disks else 1)
        with contextlib.closing(network.Bench(
                modes, setting.pcpus,
                apart=setting.interrupts_apart)) as bench:
            packets = sweep(
                'network', [*((mode, direction) for mode in modes
                              for direction in network.DIRECTIONS), _WOKEN],
                bench.sweep, effort.max_sweeps, until_s)
        woken = packets.pop(_WOKEN)
        requests: dict[Way, Samples] = {}
        kinds: dict[str, disk.Kind] = {}
        if disks:
            with contextlib.closing(disk.Bench(
                    disks, setting.pcpus,
                    apart=setting.interrupts_apart)) as disk_bench:
                kinds = {kind.name: kind for kind in disk_bench.kinds}
                requests = sweep(
                    'disk', [(name, operation) for name in kinds
                             for operation in disk.OPERATIONS],
                    lambda name, operation: disk_bench.sweep(
                        kinds[name], operation),
                    effort.max_sweeps, started_s + effort.max_s)
    finally:
        for one in disks:
            one.close()
        os.sched_setscheduler(0, own_policy, own_parameter)
        os.sched_setaffinity(0, own_pcpus)
    _busy, steal = host_cpus.cpu_times(setting.pcpus).since(before)
    if setting.busy_before > _BUSY_WARNING:
        warnings.append(
            f'the host was {setting.busy_before:.0%} busy before: what disks '
            'cost cannot be told well beside other work')
    if steal > _STEAL_WARNING:
        warnings.append(f'{steal:.1%} of the time was stolen by a hypervisor '
                        'below this host')
    measured = {way: summary(samples)
                for way, samples in (packets | requests).items()}
    warnings += orderings(measured, modes) + gaps(measured, modes)
    return Result(io_profile.IoProfile(
        created_at=datetime.datetime.now(datetime.UTC).isoformat(
            timespec='seconds'),
        interfaces=tuple(
            io_profile.Interface(mode, measured[mode, 'rx'],
                                 measured[mode, 'tx']) for mode in modes),
        disks=tuple(
            io_profile.Disk(kind.source, kind.buffered,
                            measured[name, 'read'], measured[name, 'write'])
            for name, kind in kinds.items()),
        unmeasured=unmeasured,
        wake=wake(woken, measured[modes[0], 'rx']),
        provenance=_provenance(setting, modes) | {
            'steal': f'{steal:.4f}',
            'seconds': f'{time.monotonic() - started_s:.0f}'}),
        tuple(warnings))


def choose_modes(wanted: Sequence[str],
                 unmeasured: dict[str, str]) -> list[str]:
    """Which modes can be set up.

    :param unmeasured: where it is noted why others are not measured
    :raises CalibrationError: when none can be, or the plainest one cannot
    """
    modes = []
    unmeasured |= {
        'openvswitch': 'this program sets up no switch of Open vSwitch',
        'vhost': ('its workers are measured of each server; the kernel\'s '
                  'part, which ends at the tap, is taken from what was '
                  'measured with a reader like QEMU\'s; ' + (
                      f'{_VHOST} is here' if os.path.exists(_VHOST)
                      else f'there is no {_VHOST}'))}
    for mode in traffic.MODES:
        if mode not in wanted:
            unmeasured[mode] = 'not wanted'
            continue
        missing = traffic.missing_tool(mode)
        if not missing:
            modes.append(mode)
        elif mode == traffic.MODES[0]:
            raise CalibrationError(missing)
        else:
            LOG.warning('Warning: mode %s is not measured: %s', mode, missing)
            unmeasured[mode] = missing
    if not modes:
        raise CalibrationError('; '.join(
            unmeasured[mode] for mode in wanted))
    return modes


def _disks(setting: Setting, unmeasured: dict[str, str]) -> list[disk.Disk]:
    """:param unmeasured: where it is noted why some are not measured"""
    found = []
    if setting.disk_directory is None:
        unmeasured['file'] = (f'there is no {DISK_DIRECTORY}, and no '
                              '--disk-directory was given')
    else:
        found.append(disk.make_file(setting.disk_directory))
    if setting.block_device is None:
        unmeasured['block'] = ('no spare device was given as --block-device')
    else:
        try:
            found.append(disk.open_device(setting.block_device))
        except BaseException:
            for one in found:
                one.close()
            raise
        unmeasured['block, buffered'] = (
            'nothing makes the kernel write back a block device at a time '
            'that can be chosen')
    return found


def sweep(what: str, ways: Sequence[Way],
           take: Callable[[str, str], Mapping[int, network.Sample]],
           max_sweeps: int, until_s: float) -> dict[Way, Samples]:
    """Take samples of all ways by turns, until there are enough.

    :param until_s: on the monotonic clock
    """
    taken: dict[Way, Samples] = {way: {} for way in ways}
    told_s = time.monotonic()
    LOG.info('Measuring: %s', what)
    for number in range(1, max_sweeps + 1):
        for kind, direction in ways:
            for size, sample in take(kind, direction).items():
                taken[kind, direction].setdefault(size, []).append(sample)
        now_s = time.monotonic()
        if now_s - told_s > _PROGRESS_S or number == max_sweeps:
            told_s = now_s
            LOG.info('  %s: %d of %d sweeps; so far %s', what, number,
                     max_sweeps, _so_far(taken))
        if number >= estimate.LEAST_SAMPLES and now_s > until_s:
            break
    return taken


def _so_far(taken: Mapping[Way, Samples]) -> str:
    return ', '.join(
        f'{kind} {direction} '
        f'{statistics.median(one.kernel for one in samples[min(samples)]):.0f}'
        ' ns' for (kind, direction), samples in taken.items())


def summary(samples: Samples) -> io_profile.Measured:
    line = fit.fit({size: [one.kernel for one in found]
                    for size, found in samples.items()})
    return io_profile.Measured(
        _rounded(line.request, 1), _rounded(line.byte, 6),
        {size: round(mean, 1) for size, mean in line.means.items()},
        {size: round(statistics.fmean(estimate.without_outliers(
            [one.backend for one in samples[size]])), 1)
         for size in line.means},
        _rounded(_mean([one.unaccounted for found in samples.values()
                        for one in found]), 1),
        line.samples, line.outliers)


def wake(woken: Samples, among: io_profile.Measured) -> io_profile.Part:
    """What a packet costs more for which somebody has to be woken.

    :param woken: of one size
    :param among: of packets that come many at a time
    """
    ((size, samples),) = woken.items()
    single = estimate.estimate([one.kernel for one in samples])
    # Of its size, as it is billed.
    less = among.cost.total_ns(1, size)
    half = math.hypot(single.high - single.mean,
                      among.request.high - among.request.value)
    more = single.mean - less
    return _rounded(io_profile.Part(
        more if more - half > 0 else 0.0, more - half, more + half), 1)


def _mean(samples: Sequence[float]) -> io_profile.Part:
    found = estimate.estimate(samples)
    return io_profile.Part(found.mean, found.low, found.high)


def _rounded(part: io_profile.Part, digits: int) -> io_profile.Part:
    # Nor is there a zero below zero.
    return io_profile.Part(*(round(value, digits) + 0.0 for value in (
        part.value, part.low, part.high)))


def orderings(measured: Mapping[Way, io_profile.Measured],
           modes: Iterable[str]) -> list[str]:
    """Where this host is not as the research says that hosts are."""
    def total(mode: str, direction: str) -> float:
        found = measured[mode, direction]
        size = min(found.means)
        return found.means[size] + found.backends[size]

    modes = list(modes)
    notes = [
        f'{mode}: receiving is not dearer than sending: '
        f'{total(mode, "rx"):.0f} and {total(mode, "tx"):.0f} ns for the '
        'smallest packet, the part of who reads or writes the tap included'
        for mode in modes if total(mode, 'rx') <= total(mode, 'tx')]
    if modes[0] == 'bridge':
        for mode in modes[1:]:
            for direction in network.DIRECTIONS:
                if total(mode, direction) <= total('bridge', direction):
                    notes.append(
                        f'{direction}: {mode} is not dearer than bridge: '
                        f'{total(mode, direction):.0f} and '
                        f'{total("bridge", direction):.0f} ns')
    return notes


def gaps(measured: Mapping[Way, io_profile.Measured],
         modes: Iterable[str]) -> list[str]:
    """Where soakers lost more than anybody was charged for, or less."""
    found = []
    for mode in modes:
        received = measured[mode, 'rx']
        gap = received.unaccounted
        tolerated = _TOLERATED_GAP * min(received.means.values())
        if gap.low > tolerated or gap.high < -tolerated:
            found.append(
                f'{mode} rx: the independent check is {gap.value:+.0f} ns '
                'off: do not trust these figures, measure on a quieter host')
    return found


def _provenance(setting: Setting, modes: Sequence[str]) -> dict[str, str]:
    found = {
        'kernel': platform.release(),
        'pcpus': ','.join(map(str, setting.pcpus)),
        'interrupts_apart': str(setting.interrupts_apart),
        'busy_before': f'{setting.busy_before:.3f}',
        'burst_packets': str(network.BURST),
        'iproute2': _version('ip', '-V'),
    }
    if 'nat' in modes:
        found['nftables'] = _version('nft', '--version')
    for name in traffic.BRIDGE_SETTINGS:
        with contextlib.suppress(OSError):
            found[name] = pathlib.Path('/proc/sys/net/bridge',
                                       name).read_text().strip()
    if setting.disk_directory is not None:
        found['disk_directory'] = setting.disk_directory
        found['filesystem'] = disk.filesystem(setting.disk_directory)
    if setting.block_device is not None:
        found['block_device'] = setting.block_device
    return found


def _version(program: str, option: str) -> str:
    path = shutil.which(program)
    if path is None:
        return 'unknown'
    try:
        said = subprocess.run([path, option], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False,
                              timeout=_PROGRAM_S).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 'unknown'
    return said.strip()[:100] or 'unknown'
