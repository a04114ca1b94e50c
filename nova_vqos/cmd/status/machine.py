# SPDX-License-Identifier: Apache-2.0
"""The machine that the checks examine."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import datetime
import functools
import glob
import io
import os
import typing as ty

from nova_vqos import files
from nova_vqos.agent.messages import host_report
from nova_vqos.cmd.status import config_files

COMPUTE = 'compute'
CONTROLLER = 'controller'
ROLES = (COMPUTE, CONTROLLER)
#: Names of the roles for people.
NAMES = {COMPUTE: 'compute host', CONTROLLER: 'controller'}

_MOST_CHARACTERS = 1_000_000


class Unanswered(Exception):
    """No valid answer came; the text says why."""


class Process(ty.NamedTuple):
    """A process of the machine.

    :ivar names: base names of its first two arguments: the second one is the
        script, where the first one is an interpreter
    """

    pid: int
    names: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine, whose files lie below a root, for tests.

    :ivar given_roles: of the command line; none: they are detected
    :ivar compute: configuration of nova-compute
    :ivar controller: configuration of nova-scheduler
    :ivar own: configuration of the agent
    :ivar placement: configuration of Placement; no files: it runs elsewhere
    :ivar now: the time
    :ivar kernel: release of the kernel
    :ivar ask_nova: imports our parts into Nova, and returns the error of
        each part, '' where there is none; raises Unanswered
    :ivar ask_agent: AgentManager.get_host of this host's agent; raises
        Unanswered
    :ivar ask_libvirt: the version of libvirt's daemon; raises Unanswered
    :ivar find_hook_fault: see :func:`nova_vqos.hooks.install.find_fault`
    """

    root: str
    given_roles: Sequence[str]
    compute: config_files.ConfigFiles
    controller: config_files.ConfigFiles
    own: config_files.ConfigFiles
    placement: config_files.ConfigFiles
    now: datetime.datetime
    kernel: str
    ask_nova: Callable[[], Mapping[str, str]]
    ask_agent: Callable[[], host_report.Host]
    ask_libvirt: Callable[[], str]
    find_hook_fault: Callable[[Collection[int]], str]

    def path(self, path: str) -> str:
        """Where a file of the machine lies below the root."""
        return below(self.root, path)

    def own_path(self, path: str) -> str:
        """The path that the machine has for a file below the root."""
        return '/' + os.path.relpath(path, self.root)

    def read(self, path: str) -> str | None:
        """Read a text file, or the beginning of a large one.

        :returns: None: there is no such file
        :raises nova_vqos.cmd.status.config_files.Unreadable: when it is no
            regular file
        :raises OSError: when it cannot be read
        """
        try:
            with io.TextIOWrapper(files.open_regular(self.path(path)),
                                  'utf-8', 'replace') as file:
                return file.read(_MOST_CHARACTERS)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except files.FileUnsafe as error:
            raise config_files.Unreadable(str(error)) from error

    def first_line(self, path: str) -> str | None:
        """Read the first line of a file, stripped; None: there is no file.

        :raises OSError: when it cannot be read
        """
        text = self.read(path)
        return None if text is None else text.partition('\n')[0].strip()

    def glob(self, pattern: str) -> list[str]:
        """The paths of files that match a pattern, without the root."""
        prefix = len(self.root.rstrip('/'))
        return sorted(path[prefix:] for path in glob.glob(self.path(pattern)))

    @functools.cached_property
    def processes(self) -> tuple[Process, ...]:
        """All visible processes."""
        found = []
        for path in self.glob('/proc/[0-9]*/cmdline'):
            try:
                line = self.read(path) or ''
            except OSError:
                # It has just ended, or belongs to another user.
                continue
            found.append(Process(
                int(path.split('/')[2]),
                tuple(os.path.basename(word)
                      for word in line.split('\0')[:2])))
        return tuple(found)

    def find_processes(self, *names: str) -> list[Process]:
        """The processes of some programs."""
        return [process for process in self.processes
                if not set(names).isdisjoint(process.names)]


def below(root: str, path: str) -> str:
    """Where a file of the machine lies below a root."""
    return os.path.join(root, path.lstrip('/'))
