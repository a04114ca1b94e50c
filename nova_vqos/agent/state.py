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

"""What the agent leaves on its host: a lock, and signs of life."""

from collections.abc import Mapping
import datetime
import fcntl
import json
import os
import socket
import tempfile
import typing as ty

from nova_vqos.quantum import occupancy

_STATE_VERSION = 1


class AlreadyRunning(Exception):
    """Another agent looks after this host."""


class HostLock:
    """Held by the one agent of a host, and released when it ends."""

    def __init__(self, path: str) -> None:
        """Take the lock.

        :raises AlreadyRunning: when another process holds it
        :raises OSError: when the file cannot be made
        """
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        # NOTE: not truncated before it is locked: it names the holder.
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
                               | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._handle, 32, 0).decode(errors='replace')
            os.close(self._handle)
            raise AlreadyRunning(
                f'another nova-vqos-agent runs on this host, process '
                f'{holder.strip() or "unknown"}: it holds {path}') from error
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, f'{os.getpid()}\n'.encode(), 0)

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._handle)


def utc_at(at_s: float) -> str:
    """A time in seconds since 1970, ISO 8601, UTC, whole seconds."""
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).isoformat(
        timespec='seconds')


def utc(ago_s: float = 0.0) -> str:
    """The time some seconds ago, ISO 8601, UTC, whole seconds."""
    then = (datetime.datetime.now(datetime.UTC)
            - datetime.timedelta(seconds=ago_s))
    return then.isoformat(timespec='seconds')


class Heartbeat:
    """The file in which the agent leaves its signs of life."""

    def __init__(self, path: str, host: str) -> None:
        """Prepare; nothing is written yet."""
        self._path = path
        self._host = host

    def write(self, *, profile_id: str | None, connected: bool,
              alarms: tuple[str, ...],
              dd_billing: tuple[str, ...] = ('off',),
              classes: tuple[str, ...] = ('default',),
              quantum: occupancy.Occupancy = occupancy.UNKNOWN) -> None:
        """Leave a sign of life; readers see the old one or the new, no part.

        :param profile_id: of the profile in use
        :param connected: whether the hypervisor can be reached
        :param alarms: what an operator should look at
        :param dd_billing: what of ``vqos:dd_billing`` this host does
        :param classes: what of ``vqos:quantum_class`` this host offers
        :param quantum: what its pools hold
        :raises OSError: when it cannot be written
        """
        self._replace({
            'version': _STATE_VERSION,
            'pid': os.getpid(),
            'host': self._host,
            'profile_id': profile_id,
            'seen_at': utc(),
            'classes': list(classes),
            'quantum': quantum.to_state(),
            'dd_billing': list(dd_billing),
            'hypervisor_connected': connected,
            'alarms': list(alarms),
        })

    def _replace(self, content: Mapping[str, ty.Any]) -> None:
        directory = os.path.dirname(self._path)
        os.makedirs(directory, mode=0o755, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=directory, prefix='.agent-')
        try:
            with os.fdopen(handle, 'w') as file:
                json.dump(content, file)
                os.fchmod(file.fileno(), 0o644)
            # NOTE: no fsync: it lies in a tmpfs, and is of no use after a
            # crash of the host.
            os.replace(temporary, self._path)
        except BaseException:
            os.unlink(temporary)
            raise


class ServiceManager:
    """Tells systemd that the agent is ready and alive; nothing elsewhere."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        """Read what systemd asks for from the environment."""
        path = environment.get('NOTIFY_SOCKET', '')
        # NOTE: '@' stands for the zero byte of an abstract socket.
        self._address = f'\0{path[1:]}' if path.startswith('@') else path
        self._socket = (
            socket.socket(socket.AF_UNIX,
                          socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            if path else None)
        watchdog_us = environment.get('WATCHDOG_USEC', '')
        self._alive_interval_s = (
            int(watchdog_us) / 3e6 if watchdog_us.isdecimal() else None)
        self._alive_at_s = float('-inf')

    def ready(self) -> None:
        """The agent has started."""
        self._send('READY=1')

    def stopping(self) -> None:
        """The agent begins to stop."""
        self._send('STOPPING=1')

    def alive(self, now_s: float) -> None:
        """The agent makes progress: at most three messages per timeout.

        :param now_s: on the monotonic clock
        """
        if self._alive_interval_s is None:
            return
        if now_s - self._alive_at_s >= self._alive_interval_s:
            self._alive_at_s = now_s
            self._send('WATCHDOG=1')

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:
            # systemd restarts what it hears nothing of.
            return
