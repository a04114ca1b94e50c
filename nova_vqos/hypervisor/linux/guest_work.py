# SPDX-License-Identifier: Apache-2.0
"""The instructions that guests retired, beside the CPU time that they took.

Each domain that is asked for has one open counter: the emulator's where there
is one, else the CPU's. A counter that shows what cannot be is closed, and the
other kind is tried.
"""

from collections.abc import Callable, Mapping
import logging
import os
import threading
import time

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import accounting
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import instructions
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import threads

LOG = logging.getLogger(__name__)

#: More than any CPU retires in a second of CPU time.
MOST_PER_S = 1e11
#: CPU time after which a guest has retired instructions if they are counted.
SILENT_NS = 1_000_000_000
#: Files that counters of all domains keep open.
MOST_FILES = 4096

# The kernel adds a running thread's time to its cgroup's at each tick, and the
# time is read after the counter.
_SLACK_NS = 100_000_000
_SECOND_NS = 1_000_000_000


class Plausibility:
    """Whether readings of a counter can be true.

    :ivar has_counted: whether instructions were retired since the first one
    """

    def __init__(self) -> None:
        self.has_counted = False
        self._instructions = 0.0
        self._vcpu_ns = 0
        self._grown_at_ns: int | None = None

    def check(self, instructions_now: float, vcpu_ns: int) -> None:
        """Check a reading against those before.

        :param vcpu_ns: the CPU time of the guest's vCPUs, which never falls
        :raises CountError: when it cannot be true
        """
        grown = instructions_now - self._instructions
        ran_ns = vcpu_ns - self._vcpu_ns
        if grown < 0:
            raise instructions.CountError(
                f'the counter of instructions fell by {-grown:g}')
        if grown > MOST_PER_S * (ran_ns + _SLACK_NS) / _SECOND_NS:
            raise instructions.CountError(
                f'the counter of instructions grew by {grown:g} in '
                f'{ran_ns / _SECOND_NS:.1f} s of CPU time')
        if self._grown_at_ns is None:
            self._grown_at_ns = vcpu_ns
        elif grown:
            self._grown_at_ns = vcpu_ns
            self.has_counted = True
        elif vcpu_ns - self._grown_at_ns >= SILENT_NS:
            raise instructions.CountError(
                'no instruction of the guest was counted in '
                f'{(vcpu_ns - self._grown_at_ns) / _SECOND_NS:.1f} s of its '
                'CPU time')
        self._instructions, self._vcpu_ns = instructions_now, vcpu_ns


class _Counting:
    """A domain that is being counted.

    :ivar kind: of the counter, see WorkReader
    """

    def __init__(self, counter: instructions.Counter, kind: int,
                 emulator: domain_files.Emulator) -> None:
        self.counter = counter
        self.kind = kind
        self.emulator = emulator
        self.plausibility = Plausibility()
        # Differs from that of each counter before, also of another agent.
        self._began_ns = time.monotonic_ns()

    def work(self, counted: float, used: usage.VcpuTime
             ) -> usage.GuestWork | None:
        """A reading of it; None: nothing was counted so far.

        :raises CountError: when it cannot be true
        """
        self.plausibility.check(counted, used.vcpu_ns)
        if not self.plausibility.has_counted:
            return None
        return usage.GuestWork(
            f'{used.run}/{self._began_ns}', used.read_at_s, counted,
            used.vcpu_ns, used.throttled_ns, used.vcpus)


