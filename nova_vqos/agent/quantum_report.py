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

"""What is told of slices and pools, in primitives. Pure."""

from collections.abc import Mapping
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import units
from nova_vqos.agent import quantum_subject as subjects
from nova_vqos.hypervisor import schedstat
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum import occupancy
from nova_vqos.quantum import pooling
from nova_vqos.quantum import recognition

_PINNED = 'its vCPUs are pinned, not by this agent'


def of_server(subject: subjects.Subject, kinds: Mapping[int, model.Kind],
              slices_us: Mapping[int, int | None],
              means_us: Mapping[int, float],
              runs: Mapping[int, schedstat.ThreadRun],
              plan: pooling.HostPlan, problem: str) -> dict[str, ty.Any]:
    """What is told of one server.

    :param kinds: what each vCPU is taken for, by its number; so the next two
    :param slices_us: that they are to have
    :param means_us: how long they ran at a time, where that is known
    :param runs: their threads' counters, where they could be read
    :param problem: why it does not get its slices; '': it does
    """
    placement = plan.placements.get(subject.uuid)
    pcpus = {} if placement is None else placement.pcpus or {}
    return {
        'class': subject.quantum_class,
        'recognised_class': (
            recognition.server_class(kinds.values())
            if subject.quantum_class == subjects.AUTO else None),
        'problem': problem,
        'left_alone': (_PINNED if subject.pcpus is None
                       else plan.left_alone.get(subject.uuid, '')),
        'vcpus': {
            str(number): {
                'kind': kind.value,
                'slice_us': slices_us.get(number),
                'obtainable_us': _obtainable_us(slices_us.get(number),
                                                subject.cap),
                'mean_run_us': means_us.get(number),
                'waited_s': (runs[number].waited_ns / 1e9
                             if number in runs else None),
                'pcpus': (profiles.format_pcpus(pcpus[number])
                          if number in pcpus else None),
            } for number, kind in kinds.items()},
    }


def pools(plan: pooling.HostPlan, slices_us: Mapping[str, int]
          ) -> dict[str, occupancy.PoolSize]:
    """How large the pools of each class are.

    Where nothing is separated all is one pool, of the class that all want;
    none where that is the kernel's own slice.

    :param slices_us: by quantum class, of those that are in use
    """
    sizes: dict[str, occupancy.PoolSize] = {}
    for made in plan.plans.values():
        for pool in made.pools:
            if not made.separates and pool.slice_us is None:
                continue
            name = _class_of(pool, slices_us)
            pcpus, vcpus = sizes.get(name, (0, 0))
            sizes[name] = occupancy.PoolSize(pcpus + len(pool.pcpus),
                                             vcpus + len(pool.vcpus))
    return sizes


def mean_runs_us(before: Mapping[int, schedstat.ThreadRun],
                 after: Mapping[int, schedstat.ThreadRun]
                 ) -> dict[int, float]:
    """Mean length of the runs of each vCPU between two readings.

    One that did not run, or whose thread is another one, is left out.
    """
    means_us = {}
    for number, now in after.items():
        then = before.get(number)
        if (then is None or now.runs <= then.runs
                or now.run_ns < then.run_ns):
            continue
        means_us[number] = round(
            (now.run_ns - then.run_ns) / (now.runs - then.runs) / 1000, 1)
    return means_us


def _class_of(pool: model.Pool, slices_us: Mapping[str, int]) -> str:
    """The class whose pool it is, by those in it that need its slice."""
    found = {model.QUANTUM_CLASS[vcpu.kind] for vcpu in pool.vcpus}
    for name in (classes.CACHE, classes.IO, classes.SPIN):
        if name in found and slices_us.get(name) == pool.slice_us:
            return name
    return classes.DEFAULT


def _obtainable_us(slice_us: int | None,
                   cap: units.CpuCap | None) -> int | None:
    return (None if slice_us is None
            else classes.obtainable_run_us(slice_us, cap))
