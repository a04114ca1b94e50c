# SPDX-License-Identifier: Apache-2.0
"""Watches files of cgroupfs for writes.

Programs (libvirt, systemd, an administrator) write to a cgroup through the
kernel's file layer, which notifies inotify, whatever mount or namespace they
use: all mounts of a hierarchy share their inodes. So a file that was not
written need not be read again.
"""

from collections.abc import Callable
import ctypes
import logging
import os
import struct
import threading

LOG = logging.getLogger(__name__)

# From linux/inotify.h.
IN_MODIFY = 0x2
IN_CREATE = 0x100
IN_DELETE = 0x200
_IN_Q_OVERFLOW = 0x4000
_IN_IGNORED = 0x8000

# struct inotify_event: wd, mask, cookie, length of the name that follows.
_EVENT = struct.Struct('iIII')
_BUFFER_BYTES = 65536


class Watcher:
    """Watches files in one thread."""

    def __init__(self, on_written: Callable[[str], None]) -> None:
        """Begin to watch.

        :param on_written: called from the thread with the key of a watch, or
            with '' when events were lost: any file may have been written to
        :raises OSError: when the kernel gives no more watchers
        """
        self._on_written = on_written
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._keys: dict[int, str] = {}
        self._handle = self._checked(
            self._libc.inotify_init1(os.O_CLOEXEC))
        threading.Thread(target=self._run, name='inotify',
                         daemon=True).start()

    def add(self, path: str, mask: int, key: str) -> int:
        """Watch a file or directory.

        :param mask: IN_MODIFY of a file, IN_CREATE, IN_DELETE in a directory
        :param key: what on_written is called with
        :returns: the watch, for :meth:`remove`
        :raises OSError: when it is not there, or there are too many watches
        """
        watch = self._checked(self._libc.inotify_add_watch(
            self._handle, os.fsencode(path), mask))
        self._keys[watch] = key
        return watch

    def remove(self, watch: int) -> None:
        """End a watch; one whose file is gone has ended already."""
        if self._keys.pop(watch, None) is not None:
            self._libc.inotify_rm_watch(self._handle, watch)

    @staticmethod
    def _checked(result: int) -> int:
        if result < 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        return result

    def _run(self) -> None:
        while True:
            try:
                content = os.read(self._handle, _BUFFER_BYTES)
            except OSError as error:
                # Without events every file is read at every tick.
                LOG.error('inotify failed: %s', error)
                self._keys.clear()
                self._on_written('')
                return
            for key in self._read_keys(content):
                self._on_written(key)

    def _read_keys(self, content: bytes) -> set[str]:
        keys = set()
        offset = 0
        while offset < len(content):
            watch, mask, _cookie, length = _EVENT.unpack_from(content, offset)
            offset += _EVENT.size + length
            if mask & _IN_Q_OVERFLOW:
                keys.add('')
                continue
            key = (self._keys.pop(watch, None) if mask & _IN_IGNORED
                   else self._keys.get(watch))
            if key is not None:
                keys.add(key)
        return keys
