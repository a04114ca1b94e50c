# SPDX-License-Identifier: Apache-2.0
"""Processes that outlive the command that started them, and bounded waits."""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import os
import select
import signal
import subprocess
import time
import typing as ty

# A wait that lasts longer than this says what it waits for.
_SILENCE_S = 10
# Whoever sleeps for longer than he asked by this was kept from doing anything.
_STANDSTILL_S = 1
COMMAND_LIMIT_S = 60
# How many times longer than said a wait may last: where the machine itself is
# emulated, nothing is as fast as the limits assume.
_PATIENCE = float(os.environ.get('NOVA_VQOS_LAB_PATIENCE', '1'))


class LabError(Exception):
    """A step of the lab failed; the message names the log to read."""


def say(text: str) -> None:
    """Print a line of progress at once."""
    print(text, flush=True)


@contextlib.contextmanager
def stage(what: str) -> Iterator[None]:
    """Say what is done, and how long it took."""
    say(f'-- {what}')
    began = time.monotonic()
    yield
    say(f'   {time.monotonic() - began:.1f} s')


def wait_until(condition: Callable[[], ty.Any], limit_s: float, what: str,
               *, log: str = '', alive: Callable[[], bool] = lambda: True,
               interval_s: float = 0.05) -> ty.Any:
    """Wait for a condition, within a bound.

    Time that the machine stands still does not count: whatever is waited for
    stands still as well.

    :param condition: called again and again; it ends the wait by returning
        something true
    :param limit_s: seconds after which the wait fails, on a real machine
    :param what: what is waited for, a noun, for progress and the error
    :param log: path of the log to read when it fails, if there is one
    :param alive: false when waiting longer is in vain
    :param interval_s: pause between two calls
    :returns: what the condition returned
    :raises LabError: when the limit is reached or alive() says no
    """
    limit_s *= _PATIENCE
    started = time.monotonic()
    next_word = started + _SILENCE_S
    see = f', see {log}' if log else ''
    while True:
        # Before the condition: one that became true as its process ended
        # counts.
        still_alive = alive()
        result = condition()
        if result:
            return result
        now = time.monotonic()
        if not still_alive:
            raise LabError(f'{what}: its process has ended{see}')
        if now - started > limit_s:
            raise LabError(f'{what}: not within {limit_s:g} s{see}')
        if now > next_word:
            say(f'   waiting for {what}, {now - started:.0f} s of at most '
                f'{limit_s:g} s')
            next_word = now + _SILENCE_S
        time.sleep(interval_s)
        late_s = time.monotonic() - now - interval_s
        if late_s > _STANDSTILL_S:
            started += late_s
            next_word += late_s


def run(argv: Sequence[str], *, env: Mapping[str, str] | None = None,
        limit_s: float = COMMAND_LIMIT_S, check: bool = True
        ) -> subprocess.CompletedProcess[str]:
    """Run a command on the machine and keep its output.

    :param argv: command and arguments
    :param env: variables on top of this process's own
    :param limit_s: seconds after which it is killed
    :param check: whether a failure is an error
    :raises LabError: when it cannot be run, takes too long, or fails
    """
    try:
        done = subprocess.run(
            argv, capture_output=True, text=True, check=False,
            stdin=subprocess.DEVNULL, timeout=limit_s,
            env={**os.environ, **(env or {})})
    except (OSError, subprocess.TimeoutExpired) as exc:
        raise LabError(f'{argv[0]} cannot be run: {exc}') from exc
    if check and done.returncode:
        raise LabError(f'{" ".join(argv)} failed with {done.returncode}: '
                       f'{(done.stderr or done.stdout).strip()}')
    return done


def start_time(pid: int) -> str | None:
    """:returns: when a process started, in ticks; None if it is gone."""
    try:
        with open(f'/proc/{pid}/stat', encoding='utf-8',
                  errors='replace') as stat:
            fields = stat.read().rpartition(')')[2].split()
    except OSError:
        return None
    return None if fields[0] in 'ZX' else fields[19]


def of_thread(tid: int) -> int | None:
    """:returns: the pid of a thread's process; None if it is gone."""
    try:
        with open(f'/proc/{tid}/status', encoding='utf-8',
                  errors='replace') as status:
            fields = dict(line.split(':', 1) for line in status)
    except OSError:
        return None
    return int(fields['Tgid'])


class Process:
    """A process known by its pid and the time of its start.

    It never signals a pid that the kernel has reused. The process need not be
    a child of this one.

    :ivar pid: as the machine sees it
    :ivar log: path of what it prints, '' where that is kept nowhere
    """

    def __init__(self, pid: int, log: str = '',
                 started: str | None = None) -> None:
        """:param started: start_time() of then, where it is known."""
        self.pid = pid
        self.log = log
        self._started = started or start_time(pid)

    def __repr__(self) -> str:
        return f'<Process {self.pid}>'

    @classmethod
    def load(cls, path: str) -> 'Process | None':
        """:returns: what save() wrote to a file, None if there is none."""
        try:
            with open(path, encoding='utf-8') as stream:
                pid, started, log = stream.read().split('\n')[:3]
            return cls(int(pid), log, started)
        except (OSError, ValueError):
            return None

    def save(self, path: str) -> None:
        """Write to a file what load() needs."""
        temporary = f'{path}.new'
        with open(temporary, 'w', encoding='utf-8') as stream:
            stream.write(f'{self.pid}\n{self._started}\n{self.log}\n')
        os.replace(temporary, path)

    def alive(self) -> bool:
        """:returns: whether it runs; a zombie does not."""
        return (self._started is not None
                and start_time(self.pid) == self._started)

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # Looked at through the descriptor's back: now the pid cannot be
            # given to another process.
            if self.alive():
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass
        finally:
            os.close(descriptor)

    def wait(self, limit_s: float) -> bool:
        """Wait for its end.

        :param limit_s: how long at most
        :returns: whether it has ended
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            if self.alive():
                select.select([descriptor], [], [], limit_s)
        finally:
            os.close(descriptor)
        return not self.alive()

    def stop(self, limit_s: float = 20) -> None:
        """End it, by force after a while.

        :raises LabError: when not even that ends it
        """
        self.signal(signal.SIGTERM)
        if not self.wait(limit_s):
            self.kill()

    def kill(self) -> None:
        """End it by force, and wait until it is gone.

        :raises LabError: when it is still there after 10 s
        """
        self.signal(signal.SIGKILL)
        if not self.wait(10):
            raise LabError(f'process {self.pid} outlives SIGKILL')
