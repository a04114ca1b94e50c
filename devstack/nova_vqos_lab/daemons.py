# SPDX-License-Identifier: Apache-2.0
"""The services of the lab: commands, daemons, and the net they run in."""

from collections.abc import Collection, Iterator, Mapping, Sequence
import contextlib
import ctypes
import os
import signal
import subprocess
import threading

from nova_vqos_lab import paths
from nova_vqos_lab import process

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


def run(name: str, argv: Sequence[str], *, limit_s: float = 120,
        statuses: Collection[int] = (0,)) -> None:
    """Run a command to its end, its output appended to a log.

    :param name: of the log
    :param argv: command and arguments
    :param limit_s: seconds after which it is killed
    :param statuses: exit statuses that are no failure
    :raises process.LabError: when it fails or takes too long
    """
    log = paths.log(name)
    with open(log, 'ab') as stream:
        stream.write(f'$ {" ".join(argv)}\n'.encode())
        stream.flush()
        try:
            status = subprocess.run(
                argv, stdout=stream, stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL, timeout=limit_s, check=False
            ).returncode
        except subprocess.TimeoutExpired as exc:
            raise process.LabError(
                f'{argv[0]}: not done within {limit_s:g} s, see {log}'
            ) from exc
        except OSError as exc:
            raise process.LabError(f'{exc}, see {log}') from exc
    if status not in statuses:
        raise process.LabError(f'{" ".join(argv)} failed with {status}, '
                               f'see {log}')


@contextlib.contextmanager
def network(name: str) -> Iterator[None]:
    """Let this thread, and what it starts meanwhile, use a namespace's net.

    :param name: of the network namespace below /run/netns
    :raises process.LabError: when there is no such namespace
    """
    before = os.open(f'/proc/self/task/{threading.get_native_id()}/ns/net',
                     os.O_RDONLY | os.O_CLOEXEC)
    try:
        join_network(name)
        try:
            yield
        finally:
            _setns(before)
    finally:
        os.close(before)


def join_network(name: str) -> None:
    """Let this thread use a namespace's net to its end.

    :param name: of the network namespace below /run/netns
    :raises process.LabError: when there is no such namespace
    """
    try:
        inside = os.open(f'/run/netns/{name}', os.O_RDONLY | os.O_CLOEXEC)
    except OSError as exc:
        raise process.LabError(
            f'no network namespace {name}: the lab does not run') from exc
    try:
        _setns(inside)
    finally:
        os.close(inside)


def _setns(descriptor: int) -> None:
    # os.setns comes with Python 3.12.
    if _LIBC.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), 'setns')


class Daemon:
    """A service in a process group of its own, known by a file below RUN.

    :ivar log: path of what it prints
    """

    def __init__(self, name: str) -> None:
        """:param name: of the daemon, its log and its file."""
        self.name = name
        self.log = os.path.join(paths.LOGS, f'{name}.log')
        self._file = os.path.join(paths.RUN, f'{name}.pid')

    def start(self, argv: Sequence[str], *,
              env: Mapping[str, str] | None = None) -> None:
        """Start it, unless it runs.

        :param argv: command and arguments
        :param env: variables on top of this process's own
        """
        if self.alive():
            return
        with open(paths.log(self.name), 'ab') as stream:
            child = subprocess.Popen(
                argv, env={**os.environ, **(env or {})}, stdout=stream,
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                cwd='/', start_new_session=True)
        process.Process(child.pid, self.log).save(self._file)
        # Reaps it, should it end while this program still runs.
        threading.Thread(target=child.wait, daemon=True).start()

    @property
    def pid(self) -> int | None:
        """The pid of the running process, or None."""
        known = process.Process.load(self._file)
        return known.pid if known and known.alive() else None

    def alive(self) -> bool:
        """:returns: whether it runs."""
        return self.pid is not None

    def stop(self, limit_s: float = 20) -> None:
        """End it and what it started, by force after a while."""
        known = process.Process.load(self._file)
        if known:
            known.signal(signal.SIGTERM)
            known.wait(limit_s)
        self.kill()

    def kill(self) -> None:
        """End it and what it started by force, and forget it."""
        known = process.Process.load(self._file)
        if known and known.alive():
            # Its group too: workers outlive their leader.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(os.getpgid(known.pid), signal.SIGKILL)
            known.kill()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._file)
