# SPDX-License-Identifier: Apache-2.0
"""The pCPUs that slices are measured on: idle ones."""

from collections.abc import Collection, Mapping
import dataclasses
import os
import pathlib
import time

from nova_vqos import cpuset
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError

#: An idle pCPU is busy for at most this part of its time.
BUSY_LIMIT = 0.05

_WATCH_S = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """pCPUs to measure on.

    :ivar first: of the vCPUs
    :ivar second: of the second vCPU of a server with two; None: no other pCPU
        is idle
    """

    first: int
    second: int | None

    @property
    def pcpus(self) -> tuple[int, ...]:
        return (self.first,) if self.second is None else (
            self.first, self.second)


def choose(pcpus: Collection[int], *, beside_guests: bool,
           sysroot: str = '/') -> tuple[Place, dict[int, float]]:
    """Choose one or two idle pCPUs.

    The second is no sibling thread of the first where there is a choice.

    :param pcpus: to choose from
    :param beside_guests: choose the least busy ones, idle or not
    :returns: them, and how busy each of all pCPUs was
    :raises CalibrationError: when none is idle, or guests are at work
    """
    before = {pcpu: host_cpus.cpu_times([pcpu], sysroot) for pcpu in pcpus}
    time.sleep(_WATCH_S)
    busy = {pcpu: sum(host_cpus.cpu_times([pcpu], sysroot).since(earlier))
            for pcpu, earlier in before.items()}
    found = place(busy, {pcpu: _siblings(pcpu, sysroot) for pcpu in pcpus},
                  beside_guests=beside_guests)
    if not beside_guests:
        # Guests that wait right now may use these all the same.
        host_cpus.load(found.pcpus, _WATCH_S, sysroot).refuse_guests(
            found.pcpus)
    return found, busy


def place(busy: Mapping[int, float], siblings: Mapping[int, Collection[int]],
          *, beside_guests: bool) -> Place:
    """One or two of some pCPUs.

    :param busy: busy share of the time of each
    :param siblings: threads of the core of each, itself among them
    :raises CalibrationError: when none is idle
    """
    found = [pcpu for pcpu in sorted(busy, key=lambda pcpu: (
        busy[pcpu], pcpu)) if beside_guests or busy[pcpu] <= BUSY_LIMIT]
    if not found:
        found_busy = ', '.join(f'{pcpu} is {share:.0%} busy'
                               for pcpu, share in list(busy.items())[:8])
        raise CalibrationError(
            f'no pCPU of {cpuset.format_pcpus(busy)} is idle: {found_busy}. '
            'Slices hold only where nothing else runs: wait, choose others '
            'with --pcpus, or give --beside-guests to measure all the same')
    first = found[0]
    # Where whole cores are idle their siblings are, too, and come last.
    others = sorted(found[1:], key=lambda pcpu: pcpu in siblings[first])
    return Place(first, others[0] if others else None)


def keep_off(used: Place) -> None:
    """Move this process to other pCPUs, if there are any."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (allowed - set(used.pcpus))
                         or (allowed - {used.first}) or allowed)


def _siblings(pcpu: int, sysroot: str) -> frozenset[int]:
    path = pathlib.Path(sysroot, f'sys/devices/system/cpu/cpu{pcpu}',
                        'topology/thread_siblings_list')
    try:
        return cpuset.parse_pcpus(path.read_text().strip())
    except (OSError, ValueError):
        return frozenset({pcpu})
