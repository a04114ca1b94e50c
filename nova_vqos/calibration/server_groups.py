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

"""Groups as libvirt makes them for servers, all in one of their own.

What runs in them competes with each other as servers do, and takes no time
from others: the one right below the root is idle as a whole, see
:mod:`nova_vqos.calibration.idle`; unless it is wanted otherwise.
"""

import contextlib
import os
import pathlib
import time
import types
import typing as ty

from nova_vqos.calibration import idle
from nova_vqos.calibration.benchmark import CalibrationError

# Threads that were killed are in their group for a moment yet.
_REMOVE_S = 5
_POLL_S = 0.01
# What the kernel gives any group, in version 1 and 2.
_SHARES, _WEIGHT = 1024, 100


class Server:
    """The group of one server, with one for each vCPU and one for the rest.

    It weighs as much as its vCPUs: so each of them is worth as much as that of
    a server with one.
    """

    def __init__(self, path: pathlib.Path, vcpus: int, *,
                 is_unified: bool) -> None:
        """
        :raises OSError: when it cannot be made
        """
        self._path = path
        self._threads = 'cgroup.threads' if is_unified else 'tasks'
        path.mkdir()
        if is_unified:
            (path / 'cpu.weight').write_text(str(_WEIGHT * vcpus))
        else:
            (path / 'cpu.shares').write_text(str(_SHARES * vcpus))
        for name in (*map(_vcpu, range(vcpus)), 'emulator'):
            (path / name).mkdir()
            if is_unified:
                (path / name / 'cgroup.type').write_text('threaded')
        if is_unified:
            (path / 'cgroup.subtree_control').write_text('+cpu')

    def enter(self, process: int) -> None:
        """Have a process be in it: one that was started just now.

        :raises OSError: when it cannot be
        """
        (self._path / 'cgroup.procs').write_text(str(process))

    def move_vcpu(self, number: int, thread: int) -> None:
        self._move(_vcpu(number), thread)

    def move_other(self, thread: int) -> None:
        self._move('emulator', thread)

    def _move(self, name: str, thread: int) -> None:
        try:
            (self._path / name / self._threads).write_text(str(thread))
        except OSError as error:
            raise CalibrationError(
                f'thread {thread} cannot be moved into {self._path / name}: '
                f'{error.strerror}') from error


class Tree:
    """A group right below the root, idle as a whole unless told otherwise.

    To be used in a ``with`` statement, after which it is gone; whoever was in
    it has to have ended by then.
    """

    def __init__(self, name: str, root: str = '/', *,
                 is_idle: bool = True) -> None:
        """
        :param name: one of its own; what an earlier run left there is removed
        :param root: where /proc and /sys are looked for, for tests
        :param is_idle: False: it competes with all others
        :raises CalibrationError: when this host has no groups for CPU time
        """
        self._mount, _own = idle.hierarchy(root)
        self._path = self._mount / name
        self._is_idle = is_idle
        self._is_unified = (self._mount / 'cgroup.controllers').exists()

    def __enter__(self) -> ty.Self:
        """
        :raises CalibrationError: when it cannot be made, or is in use
        """
        try:
            _remove_soon(self._path)
            self._path.mkdir()
        except FileExistsError as error:
            raise CalibrationError(
                f'{self._path} is in use: is another calibration at work?'
                ) from error
        except OSError as error:
            raise self._error(error) from error
        try:
            if self._is_idle:
                (self._path / 'cpu.idle').write_text('1')
            if self._is_unified:
                (self._path / 'cgroup.subtree_control').write_text('+cpu')
        except OSError as error:
            _remove(self._path)
            raise self._error(error) from error
        return self

    def server(self, name: str, vcpus: int = 1) -> Server:
        """Make the group of a server.

        :raises CalibrationError: when it cannot be made
        """
        try:
            return Server(self._path / name, vcpus,
                          is_unified=self._is_unified)
        except OSError as error:
            raise self._error(error) from error

    def __exit__(self, kind: type[BaseException] | None,
                 error: BaseException | None,
                 trace: types.TracebackType | None) -> None:
        _remove_soon(self._path)

    def _error(self, error: OSError) -> CalibrationError:
        return CalibrationError(
            f'no group for servers can be made at {self._path}: '
            f'{error.strerror}. Needed are root, Linux 5.15 and, with cgroups '
            'of version 2, cpu in the cgroup.subtree_control of their root')


def _vcpu(number: int) -> str:
    return f'vcpu{number}'


def _remove_soon(path: pathlib.Path) -> None:
    """Remove a group and those in it, when nobody is in them any more.

    Or not, where somebody stays.
    """
    deadline_s = time.monotonic() + _REMOVE_S
    while not _remove(path) and time.monotonic() < deadline_s:
        time.sleep(_POLL_S)


def _remove(path: pathlib.Path) -> bool:
    """Remove a group and those in it, unless somebody is in one.

    :returns: whether it is gone
    """
    # Those below come first; files of the kernel's are no obstacle.
    for directory, _directories, _files in os.walk(path, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(directory)
    return not path.exists()
