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

"""Checks of libvirt's hook."""

from collections.abc import Iterator
import os

from nova_vqos.hooks import install
from nova_vqos.hooks import libvirt
from nova_vqos.status import findings
from nova_vqos.status import worlds

PATH = f'{install.DEFAULT_HOOKS_DIR}/{install.NAME}'
_INSTALL = 'run nova-vqos-libvirt-hook --install'
_DAEMONS = ('virtqemud', 'libvirtd')
_WRITABLE_BY_OTHERS = 0o022
# Field 22 of /proc/PID/stat, of those behind the name in parentheses.
_START_TIME = 19
# The kernel tells when it booted in whole seconds.
_CLOCK_S = 2.0


def config_path(world: worlds.World) -> str:
    """The configuration by which the hook goes, or would go."""
    return (install.config_of(world.read(PATH) or '')
            or libvirt.DEFAULT_CONFIG)


def look(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether libvirt runs our hook, and the one of this version."""
    content = world.read(PATH)
    if content is None:
        yield findings.failure(
            f'{PATH} is not there: guests come in with the cap of the host '
            'that they left', f'{_INSTALL}, and restart libvirt')
        return
    config = install.config_of(content)
    if config is None:
        yield findings.failure(
            f'{PATH} is not ours', f'move it away, and {_INSTALL}')
        return
    status = os.stat(world.path(PATH))
    if not status.st_mode & 0o100:
        yield findings.failure(
            f'{PATH} is not executable: libvirt leaves it out',
            f'{_INSTALL}')
    if status.st_uid not in (0, os.geteuid()):
        yield findings.failure(
            f'{PATH} belongs to user {status.st_uid}: libvirt runs it as '
            'root', f'chown root {PATH}')
    if status.st_mode & _WRITABLE_BY_OTHERS:
        yield findings.failure(
            f'{PATH} has mode {status.st_mode & 0o777:04o}: others can have '
            'libvirt run anything as root', f'chmod 755 {PATH}')
    if content != install.script(config):
        yield findings.warning(
            f'{PATH} is of another version, or of another environment than '
            'this program', f'{_INSTALL}: libvirt need not be restarted')
    yield from _look_at_daemon(world, status.st_mtime)
    yield findings.fact(f'{PATH} is ours, and goes by {config}')


def _look_at_daemon(world: worlds.World, installed_at_s: float
                    ) -> Iterator[findings.Finding]:
    """libvirt looks for hooks when it starts."""
    for process in world.find_processes(*_DAEMONS):
        started_at_s = _started_at_s(world, process.pid)
        if started_at_s is not None and (
                started_at_s + _CLOCK_S < installed_at_s):
            name = next(iter(set(process.names) & set(_DAEMONS)))
            yield findings.warning(
                f'the daemon {name} runs since before {PATH} was installed or '
                'renewed, and looks for hooks when it starts',
                f'restart {name}, unless there was a hook already: guests '
                'are not touched')


def _started_at_s(world: worlds.World, pid: int) -> float | None:
    """When a process started, in seconds since 1970; None: it has ended."""
    status = world.read(f'/proc/{pid}/stat')
    booted = world.read('/proc/stat') or ''
    try:
        fields = (status or '').rpartition(')')[2].split()
        (boot_s,) = (float(line.split()[1]) for line in booted.splitlines()
                     if line.startswith('btime '))
        return boot_s + int(fields[_START_TIME]) / os.sysconf('SC_CLK_TCK')
    except (IndexError, ValueError):
        return None
