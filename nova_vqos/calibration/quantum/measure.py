# SPDX-License-Identifier: Apache-2.0
"""Calibration of slices: from measurements to the profile's part."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import logging
import os
import platform
import time

from nova_vqos import cpuset
from nova_vqos import utc
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import run
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import bench
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import pick
from nova_vqos.calibration.quantum import place
from nova_vqos.calibration.quantum import requests
from nova_vqos.calibration.quantum import rounds
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.profile import quantum

LOG = logging.getLogger(__name__)

#: As in the research.
SLICES_MS = (1, 10, 30, 60, 90)
#: Rounds are of all cells.
EFFORT = run.Effort(max_rounds=20, max_s=270)


def calibrate(pcpus: frozenset[int], kinds: Sequence[str],
              slices_us: Sequence[int], effort: run.Effort, *,
              beside_guests: bool) -> run.Result[quantum.QuantumProfile]:
    """Measure all that can be measured here.

    :param pcpus: to choose an idle one from
    :param beside_guests: measure even where others are at work
    :raises CalibrationError: when nothing can be, or something breaks
    """
    started_s = time.monotonic()
    check_slices()
    rounds.check_time(rounds.cells(kinds, slices_us),
                      effort.max_s)
    where, busy = place.choose(pcpus, beside_guests=beside_guests)
    LOG.info('Measuring on pCPU %s, %s busy before',
             cpuset.format_pcpus(where.pcpus),
             ' and '.join(f'{busy[pcpu]:.0%}' for pcpu in where.pcpus))
    own_pcpus = os.sched_getaffinity(0)
    unmeasured = impossible(kinds, where, own_pcpus)
    kinds = [kind for kind in kinds if kind not in unmeasured]
    if not kinds:
        raise CalibrationError(_reasons(unmeasured))
    before = host_cpus.cpu_times(where.pcpus)
    try:
        place.keep_off(where)
        with contextlib.closing(bench.Bench(where, kinds)) as ready:
            if 'cache' in kinds and 'cache' not in ready.kinds:
                unmeasured['cache'] = (
                    'no list beyond the caches of the pCPU itself is held by '
                    'the last-level cache')
            if not ready.kinds:
                raise CalibrationError(_reasons(unmeasured))
            todo = rounds.cells(ready.kinds, slices_us)
            taken = rounds.run(todo, ready.measure, dataclasses.replace(
                effort, max_s=effort.max_s
                - (time.monotonic() - started_s)))
    finally:
        os.sched_setaffinity(0, own_pcpus)
    _used, steal = host_cpus.cpu_times(where.pcpus).since(before)
    curves = []
    for kind in ready.kinds:
        points = rounds.points(kind, taken)
        if points:
            curves.append(pick.curve(kind, points))
        else:
            unmeasured[kind] = 'nothing was done in the time that it got'
    if not curves:
        raise CalibrationError(_reasons(unmeasured))
    return run.Result(
        quantum.QuantumProfile(
            created_at=utc.text(),
            curves=tuple(curves), unmeasured=unmeasured,
            provenance=_provenance(ready, where) | {
                'busy_before': ' '.join(f'{busy[pcpu]:.3f}'
                                        for pcpu in where.pcpus),
                'steal': f'{steal:.4f}',
                'rounds': str(max(map(len, taken.values()))),
                'seconds': f'{time.monotonic() - started_s:.0f}'}),
        _warnings(curves, taken, ready, steal))


def check_slices() -> None:
    """
    :raises CalibrationError: when this kernel has no slices to set
    """
    try:
        if sched_attr.slice_us(0) is None:
            raise CalibrationError(
                f'Linux {platform.release()} has no slices to set: 6.12 is '
                'the first that has')
    except base.HypervisorError as error:
        raise CalibrationError(str(error)) from error


def impossible(kinds: Sequence[str], where: place.Place,
               usable: frozenset[int] | set[int]) -> dict[str, str]:
    """The kinds that cannot be measured on these pCPUs, and why."""
    found = {kind: 'not wanted' for kind in quantum.CLASSES
             if kind not in kinds}
    if 'spin' in kinds and where.second is None:
        found['spin'] = 'both sides of a lock need an idle pCPU each'
    if 'io' in kinds and len(usable) < 2:
        found['io'] = 'clients need a pCPU beside that of the server'
    return found


def _reasons(unmeasured: Mapping[str, str]) -> str:
    return '; '.join(f'{kind}: {why}' for kind, why in unmeasured.items()
                     if why != 'not wanted')


def _warnings(curves: Sequence[quantum.Curve],
              taken: rounds.Samples, ready: bench.Bench,
              steal: float) -> tuple[str, ...]:
    found = run.Observations()
    total = sum(map(len, taken.values()))
    disturbed = total - sum(len(rounds.quiet(samples))
                            for samples in taken.values())
    if disturbed:
        found.warn(
            f'others took time of the pCPU in {disturbed} of {total} '
            'measurements: have nothing else run there')
    found.warn_of_steal(steal)
    if not any(pick.has_effect(curve.points) for curve in curves):
        found.warn(
            'whatever the slice, vCPUs ran as long at a time: this kernel '
            'does not hold slices of threads in nested groups')
    if (ready.cache_lines is not None
            and ready.cache_lines < ready.caches.half_lines):
        found.warn(
            f'of a last-level cache of {ready.caches.last_bytes >> 20} MiB, '
            f'as the kernel has it, only lists of {_kib(ready.cache_lines)} '
            'find room: cache is measured with these')
    return found.warnings


def _kib(lines: int) -> str:
    return f'{lines * loads.LINE_BYTES >> 10} KiB'


def _provenance(ready: bench.Bench, where: place.Place) -> dict[str, str]:
    lists = {'neutral': ready.caches.neutral_lines,
             'cache': ready.cache_lines,
             'polluter': ready.caches.beyond_lines}
    return {
        'kernel': platform.release(),
        'pcpus': ','.join(map(str, where.pcpus)),
        'last_level_cache': f'{ready.caches.last_bytes >> 10} KiB',
        'lists': ', '.join(f'{kind} {_kib(lines)}'
                           for kind, lines in lists.items() if lines),
        'requests_per_second': f'{requests.PER_SECOND:g}'}
