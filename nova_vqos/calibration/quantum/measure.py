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

"""Calibration of slices: from measurements to the profile's part."""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import datetime
import logging
import os
import platform
import time

from nova_vqos import profile
from nova_vqos import quantum_profile
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import bench
from nova_vqos.calibration.quantum import loads
from nova_vqos.calibration.quantum import pick
from nova_vqos.calibration.quantum import place as places
from nova_vqos.calibration.quantum import requests
from nova_vqos.calibration.quantum import rounds
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import sched_attr

LOG = logging.getLogger(__name__)

#: As in the research.
SLICES_MS = (1, 10, 30, 60, 90)

_STEAL_WARNING = 0.01


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """What to measure, and where.

    :ivar pcpus: to choose an idle one from
    :ivar beside_guests: measure even where others are at work
    """

    pcpus: frozenset[int]
    kinds: Sequence[str] = tuple(quantum_profile.CLASSES)
    slices_us: Sequence[int] = tuple(1000 * ms for ms in SLICES_MS)
    beside_guests: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What was measured, and what people should know about it."""

    quantum: quantum_profile.QuantumProfile
    warnings: tuple[str, ...]


def calibrate(setting: Setting, effort: rounds.Effort) -> Result:
    """Measure all that can be measured here.

    :raises CalibrationError: when nothing can be, or something breaks
    """
    started_s = time.monotonic()
    check_slices()
    rounds.check_time(rounds.cells(setting.kinds, setting.slices_us),
                      effort.max_s)
    place, busy = places.choose(setting.pcpus,
                                beside_guests=setting.beside_guests)
    LOG.info('Measuring on pCPU %s, %s busy before',
             profile.format_pcpus(place.pcpus),
             ' and '.join(f'{busy[pcpu]:.0%}' for pcpu in place.pcpus))
    own_pcpus = os.sched_getaffinity(0)
    unmeasured = impossible(setting.kinds, place, own_pcpus)
    kinds = [kind for kind in setting.kinds if kind not in unmeasured]
    if not kinds:
        raise CalibrationError(_told(unmeasured))
    before = host_cpus.cpu_times(place.pcpus)
    try:
        places.keep_off(place)
        with contextlib.closing(bench.Bench(place, kinds)) as ready:
            if 'cache' in kinds and 'cache' not in ready.kinds:
                unmeasured['cache'] = (
                    'no list beyond the caches of the pCPU itself is held by '
                    'the last-level cache')
            if not ready.kinds:
                raise CalibrationError(_told(unmeasured))
            todo = rounds.cells(ready.kinds, setting.slices_us)
            taken = rounds.take(todo, ready.measure, dataclasses.replace(
                effort, max_s=effort.max_s
                - (time.monotonic() - started_s)))
    finally:
        os.sched_setaffinity(0, own_pcpus)
    _used, steal = host_cpus.cpu_times(place.pcpus).since(before)
    curves = []
    for kind in ready.kinds:
        points = rounds.points(kind, taken)
        if points:
            curves.append(pick.curve(kind, points))
        else:
            unmeasured[kind] = 'nothing was done in the time that it got'
    if not curves:
        raise CalibrationError(_told(unmeasured))
    return Result(
        quantum_profile.QuantumProfile(
            created_at=datetime.datetime.now(datetime.UTC).isoformat(
                timespec='seconds'),
            curves=tuple(curves), unmeasured=unmeasured,
            provenance=_provenance(ready, place) | {
                'busy_before': ' '.join(f'{busy[pcpu]:.3f}'
                                        for pcpu in place.pcpus),
                'steal': f'{steal:.4f}',
                'rounds': str(max(map(len, taken.values()))),
                'seconds': f'{time.monotonic() - started_s:.0f}'}),
        tuple(_warnings(curves, taken, ready, steal)))


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


def impossible(kinds: Sequence[str], place: bench.Place,
                usable: frozenset[int] | set[int]) -> dict[str, str]:
    """What cannot be measured on these pCPUs, and why."""
    found = {kind: 'not wanted' for kind in quantum_profile.CLASSES
             if kind not in kinds}
    if 'spin' in kinds and place.second is None:
        found['spin'] = 'both sides of a lock need an idle pCPU each'
    if 'io' in kinds and len(usable) < 2:
        found['io'] = 'clients need a pCPU beside that of the server'
    return found


def _told(unmeasured: Mapping[str, str]) -> str:
    return '; '.join(f'{kind}: {why}' for kind, why in unmeasured.items()
                     if why != 'not wanted')


def _warnings(curves: Sequence[quantum_profile.Curve],
              taken: rounds.Samples, ready: bench.Bench,
              steal: float) -> list[str]:
    found = []
    total = sum(map(len, taken.values()))
    disturbed = total - sum(len(rounds.quiet(samples))
                            for samples in taken.values())
    if disturbed:
        found.append(
            f'others took time of the pCPU in {disturbed} of {total} '
            'measurements: have nothing else run there')
    if steal > _STEAL_WARNING:
        found.append(f'{steal:.1%} of the time was stolen by a hypervisor '
                     'below this host')
    if not any(pick.has_effect(curve.points) for curve in curves):
        found.append(
            'whatever the slice, vCPUs ran as long at a time: this kernel '
            'does not hold slices of threads in nested groups')
    if (ready.cache_lines is not None
            and ready.cache_lines < ready.caches.half_lines):
        found.append(
            f'of a last-level cache of {ready.caches.last_bytes >> 20} MiB '
            'as the kernel tells, no more is to be had than lists of '
            f'{_kib(ready.cache_lines)} need: cache is measured with these')
    return found


def _kib(lines: int) -> str:
    return f'{lines * loads.LINE_BYTES >> 10} KiB'


def _provenance(ready: bench.Bench, place: bench.Place) -> dict[str, str]:
    lists = {'neutral': ready.caches.neutral_lines,
             'cache': ready.cache_lines,
             'polluter': ready.caches.beyond_lines}
    return {
        'kernel': platform.release(),
        'pcpus': ','.join(map(str, place.pcpus)),
        'last_level_cache': f'{ready.caches.last_bytes >> 10} KiB',
        'lists': ', '.join(f'{kind} {_kib(lines)}'
                           for kind, lines in lists.items() if lines),
        'requests_per_second': f'{requests.PER_SECOND:g}'}
