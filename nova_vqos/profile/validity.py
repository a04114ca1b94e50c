# SPDX-License-Identifier: Apache-2.0
"""The validity of a profile on its host.

By the host's fingerprint, and by the last verification, which
``nova-vqos-calibrate verify --record`` writes and the compute driver reads. A
host with a stale profile takes no new servers with units.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import json

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import utc
from nova_vqos.profile import model

SCHEMA = 1
STALE = 'stale'
UNKNOWN = 'unknown'

_MOST_CLASSES = 64


def store(path: str, profile_id: str, verdict: str,
          findings: Sequence[Mapping[str, object]]) -> None:
    """Write the result of a verification.

    An unknown verdict does not replace a stale one of the same profile.

    :param verdict: of the whole profile
    :param findings: by class of equal pCPUs: pcpus and drift, as texts
    :raises OSError: when it cannot be written
    """
    if verdict == UNKNOWN and why_stale(path, profile_id):
        return
    files.write(json.dumps({
        'schema': SCHEMA, 'profile_id': profile_id, 'verdict': verdict,
        'verified_at': utc.text(),
        'findings': list(findings)}, indent=2) + '\n', path)


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """The result of the last verification of a profile.

    :ivar verdict: of the whole profile
    :ivar verified_at: ISO 8601, UTC
    :ivar drifts: of the coefficient, relative to the profile's, by the pCPUs
        of each class of equal pCPUs, in libvirt's notation
    """

    verdict: str
    verified_at: str
    drifts: Mapping[str, float]


def load(path: str, profile_id: str) -> Verification | None:
    """The result of the last verification of a profile.

    :returns: None where there is none, and where it cannot be read
    """
    try:
        fields = files.Fields(json.loads(files.read(path)), '')
        if (fields.number('schema', 0, 1e9) != SCHEMA
                or fields.text('profile_id') != profile_id):
            return None
        return Verification(
            fields.text('verdict'), fields.text('verified_at'),
            {one.text('pcpus'): float(one.text('drift').rstrip('%')) / 100
             for one in fields.children('findings', _MOST_CLASSES)})
    except (files.FileError, ValueError, OverflowError, RecursionError):
        return None


def why_stale(path: str, profile_id: str) -> str:
    """The reason why a profile is stale by its last verification.

    :returns: '' where it is not stale, and where there was no verification
    """
    found = load(path, profile_id)
    if found is None or found.verdict != STALE:
        return ''
    drifts = ', '.join(f'pCPUs {pcpus} have drifted by {drift:+.1%}'
                       for pcpus, drift in found.drifts.items())
    return (f'verified at {found.verified_at}, {drifts}: '
            'calibrate this host again')


def staleness(profile: model.Profile, fingerprint: Mapping[str, str], *,
              max_interval: float = 0.05) -> list[str]:
    """The reasons why a profile is stale on a host; empty where it is valid.

    :param fingerprint: of the host now
    :param max_interval: widest confidence interval of a coefficient,
        relative to it
    """
    reasons = [
        f'{key} was {was!r} and is {fingerprint.get(key, "unknown")!r}'
        for key, was in sorted(profile.fingerprint.items())
        if fingerprint.get(key, 'unknown') != was]
    reasons += [
        f'the interval of pCPUs {cpuset.format_pcpus(c.pcpus)} is '
        f'{c.busy.interval_width:.1%} wide, more than {max_interval:.1%}'
        for c in profile.cpu_classes
        if c.busy.interval_width > max_interval]
    return reasons
