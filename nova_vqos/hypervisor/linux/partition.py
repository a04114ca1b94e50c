# SPDX-License-Identifier: Apache-2.0
"""The cpuset partition of a host's domains.

The kernel reserves time only for threads that may run on all pCPUs of their
root domain. A partition is a root domain of its own: domains have its pCPUs to
themselves, and the other pCPUs keep the services of the host alive, however
much is reserved (Documentation/admin-guide/cgroup-v2.rst,
``cpuset.cpus.partition``).

NOTE: ``root`` and not ``isolated``: in the latter the kernel does not balance
threads without a reservation, such as QEMU's helpers.
"""

from collections.abc import Iterator
import contextlib
import fcntl
from fractions import Fraction
import json
import os
import subprocess
import time
import typing as ty

from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos import utc
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.hypervisor.linux import deadline
from nova_vqos.hypervisor.linux import procfs

UNIT = 'nova-vqos-partition.service'

_CGROUPS = 'sys/fs/cgroup'
_STATE = 'cpuset.cpus.partition'
_ROOT, _MEMBER = 'root', 'member'
# In which it is measured what is free.
_PROBE_GROUP = 'nova-vqos-probe'
_MOST_TRIES = 5
_FORGET_S = 0.5
# Of two measurements: each ends at 1/1024 of a pCPU.
_RESOLUTION = Fraction(2, 1024)
_REMOVE_S = 5.0
_POLL_S = 0.01

_SCHEMA = 1
_MOST_PCPUS = 8192
# A timer measures every ten minutes.
_MOST_AGE_S = 3600.0


class PartitionError(base.HypervisorError):
    """The partition cannot be made, measured or released."""


class Bandwidth(ty.NamedTuple):
    """The CPU time of a partition that can be reserved, in pCPUs.

    :ivar reserved_pcpus: for the threads that are in it
    :ivar free_pcpus: that is left
    """

    reserved_pcpus: Fraction
    free_pcpus: Fraction

    @property
    def total_pcpus(self) -> Fraction:
        return self.reserved_pcpus + self.free_pcpus


