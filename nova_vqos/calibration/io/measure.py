# SPDX-License-Identifier: Apache-2.0
"""Calibration of a host's I/O: from samples to the profile's part."""

from collections.abc import Callable, Iterable, Mapping, Sequence
import contextlib
import dataclasses
import logging
import math
import os
import platform
import shutil
import statistics
import subprocess
import time

from nova_vqos import cpuset
from nova_vqos import utc
from nova_vqos.calibration import estimate
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import run
from nova_vqos.calibration import system
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.io import disk
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import traffic
from nova_vqos.profile import io
from nova_vqos.profile import model

LOG = logging.getLogger(__name__)

#: Where Nova keeps disks of servers, by default.
DISK_DIRECTORY = '/var/lib/nova/instances'

#: Rounds are sweeps over all sizes, of each kind and direction.
EFFORT = run.Effort(max_rounds=150)

# Of the time, where disks are measured, too.
_NETWORK_SHARE = 0.5
_PROGRESS_S = 3
# Of a cost: how far the independent check may be off for sure.
_TOLERATED_GAP = 0.05
_PROGRAM_S = 10

# A way that is measured: names of its kind, and of its direction.
Way = tuple[str, str]
# Samples by size.
Samples = dict[int, list[network.Sample]]


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What to measure, and where.

    :ivar pcpus: two: of the sender, which makes requests, and of the reader
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


def choose_pcpus(held: model.Profile, text: str | None) -> tuple[int, int]:
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
                f'{cpuset.format_pcpus(held.pcpus)}, I/O is measured on '
                'pCPUs of servers')
    if len(chosen) < 2 or (text is not None and len(chosen) > 2):
        raise CalibrationError(
            f'I/O is measured with two pCPUs, and here are {len(chosen)}: '
            'give two with --pcpus')
    first, second = sorted(chosen)[:2]
    return first, second


def calibrate(setting: Setting,
              effort: run.Effort) -> run.Result[io.IoProfile]:
    """Measure all that can be measured here.

    :raises CalibrationError: when nothing can be, or something breaks
    """
    started_s = time.monotonic()
    with system.network_namespace():
        # Where none can be made, no file is made either.
        pass
    unmeasured: dict[str, str] = {}
    modes = choose_modes(setting.modes, unmeasured)
    disks = _disks(setting, unmeasured)
    observations = run.Observations()
    before = host_cpus.cpu_times(setting.pcpus)
    own_pcpus, own_policy = os.sched_getaffinity(0), os.sched_getscheduler(0)
    own_parameter = os.sched_getparam(0)
    try:
        until_s = started_s + effort.max_s * (_NETWORK_SHARE if disks else 1)
        with contextlib.closing(network.Bench(
                modes, setting.pcpus,
                apart=setting.interrupts_apart)) as bench:
            packets = sweep(
                'network', [(mode, direction) for mode in modes
                            for direction in network.DIRECTIONS],
                bench.sweep, effort.max_rounds, until_s)
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
                    effort.max_rounds, started_s + effort.max_s)
    finally:
        for one in disks:
            one.close()
        os.sched_setscheduler(0, own_policy, own_parameter)
        os.sched_setaffinity(0, own_pcpus)
    _busy, steal = host_cpus.cpu_times(setting.pcpus).since(before)
    if setting.busy_before > run.BUSY_WARNING:
        observations.warn(
            f'the host was {setting.busy_before:.0%} busy before: costs of '
            'disks are uncertain beside other work')
    observations.warn_of_steal(steal)
    measured = {way: summary(samples)
                for way, samples in (packets | requests).items()}
    observations.warn(*orderings(measured, modes), *gaps(measured, modes))
    return run.Result(io.IoProfile(
        created_at=utc.text(),
        interfaces=tuple(
            io.Interface(mode, measured[mode, 'rx'],
                         measured[mode, 'tx']) for mode in modes),
        disks=tuple(
            io.Disk(kind.source, kind.buffered,
                    measured[name, 'read'], measured[name, 'write'])
            for name, kind in kinds.items()),
        unmeasured=unmeasured,
        provenance=_provenance(setting, modes) | {
            'steal': f'{steal:.4f}',
            'seconds': f'{time.monotonic() - started_s:.0f}'}),
        observations.warnings)


def choose_modes(wanted: Sequence[str],
                 unmeasured: dict[str, str]) -> list[str]:
    """The modes that can be set up.

    :param unmeasured: gets the reason why others are not measured
    :raises CalibrationError: when none can be, or the plainest one cannot
    """
    modes = []
    unmeasured['vhost'] = (
        'its workers are measured of each server; the kernel\'s part ends at '
        'the tap, and costs as much as with a reader like QEMU\'s')
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
            unmeasured[mode] = missing
            # Most hosts have no Open vSwitch, and no server behind it.
            if mode != 'openvswitch':
                LOG.warning('Warning: mode %s is not measured: %s', mode,
                            missing)
    if not modes:
        raise CalibrationError('; '.join(
            unmeasured[mode] for mode in wanted))
    return modes


