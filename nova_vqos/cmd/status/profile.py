# SPDX-License-Identifier: Apache-2.0
"""Checks of the measurements of a host: its profile and its kernel."""

from collections.abc import Iterator
import datetime

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines
from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.profile import kernel
from nova_vqos.profile import model
from nova_vqos.profile import validity
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

_CALIBRATE = ('run nova-vqos-calibrate cpu, with --against and the profile '
              'of the reference host if that is another host')
_PROBE = 'nova-vqos-probe --record'
# There once the kernel has loaded vhost.
_VHOST = '/sys/class/misc/vhost-net'


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the profile of this host is valid."""
    path = machine.compute.get('vqos', 'profile_path')
    try:
        profile = document.load(machine.path(path))
    except files.FileMissing:
        yield findings.failure(
            f'{path} does not exist: this host sells no CPU units',
            _CALIBRATE)
        return
    except files.FileUnsafe as error:
        yield findings.failure(
            str(error), 'check the file for changes by others, and correct '
            'its permissions')
        return
    except files.FileInvalid as error:
        yield findings.failure(f'the profile is invalid: {error}', _CALIBRATE)
        return
    yield from _check_staleness(machine, profile)
    yield from _check_pcpus(machine, profile)
    yield findings.fact(_describe(profile, machine.now))


def _check_staleness(machine: machines.Machine, profile: model.Profile
                     ) -> Iterator[findings.Finding]:
    reasons = validity.staleness(
        profile, fingerprint.of_host(profile.fingerprint.get('emulator'),
                                     machine.root),
        max_interval=machine.compute.get('vqos', 'profile_max_interval'))
    drift = validity.why_stale(
        machine.path(machine.compute.get('vqos', 'verification_path')),
        profile.id)
    for reason in filter(None, (*reasons, drift)):
        yield findings.failure(
            'the profile is stale, and this host accepts no new servers with '
            f'units: {reason}', f'undo that change, or {_CALIBRATE}')


def _check_pcpus(machine: machines.Machine, profile: model.Profile
                 ) -> Iterator[findings.Finding]:
    shared = machine.compute.get('compute', 'cpu_shared_set')
    if not shared:
        return
    try:
        # NOTE: Nova also accepts ^N, our parser does not.
        lacking = cpuset.parse_pcpus(shared) - profile.pcpus
    except ValueError:
        yield findings.warning(
            f'[compute] cpu_shared_set of {machine.compute} is {shared!r}: '
            'the check cannot compare it with the pCPUs of the profile',
            'write it as a list of ranges, such as 2-7')
        return
    if lacking:
        yield findings.failure(
            f'the profile lacks pCPUs '
            f'{cpuset.format_pcpus(frozenset(lacking))} of [compute] '
            'cpu_shared_set: this host accepts no new servers with units',
            f'{_CALIBRATE}, and with --pcpus {shared}')


def _describe(profile: model.Profile, now: datetime.datetime) -> str:
    width = max(one.busy.interval_width for one in profile.cpu_classes)
    try:
        age = now - datetime.datetime.fromisoformat(profile.created_at)
        days = f'{age.days} d old'
    except (TypeError, ValueError):
        days = f'made at {profile.created_at}'
    return (f'profile {profile.id} against reference '
            f'{profile.reference.name} is valid: {days}, of pCPUs '
            f'{cpuset.format_pcpus(profile.pcpus)}, interval {width:.1%}, '
            f'costs of I/O {"measured" if profile.io else "not measured"}')


def check_classes(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Which quantum classes the kernel has enforced on this boot."""
    path = machine.own.get('vqos_agent', 'quantum_proof_path')
    proof = probe_result.load(machine.path(path), machine.root)
    if proof is None:
        yield findings.warning(
            f'{path} has no result of this boot: this host offers no quantum '
            'class with a slice of its own',
            f'restart nova-vqos-agent, whose unit runs nova-vqos-probe, or '
            f'run {_PROBE} {path}')
        return
    slices_us = classes.slices_us(machine.own.get('vqos', 'quantum_slices'))
    offered = probe_result.enforced_classes(
        proof, slices_us,
        has_pools=machine.own.get('vqos_agent', 'pool_interval_s') > 0)
    for name in classes.SLICED:
        if name not in offered:
            yield _why_not(name, slices_us.get(name),
                           proof.outcomes.get(name), path)
    yield findings.fact(f'this host offers {", ".join(offered)}')


def check_scheduling(machine: machines.Machine
                     ) -> Iterator[findings.Finding]:
    """How the kernel schedules, and whether it did so when probed."""
    now = kernel.scheduling(machine.root, machine.kernel)
    path = machine.own.get('vqos_agent', 'quantum_proof_path')
    proof = probe_result.load(machine.path(path), machine.root)
    if proof is not None and proof.preemption:
        then = kernel.Scheduling(proof.preemption, proof.hrtick)
        if probe_result.is_changed(then, now):
            yield findings.warning(
                'the kernel was set to schedule otherwise since the slices of '
                f'quantum classes were tried: then {then}; now {now}',
                'restart nova-vqos-agent, which tries them again')
    booted = kernel.preemption_at_boot(kernel.build_options(
        machine.root, machine.kernel), machine.root, machine.kernel)
    yield findings.fact(
        f'the kernel booted with preemption {booted}; now {now}')


def check_vhost(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether CPU limits hold workers of vhost, as measured on this boot."""
    path = machine.own.get('vqos_agent', 'quantum_proof_path')
    proof = probe_result.load(machine.path(path), machine.root)
    found = None if proof is None else proof.vhost
    if found is None or found.limited is None:
        problem = ('it is not known whether CPU limits hold workers of vhost: '
                   + ('not measured' if found is None else found.reason))
        if machine.glob(_VHOST):
            yield findings.warning(
                f'{problem}. If they do not, vhost takes the CPU time of '
                'servers that pay for their I/O',
                'restart nova-vqos-agent when a pCPU of this host is idle')
        else:
            yield findings.fact(problem)
    elif found.limited:
        yield findings.fact('CPU limits hold workers of vhost')
    else:
        yield findings.fact(
            f'CPU limits do not hold workers of vhost: {found.reason}. Of '
            'servers that pay for their I/O, the vCPUs alone are limited')


def _why_not(name: str, slice_us: int | None,
             outcome: probe_result.Outcome | None,
             path: str) -> findings.Finding:
    """
    :param slice_us: None: the probe chooses one
    """
    if outcome is None or slice_us not in (None, outcome.slice_us):
        reason = ('no slice for it was tried' if slice_us is None
                  else f'its slice of {slice_us} us was not tried')
        remedy = f'restart nova-vqos-agent, or run {_PROBE} {path}'
    else:
        reason = outcome.reason
        remedy = (
            'restart nova-vqos-agent when this host is less busy, or run '
            f'{_PROBE} {path} then' if outcome.enforced is None else
            'a slice of its own needs Linux 6.12; '
            + ('set another one in [vqos] quantum_slices'
               if name in classes.POOLED or slice_us is None else
               f'leave {name} out of [vqos] quantum_slices, so that '
               'nova-vqos-probe chooses one')
            + f', or do without {name}')
    return findings.warning(f'this host does not offer class {name}: {reason}',
                            remedy)
