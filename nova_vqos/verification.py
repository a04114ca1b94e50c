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

"""What the last verification of a profile found.

Written by ``nova-vqos-calibrate verify --record``, read by the compute
driver: a host that was measured to be another one than its profile says takes
no new servers with units.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import datetime
import json

from nova_vqos import profile as profiles

SCHEMA = 1
DEFAULT_PATH = '/var/lib/nova-vqos/verification.json'
STALE = 'stale'
UNKNOWN = 'unknown'

_MOST_CLASSES = 64


def store(path: str, profile_id: str, verdict: str,
          findings: Sequence[Mapping[str, object]]) -> None:
    """Write what was found, unless that is nothing.

    That it could not be told whether a profile holds is no reason to trust one
    that did not.

    :param verdict: of the profile as a whole
    :param findings: of each class of equal pCPUs: pcpus and drift, as texts
    :raises OSError: when it cannot be written
    """
    if verdict == UNKNOWN and why_stale(path, profile_id):
        return
    profiles.write(json.dumps({
        'schema': SCHEMA, 'profile_id': profile_id, 'verdict': verdict,
        'verified_at': datetime.datetime.now(datetime.UTC).isoformat(
            timespec='seconds'),
        'findings': list(findings)}, indent=2) + '\n', path)


@dataclasses.dataclass(frozen=True, slots=True)
class Verification:
    """What the last verification of a profile found.

    :ivar verdict: of the profile as a whole
    :ivar verified_at: ISO 8601, UTC
    :ivar drifts: of the coefficient, relative to the profile's, by the pCPUs
        of each class of equal ones, written as libvirt writes them
    """

    verdict: str
    verified_at: str
    drifts: Mapping[str, float]


def load(path: str, profile_id: str) -> Verification | None:
    """What was found of a profile.

    :returns: None where nothing was measured since it was made, and where
        what was found cannot be read
    """
    try:
        fields = profiles.Fields(json.loads(profiles.read(path)), '')
        if (fields.number('schema', 0, 1e9) != SCHEMA
                or fields.text('profile_id') != profile_id):
            return None
        return Verification(
            fields.text('verdict'), fields.text('verified_at'),
            {one.text('pcpus'): float(one.text('drift').rstrip('%')) / 100
             for one in fields.children('findings', _MOST_CLASSES)})
    except (profiles.ProfileError, ValueError, OverflowError, RecursionError):
        return None


def why_stale(path: str, profile_id: str) -> str:
    """Why a profile does not hold, as far as was measured.

    :returns: '' where it holds, and where nothing is known of it: the profile
        itself is valid
    """
    found = load(path, profile_id)
    if found is None or found.verdict != STALE:
        return ''
    drifts = ', '.join(f'pCPUs {pcpus} have drifted by {drift:+.1%}'
                       for pcpus, drift in found.drifts.items())
    return (f'measured again at {found.verified_at}, {drifts}: '
            'calibrate this host again')
