# SPDX-License-Identifier: Apache-2.0
"""The kernel's performance events of single threads, or of single pCPUs.

Events count from the moment they are opened, in threads that exist already;
libvirt's own (``virsh perf``) are of a whole domain, and miss those threads.
Where a CPU has too few counters the kernel multiplexes them: counts must be
scaled by the time that they cover.
"""

from collections.abc import Sequence
import ctypes
import errno
import fcntl
import os
import platform
import struct
import typing as ty

# NOTE: perf_event_open in each architecture's system call table.
_SYSCALLS = {'x86_64': 298, 'aarch64': 241, 'ppc64le': 319, 's390x': 331,
             'riscv64': 241}

# Of include/uapi/linux/perf_event.h.
TYPE_HARDWARE = 0
TYPE_SOFTWARE = 1
TYPE_TRACEPOINT = 2
TYPE_HW_CACHE = 3
#: For Event: count only while the thread runs a guest.
EXCLUDE_HOST = 1 << 19
_FORMAT_TIMES_AND_GROUP = 1 | 2 | 8
_FLAG_CLOSE_ON_EXEC = 8
# _IOW('$', 6, char *), with the size of a pointer of 64 bits.
_SET_FILTER = 0x40082406
# struct perf_event_attr as of its first version: type, size, config,
# sample_period, sample_type, read_format, flags, wakeup_events, bp_type,
# config1.
_ATTRIBUTES = struct.Struct('=IIQQQQQIIQ')

#: For Group: wherever its thread runs.
ANY_PCPU = -1
#: For Group: the calling thread.
OWN_THREAD = 0
#: For Group: whatever runs on its pCPU.
ALL_THREADS = -1

_REASONS = {
    errno.EACCES: 'the kernel does not let this process count (needs '
                  'CAP_PERFMON; see kernel.perf_event_paranoid)',
    errno.EPERM: 'this process may not count (needs CAP_PERFMON and the '
                 'system call perf_event_open)',
    errno.ENOSYS: 'this kernel has no performance events',
    errno.EBUSY: 'another process uses all counters of this CPU',
    **dict.fromkeys(
        (errno.ENOENT, errno.ENODEV, errno.EOPNOTSUPP, errno.EINVAL),
        'this CPU, or the hypervisor below it, does not count these events'),
}

_REASONS_OF_TRACEPOINTS = dict.fromkeys(
    (errno.ENOENT, errno.EINVAL),
    'this kernel has no such tracepoint now, or one with other fields')

_library: ty.Any = ctypes.CDLL(None, use_errno=True)


class Event(ty.NamedTuple):
    """An event, in the kernel's numbers.

    :ivar flags: bits of struct perf_event_attr, such as EXCLUDE_HOST
    :ivar filter: which times that a tracepoint is reached count, by its
        fields; '': all. Set after the event is open: the first reading may
        have some that do not count
    """

    type: int
    config: int
    flags: int = 0
    filter: str = ''


class Counts(ty.NamedTuple):
    """A reading of a group.

    :ivar enabled_ns: the run time of its thread since the group was opened
    :ivar running_ns: the part of it in which the events were counted
    :ivar values: of its events, in their order
    """

    enabled_ns: int
    running_ns: int
    values: tuple[int, ...]


class Group:
    """Events of one thread or one pCPU, counted at the same time."""

    def __init__(self, events: Sequence[Event], thread: int,
                 pcpu: int = ANY_PCPU) -> None:
        """Open it; counting begins.

        :param thread: ALL_THREADS: those of one pCPU
        :raises OSError: when events cannot be counted, see :func:`reason`
        """
        self._handles: list[int] = []
        self._layout = struct.Struct(f'={3 + len(events)}Q')
        try:
            for event in events:
                leader = self._handles[0] if self._handles else -1
                self._handles.append(_open(event, thread, pcpu,
                                           leader))
                if event.filter:
                    # NOTE: as the C string that the kernel reads; Python
                    # hands over the address of a copy of it.
                    fcntl.ioctl(self._handles[-1], _SET_FILTER,
                                event.filter.encode() + b'\0')
        except OSError:
            self.close()
            raise

    def read(self) -> Counts:
        """The counts since it was opened.

        :raises OSError: when the kernel stopped counting
        """
        content = os.read(self._handles[0], self._layout.size)
        if len(content) != self._layout.size:
            # NOTE: an event in an error state reads as empty.
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        _count, enabled_ns, running_ns, *values = self._layout.unpack(content)
        return Counts(enabled_ns, running_ns, tuple(values))

    def close(self) -> None:
        """Close it; harmless when repeated."""
        while self._handles:
            os.close(self._handles.pop())


def scaled(before: Counts, after: Counts) -> tuple[float, ...] | None:
    """The counts between two readings, scaled to all of the time.

    :returns: by event; None: unknown, the thread ran and nothing was counted
    """
    enabled_ns = after.enabled_ns - before.enabled_ns
    running_ns = after.running_ns - before.running_ns
    if enabled_ns <= 0:
        # A thread that did not run has no events.
        return (0.0,) * len(after.values)
    if running_ns <= 0:
        return None
    return tuple(
        (later - earlier) * enabled_ns / running_ns
        for earlier, later in zip(before.values, after.values, strict=True))


def reason(error: OSError, events: Sequence[Event] = ()) -> str:
    """Why events cannot be counted, for an operator."""
    reasons = _REASONS | (_REASONS_OF_TRACEPOINTS if any(
        event.type == TYPE_TRACEPOINT for event in events) else {})
    return reasons.get(error.errno or 0, str(error))


def probe(events: Sequence[Event]) -> str:
    """Try to count events in a thread of this process.

    :returns: '' or the reason why they cannot be counted
    """
    try:
        Group(events, OWN_THREAD).close()
    except OSError as error:
        return reason(error, events)
    return ''


def open_sampled(event: Event, thread: int, sample_type: int) -> int:
    """Open an event that writes records, wherever its thread runs.

    :param sample_type: bits of struct perf_event_attr
    :returns: its file, to be mapped and closed
    :raises OSError: when it cannot be opened, see :func:`reason`
    """
    return _open(event, thread, ANY_PCPU, -1, sample_type)


def _open(event: Event, thread: int, pcpu: int, leader: int,
          sample_type: int = 0) -> int:
    number = _SYSCALLS.get(platform.machine())
    if number is None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    attributes = _ATTRIBUTES.pack(
        event.type, _ATTRIBUTES.size, event.config, 0, sample_type,
        _FORMAT_TIMES_AND_GROUP, event.flags, 0, 0, 0)
    handle: int = _library.syscall(
        ctypes.c_long(number), attributes, ctypes.c_int(thread),
        ctypes.c_int(pcpu), ctypes.c_int(leader),
        ctypes.c_ulong(_FLAG_CLOSE_ON_EXEC))
    if handle < 0:
        found = ctypes.get_errno()
        raise OSError(found, os.strerror(found))
    return handle
