# SPDX-License-Identifier: Apache-2.0
"""Groups as libvirt makes them for servers, all in one of their own.

Processes in them compete with each other as servers do, and take no time from
others: the group right below the root is idle as a whole by default, see
:mod:`nova_vqos.calibration.idle`.
"""

import contextlib
import fcntl
import os
import pathlib
import time
import types
import typing as ty

from nova_vqos.calibration import idle
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.hypervisor.linux import cgroup

# Threads that were killed are in their group for a moment yet.
_REMOVE_S = 5
# Longer than a probe takes, so that one waits for another.
_LOCK_S = 40
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
        self._is_unified = is_unified
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
        """Move a process into it that was started just now.

        :raises OSError: when it cannot be
        """
        (self._path / 'cgroup.procs').write_text(str(process))

    def move_vcpu(self, number: int, thread: int) -> None:
        self._move(_vcpu(number), thread)

    def move_other(self, thread: int) -> None:
        self._move('emulator', thread)

    def others(self) -> frozenset[int]:
        """The threads that are no vCPUs."""
        return frozenset(map(int, (
            self._path / 'emulator' / self._threads).read_text().split()))

    def limit(self, quota_us: int | None, period_us: int,
              vcpu: int | None = None) -> None:
        """Limit the CPU time of the whole server, or of one of its vCPUs.

        :param quota_us: None: no limit
        :raises OSError: when the kernel refuses
        """
        path = self._path if vcpu is None else self._path / _vcpu(vcpu)
        if self._is_unified:
            quota = 'max' if quota_us is None else quota_us
            (path / 'cpu.max').write_text(f'{quota} {period_us}')
        else:
            (path / 'cpu.cfs_period_us').write_text(str(period_us))
            (path / 'cpu.cfs_quota_us').write_text(
                str(-1 if quota_us is None else quota_us))

    def held_us(self) -> int:
        """For how long its limit has stopped threads of it.

        :raises OSError: when it cannot be read
        :raises ValueError: when it is not understood
        """
        content = (self._path / 'cpu.stat').read_bytes()
        return (cgroup.field(content, b'throttled_usec') if self._is_unified
                else cgroup.field(content, b'throttled_time') // cgroup.US_NS)

    def _move(self, name: str, thread: int) -> None:
        try:
            (self._path / name / self._threads).write_text(str(thread))
        except OSError as error:
            raise CalibrationError(
                f'thread {thread} cannot be moved into {self._path / name}: '
                f'{error.strerror}') from error


class Tree:
    """A group right below the root, idle as a whole by default.

    To be used in a ``with`` statement, after which it is gone; processes in it
    must have ended by then. One program at a time has it: a lock on its
    directory says so, which no killed program keeps.
    """

    def __init__(self, name: str, root: str = '/', *, is_idle: bool = True,
                 weight: int = 1) -> None:
        """
        :param name: one of its own; what an earlier run left there is removed
        :param root: where /proc and /sys are looked for, for tests
        :param is_idle: False: it competes with all others
        :param weight: if so, how often that of any group of the kernel's
        :raises CalibrationError: when this host has no groups for CPU time
        """
        self._mount, _own = idle.hierarchy(root)
        self._path = self._mount / name
        self._is_idle = is_idle
        self._weight = weight
        self._is_unified = (self._mount / 'cgroup.controllers').exists()
        self._lock = -1

    def __enter__(self) -> ty.Self:
        """
        :raises CalibrationError: when it cannot be made, or is in use
        """
        try:
            self._lock = self._locked()
            try:
                self._prepare()
            except BaseException:
                self._release()
                raise
        except OSError as error:
            raise self._error(error) from error
        return self

    def _locked(self) -> int:
        """Make the group, and lock it.

        :returns: a descriptor: closing it unlocks the group
        """
        deadline_s = time.monotonic() + _LOCK_S
        while True:
            self._path.mkdir(exist_ok=True)
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                lock = _lock(self._path)
                if lock is not None:
                    return lock
            if time.monotonic() > deadline_s:
                raise self._in_use()
            time.sleep(_POLL_S)

    def _prepare(self) -> None:
        if not _empty_soon(self._path):
            raise self._in_use()
        if self._is_idle:
            (self._path / 'cpu.idle').write_text('1')
        elif self._weight != 1 and self._is_unified:
            (self._path / 'cpu.weight').write_text(str(_WEIGHT * self._weight))
        elif self._weight != 1:
            (self._path / 'cpu.shares').write_text(str(_SHARES * self._weight))
        if self._is_unified:
            (self._path / 'cgroup.subtree_control').write_text('+cpu')

    def _release(self) -> None:
        _empty_soon(self._path)
        with contextlib.suppress(OSError):
            self._path.rmdir()
        os.close(self._lock)

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
        self._release()

    def _in_use(self) -> CalibrationError:
        return CalibrationError(
            f'{self._path} is in use: is another calibration at work?')

    def _error(self, error: OSError) -> CalibrationError:
        return CalibrationError(
            f'no group for servers can be made at {self._path}: '
            f'{error.strerror}. Needed are root, Linux 5.15 and, with cgroups '
            'of version 2, cpu in the cgroup.subtree_control of their root')


def _vcpu(number: int) -> str:
    return f'vcpu{number}'


def _lock(path: pathlib.Path) -> int | None:
    """Lock a directory.

    :returns: a descriptor; None: the directory was removed meanwhile
    :raises BlockingIOError: when another program has it
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), path.stat()):
            return lock
    except BaseException:
        os.close(lock)
        raise
    os.close(lock)
    return None


def _empty_soon(path: pathlib.Path) -> bool:
    """Remove the groups in a group as soon as they are empty.

    :returns: whether they are gone: a group in which a process stays is left
    """
    deadline_s = time.monotonic() + _REMOVE_S
    while not _empty(path):
        if time.monotonic() > deadline_s:
            return False
        time.sleep(_POLL_S)
    return True


def _empty(path: pathlib.Path) -> bool:
    # Those below come first; files of the kernel's are no obstacle.
    for directory, _directories, _files in os.walk(path, topdown=False):
        if directory != str(path):
            with contextlib.suppress(OSError):
                os.rmdir(directory)
    return not any(each.is_dir() for each in path.iterdir())