class WorkReader:
    """Reads the counters of domains. Any thread may call it."""

    def __init__(self, domains: domain_files.Cache, root: str,
                 directory: str, *,
                 event: perf.Event = instructions.GUEST_INSTRUCTIONS,
                 most_files: int = MOST_FILES) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /proc is looked for
        :param directory: of the emulators' files
        :param event: that is counted in threads of vCPUs
        """
        self._domains = domains
        self._proc_path = os.path.join(root, 'proc')
        self._directory = directory
        self._event = event
        self._most_files = most_files
        # In the order in which they are tried.
        self._kinds: tuple[Callable[
            [threads.VcpuThreads], instructions.Counter], ...] = (
            self._open_emulator, self._open_cpu)
        self._lock = threading.Lock()
        self._countings: dict[str, _Counting] = {}
        # By UUID, why each kind was of no use; '': it was not tried.
        self._failures: dict[str, list[str]] = {}
        self._problems: Mapping[str, str] = {}

    def read(self, run_ids: Mapping[str, int]
             ) -> Mapping[str, usage.GuestWork]:
        """As :meth:`base.UsageDriver.guest_work`."""
        with self._lock:
            for uuid in self._countings.keys() - run_ids.keys():
                self._drop(uuid)
            for uuid in self._failures.keys() - run_ids.keys():
                del self._failures[uuid]
            found = {uuid: work for uuid, run_id in run_ids.items()
                     if (work := self._read(uuid, run_id)) is not None}
            self._problems = {uuid: '; '.join(filter(None, failures))
                              for uuid, failures in self._failures.items()}
            return found

    def problems(self) -> Mapping[str, str]:
        """As :meth:`base.UsageDriver.guest_work_problems`."""
        return self._problems

    def close(self) -> None:
        """Close all counters."""
        self.read({})

    def _read(self, uuid: str, run_id: int) -> usage.GuestWork | None:
        """None: unknown this time."""
        try:
            counting = self._find(uuid, run_id)
            if counting is None:
                return None
            # The counter first: see Plausibility.
            counted = counting.counter.read()
            used = self._domains.use(
                uuid, accounting.Account, accounting.Account.read_vcpus,
                run_id)
            work = counting.work(counted, used)
        except instructions.CountError as error:
            self._fail(uuid, self._countings[uuid].kind, error)
            self._drop(uuid)
            return None
        except base.HypervisorError as error:
            LOG.debug('Instructions of domain %s cannot be read: %s', uuid,
                      error)
            return None
        if work is not None:
            self._failures.pop(uuid, None)
        return work

    def _find(self, uuid: str, run_id: int) -> _Counting | None:
        """The counting of a domain, begun anew where it must be.

        :returns: None: it cannot be counted
        """
        vcpus = self._domains.use(
            uuid, threads.ThreadReader, threads.ThreadReader.read_vcpus,
            run_id)
        counting = self._countings.get(uuid)
        if (counting is not None and counting.emulator == vcpus.emulator
                and counting.counter.covers(vcpus.tids)):
            return counting
        self._drop(uuid)
        return self._open(uuid, vcpus)

    def _open(self, uuid: str, vcpus: threads.VcpuThreads
              ) -> _Counting | None:
        for kind in self._order(uuid):
            try:
                counter = self._kinds[kind](vcpus)
            except instructions.CountError as error:
                self._fail(uuid, kind, error)
                continue
            made = _Counting(counter, kind, vcpus.emulator)
            self._countings[uuid] = made
            return made
        return None

    def _order(self, uuid: str) -> list[int]:
        """The kinds of counters to try: first those that did not fail."""
        failures = self._failures.get(uuid, [''] * len(self._kinds))
        return sorted(range(len(self._kinds)),
                      key=lambda kind: bool(failures[kind]))

    def _open_emulator(self, vcpus: threads.VcpuThreads
                       ) -> instructions.Counter:
        self._check_files(1)
        return instructions.EmulatorCounter(
            self._directory, vcpus.emulator.pid, self._proc_path)

    def _open_cpu(self, vcpus: threads.VcpuThreads) -> instructions.Counter:
        self._check_files(len(vcpus.tids))
        return instructions.CpuCounter(vcpus.tids, self._event)

    def _check_files(self, files: int) -> None:
        used = sum(one.counter.files for one in self._countings.values())
        if used + files > self._most_files:
            raise instructions.CountError(
                f'counters have {used} of {self._most_files} files open by '
                'now')

    def _fail(self, uuid: str, kind: int,
              error: instructions.CountError) -> None:
        failures = self._failures.setdefault(uuid, [''] * len(self._kinds))
        failures[kind] = str(error)

    def _drop(self, uuid: str) -> None:
        counting = self._countings.pop(uuid, None)
        if counting is not None:
            counting.counter.close()
