# SPDX-License-Identifier: Apache-2.0
"""The agent as a process: its lock, and what systemd is sent."""

from collections.abc import Mapping
import fcntl
import os
import socket


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
                               | os.O_NOFOLLOW, 0o600)
        # NOTE: a process that can open the file can lock it.
        os.fchmod(self._handle, 0o600)
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


class ServiceManager:
    """Tells systemd that the agent is ready and alive; nothing elsewhere.

    :ivar alive_due_at_s: when :meth:`alive` is due, on the monotonic clock
    """

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
            int(watchdog_us) / 3e6 if watchdog_us.isdecimal()
            else float('inf'))
        self.alive_due_at_s = (
            float('-inf') if watchdog_us.isdecimal() else float('inf'))

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
        if now_s >= self.alive_due_at_s:
            self.alive_due_at_s = now_s + self._alive_interval_s
            self._send('WATCHDOG=1')

    def _send(self, message: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(message.encode(), self._address)
        except OSError:
            # systemd restarts what it hears nothing of.
            return
