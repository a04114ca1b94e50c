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

"""Checks of who may read and write our files."""

from collections.abc import Iterator
import os
import stat
import typing as ty

from nova_vqos.hooks import libvirt
from nova_vqos.status import findings
from nova_vqos.status import hook
from nova_vqos.status import worlds

_OTHERS_WRITE = 0o022
_OTHERS_READ = 0o007
_NOT_OWNER = 0o077


class _Rule(ty.NamedTuple):
    """What may be of a file.

    :ivar forbidden: bits of the mode
    :ivar needed: bits of the mode
    :ivar consequence: of a bit that is wrong
    :ivar remedy: arguments of chmod
    """

    path: str
    forbidden: int
    needed: int
    consequence: str
    remedy: str


def look(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether others can read secrets, or change what root goes by."""
    for rule in _rules(world):
        try:
            status = os.stat(world.path(rule.path))
        except FileNotFoundError:
            # Whether it has to be there is for other checks to say.
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & rule.forbidden or ~mode & rule.needed:
            yield findings.failure(
                f'{rule.path} has mode {mode:04o}: {rule.consequence}',
                f'chmod {rule.remedy} {rule.path}')
        if status.st_uid not in (0, os.geteuid()) and (
                rule.forbidden & _OTHERS_WRITE):
            yield findings.warning(
                f'{rule.path} belongs to user {status.st_uid}, who is '
                'neither root nor runs this program',
                f'chown root {rule.path}, unless the services run as that '
                'user')
    yield findings.fact('nobody else reads secrets or writes our files')


def _rules(world: worlds.World) -> Iterator[_Rule]:
    if world.own.get(None, 'transport_url'):
        for path in world.own.files:
            yield _Rule(_inside(world, path), _OTHERS_READ, 0,
                        'anybody can read the password of the message bus',
                        'o=')
    profile, ledger, state = (
        world.compute.get('vqos', 'profile_path'),
        world.own.get('vqos_agent', 'ledger_path'),
        world.compute.get('vqos', 'agent_state_path'))
    for path in (*map(os.path.dirname, (profile, ledger, state)), ledger,
                 state, profile, hook.config_path(world),
                 libvirt.DEFAULT_CONFIG):
        yield _Rule(path, _OTHERS_WRITE, 0,
                    'others than its owner can change what root goes by',
                    'go-w')
    for path in profile, state:
        yield _Rule(path, 0, stat.S_IROTH,
                    'nova-compute, which is not root, cannot read it', 'o+r')
    yield _Rule(ledger, _NOT_OWNER, 0,
                'others can read what servers used and owe', 'go=')


def _inside(world: worlds.World, path: str) -> str:
    """A path as the machine has it, of one below the root."""
    return '/' + os.path.relpath(path, world.root)
