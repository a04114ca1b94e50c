# SPDX-License-Identifier: Apache-2.0
"""The clock that CPUs ran domains at.

A counter for each vCPU's thread, where the CPU counts; else cpufreq's figures
of the pCPUs. Where a host has neither, that is found once and looked for again
seldom.
"""

from collections.abc import Callable, Mapping
import logging
import threading
import time
import typing as ty

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import clock
from nova_vqos.hypervisor.linux import domain_files
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import threads

LOG = logging.getLogger(__name__)

#: Files that counters of all domains keep open.
MOST_FILES = 6144
#: Until what failed is tried again.
RETRY_S = 600.0
#: pCPUs whose figures are read at a time, of all alike: on some kernels each
#: takes milliseconds.
MOST_PCPUS = 64


class _Counting(ty.NamedTuple):
    """A domain that is being counted.

    :ivar counters: of its vCPUs' threads
    """

    vcpus: threads.VcpuThreads
    counters: tuple[clock.Counter, ...]


class _Failure(ty.NamedTuple):
    """Why a domain is not counted, and when it is tried again."""

    reason: str
    retry_at_s: float


class ClockReader:
    """Reads the clock of domains. Any thread may call it."""

    def __init__(self, domains: domain_files.Cache, root: str, *,
                 most_files: int = MOST_FILES,
                 now_s: Callable[[], float] = time.monotonic) -> None:
        """Prepare; nothing is opened yet.

        :param root: where /sys is looked for
        :param now_s: monotonic clock
        """
        self._domains = domains
        self._root = root
        self._most_files = most_files
        self._now_s = now_s
        self._lock = threading.Lock()
        self._events: tuple[perf.Event, ...] = ()
        self._pcpus: list[int] = []
        # Why there are no events.
        self._problem = ''
        self._find_at_s = float('-inf')
        self._countings: dict[str, _Counting] = {}
        self._failures: dict[str, _Failure] = {}

    def read(self, run_ids: Mapping[str, int]) -> base.Clocks:
        """As :meth:`base.UsageDriver.clocks`."""
        with self._lock:
            for uuid in self._countings.keys() - run_ids.keys():
                self._drop(uuid)
            for uuid in self._failures.keys() - run_ids.keys():
                del self._failures[uuid]
            if not self._events and self._now_s() >= self._find_at_s:
                self._find()
            counted = {uuid: found for uuid, run_id in run_ids.items()
                       if (found := self._read(uuid, run_id)) is not None}
            if self._problem:
                return base.Clocks({}, self._read_pcpus(),
                                   dict.fromkeys(run_ids, self._problem))
            return base.Clocks(counted, {}, {
                uuid: failure.reason
                for uuid, failure in self._failures.items()})

    def close(self) -> None:
        """Close all counters."""
        with self._lock:
            for uuid in tuple(self._countings):
                self._drop(uuid)

    def _find(self) -> None:
        """Find what this host has."""
        try:
            events = clock.find_events(self._root)
        except clock.ClockError as error:
            self._lose_events(str(error))
            return
        problem = perf.probe(events)
        if problem:
            self._lose_events(problem)
            return
        self._events, self._problem, self._pcpus = events, '', []

    def _lose_events(self, problem: str) -> None:
        """Use the figures of pCPUs for a while."""
        for uuid in tuple(self._countings):
            self._drop(uuid)
        self._events, self._problem = (), problem
        self._find_at_s = self._now_s() + RETRY_S
        self._pcpus = _spread(clock.find_pcpus(self._root))

    def _read_pcpus(self) -> dict[int, float]:
        return {pcpu: mhz for pcpu in self._pcpus
                if (mhz := clock.read_pcpu_mhz(pcpu, self._root)) is not None}

    def _read(self, uuid: str, run_id: int) -> usage.ClockTime | None:
        """None: unknown this time."""
        failure = self._failures.get(uuid)
        if not self._events or (failure is not None
                                and self._now_s() < failure.retry_at_s):
            return None
        try:
            return self._count(uuid, run_id)
        except ProcessLookupError:
            # A vCPU has just gone.
            self._drop(uuid)
            self._domains.use(uuid, threads.ThreadReader,
                              threads.ThreadReader.expire)
        except PermissionError as error:
            # That is so for all domains.
            self._lose_events(perf.reason(error))
        except base.HypervisorError as error:
            LOG.debug('The clock of domain %s cannot be read: %s', uuid,
                      error)
        except Exception as error:
            # Whatever it is, it is the fault of this domain alone.
            self._drop(uuid)
            self._failures[uuid] = _Failure(
                perf.reason(error) if isinstance(error, OSError)
                else repr(error), self._now_s() + RETRY_S)
        return None

    def _count(self, uuid: str, run_id: int) -> usage.ClockTime | None:
        """:returns: None: it begins to be counted"""
        vcpus = self._domains.use(
            uuid, threads.ThreadReader, threads.ThreadReader.read_vcpus,
            run_id)
        counting = self._countings.get(uuid)
        if counting is not None and counting.vcpus == vcpus:
            return usage.total_clock(one.read() for one in counting.counters)
        self._drop(uuid)
        self._open(uuid, vcpus)
        self._failures.pop(uuid, None)
        return None

    def _open(self, uuid: str, vcpus: threads.VcpuThreads) -> None:
        """:raises OSError: when not all vCPUs can be counted"""
        used = clock.FILES * sum(len(one.counters)
                                 for one in self._countings.values())
        if used + clock.FILES * len(vcpus.tids) > self._most_files:
            raise OSError(f'counters have {used} of {self._most_files} files '
                          'open by now')
        counters: list[clock.Counter] = []
        try:
            counters.extend(clock.Counter(self._events, tid)
                            for tid in vcpus.tids.values())
        except OSError:
            for one in counters:
                one.close()
            raise
        self._countings[uuid] = _Counting(vcpus, tuple(counters))

    def _drop(self, uuid: str) -> None:
        counting = self._countings.pop(uuid, None)
        for one in () if counting is None else counting.counters:
            one.close()


def _spread(pcpus: list[int]) -> list[int]:
    """No more than can be read, of all alike."""
    step = -(-len(pcpus) // MOST_PCPUS)
    return pcpus[::step] if pcpus else []
