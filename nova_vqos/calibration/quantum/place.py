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

"""Where slices are measured: on pCPUs that nobody uses."""

from collections.abc import Collection, Mapping
import os
import pathlib
import time

from nova_vqos import profile
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import bench

#: Of a pCPU's time: what others use at most on one that is idle.
BUSY_LIMIT = 0.05

_LOOK_S = 1.0


def choose(pcpus: Collection[int], *, beside_guests: bool,
           sysroot: str = '/') -> tuple[bench.Place, dict[int, float]]:
    """Look for a while which pCPUs are idle, and take one or two.

    The second is no sibling thread of the first where there is a choice.

    :param pcpus: to choose from
    :param beside_guests: take the least busy ones, whoever is at work there
    :returns: and how busy each pCPU was
    :raises CalibrationError: when none is idle, or guests are at work
    """
    before = {pcpu: host_cpus.cpu_times([pcpu], sysroot) for pcpu in pcpus}
    time.sleep(_LOOK_S)
    busy = {pcpu: sum(host_cpus.cpu_times([pcpu], sysroot).since(earlier))
            for pcpu, earlier in before.items()}
    found = place(busy, {pcpu: _siblings(pcpu, sysroot) for pcpu in pcpus},
                  beside_guests=beside_guests)
    if not beside_guests:
        # Guests that wait right now may use these all the same.
        host_cpus.load(found.pcpus, _LOOK_S, sysroot).refuse_guests(
            found.pcpus)
    return found, busy


def place(busy: Mapping[int, float], siblings: Mapping[int, Collection[int]],
          *, beside_guests: bool) -> bench.Place:
    """One or two of some pCPUs.

    :param busy: share of its time that each is
    :param siblings: that each has, itself among them
    :raises CalibrationError: when none is idle
    """
    found = [pcpu for pcpu in sorted(busy, key=lambda pcpu: (
        busy[pcpu], pcpu)) if beside_guests or busy[pcpu] <= BUSY_LIMIT]
    if not found:
        told = ', '.join(f'{pcpu} is {share:.0%} busy'
                         for pcpu, share in list(busy.items())[:8])
        raise CalibrationError(
            f'no pCPU of {profile.format_pcpus(busy)} is idle: {told}. Slices '
            'hold only where nobody else runs: wait, choose others with '
            '--pcpus, or give --beside-guests to measure all the same')
    first = found[0]
    # Where whole cores are idle their siblings are, too, and come last.
    others = sorted(found[1:], key=lambda pcpu: pcpu in siblings[first])
    return bench.Place(first, others[0] if others else None)


def keep_off(used: bench.Place) -> None:
    """Have this process be elsewhere, as far as there is elsewhere."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (allowed - set(used.pcpus))
                         or (allowed - {used.first}) or allowed)


def _siblings(pcpu: int, sysroot: str) -> frozenset[int]:
    path = pathlib.Path(sysroot, f'sys/devices/system/cpu/cpu{pcpu}',
                        'topology/thread_siblings_list')
    try:
        return profile.parse_pcpus(path.read_text().strip())
    except (OSError, ValueError):
        return frozenset({pcpu})
