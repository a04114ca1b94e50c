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

"""The machine that is looked at: all that checks know of it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
import dataclasses
import datetime
import functools
import glob
import os
import typing as ty

from nova_vqos.status import settings

NOVA_DIRECTORY = '/etc/nova'
OWN_CONFIG = '/etc/nova-vqos/nova-vqos.conf'
# Devstack's, which its nova-compute reads alone.
_DEVSTACK_CONFIG = f'{NOVA_DIRECTORY}/nova-cpu.conf'

COMPUTE = 'compute'
CONTROLLER = 'controller'
ROLES = (COMPUTE, CONTROLLER)
#: What people call them.
NAMES = {COMPUTE: 'compute host', CONTROLLER: 'controller'}

_MOST_CHARACTERS = 1_000_000


class Unanswered(Exception):
    """Nobody answered, or with what is no answer; the text says what came."""


class Process(ty.NamedTuple):
    """A process of the machine.

    :ivar names: base names of its first arguments, of which a script's comes
        second
    """

    pid: int
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class World:
    """A machine; its files are looked for below a root, for tests.

    :ivar asked_roles: what the caller says that the machine is; none: it is
        to be found out
    :ivar compute: what nova-compute is configured to
    :ivar controller: what nova-scheduler is configured to
    :ivar own: what the agent is configured to
    :ivar now: the time
    :ivar kernel: release of the kernel
    :ivar ask_nova: has Nova import parts of ours: what was wrong by part, ''
        where nothing was, see :mod:`nova_vqos.status.importing`; raises
        Unanswered
    :ivar ask_agent: AgentManager.get_host of this host's agent; raises
        Unanswered
    :ivar ask_libvirt: the version of libvirt's daemon; raises Unanswered
    """

    root: str
    asked_roles: Sequence[str]
    compute: settings.Settings
    controller: settings.Settings
    own: settings.Settings
    now: datetime.datetime
    kernel: str
    ask_nova: Callable[[], Mapping[str, str]]
    ask_agent: Callable[[], Mapping[str, ty.Any]]
    ask_libvirt: Callable[[], str]

    def path(self, path: str) -> str:
        """Where a file of the machine is."""
        return below(self.root, path)

    def read(self, path: str) -> str | None:
        """The text of a file of the machine, its beginning where it is large.

        :returns: None: there is none

        :raises OSError: when it cannot be read
        """
        try:
            with open(self.path(path), encoding='utf-8',
                      errors='replace') as file:
                return file.read(_MOST_CHARACTERS)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def first_line(self, path: str) -> str | None:
        """The first line of a file, stripped; None: there is no file.

        :raises OSError: when it cannot be read
        """
        text = self.read(path)
        return None if text is None else text.partition('\n')[0].strip()

    def glob(self, pattern: str) -> list[str]:
        """The files of the machine with such names, without the root."""
        prefix = len(self.root.rstrip('/'))
        return sorted(path[prefix:] for path in glob.glob(self.path(pattern)))

    @functools.cached_property
    def processes(self) -> tuple[Process, ...]:
        """All processes that can be seen."""
        return tuple(self._processes())

    def find_processes(self, *names: str) -> list[Process]:
        """The processes of some programs."""
        return [process for process in self.processes
                if not set(names).isdisjoint(process.names)]

    def _processes(self) -> Iterator[Process]:
        for path in self.glob('/proc/[0-9]*/cmdline'):
            try:
                line = self.read(path) or ''
            except OSError:
                # It has just ended, or is somebody else's.
                continue
            yield Process(
                int(path.split('/')[2]),
                tuple(os.path.basename(word)
                      for word in line.split('\0')[:2]))


def below(root: str, path: str) -> str:
    """A path of the machine, below the root at which it is found."""
    return os.path.join(root, path.lstrip('/'))


def nova_files(root: str, program: str) -> list[str]:
    """The files that a program of Nova's reads unless it is told others."""
    if program == 'nova-compute' and os.path.exists(
            below(root, _DEVSTACK_CONFIG)):
        return [below(root, _DEVSTACK_CONFIG)]
    return [
        *(below(root, f'{NOVA_DIRECTORY}/{name}.conf')
          for name in ('nova', program)),
        *_fragments(below(root, f'{NOVA_DIRECTORY}/{name}.conf.d')
                    for name in ('nova', program))]


def _fragments(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        yield from sorted(glob.glob(f'{directory}/*.conf'))
