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

"""Checks of what was measured on a host: its profile, and its kernel."""

from collections.abc import Iterator
import datetime

from nova_vqos import fingerprint as fingerprints
from nova_vqos import profile as profiles
from nova_vqos import verification
from nova_vqos.quantum import classes
from nova_vqos.quantum import proof as proofs
from nova_vqos.status import findings
from nova_vqos.status import worlds

_CALIBRATE = ('run nova-vqos-calibrate cpu, with --against of the profile of '
              'the reference host where that is another one')
_PROBE = 'nova-vqos-probe --record'


def look_at_profile(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether this host's profile holds."""
    path = world.compute.get('vqos', 'profile_path')
    try:
        profile = profiles.load(world.path(path))
    except profiles.ProfileMissing:
        yield findings.failure(
            f'{path} is not there: this host sells no CPU units', _CALIBRATE)
        return
    except profiles.ProfileUnsafe as error:
        yield findings.failure(
            str(error), 'see that it was not tampered with, and put that '
            'right')
        return
    except profiles.ProfileInvalid as error:
        yield findings.failure(f'the profile cannot be used: {error}',
                               _CALIBRATE)
        return
    yield from _look_at_content(world, profile)
    yield findings.fact(_describe(profile, world.now))


def _look_at_content(world: worlds.World, profile: profiles.Profile
                     ) -> Iterator[findings.Finding]:
    reasons = profiles.staleness(
        profile, fingerprints.of_host(profile.fingerprint.get('emulator'),
                                      world.root),
        max_interval=world.compute.get('vqos', 'profile_max_interval'))
    drifted = verification.why_stale(
        world.path(world.compute.get('vqos', 'verification_path')),
        profile.id)
    for reason in filter(None, (*reasons, drifted)):
        yield findings.failure(
            f'the profile is stale, and this host takes no new servers with '
            f'units: {reason}', f'put that back, or {_CALIBRATE}')
    yield from _look_at_pcpus(world, profile)


def _look_at_pcpus(world: worlds.World, profile: profiles.Profile
                   ) -> Iterator[findings.Finding]:
    shared = world.compute.get('compute', 'cpu_shared_set')
    if not shared:
        return
    try:
        # NOTE: Nova also takes ^N, which ours does not.
        lacking = profiles.parse_pcpus(shared) - profile.pcpus
    except ValueError:
        yield findings.warning(
            f'[compute] cpu_shared_set of {world.compute} is {shared!r}: '
            'it cannot be told whether the profile has these pCPUs',
            'write it as a list of ranges, such as 2-7')
        return
    if lacking:
        yield findings.failure(
            f'pCPUs {profiles.format_pcpus(frozenset(lacking))} of [compute] '
            'cpu_shared_set are not in the profile: this host takes no new '
            'servers with units', f'{_CALIBRATE}, and with --pcpus {shared}')


def _describe(profile: profiles.Profile, now: datetime.datetime) -> str:
    width = max(one.busy.interval_width for one in profile.cpu_classes)
    try:
        age = now - datetime.datetime.fromisoformat(profile.created_at)
        days = f'{age.days} d old'
    except (TypeError, ValueError):
        days = f'made at {profile.created_at}'
    return (f'profile {profile.id} against reference '
            f'{profile.reference.name} holds: {days}, of pCPUs '
            f'{profiles.format_pcpus(profile.pcpus)}, interval {width:.1%}, '
            f'costs of I/O {"measured" if profile.io else "not measured"}')


def look_at_classes(world: worlds.World) -> Iterator[findings.Finding]:
    """Which quantum classes this kernel was seen to enforce on this boot."""
    path = world.own.get('vqos_agent', 'quantum_proof_path')
    proof = proofs.load(world.path(path), world.root)
    if proof is None:
        yield findings.warning(
            f'{path} has nothing of this boot: no quantum class with a slice '
            'of its own is offered',
            f'restart nova-vqos-agent, whose unit runs nova-vqos-probe, or '
            f'run {_PROBE} {path}')
        return
    slices_us = classes.slices_us(world.own.get('vqos', 'quantum_slices'))
    offered = proofs.enforced_classes(proof, slices_us)
    for name, slice_us in slices_us.items():
        if name not in offered:
            yield from _why_not(name, slice_us, proof.outcomes.get(name),
                                path)
    yield findings.fact(f'offered are {", ".join(offered)}')


def _why_not(name: str, slice_us: int, outcome: proofs.Outcome | None,
             path: str) -> Iterator[findings.Finding]:
    lost = f'class {name} is not offered'
    if outcome is None or outcome.slice_us != slice_us:
        yield findings.warning(
            f'{lost}: its slice of {slice_us} us was not tried',
            f'restart nova-vqos-agent, or run {_PROBE} {path}')
    elif outcome.enforced is None:
        yield findings.warning(
            f'{lost}: {outcome.reason}',
            f'restart nova-vqos-agent at a quieter time, or run {_PROBE} '
            f'{path} then')
    else:
        yield findings.warning(
            f'{lost}: {outcome.reason}',
            f'a slice of its own needs Linux 6.12 and, below a tick, a kernel '
            f'of 1000 Hz; give it another with [vqos] quantum_slices, or do '
            f'without {name}')