class Partition:
    """Makes the cgroup above all domains a partition, and measures it.

    The agent may not write to cgroupfs, and is in no partition. So a program
    of its own does that, and leaves what it measured in a file.

    :ivar pcpus: those that it is to have
    """

    def __init__(self, pcpus: frozenset[int], record_path: str,
                 root: str = '/') -> None:
        """
        :param record_path: of the file with what was measured
        :param root: where /proc, /run and /sys are looked for, for tests
        """
        self.pcpus = pcpus
        self._record_path = record_path
        self._root = root
        # As libvirt has it, with systemd and without.
        self.path = os.path.join(
            root, _CGROUPS, 'machine.slice' if os.path.isdir(
                os.path.join(root, 'run/systemd/system')) else 'machine')

    def problem(self) -> str:
        """Why these pCPUs are no partition; '': they are."""
        try:
            state = procfs.read_text(os.path.join(self.path, _STATE))
            found = cpuset.parse_pcpus(procfs.read_text(
                os.path.join(self.path, 'cpuset.cpus.effective')))
        except (OSError, ValueError) as error:
            return f'{self.path} is no cpuset partition: {error}'
        if state != _ROOT:
            return (f'{self.path} is no cpuset partition, its {_STATE} is '
                    f'{state!r}')
        if found != self.pcpus:
            return (f'the cpuset partition {self.path} has the pCPUs '
                    f'{cpuset.format_pcpus(found)}, not '
                    f'{cpuset.format_pcpus(self.pcpus)}')
        return ''

    def make(self, rebuild: bool = False) -> bool:
        """Make it, unless it is there.

        :param rebuild: make it anew if it is: the kernel then adds up again
            what threads in it have reserved, and finds what it lost
        :returns: whether anything was written
        :raises PartitionError: when this host or the kernel refuses
        """
        if cgroup.host_version(self._root) != 2:
            raise PartitionError('cpuset partitions need cgroups of version '
                                 '2, and this host has version 1')
        if not self.problem():
            if not rebuild:
                return False
            # NOTE: its threads keep their reservations.
            with _errors():
                cgroup.write(os.path.join(self.path, _STATE), _MEMBER)
        with _errors():
            cgroup.write(os.path.join(os.path.dirname(self.path),
                                      'cgroup.subtree_control'), '+cpuset')
            os.makedirs(self.path, exist_ok=True)
            cgroup.write(os.path.join(self.path, 'cpuset.cpus'),
                         cpuset.format_pcpus(self.pcpus))
            cgroup.write(os.path.join(self.path, _STATE), _ROOT)
        # NOTE: the kernel accepts what it then says is invalid.
        problem = self.problem()
        if problem:
            raise PartitionError(problem)
        return True

    def release(self) -> None:
        """Give the pCPUs back to the rest of the host.

        Reservations in it last, and no more are admitted for domains that may
        not run on all pCPUs of the host.

        :raises PartitionError: when the kernel refuses
        """
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._record_path)
        if os.path.exists(os.path.join(self.path, _STATE)):
            with _errors():
                cgroup.write(os.path.join(self.path, _STATE), _MEMBER)

    def measure(self) -> Bandwidth:
        """Measure what the kernel reserves in it.

        :raises PartitionError: when it cannot be measured
        :raises base.ReservationRefused: when the kernel reserves nothing
        """
        with _errors(), _locked(self.path), _group(
                os.path.join(self.path, _PROBE_GROUP)) as group:
            found = self._measure_once(group)
            for _ in range(_MOST_TRIES):
                # The kernel forgets what measured only some periods later.
                time.sleep(_FORGET_S)
                last, found = found, self._measure_once(group)
                # Servers come and go meanwhile.
                if abs(found.total_pcpus - last.total_pcpus) <= _RESOLUTION:
                    return found
        raise PartitionError(
            f'what can be reserved in {self.path} is another each time: '
            f'{float(last.total_pcpus):.3f}, {float(found.total_pcpus):.3f} '
            'pCPUs')

    def _measure_once(self, group: str) -> Bandwidth:
        return Bandwidth(_reserved_below(self.path),
                         deadline.free_bandwidth(len(self.pcpus), group))

    def store(self, found: Bandwidth) -> None:
        """Leave for the agent what was measured.

        :raises OSError: when the file cannot be written
        """
        files.write(json.dumps({
            'schema': _SCHEMA, 'pcpus': cpuset.format_pcpus(self.pcpus),
            'total_pcpus': float(found.total_pcpus),
            'measured_at': utc.text(),
        }, indent=2) + '\n', self._record_path)

    def total_pcpus(self) -> Fraction:
        """What can be reserved in it, as it was measured, in pCPUs.

        :raises base.ReservationRefused: when it is no partition any more, or
            was not measured in the last hour
        """
        problem = self.problem()
        if not problem:
            try:
                return self._load()
            except (files.FileError, ValueError, RecursionError) as error:
                problem = str(error)
        raise base.ReservationRefused(f'{problem}: start {UNIT}')

    def _load(self) -> Fraction:
        fields = files.Fields(json.loads(files.read(self._record_path)), '')
        fields.number('schema', _SCHEMA, _SCHEMA)
        pcpus, measured_at = fields.text('pcpus'), fields.text('measured_at')
        if cpuset.parse_pcpus(pcpus) != self.pcpus:
            raise ValueError(f'{self._record_path} is of the pCPUs {pcpus}')
        age_s = time.time() - utc.parse(measured_at).timestamp()
        if not -_MOST_AGE_S <= age_s <= _MOST_AGE_S:
            raise ValueError(
                f'{self._record_path} was written at {measured_at}')
        return Fraction(fields.number('total_pcpus', 0, _MOST_PCPUS))


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    try:
        yield
    except (OSError, subprocess.SubprocessError) as error:
        raise PartitionError(str(error)) from error


@contextlib.contextmanager
def _locked(path: str) -> Iterator[None]:
    """Let no other program measure meanwhile."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _group(path: str) -> Iterator[str]:
    """A cgroup that is empty again at the end of the context."""
    # One that was killed here leaves its own.
    os.makedirs(path, exist_ok=True)
    try:
        yield path
    finally:
        limit_s = time.monotonic() + _REMOVE_S
        while True:
            try:
                os.rmdir(path)
                break
            except OSError:
                # Processes that ended leave it some time later.
                if time.monotonic() > limit_s:
                    raise
                time.sleep(_POLL_S)


def _reserved_below(path: str) -> Fraction:
    """What is reserved for all threads in a cgroup and those below it."""
    found = Fraction(0)
    for directory, _directories, names in os.walk(path):
        if procfs.THREAD_LISTS[2] not in names:
            continue
        # NOTE: a cgroup, a thread may be gone by now.
        with contextlib.suppress(OSError):
            for tid in procfs.read_threads(
                    os.path.join(directory, procfs.THREAD_LISTS[2])):
                with contextlib.suppress(ProcessLookupError):
                    has = deadline.reservation(tid)
                    found += 0 if has is None else has.share
    return found
