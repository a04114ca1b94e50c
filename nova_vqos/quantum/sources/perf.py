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

"""Counters of the kernel's performance events, for single threads.

Events are counted from the moment they are opened, in threads that exist
already; libvirt's own (``virsh perf``) are of a domain as a whole, and miss
those. Where more is to be counted than the CPU has counters for, the kernel
takes turns: what was counted must be scaled by the time that it was for.
"""

from collections.abc import Sequence
import ctypes
import errno
import os
import platform
import struct
import typing as ty

# NOTE: perf_event_open in each architecture's system call table.
_SYSCALLS = {'x86_64': 298, 'aarch64': 241, 'ppc64le': 319, 's390x': 331,
             'riscv64': 241}

# Of include/uapi/linux/perf_event.h.
TYPE_SOFTWARE = 1
TYPE_HW_CACHE = 3
_FORMAT_TIMES_AND_GROUP = 1 | 2 | 8
_FLAG_CLOSE_ON_EXEC = 8
# struct perf_event_attr as of its first version: type, size, config,
# sample_period, sample_type, read_format, flags, wakeup_events, bp_type,
# config1.
_ATTRIBUTES = struct.Struct('=IIQQQQQIIQ')

_ANY_CPU = -1
#: For Group: the calling thread.
OWN_THREAD = 0

#: Errors that say that a thread is gone.
GONE = (errno.ESRCH,)

_WHY = {
    errno.EACCES: 'the kernel does not let this process count (needs '
                  'CAP_PERFMON; see kernel.perf_event_paranoid)',
    errno.EPERM: 'this process may not ask for it (needs CAP_PERFMON and the '
                 'system call perf_event_open)',
    errno.ENOSYS: 'this kernel has no performance events',
    errno.ENOENT: 'this CPU, or what it is virtualised by, does not count it',
    errno.EBUSY: 'somebody else has all counters of this CPU for himself',
}
for _same in (errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL):
    _WHY[_same] = _WHY[errno.ENOENT]

_library: ty.Any = ctypes.CDLL(None, use_errno=True)


class Event(ty.NamedTuple):
    """What is to be counted, in the kernel's numbers."""

    type: int
    config: int


class Counts(ty.NamedTuple):
    """A reading of a group.

    :ivar enabled_ns: how long its thread ran since the group was opened
    :ivar running_ns: how long of that was counted
    :ivar values: of its events, in their order
    """

    enabled_ns: int
    running_ns: int
    values: tuple[int, ...]


class Group:
    """Events of one thread that are counted at the same time."""

    def __init__(self, events: Sequence[Event], thread: int) -> None:
        """Open it; counting begins.

        :raises OSError: when that cannot be; :func:`why` says why
        """
        self._handles: list[int] = []
        self._layout = struct.Struct(f'={3 + len(events)}Q')
        try:
            for event in events:
                leader = self._handles[0] if self._handles else -1
                self._handles.append(_open(event, thread, leader))
        except OSError:
            self.close()
            raise

    def read(self) -> Counts:
        """What was counted since it was opened.

        :raises OSError: when the kernel has given up counting
        """
        content = os.read(self._handles[0], self._layout.size)
        if len(content) != self._layout.size:
            # NOTE: of an event in an error state there is nothing to read.
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        _count, enabled_ns, running_ns, *values = self._layout.unpack(content)
        return Counts(enabled_ns, running_ns, tuple(values))

    def close(self) -> None:
        """Close it; again is harmless."""
        while self._handles:
            os.close(self._handles.pop())


def scaled(before: Counts, after: Counts) -> tuple[float, ...] | None:
    """What was counted between two readings, had it been all the time.

    :returns: by event; None: it cannot be told, since the thread ran and
        nothing was counted
    """
    enabled_ns = after.enabled_ns - before.enabled_ns
    running_ns = after.running_ns - before.running_ns
    if enabled_ns <= 0:
        # Nothing happens in a thread that does not run.
        return (0.0,) * len(after.values)
    if running_ns <= 0:
        return None
    return tuple(
        (later - earlier) * enabled_ns / running_ns
        for earlier, later in zip(before.values, after.values, strict=True))


def why(error: OSError) -> str:
    """Why events cannot be counted, in words for an operator."""
    return _WHY.get(error.errno or 0, str(error))


def probe(events: Sequence[Event]) -> str:
    """Try whether events can be counted in a thread of this process.

    :returns: '' or why not
    """
    try:
        Group(events, OWN_THREAD).close()
    except OSError as error:
        return why(error)
    return ''


def _open(event: Event, thread: int, leader: int) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = _ATTRIBUTES.pack(
        event.type, _ATTRIBUTES.size, event.config, 0, 0,
        _FORMAT_TIMES_AND_GROUP, 0, 0, 0, 0)
    handle: int = _library.syscall(
        ctypes.c_long(number), attributes, ctypes.c_int(thread),
        ctypes.c_int(_ANY_CPU), ctypes.c_int(leader),
        ctypes.c_ulong(_FLAG_CLOSE_ON_EXEC))
    if handle < 0:
        found = ctypes.get_errno()
        raise OSError(found, os.strerror(found))
    return handle
