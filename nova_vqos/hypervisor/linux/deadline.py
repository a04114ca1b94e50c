# SPDX-License-Identifier: Apache-2.0
"""Reservations of CPU time: the kernel's policy SCHED_DEADLINE.

A thread with a reservation gets its runtime in each period, whatever else
runs, and no more: a constant bandwidth server under global EDF
(Documentation/scheduler/sched-deadline.rst). The kernel admits reservations as
long as their sum leaves some of each pCPU to all other threads. How much that
is depends on its version, so it is measured here and never calculated.

NOTE: nothing here ends a reservation. A thread that leaves the policy while it
sleeps takes its bandwidth with it for ever (seen on Linux 6.18 and 7.3): a
reservation ends with its thread.
"""

from collections.abc import Callable, Iterator
import contextlib
import errno
from fractions import Fraction
import functools
import os
import subprocess

from nova_vqos import units
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import sched_attr

_POLICY = 6
_RECLAIM = 0x02
_US_NS = 1000

# NOTE: without high resolution timers a runtime is enforced at the scheduler's
# ticks alone, and an overrun is paid back at the rate of the reservation: one
# of next to nothing can stop a thread for minutes. The runtime may be below a
# tick for threads that run for less at a time.
_LEAST_RUNTIME_US = 100
_LEAST_SHARE = Fraction(1, 500)

# Of the processes that measure what is left. A few periods after their end it
# is free again.
_PROBE_PERIOD_US = 10_000
_PROBE_STEPS = 10
_HALF = Fraction(1, 2)
_PROBE_PROGRAM = 'cat'
# More than that many processes at once are not started.
_MOST_PROBES = 1024

_REFUSALS = {
    errno.EBUSY: 'the kernel has not enough CPU time left to reserve',
    errno.EPERM: 'the kernel reserves no CPU time for a thread that may not '
                 'run on all pCPUs of its cpuset partition, or this process '
                 'lacks CAP_SYS_NICE',
    errno.EINVAL: 'the kernel refuses these numbers',
    errno.ENOSYS: 'this kernel has no reservations',
}


def reserve(tid: int, wanted: units.CpuCap, *, reclaims: bool = False) -> bool:
    """Reserve a runtime in each period for a thread, unless it has it.

    :param reclaims: whether it may use more while others leave theirs unused
    :returns: whether that was written
    :raises ValueError: when the reservation is too small
    :raises ProcessLookupError: when there is no such thread any more
    :raises base.ReservationRefused: when the kernel refuses
    """
    if (wanted.quota_us < _LEAST_RUNTIME_US or wanted.share < _LEAST_SHARE
            or wanted.share > 1):
        raise ValueError(
            f'a reservation of {wanted.quota_us}/{wanted.period_us} us is out '
            f'of bounds: at least {_LEAST_RUNTIME_US} us and '
            f'{float(_LEAST_SHARE):.1%} of the period, and no more than it')
    attributes = _attributes(wanted, _RECLAIM if reclaims else 0)
    with _refusals(tid):
        found = sched_attr.read(tid)
        if found.policy == _POLICY and all(
                getattr(found, name) == getattr(attributes, name)
                for name in ('flags', 'runtime_ns', 'deadline_ns',
                             'period_ns')):
            return False
        sched_attr.write(tid, attributes)
    return True


def reservation(tid: int) -> units.CpuCap | None:
    """Read the reservation of a thread; None: it has none.

    :param tid: 0: the calling thread
    :raises ProcessLookupError: when there is no such thread any more
    :raises base.ReservationRefused: when the kernel refuses
    """
    with _refusals(tid):
        found = sched_attr.read(tid)
    if found.policy != _POLICY:
        return None
    return units.CpuCap(found.runtime_ns // _US_NS, found.period_ns // _US_NS)


def free_bandwidth(pcpus: int, group: str | None = None) -> Fraction:
    """Measure how much CPU time the kernel would still reserve.

    Processes that sleep reserve half a pCPU each until the kernel refuses,
    then the first one adds smaller and smaller parts, and all end. For some
    milliseconds the kernel refuses all other reservations.

    :param pcpus: how many there are
    :param group: directory of the cgroup in which it measures, for a process
        without threads; None: that of the calling process
    :returns: in pCPUs, to the next lower 1/1024
    :raises base.ReservationRefused: when it reserves none at all, for another
        reason than that all is reserved
    :raises OSError: when no process can be started
    :raises subprocess.SubprocessError: when none can enter the cgroup
    """
    halves = 0
    with _sleepers(group) as start:
        first = sleeper = start()
        while _is_admitted(sleeper, _probe(_HALF)):
            halves += 1
            if halves == min(2 * pcpus, _MOST_PROBES):
                return halves * _HALF
            sleeper = start()
        # NOTE: no process has a small part alone. It would pay back the CPU
        # time that its end takes at that rate, and what it had would be free
        # seconds later.
        share = min(halves, 1) * _HALF
        for step in range(2, _PROBE_STEPS + 1):
            part = Fraction(1, 2 ** step)
            if _is_admitted(first, _probe(share + part)):
                share += part
    return max(halves - 1, 0) * _HALF + share


def _probe(share: Fraction) -> units.CpuCap:
    return units.CpuCap(round(share * _PROBE_PERIOD_US), _PROBE_PERIOD_US)


def _attributes(wanted: units.CpuCap, flags: int = 0) -> sched_attr.Attributes:
    return sched_attr.Attributes(
        policy=_POLICY,
        # Threads that it makes get no reservation: the kernel would refuse
        # to make them.
        flags=sched_attr.RESET_ON_FORK | flags,
        runtime_ns=wanted.quota_us * _US_NS,
        deadline_ns=wanted.period_us * _US_NS,
        period_ns=wanted.period_us * _US_NS)


def _is_admitted(tid: int, wanted: units.CpuCap) -> bool:
    try:
        sched_attr.write(tid, _attributes(wanted))
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise _refused(error, tid) from error
    return True


@contextlib.contextmanager
def _sleepers(group: str | None) -> Iterator[Callable[[], int]]:
    """What starts a process that sleeps, until the end of the context.

    :param group: see :func:`free_bandwidth`
    """
    # NOTE: it enters the cgroup by itself, while it runs: one that sleeps
    # stays where it last ran, outside of the partition, and the kernel refuses
    # it.
    enter = None if group is None else functools.partial(
        cgroup.write, os.path.join(group, 'cgroup.procs'), '0')
    started: list[subprocess.Popen[bytes]] = []
    # Each of them reads until this process closes the pipe, or is killed.
    reader, writer = os.pipe()

    def start() -> int:
        started.append(subprocess.Popen(
            _PROBE_PROGRAM, stdin=reader, stdout=subprocess.DEVNULL,
            preexec_fn=enter))
        return started[-1].pid
    try:
        yield start
    finally:
        # NOTE: to end takes CPU time, too. But none gets more for that: after
        # a few measurements that did so, Linux 6.18 lacked half a pCPU.
        for process in started:
            process.kill()
        for process in started:
            process.wait()
        os.close(reader)
        os.close(writer)


@contextlib.contextmanager
def _refusals(tid: int) -> Iterator[None]:
    try:
        yield
    except ProcessLookupError:
        raise
    except OSError as error:
        raise _refused(error, tid) from error
    except base.SlicesUnsupported as error:
        raise base.ReservationRefused(str(error)) from error


def _refused(error: OSError, tid: int) -> base.ReservationRefused:
    number = error.errno or 0
    reason = _REFUSALS.get(number, os.strerror(number))
    return base.ReservationRefused(f'thread {tid}: {reason}')
