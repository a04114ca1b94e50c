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
"""The time slice of a thread, as the kernel has it and takes it.

A fair thread's slice is part of what sched_setattr(2) sets. That call replaces
nice and policy too: they are read first, and kept.
"""

import ctypes
import errno
import functools
import os

from nova_vqos.hypervisor import base
from nova_vqos.quantum import classes

# Numbers of the calls that set and get, by architecture.
_CALLS = {'x86_64': (314, 315), 'aarch64': (274, 275),
          'ppc64le': (355, 356), 's390x': (345, 346)}

# From linux/sched.h. Of the policies only the fair ones have a slice to set;
# of SCHED_IDLE it is nobody's wish.
_FAIR_POLICIES = (0, 3)
_RESET_ON_FORK = 0x01
_KEEP_POLICY = 0x08

_US_NS = 1000


class _Attributes(ctypes.Structure):
    """struct sched_attr as of its first version, which all kernels take."""

    _fields_ = (('size', ctypes.c_uint32), ('policy', ctypes.c_uint32),
                ('flags', ctypes.c_uint64), ('nice', ctypes.c_int32),
                ('priority', ctypes.c_uint32), ('slice_ns', ctypes.c_uint64),
                ('deadline_ns', ctypes.c_uint64),
                ('period_ns', ctypes.c_uint64))


class _Default:
    """The kernel's own slice, as it was when a thread was given it last.

    :ivar slice_ns: None: not known yet. It changes when pCPUs come or go.
    """

    slice_ns: int | None = None


def set_slice(tid: int, slice_us: int | None) -> bool:
    """Give a thread a slice, unless it has it.

    Threads of other policies than SCHED_OTHER and SCHED_BATCH are left alone.

    :param slice_us: None: the kernel's own
    :returns: whether it had another one
    :raises ValueError: when the kernel takes no such slice
    :raises ProcessLookupError: when there is no such thread any more
    :raises base.SlicesUnsupported: when the kernel has no slices to set
    :raises base.SlicesDenied: when this process may not set them
    :raises base.HypervisorError: when the kernel refuses it otherwise
    """
    if slice_us is not None:
        _check(slice_us)
    found = _read(tid)
    if found.policy not in _FAIR_POLICIES:
        return False
    if found.slice_ns == 0:
        # NOTE: since slices can be set, each thread that ever ran shows one.
        if slice_us is None:
            return False
        raise base.SlicesUnsupported(
            'this kernel has no slices to set: Linux 6.12 is the first that '
            'has')
    wanted_ns = (_Default.slice_ns if slice_us is None
                 else slice_us * _US_NS)
    if found.slice_ns == wanted_ns:
        return False
    before_ns: int = found.slice_ns
    found.slice_ns = 0 if slice_us is None else slice_us * _US_NS
    if not _write(tid, found):
        return False
    if slice_us is None:
        now_ns: int = _read(tid).slice_ns
        _Default.slice_ns = now_ns
        return before_ns != now_ns
    return True


def slice_us(tid: int) -> int | None:
    """The slice of a thread in microseconds; None: it has none to set.

    :param tid: 0: the calling thread
    :raises ProcessLookupError: when there is no such thread any more
    :raises base.HypervisorError: when the kernel does not tell
    """
    found = _read(tid)
    if found.policy not in _FAIR_POLICIES or found.slice_ns == 0:
        return None
    slice_ns: int = found.slice_ns
    return slice_ns // _US_NS


def _check(slice_us: int) -> None:
    if not classes.MIN_SLICE_US <= slice_us <= classes.MAX_SLICE_US:
        raise ValueError(
            f'the kernel takes no slice of {slice_us} us, only of '
            f'{classes.MIN_SLICE_US} to {classes.MAX_SLICE_US} us')


def _read(tid: int) -> _Attributes:
    found = _Attributes()
    _set, get = _numbers()
    number = _call(get, tid, found, ctypes.c_uint(ctypes.sizeof(found)),
                   ctypes.c_uint(0))
    if number:
        raise _error(number, tid, 'reading')
    return found


def _write(tid: int, wanted: _Attributes) -> bool:
    """Set what was read, with another slice.

    :returns: False: it is no fair thread any more
    """
    # NOTE: the policy is kept by the kernel (Linux 5.3), so that one which
    # somebody sets at this moment is not undone.
    wanted.flags = wanted.flags & _RESET_ON_FORK | _KEEP_POLICY
    set_, _get = _numbers()
    number = _call(set_, tid, wanted, ctypes.c_uint(0))
    if not number:
        return True
    # A thread that became a real-time one has no priority 0.
    if (number == errno.EINVAL
            and _read(tid).policy not in _FAIR_POLICIES):
        return False
    raise _error(number, tid, 'setting')


def _error(number: int, tid: int, what: str) -> Exception:
    text = f'{what} the slice of thread {tid}: {os.strerror(number)}'
    if number == errno.ESRCH:
        return ProcessLookupError(number, text)
    if number in (errno.EPERM, errno.EACCES):
        return base.SlicesDenied(
            f'{text}; threads of other users take CAP_SYS_NICE')
    if number == errno.ENOSYS:
        return base.SlicesUnsupported(text)
    return base.HypervisorError(text)


@functools.cache
def _numbers() -> tuple[int, int]:
    machine = os.uname().machine
    try:
        return _CALLS[machine]
    except KeyError:
        raise base.SlicesUnsupported(
            f'how slices are set on {machine} is not known here') from None


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return libc


def _call(number: int, tid: int, attributes: _Attributes,
          *rest: ctypes.c_uint) -> int:
    """:returns: 0, or the number of the error"""
    done = _libc().syscall(ctypes.c_long(number), ctypes.c_int(tid),
                           ctypes.byref(attributes), *rest)
    return ctypes.get_errno() if done < 0 else 0
