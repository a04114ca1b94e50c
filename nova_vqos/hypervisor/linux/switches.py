# SPDX-License-Identifier: Apache-2.0
"""When a thread began and ceased to run, as the kernel records it.

By a performance event that counts nothing (perf_event_open(2),
``context_switch``): its buffer gets a record of each change of the thread
until it is full. Then nothing more is recorded until it is read, so what is
read is without gaps, and bounded.
"""

from collections.abc import Iterator
import errno
import mmap
import os
import struct

from nova_vqos.hypervisor.linux import perf
from nova_vqos.quantum import sibling_preemptions

# NOTE: of include/uapi/linux/perf_event.h, as all that follows.
_DUMMY = 9
_CONTEXT_SWITCH, _SAMPLE_ID_ALL = 1 << 26, 1 << 18
_EXCLUDE_KERNEL = 1 << 5
_SAMPLE_TIME = 1 << 2
_EVENT = perf.Event(perf.TYPE_SOFTWARE, _DUMMY,
                    _CONTEXT_SWITCH | _SAMPLE_ID_ALL | _EXCLUDE_KERNEL)
# In the first page: data_head and data_tail.
_HEAD, _TAIL = 1024, 1032
_NUMBER = struct.Struct('=Q')
# Type, misc and size; then the time, which is last in each record.
_HEADER = struct.Struct('=IHH')
_RECORD_SWITCH = 14
_OUT, _PREEMPTED = 1 << 13, 1 << 14


class Recorder:
    """Records the changes of one thread."""

    def __init__(self, thread: int) -> None:
        """Begin to record.

        :raises OSError: when that is not possible, see :func:`perf.reason`
        """
        self._handle = perf.open_sampled(_EVENT, thread, _SAMPLE_TIME)
        try:
            self._pages = mmap.mmap(self._handle, 2 * mmap.PAGESIZE)
        except OSError as error:
            os.close(self._handle)
            raise OSError(errno.ENOBUFS, 'the kernel has no more buffers for '
                          'this user: see kernel.perf_event_mlock_kb'
                          ) from error

    def read(self) -> list[sibling_preemptions.Turn]:
        """The changes since the last reading, as far as there was room."""
        # NOTE: a system call, after which the kernel's writes are seen.
        os.fstat(self._handle)
        (head,) = _NUMBER.unpack_from(self._pages, _HEAD)
        (tail,) = _NUMBER.unpack_from(self._pages, _TAIL)
        found = list(self._records(tail, head))
        _NUMBER.pack_into(self._pages, _TAIL, head)
        return found

    def close(self) -> None:
        """Close it; harmless when repeated."""
        if not self._pages.closed:
            self._pages.close()
            os.close(self._handle)

    def _records(self, tail: int, head: int
                 ) -> Iterator[sibling_preemptions.Turn]:
        begin = mmap.PAGESIZE + tail % mmap.PAGESIZE
        # It may go on at the beginning of the buffer.
        records = (self._pages[begin:]
                   + self._pages[mmap.PAGESIZE:begin])[:head - tail]
        place = 0
        while place < len(records):
            kind, misc, size = _HEADER.unpack_from(records, place)
            if size < _HEADER.size or size > len(records) - place:
                return
            place += size
            if kind != _RECORD_SWITCH:
                continue
            (at_ns,) = _NUMBER.unpack_from(records, place - _NUMBER.size)
            yield sibling_preemptions.Turn(at_ns, _change(misc))


def _change(misc: int) -> sibling_preemptions.Change:
    if not misc & _OUT:
        return sibling_preemptions.Change.BEGAN
    return (sibling_preemptions.Change.PREEMPTED if misc & _PREEMPTED
            else sibling_preemptions.Change.ENDED)
