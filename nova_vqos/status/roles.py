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

"""What a machine is in its cloud."""

from collections.abc import Iterator
import os

from nova_vqos.hooks import install
from nova_vqos.status import findings
from nova_vqos.status import settings
from nova_vqos.status import worlds

# Whoever sees one of them run need not look at files.
_PROGRAMS = {
    worlds.COMPUTE: ('nova-compute', 'nova-vqos-agent'),
    worlds.CONTROLLER: ('nova-scheduler', 'nova-api', 'nova-api-wsgi'),
}
# What is set on machines of a role alone.
_OPTIONS = {
    worlds.COMPUTE: ((None, 'compute_driver'),),
    worlds.CONTROLLER: (('filter_scheduler', 'enabled_filters'),
                        ('filter_scheduler', 'available_filters'),
                        ('api_database', 'connection')),
}
_FILES = {
    worlds.COMPUTE: (
        worlds.OWN_CONFIG, '/etc/nova-vqos/profile.yaml',
        f'{install.DEFAULT_HOOKS_DIR}/{install.NAME}'),
    worlds.CONTROLLER: (),
}


def roles(world: worlds.World) -> dict[str, str]:
    """What the machine is, and by what it is known."""
    if world.asked_roles:
        return dict.fromkeys(world.asked_roles, 'as --role says')
    found = {role: next(_signs(world, role), '') for role in worlds.ROLES}
    return {role: sign for role, sign in found.items() if sign}


def look(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether it can be told what the machine is."""
    found = roles(world)
    if found:
        yield findings.fact('This machine is a ' + ' and a '.join(
            f'{worlds.NAMES[role]} ({sign})' for role, sign in found.items()))
        return
    yield findings.failure(
        'it cannot be told whether this machine is a compute host or a '
        f'controller: no program of Nova runs, and {world.compute} says '
        'nothing of it',
        'say so with --role, and where its configuration is with '
        '--nova-config')


def _signs(world: worlds.World, role: str) -> Iterator[str]:
    for process in world.find_processes(*_PROGRAMS[role]):
        name = next(name for name in process.names if name in _PROGRAMS[role])
        yield f'{name} runs'
    read = world.compute if role == worlds.COMPUTE else world.controller
    for group, name in _OPTIONS[role]:
        try:
            if read.is_given(group, name):
                yield f'{read} has {settings.label(group, name)}'
        except settings.Unreadable:
            # The check of the files says it.
            break
    for path in _FILES[role]:
        if os.path.lexists(world.path(path)):
            yield f'{path} is there'
