# SPDX-License-Identifier: Apache-2.0
"""Reads and sets how the kernel schedules a thread: sched_setattr(2).

That call sets a fair thread's slice. It replaces nice and policy too: they are
read first, and written unchanged. For reservations see
:mod:`nova_vqos.hypervisor.linux.deadline`.
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

# From linux/sched.h. Only the fair policies have a slice to set; threads of
# SCHED_IDLE are left alone.
_FAIR_POLICIES = (0, 3)
RESET_ON_FORK = 0x01
_KEEP_POLICY = 0x08

_US_NS = 1000


class Attributes(ctypes.Structure):
    """struct sched_attr in its first version, which all kernels accept.

    ``runtime_ns`` is the slice of a thread of a fair policy.
    """

    _fields_ = (('size', ctypes.c_uint32), ('policy', ctypes.c_uint32),
                ('flags', ctypes.c_uint64), ('nice', ctypes.c_int32),
                ('priority', ctypes.c_uint32), ('runtime_ns', ctypes.c_uint64),
                ('deadline_ns', ctypes.c_uint64),
                ('period_ns', ctypes.c_uint64))


_SIZE_BYTES = ctypes.sizeof(Attributes)


class _Default:
    """The kernel's default slice, as of the last thread that was given it.

    :ivar slice_ns: None: unknown yet. It changes when pCPUs come or go.
    """

    slice_ns: int | None = None


def set_slice(tid: int, slice_us: int | None) -> bool:
    """Set the slice of a thread, unless it has it.

    Threads of other policies than SCHED_OTHER and SCHED_BATCH are left alone.

    :param slice_us: None: the kernel's default
    :returns: whether it had another one
    :raises ValueError: when the slice is out of the kernel's bounds
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
    if found.runtime_ns == 0:
        # NOTE: since slices can be set, each thread that ever ran shows one.
        if slice_us is None:
            return False
        raise base.SlicesUnsupported(
            'this kernel has no slices to set; they need Linux 6.12')
    wanted_ns = (_Default.slice_ns if slice_us is None
                 else slice_us * _US_NS)
    if found.runtime_ns == wanted_ns:
        return False
    before_ns: int = found.runtime_ns
    found.runtime_ns = 0 if slice_us is None else slice_us * _US_NS
    if not _write(tid, found):
        return False
    if slice_us is None:
        now_ns: int = _read(tid).runtime_ns
        _Default.slice_ns = now_ns
        return before_ns != now_ns
    return True


def slice_us(tid: int) -> int | None:
    """Read the slice of a thread in microseconds; None: it has none to set.

    :param tid: 0: the calling thread
    :raises ProcessLookupError: when there is no such thread any more
    :raises base.HypervisorError: when the kernel refuses
    """
    found = _read(tid)
    if found.policy not in _FAIR_POLICIES or found.runtime_ns == 0:
        return None
    slice_ns: int = found.runtime_ns
    return slice_ns // _US_NS


def _check(slice_us: int) -> None:
    if not classes.MIN_SLICE_US <= slice_us <= classes.MAX_SLICE_US:
        raise ValueError(
            f'a slice of {slice_us} us is out of bounds: the kernel accepts '
            f'{classes.MIN_SLICE_US} to {classes.MAX_SLICE_US} us')


def read(tid: int) -> Attributes:
    """Read the attributes of a thread.

    :param tid: 0: the calling thread
    :raises OSError: when the kernel refuses
    :raises base.SlicesUnsupported: on another architecture
    """
    found = Attributes()
    _set, get = _numbers()
    _check_call(_call(get, tid, found, _SIZE_BYTES, 0))
    return found


def write(tid: int, wanted: Attributes) -> None:
    """Write the attributes of a thread.

    :raises OSError: when the kernel refuses
    :raises base.SlicesUnsupported: on another architecture
    """
    set_, _get = _numbers()
    wanted.size = _SIZE_BYTES
    _check_call(_call(set_, tid, wanted, 0, 0))


def _read(tid: int) -> Attributes:
    try:
        return read(tid)
    except OSError as error:
        raise _error(error, tid, 'reading') from error


def _write(tid: int, wanted: Attributes) -> bool:
    """Write attributes that were read, with another slice.

    :returns: False: it is no fair thread any more
    """
    # NOTE: the flag has the kernel (Linux 5.3) leave the policy as it is, so
    # that a policy set meanwhile is not undone.
    wanted.flags = wanted.flags & RESET_ON_FORK | _KEEP_POLICY
    try:
        write(tid, wanted)
    except OSError as error:
        # A thread that became a real-time one has no priority 0.
        if (error.errno == errno.EINVAL
                and _read(tid).policy not in _FAIR_POLICIES):
            return False
        raise _error(error, tid, 'setting') from error
    return True


def _error(error: OSError, tid: int, what: str) -> Exception:
    text = f'{what} the slice of thread {tid}: {error.strerror}'
    if error.errno == errno.ESRCH:
        return ProcessLookupError(error.errno, text)
    if error.errno in (errno.EPERM, errno.EACCES):
        return base.SlicesDenied(
            f'{text}; threads of other users need CAP_SYS_NICE')
    if error.errno == errno.ENOSYS:
        return base.SlicesUnsupported(text)
    return base.HypervisorError(text)


def _check_call(number: int) -> None:
    if number:
        raise OSError(number, os.strerror(number))


@functools.cache
def _numbers() -> tuple[int, int]:
    machine = os.uname().machine
    try:
        return _CALLS[machine]
    except KeyError:
        raise base.SlicesUnsupported(
            f'setting slices is not implemented for {machine}') from None


@functools.cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    libc.syscall.argtypes = (ctypes.c_long, ctypes.c_int,
                             ctypes.POINTER(Attributes), ctypes.c_uint,
                             ctypes.c_uint)
    return libc


def _call(number: int, tid: int, attributes: Attributes,
          *rest: int) -> int:
    """:returns: 0, or the number of the error"""
    done = _libc().syscall(number, tid, attributes, *rest)
    return ctypes.get_errno() if done < 0 else 0
