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

"""Checks of what nova_vqos runs on: libvirt, Linux, Python."""

from collections.abc import Iterator
import re
import subprocess
import sys

from nova_vqos.status import findings
from nova_vqos.status import worlds

LEAST_LIBVIRT = (8, 0)
LEAST_KERNEL = (5, 15)
LEAST_PYTHON = (3, 11)
_DAEMONS = ('virtqemud', 'libvirtd')
_SBIN = '/usr/sbin'
_TIMEOUT_S = 10


def ask_libvirt() -> str:
    """What libvirt's daemon says its version is.

    :raises Unanswered: when there is none
    """
    problem = 'neither virtqemud nor libvirtd is installed'
    for daemon in _DAEMONS:
        try:
            return subprocess.run(
                [f'{_SBIN}/{daemon}', '--version'], capture_output=True,
                text=True, timeout=_TIMEOUT_S, check=True).stdout
        except FileNotFoundError:
            continue
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
    raise worlds.Unanswered(problem)


def look_at_libvirt(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether libvirt is new enough."""
    try:
        text = world.ask_libvirt()
    except worlds.Unanswered as error:
        yield findings.failure(
            f'it cannot be told which libvirt this is: {error}',
            'install libvirt-daemon-system, or what your distribution calls '
            'it')
        return
    yield from _compare('libvirt', text, LEAST_LIBVIRT)


def look_at_kernel(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the kernel is new enough."""
    yield from _compare('Linux', world.kernel, LEAST_KERNEL)


def look_at_python(_world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the Python of this program, and of the agent, is."""
    yield from _compare(
        'Python', '.'.join(map(str, sys.version_info[:3])), LEAST_PYTHON)


def _compare(name: str, text: str, least: tuple[int, int]
             ) -> Iterator[findings.Finding]:
    needed = '.'.join(map(str, least))
    found = re.search(r'[0-9]+(\.[0-9]+)+', text)
    if found is None:
        yield findings.warning(
            f'it cannot be told which {name} this is: {text[:80]!r}',
            f'see that it is {needed} or newer')
        return
    numbers = tuple(int(part) for part in found[0].split('.')[:2])
    if numbers < least:
        yield findings.failure(
            f'this is {name} {found[0]}, which nova_vqos does not support',
            f'update it to {needed} or newer')
    yield findings.fact(f'this is {name} {found[0]}')
