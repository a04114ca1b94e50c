# SPDX-License-Identifier: Apache-2.0
"""What disturbs a calibration, or makes its result doubtful."""

from collections.abc import Iterable, Mapping, Sequence
import itertools
import logging
import math
import os
import statistics

from nova_vqos import cpuset
from nova_vqos.calibration import estimate
from nova_vqos.calibration import guest
from nova_vqos.calibration import host_cpus
from nova_vqos.calibration import run
from nova_vqos.calibration.benchmark import Member
from nova_vqos.calibration.cpu import steps
from nova_vqos.calibration.cpu.record import Rounds
from nova_vqos.profile import cpu

LOG = logging.getLogger(__name__)

_LOAD_CHECK_S = 1
# Clocks are as high as they can be, or set elsewhere.
_STEADY_GOVERNORS = ('performance', 'unknown')
_SPREAD_WARNING = 0.03
# Of the fingerprint: where to look when speeds are odd.
_LOGGED = ('cpu_model', 'governor', 'intel_no_turbo', 'boost', 'smt',
           'preemption', 'irq_time_accounting', 'halt_poll_ns')


def observe_before(setting: steps.Setting, fingerprint: Mapping[str, str],
                   observations: run.Observations) -> host_cpus.Load:
    """Observe how busy the host is, and whether its clocks are steady.

    :param fingerprint: of the host
    :raises CalibrationError: when guests are at work, and may not be disturbed
    """
    load = host_cpus.load(setting.pcpus, _LOAD_CHECK_S, setting.sysroot)
    observations.provenance.update(
        load_average=' '.join(f'{n:.2f}' for n in os.getloadavg()),
        busy_before=f'{load.busy:.3f}',
        guests_before_pcpus=f'{load.guests_pcpus:.3f}')
    if setting.virt_type is not None:
        observations.provenance['virt_type'] = setting.virt_type
    if setting.guest_kernel is not None:
        observations.provenance['guest_kernel'] = guest.kernel_release(
            setting.guest_kernel)
    LOG.info('This host: %s', ', '.join(
        f'{key} {value}' for key, value in itertools.chain(
            ((key, fingerprint[key]) for key in _LOGGED
             if key in fingerprint), observations.provenance.items())))
    if not setting.beside_guests:
        load.refuse_guests(setting.pcpus)
    governor = fingerprint.get('governor', 'unknown')
    if governor not in _STEADY_GOVERNORS:
        observations.warn(
            f'the CPU frequency governor is {governor}: servers that '
            'leave the CPU idle at times run slower than what is measured '
            f'here, prefer {_STEADY_GOVERNORS[0]}')
    if load.busy > run.BUSY_WARNING:
        observations.warn(
            f'the host was {load.busy:.0%} busy before: its own work '
            'makes the scores scatter, and slows them through shared '
            'caches')
    return load


def observe_during(taken: steps.Taken, members: Sequence[Member],
                   classes: steps.Classes, max_interval: float,
                   observations: run.Observations) -> None:
    """Observe what disturbed the measurements.

    :param members: the benchmarks
    :param classes: of equal pCPUs
    :param max_interval: see :class:`nova_vqos.calibration.run.Effort`
    """
    for state in sorted({state for _name, state in taken}):
        rounds = [one for (_name, its), found in taken.items()
                  if its == state for one in found]
        steal = max(one.steal for one in rounds)
        throttled = sum(one.throttled for one in rounds)
        observations.provenance[f'{state}_steal'] = f'{steal:.4f}'
        observations.provenance[f'{state}_throttled'] = str(throttled)
        if throttled > 0:
            observations.warn(
                f'heat slowed the CPUs {throttled} times while they were '
                f'measured {state}: see to the cooling, and measure again')
        observations.warn_of_steal(steal, f' while it was measured {state}')
    for member in members:
        if member.weight:
            (busy,) = taken[member.name, steps.BUSY]
            _warn_of_spread(member, busy, classes, max_interval, observations)


def describe_interval(pcpus: Iterable[int], width: float, limit: float,
                      estimates: Mapping[str, estimate.Estimate],
                      reference: cpu.Reference, *,
                      with_reference: bool) -> str:
    """Of pCPUs that are not known well enough: what was seen, what to do.

    :param width: of the interval of their coefficient, above ``limit``
    :param estimates: by name of each benchmark that counts
    :param with_reference: whether its uncertainty is part of the interval
    """
    seen = (f'the interval of pCPU {cpuset.format_pcpus(pcpus)} is '
            f'{width:.1%} wide, more than {limit:.1%}')
    if with_reference and reference.half_width > width / 2 * math.sqrt(0.5):
        return (f'{seen}. Most of it is the uncertainty of the reference, '
                f'{reference.name}: measure that one better')
    name, widest = max(estimates.items(), key=lambda one: (
        reference.benchmark(one[0]).weight * one[1].width))
    return (f'{seen}. Most of it is by {name}: {widest.cause}. Measure again '
            'on a quieter host, or with more --rounds and --max-seconds')


def _warn_of_spread(member: Member, rounds: Rounds, classes: steps.Classes,
                    max_interval: float,
                    observations: run.Observations) -> None:
    for name in classes:
        # Of thousands of pCPUs not each one has its own.
        medians = [statistics.median(scores) for pcpu in name
                   if (scores := rounds.samples[pcpu])]
        spread = (max(medians) - min(medians)) / min(medians)
        if spread > max(max_interval, _SPREAD_WARNING):
            observations.warn(
                f'pCPUs {cpuset.format_pcpus(name)} look equal but '
                f'their scores by {member.name} differ by {spread:.0%}: '
                'their mean is promised for all')
