# SPDX-License-Identifier: Apache-2.0
"""The clock that CPUs ran at.

By the CPU's own counters
    APERF counts the cycles that it ran, MPERF those that it would have run at
    its base clock, TSC those of the base clock at all times. The kernel counts
    all three for single threads or pCPUs: perf's ``msr`` events
    (arch/x86/events/msr.c). They take no counter of the CPU from others.
By cpufreq
    The kernel's figure for each pCPU at one moment, whatever runs on it.
"""

from collections.abc import Iterable
import os
import re
import types
import typing as ty

from nova_vqos.billing import usage
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import perf
from nova_vqos.hypervisor.linux import procfs

#: Files that one counter keeps open.
FILES = 3

_PMU = 'sys/bus/event_source/devices/msr'
_NAMES = ('aperf', 'mperf', 'tsc')
_PCPUS = 'sys/devices/system/cpu'
_PCPU = re.compile(r'cpu(\d+)')
# The mean of a while where the kernel has it.
_FIGURES = ('cpufreq/cpuinfo_avg_freq', 'cpufreq/scaling_cur_freq')
# A CPU with another clock is taken for a mistake.
_KHZ = (1_000, 100_000_000)


class ClockError(base.HypervisorError):
    """The clock of CPUs is not known."""


def find_events(root: str = '/') -> tuple[perf.Event, ...]:
    """Find the events of a counter.

    :param root: where sys is
    :raises ClockError: when this CPU, or the kernel, does not have them
    """
    path = os.path.join(root, _PMU)
    try:
        kind = int(procfs.read_text(os.path.join(path, 'type')))
        return tuple(perf.Event(kind, _config(os.path.join(
            path, 'events', name))) for name in _NAMES)
    except (OSError, ValueError) as error:
        raise ClockError(
            'this CPU, or the hypervisor below it, does not count its clock '
            "(perf's msr events aperf, mperf and tsc)") from error


class Counter:
    """Counts the cycles of one thread or one pCPU."""

    def __init__(self, events: tuple[perf.Event, ...], thread: int,
                 pcpu: int = perf.ANY_PCPU) -> None:
        """Open it; counting begins. See :class:`perf.Group`.

        :param events: as from :func:`find_events`
        :raises OSError: when it cannot be counted
        """
        self._group = perf.Group(events, thread, pcpu)
        try:
            self._last = self._group.read()
        except OSError:
            self.close()
            raise

    def read(self) -> usage.ClockTime:
        """Read what it counted since the last call.

        :raises OSError: when it cannot be read
        """
        last, self._last = self._last, self._group.read()
        ran_ns = self._last.running_ns - last.running_ns
        actual, full, base_cycles = (
            later - earlier for earlier, later in zip(
                last.values, self._last.values, strict=True))
        if ran_ns <= 0 or min(actual, full, base_cycles) <= 0:
            return usage.NO_CLOCK_TIME
        return usage.ClockTime(ran_ns, base_cycles * actual / full)

    def close(self) -> None:
        """Close it; harmless when repeated."""
        self._group.close()


class PcpuClock:
    """The mean clock of some pCPUs while they were not idle."""

    def __init__(self, pcpus: Iterable[int], root: str = '/') -> None:
        """Begin to count; nothing is counted where the CPU does not.

        :param root: where sys is
        """
        self._counters: dict[int, Counter] = {}
        try:
            events = find_events(root)
            for pcpu in pcpus:
                self._counters[pcpu] = Counter(events, perf.ALL_THREADS, pcpu)
        except (ClockError, OSError):
            self.close()

    def __enter__(self) -> ty.Self:
        return self

    def __exit__(self, _kind: type[BaseException] | None,
                 _error: BaseException | None,
                 _traceback: types.TracebackType | None) -> None:
        self.close()

    def read_mhz(self) -> dict[int, float]:
        """Read the mean since the last call, by pCPU; empty: not known."""
        try:
            found = {pcpu: counter.read()
                     for pcpu, counter in self._counters.items()}
        except OSError:
            return {}
        return {pcpu: time.mhz for pcpu, time in found.items() if time.ran_ns}

    def close(self) -> None:
        """Close all counters; harmless when repeated."""
        for counter in self._counters.values():
            counter.close()
        self._counters.clear()


def find_pcpus(root: str = '/') -> list[int]:
    """Find the pCPUs that cpufreq has a figure for.

    :param root: where sys is
    """
    path = os.path.join(root, _PCPUS)
    try:
        names = os.listdir(path)
    except OSError:
        return []
    return sorted(int(found[1]) for name in names
                  if (found := _PCPU.fullmatch(name))
                  and any(os.path.exists(os.path.join(path, name, figure))
                          for figure in _FIGURES))


def read_pcpu_mhz(pcpu: int, root: str = '/') -> float | None:
    """Read cpufreq's figure for a pCPU; None: there is none now.

    :param root: where sys is
    """
    for name in _FIGURES:
        try:
            khz = int(procfs.read_text(
                os.path.join(root, _PCPUS, f'cpu{pcpu}', name)))
        except (OSError, ValueError):
            # NOTE: the mean of an idle one is EAGAIN on some CPUs.
            continue
        if _KHZ[0] <= khz <= _KHZ[1]:
            return khz / 1000
    return None


def _config(path: str) -> int:
    """The number of an event, of a text such as event=0x01.

    :raises OSError: when there is none
    :raises ValueError: when it is not understood
    """
    name, _sign, number = procfs.read_text(path).partition('=')
    if name != 'event':
        raise ValueError(name)
    return int(number, 16)
