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


"""What disturbs a calibration, or makes its result doubtful."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import logging
import os
import statistics

from nova_vqos import guest
from nova_vqos import profile
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.conditions import Setting
from nova_vqos.calibration.notes import Notes
from nova_vqos.calibration.record import Rounds
from nova_vqos.calibration.steps import BUSY
from nova_vqos.calibration.steps import Classes
from nova_vqos.calibration.steps import Taken

LOG = logging.getLogger(__name__)

#: A host that is busier than that, or loses more to a hypervisor below it,
#: gets a word of warning.
BUSY_WARNING = 0.05
STEAL_WARNING = 0.01

_LOAD_CHECK_S = 1
# Clocks are as high as they can be, or nobody here sets them.
_STEADY_GOVERNORS = ('performance', 'unknown')
_SPREAD_WARNING = 0.03
# Of the fingerprint, what people look at when speeds are odd.
_TOLD = ('cpu_model', 'governor', 'intel_no_turbo', 'boost', 'smt',
         'irq_time_accounting', 'halt_poll_ns')


def look_before(setting: Setting, fingerprint: Mapping[str, str],
                notes: Notes) -> host_cpus.Load:
    """See how quiet the host is, and note how it is.

    :param fingerprint: of the host
    """
    load = host_cpus.load(setting.pcpus, _LOAD_CHECK_S, setting.sysroot)
    notes.provenance.update(
        load_average=' '.join(f'{n:.2f}' for n in os.getloadavg()),
        busy_before=f'{load.busy:.3f}',
        guests_before_pcpus=f'{load.guests_pcpus:.3f}')
    if setting.virt_type is not None:
        notes.provenance['virt_type'] = setting.virt_type
    if setting.guest_kernel is not None:
        notes.provenance['guest_kernel'] = guest.kernel_release(
            setting.guest_kernel)
    LOG.info('This host: %s', ', '.join(
        f'{key} {value}' for key, value in itertools.chain(
            ((key, fingerprint[key]) for key in _TOLD
             if key in fingerprint), notes.provenance.items())))
    return load


def warn_before(load: host_cpus.Load, fingerprint: Mapping[str, str],
                notes: Notes) -> None:
    """Tell what is to be feared of a host that is measured all the same.

    :param fingerprint: of the host
    """
    governor = fingerprint.get('governor', 'unknown')
    if governor not in _STEADY_GOVERNORS:
        notes.warn(
            f'the CPU frequency governor is {governor}: servers that '
            'leave the CPU idle at times run slower than what is measured '
            f'here, prefer {_STEADY_GOVERNORS[0]}')
    if load.busy > BUSY_WARNING:
        notes.warn(
            f'the host was {load.busy:.0%} busy before: its own work '
            'makes the scores scatter, and slows them through shared '
            'caches')


def note_during(taken: Taken, members: Sequence[Member], classes: Classes,
                max_interval: float, notes: Notes) -> None:
    """Tell what disturbed the measurements.

    :param members: the benchmarks
    :param classes: of equal pCPUs
    :param max_interval: see :class:`nova_vqos.calibration.conditions.Effort`
    """
    for state in sorted({state for _name, state in taken}):
        rounds = [one for (_name, its), found in taken.items()
                  if its == state for one in found]
        steal = max(one.steal for one in rounds)
        throttled = sum(one.throttled for one in rounds)
        notes.provenance[f'{state}_steal'] = f'{steal:.4f}'
        notes.provenance[f'{state}_throttled'] = str(throttled)
        if throttled > 0:
            notes.warn(
                f'heat slowed the CPUs {throttled} times while they were '
                f'measured {state}: see to the cooling, and measure again')
        if steal > STEAL_WARNING:
            notes.warn(
                f'{steal:.1%} of the time was stolen by a hypervisor '
                f'below this host while it was measured {state}')
    for member in members:
        if member.weight:
            (busy,) = taken[member.name, BUSY]
            _warn_of_spread(member, busy, classes, max_interval, notes)


def warn_of_intervals(cpu_classes: Iterable[profile.CpuClass],
                      max_interval: float, notes: Notes) -> None:
    """Tell which classes of pCPUs are not known well enough."""
    for cpu_class in cpu_classes:
        width = cpu_class.busy.interval_width
        if width > max_interval:
            notes.warn(
                f'the interval of pCPU {profile.format_pcpus(cpu_class.pcpus)}'
                f' is {width:.1%} wide, more than '
                f'{max_interval:.1%}: measure again on a quieter '
                'host, or with more --rounds and --max-seconds')


def _warn_of_spread(member: Member, rounds: Rounds, classes: Classes,
                    max_interval: float, notes: Notes) -> None:
    for name in classes:
        # Of thousands of pCPUs not each one has its own.
        medians = [statistics.median(scores) for pcpu in name
                   if (scores := rounds.samples[pcpu])]
        spread = (max(medians) - min(medians)) / min(medians)
        if spread > max(max_interval, _SPREAD_WARNING):
            notes.warn(
                f'pCPUs {profile.format_pcpus(name)} look equal but '
                f'their scores by {member.name} differ by {spread:.0%}: '
                'their mean is promised for all')