def _disks(setting: Setting, unmeasured: dict[str, str]) -> list[disk.Disk]:
    """:param unmeasured: gets the reason why some are not measured"""
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
          sample: Callable[[str, str], Mapping[int, network.Sample]],
          max_sweeps: int, until_s: float) -> dict[Way, Samples]:
    """Sample all ways by turns, until there are enough samples.

    :param until_s: on the monotonic clock
    """
    found: dict[Way, Samples] = {way: {} for way in ways}
    logged_s = time.monotonic()
    LOG.info('Measuring: %s', what)
    for number in range(1, max_sweeps + 1):
        for kind, direction in ways:
            for size, one in sample(kind, direction).items():
                found[kind, direction].setdefault(size, []).append(one)
        now_s = time.monotonic()
        if now_s - logged_s > _PROGRESS_S or number == max_sweeps:
            logged_s = now_s
            LOG.info('  %s: %d of %d sweeps; so far %s', what, number,
                     max_sweeps, _so_far(found))
        if number >= estimate.LEAST_SAMPLES and now_s > until_s:
            break
    return found


def _so_far(found: Mapping[Way, Samples]) -> str:
    return ', '.join(
        f'{kind} {direction} '
        f'{statistics.median(one.kernel for one in samples[min(samples)]):.0f}'
        ' ns' for (kind, direction), samples in found.items())


def summary(samples: Samples) -> io.Measured:
    estimates = {size: estimate.estimate([one.kernel for one in found])
                 for size, found in sorted(samples.items())}
    return io.Measured(
        io.billed((size, _rounded(io.Part(
            found.mean if _is_certain(found.samples) else 0.0, found.low,
            found.high))) for size, found in estimates.items()),
        {size: round(statistics.fmean(estimate.without_outliers(
            [one.backend for one in samples[size]])), 1)
         for size in estimates},
        _rounded(_mean([[one.unaccounted for one in found]
                        for found in samples.values()])),
        sum(len(found.samples) for found in estimates.values()),
        sum(found.outliers for found in estimates.values()))


def _is_certain(samples: Sequence[float]) -> bool:
    """Whether something costs anything: noise is not billed.

    By the scatter alone. Drift, which makes an interval wide, is of a cost
    that there is.
    """
    kept = estimate.without_outliers(samples)
    return statistics.fmean(kept) > (
        estimate.student_t(len(kept) - 1) * statistics.stdev(kept)
        / math.sqrt(len(kept)))


def _mean(series: Sequence[Sequence[float]]) -> io.Part:
    """Of samples of several sizes, which were taken by turns."""
    found = estimate.estimate_together(series)
    return io.Part(found.mean, found.low, found.high)


def _rounded(part: io.Part) -> io.Part:
    # Nor is there a zero below zero.
    return io.Part(*(round(value, 1) + 0.0 for value in (
        part.value, part.low, part.high)))


def orderings(measured: Mapping[Way, io.Measured],
              modes: Iterable[str]) -> list[str]:
    """Warnings where this host is not as the research found hosts to be."""
    def total(mode: str, direction: str) -> float:
        found = measured[mode, direction]
        size = min(found.by_size)
        return found.by_size[size].value + found.backends[size]

    modes = list(modes)
    found = [
        f'{mode}: receiving is not dearer than sending: '
        f'{total(mode, "rx"):.0f} and {total(mode, "tx"):.0f} ns for the '
        'smallest packet, with the part of the reader or writer of the tap'
        for mode in modes if total(mode, 'rx') <= total(mode, 'tx')]
    if modes[0] == 'bridge':
        for mode in (mode for mode in modes if mode in traffic.ROUTED_MODES):
            for direction in network.DIRECTIONS:
                if total(mode, direction) <= total('bridge', direction):
                    found.append(
                        f'{direction}: {mode} is not dearer than bridge: '
                        f'{total(mode, direction):.0f} and '
                        f'{total("bridge", direction):.0f} ns')
    return found


def gaps(measured: Mapping[Way, io.Measured],
         modes: Iterable[str]) -> list[str]:
    """Warnings where soakers lost more than was charged, or less."""
    found = []
    for mode in modes:
        received = measured[mode, 'rx']
        gap = received.unaccounted
        tolerated = _TOLERATED_GAP * min(
            cost.value for cost in received.by_size.values())
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
    found |= traffic.bridge_settings()
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
