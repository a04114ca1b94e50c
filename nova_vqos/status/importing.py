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

"""Checks of what of ours Nova can import."""

from collections.abc import Callable, Iterator, Mapping
import json
import subprocess
import sys

from nova_vqos.status import findings
from nova_vqos.status import worlds

#: Those that are tested.
RELEASES = (33, 34)
_TIMEOUT_S = 60
_PROGRAM = 'nova_vqos.status.nova_side'


def ask() -> Mapping[str, str]:
    """What :mod:`nova_vqos.status.nova_side` prints.

    :raises Unanswered: when there is no Nova, or one that does not answer
    """
    try:
        done = subprocess.run(
            [sys.executable, '-W', 'ignore', '-m', _PROGRAM],
            capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise worlds.Unanswered(str(error)) from error
    if done.returncode:
        raise worlds.Unanswered(
            done.stderr.strip().rpartition('\n')[2] or
            f'{_PROGRAM} ended with status {done.returncode}')
    try:
        found = json.loads(done.stdout)
    except ValueError as error:
        raise worlds.Unanswered(
            f'{_PROGRAM} printed {done.stdout[:80]!r}') from error
    return {str(name): str(text) for name, text in found.items()}


def look_at_version(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether there is a Nova in this environment that we support."""
    try:
        version = world.ask_nova()['version']
    except worlds.Unanswered as error:
        yield findings.failure(
            f'Nova cannot be asked: {error}', 'install nova_vqos into the '
            'environment that Nova runs in, and run nova-vqos-status of that '
            'one')
        return
    release = version.partition('.')[0]
    if release not in map(str, RELEASES):
        yield findings.warning(
            f'this is Nova {version}, which nova_vqos was not tested with',
            'see what is wrong with it before you rely on it: it was with '
            + ' and '.join(map(str, RELEASES)))
    yield findings.fact(f'this is Nova {version}')


def _look_at(part: str, consequence: str, remedy: str
             ) -> Callable[[worlds.World], Iterator[findings.Finding]]:
    def look(world: worlds.World) -> Iterator[findings.Finding]:
        try:
            problem = world.ask_nova()[part]
        except worlds.Unanswered:
            problem = 'Nova cannot be asked'
        if problem:
            yield findings.failure(f'{consequence}: {problem}', remedy)
        yield findings.fact('Nova imports it')
    return look


look_at_driver = _look_at(
    'driver', 'Nova does not import the compute driver',
    'install nova_vqos into the environment of Nova; after an editable '
    'install, link nova/virt/vqos into the directory nova/virt of Nova')
look_at_scheduler = _look_at(
    'scheduler', 'Nova does not import filter and weighers',
    'install nova_vqos into the environment of nova-scheduler')
look_at_validators = _look_at(
    'validators', "Nova's API does not check extra specs of ours, and takes "
    'flavors that no host can serve',
    'install nova_vqos into the environment of nova-api, not as a copy but '
    'with pip, and restart nova-api')
