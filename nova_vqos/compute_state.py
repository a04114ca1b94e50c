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

"""What a host's compute service last told the scheduler, for its agent.

Nova's API does not show the stats of a compute node. So the driver leaves
them in a file as well, and the agent hands them to whoever asks about the
host: what operators are told is then what the scheduler goes by. Imports
neither Nova nor libvirt.
"""

from collections.abc import Mapping
import json
import logging
import os
import tempfile
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos.agent import state

LOG = logging.getLogger(__name__)

DEFAULT_PATH = '/var/lib/nova/vqos.json'

_VERSION = 1
_MAX_BYTES = 64 * 1024
_MOST_STATS = 64
_LONGEST = 255


class ComputeState(ty.NamedTuple):
    """What a compute service said.

    :ivar at: when, ISO 8601, UTC
    :ivar stats: of its compute node, those that are ours
    :ivar terms: what caps on the host depend on besides its pCPUs: see
        :func:`terms_of`; empty: without a profile there are none
    """

    at: str
    stats: Mapping[str, str]
    terms: Mapping[str, int]


class Keeper:
    """Leaves what the driver says; a failure is logged once."""

    def __init__(self, path: str) -> None:
        """Prepare; nothing is written yet."""
        self._path = path
        self._failed = False

    def keep(self, stats: Mapping[str, str],
             terms: Mapping[str, int]) -> None:
        """Never raises: servers need none of it.

        :param stats: of the compute node, those that are ours
        :param terms: see :func:`terms_of`
        """
        try:
            _replace(self._path, {
                'version': _VERSION, 'at': state.utc(),
                'stats': dict(stats), 'terms': dict(terms)})
        except Exception as error:
            if not self._failed:
                LOG.warning(
                    'nova-vqos-manage cannot tell which servers this host '
                    'can take ([vqos] compute_state_path): %s', error)
            self._failed = True
        else:
            self._failed = False


def terms_of(profile: profiles.Profile | None,
             periods: tuning.Periods) -> dict[str, int]:
    """What a server's cap depends on besides the speed of its pCPUs.

    :returns: tick_us, and the fields of the periods; nothing without a
        profile
    """
    return {} if profile is None else {'tick_us': profile.tick_us,
                                       **periods._asdict()}


def load(path: str) -> ComputeState | None:
    """What the driver last said; None: nothing that can be read.

    :raises ValueError: when there is something else, with the reason
    """
    try:
        with open(path, 'rb') as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ValueError(str(error)) from error
    if len(content) > _MAX_BYTES:
        raise ValueError(f'{path} is longer than {_MAX_BYTES} bytes')
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f'{path} is no JSON') from None
    if not isinstance(document, dict) or document.get('version') != _VERSION:
        raise ValueError(f'{path} is of another version')
    return ComputeState(
        at=_checked_text(document.get('at')),
        stats=_checked(document.get('stats'), _checked_text),
        terms=_checked(document.get('terms'), _checked_number))


def told(path: str) -> dict[str, ty.Any]:
    """What the driver last said, in primitives. Never raises.

    :returns: stats (of the compute node, those that are ours; None: not
        known), stats_at (when, ISO 8601, UTC), terms (see :func:`terms_of`),
        stats_problem (why they are not known)
    """
    found, problem = None, ''
    try:
        found = load(path)
    except ValueError as error:
        problem = str(error)
    if found is None:
        return {'stats': None, 'stats_at': '', 'terms': {}, 'stats_problem':
                problem or f'the compute service has left no {path}'}
    return {'stats': dict(found.stats), 'stats_at': found.at,
            'terms': dict(found.terms), 'stats_problem': ''}


_Value = ty.TypeVar('_Value')


def _checked(given: object, check: ty.Callable[[object], _Value]
             ) -> dict[str, _Value]:
    if not isinstance(given, dict) or len(given) > _MOST_STATS:
        raise ValueError('stats and terms must be mappings of a few keys')
    return {_checked_text(key): check(value) for key, value in given.items()}


def _checked_text(value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST:
        raise ValueError(f'a text is none, or longer than {_LONGEST}')
    return value


def _checked_number(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError('a number is none')
    return value


def _replace(path: str, document: Mapping[str, ty.Any]) -> None:
    handle, temporary = tempfile.mkstemp(dir=os.path.dirname(path),
                                         prefix='.vqos-')
    try:
        with os.fdopen(handle, 'w', encoding='utf-8') as file:
            json.dump(document, file)
            # The agent is root without root's right to read all.
            os.fchmod(file.fileno(), 0o644)
        # NOTE: no fsync: it is made anew each minute.
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
