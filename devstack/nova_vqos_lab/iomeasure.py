# SPDX-License-Identifier: Apache-2.0
"""What guests that do I/O use of a pCPU, and what they get done.

All of it is read from the kernel: the cgroups' CPU time, the counters of taps.
What no thread of the guest was charged for, the kernel's part, is counted in
requests and turned into time by costs that the caller brings.
"""

from collections.abc import Callable, Mapping, Sequence
import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import threading
import time

from nova_vqos.hypervisor.linux import inotify
from nova_vqos_lab import ioguest

SAMPLE_S = 1.0
_STOP_LIMIT_S = 10
# A load reports twice a second, if the machine does not stand still.
_REPORT_LIMIT_S = 10

#: From what was counted (rx, rx_bytes, tx, ..., read, read_bytes, ...) to
#: nanoseconds of the kernel's part.
Costs = Callable[[Mapping[str, int]], float]


def free_of_charge(_counted: Mapping[str, int]) -> float:
    """Costs where none are known."""
    return 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
    """A guest at one moment.

    :ivar at_s: on the monotonic clock
    :ivar cpu: that it has used so far
    :ivar process_ns: CPU time of its process so far
    :ivar counted: requests and bytes of its interface and disk so far
    """

    at_s: float
    cpu: ioguest.CpuTime
    process_ns: int
    counted: Mapping[str, int]


@dataclasses.dataclass(frozen=True, slots=True)
class Use:
    """Parts of a pCPU that a guest used over some time, 1 for all of it.

    :ivar elapsed_s: how long
    :ivar vcpu: by its vCPUs
    :ivar emulator: by its emulator's threads
    :ivar iothread: by its I/O threads
    :ivar whole: by the domain's group, which is more than its parts by what
        is in none of them
    :ivar modelled: by the kernel for it, by counts and costs
    :ivar process: by its process, other than by cgroups
    :ivar total: whole and modelled
    :ivar most: the largest total over a window
    :ivar counted: requests and bytes, a second
    """

    elapsed_s: float
    vcpu: float
    emulator: float
    iothread: float
    whole: float
    modelled: float
    process: float
    total: float
    most: float
    counted: Mapping[str, float]


def sample(guest: ioguest.IoGuest) -> Sample:
    """Read everything that is counted of a guest."""
    counted = {**guest.packets(), **guest.disk_requests()}
    process_ns = guest.process_cpu_ns()
    cpu = guest.cpu_time()
    return Sample(time.monotonic(), cpu, process_ns, counted)


def watch(guests: Sequence[ioguest.IoGuest], seconds: float
          ) -> list[list[Sample]]:
    """Sample guests for a while.

    :returns: the samples of each guest
    """
    samples: list[list[Sample]] = [[] for _ in guests]
    began_s = time.monotonic()
    for number in range(round(seconds / SAMPLE_S) + 1):
        # Not a wait for anything: the length of the measurement.
        time.sleep(max(0.0, began_s + number * SAMPLE_S - time.monotonic()))
        for found, guest in zip(samples, guests, strict=True):
            found.append(sample(guest))
    return samples


def use(samples: Sequence[Sample], costs: Costs = free_of_charge,
        window_s: float = 30.0) -> Use:
    """What a guest used from the first of its samples to the last.

    :param window_s: length of the windows of which the worst is returned;
        where the samples span less, they are one window
    """
    first, last = samples[0], samples[-1]
    elapsed_s = last.at_s - first.at_s
    elapsed_ns = elapsed_s * 1e9

    def used(part: str) -> float:
        return (getattr(last.cpu, part) - getattr(first.cpu, part)
                ) / elapsed_ns

    total, modelled = _total(first, last, costs)
    return Use(
        elapsed_s=elapsed_s, vcpu=used('vcpu'), emulator=used('emulator'),
        iothread=used('iothread'), whole=used('whole'), modelled=modelled,
        process=(last.process_ns - first.process_ns) / elapsed_ns,
        total=total,
        most=max((_total(begin, end, costs)[0]
                  for begin, end in _windows(samples, window_s)),
                 default=total),
        counted={name: count / elapsed_s for name, count in
                 _difference(first.counted, last.counted).items()})


def at(samples: Sequence[Sample], moment_s: float) -> Sample:
    """What a sample of a moment between two samples would have been.

    :raises ValueError: when there are none before and after it
    """
    for before, after in itertools.pairwise(samples):
        if before.at_s <= moment_s <= after.at_s:
            part = (moment_s - before.at_s) / (after.at_s - before.at_s)

            def between(first: int, last: int, part: float = part) -> int:
                return round(first + part * (last - first))
            return Sample(
                moment_s,
                ioguest.CpuTime(*(
                    between(getattr(before.cpu, field.name),
                            getattr(after.cpu, field.name))
                    for field in dataclasses.fields(ioguest.CpuTime))),
                between(before.process_ns, after.process_ns),
                {name: between(count, after.counted[name])
                 for name, count in before.counted.items()})
    raise ValueError(f'no samples around {moment_s:.1f} s')


def _total(first: Sample, last: Sample, costs: Costs) -> tuple[float, float]:
    """Parts of a pCPU used: in all, and by what is modelled of it."""
    elapsed_ns = (last.at_s - first.at_s) * 1e9
    modelled_ns = costs(_difference(first.counted, last.counted))
    whole_ns = last.cpu.whole - first.cpu.whole
    return (whole_ns + modelled_ns) / elapsed_ns, modelled_ns / elapsed_ns


def _windows(samples: Sequence[Sample], window_s: float):
    """The first and the last sample of each window that is long enough."""
    end = 0
    for begin in samples:
        while (end < len(samples)
               and samples[end].at_s - begin.at_s < window_s - SAMPLE_S / 2):
            end += 1
        if end == len(samples):
            return
        yield begin, samples[end]


def _difference(first: Mapping[str, int], last: Mapping[str, int]
                ) -> dict[str, int]:
    return {name: last[name] - first[name] for name in first}


class Load:
    """A load from among the clients, and what it has done so far."""

    def __init__(self, running: subprocess.Popen[str]) -> None:
        """:param running: see ClientNetwork.load"""
        self._running = running
        self._reports: list[tuple[float, int, int]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> 'Load':
        return self

    def __exit__(self, *_exception: object) -> None:
        self._running.terminate()
        try:
            self._running.wait(_STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait()
        self._reader.join(_STOP_LIMIT_S)
        if self._running.stdout is not None:
            self._running.stdout.close()

    def _read(self) -> None:
        for line in self._running.stdout or ():
            report = json.loads(line)
            self._reports.append(
                (report['at_s'], report['done'], report['failed']))

    def begun(self) -> bool:
        """:returns: whether it has done anything"""
        return bool(self._reports) and self._reports[-1][1] > 0

    def failed(self) -> int:
        """:returns: how much of it failed"""
        return self._reports[-1][2] if self._reports else 0

    def rate(self, from_s: float, to_s: float) -> float:
        """What it did a second.

        :param from_s: on the monotonic clock, as are its own reports
        :raises ValueError: when it did not report from before to after
        """
        return (self._done(to_s) - self._done(from_s)) / (to_s - from_s)

    def _done(self, at_s: float) -> float:
        deadline_s = time.monotonic() + _REPORT_LIMIT_S
        while ((not self._reports or self._reports[-1][0] < at_s)
               and time.monotonic() < deadline_s):
            time.sleep(0.05)
        reports = list(self._reports)
        for before, after in itertools.pairwise(reports):
            if before[0] <= at_s <= after[0]:
                part = (at_s - before[0]) / (after[0] - before[0])
                return before[1] + part * (after[1] - before[1])
        raise ValueError(f'the load did not run at {at_s:.1f} s: '
                         f'{reports[:1]} to {reports[-1:]}')


class QuotaWrites:
    """Counts writes to the limits of a guest's domain and vCPUs.

    The kernel reports each, whatever it changes; it may merge equal ones in
    a row.

    :ivar seen: how many there were so far
    """

    def __init__(self, guest: ioguest.IoGuest) -> None:
        self.seen = 0
        hierarchy = guest.host.hierarchy
        name = 'cpu.cfs_quota_us' if hierarchy.version == 1 else 'cpu.max'
        self._stack = contextlib.ExitStack()
        watcher = inotify.Watcher(self._count)
        for group in (guest.group(), os.path.dirname(guest.group())):
            watch_number = watcher.add(
                hierarchy.directory('cpu', f'{group}/{name}'),
                inotify.IN_MODIFY, group)
            self._stack.callback(watcher.remove, watch_number)

    def __enter__(self) -> 'QuotaWrites':
        return self

    def __exit__(self, *_exception: object) -> None:
        self._stack.close()

    def _count(self, _group: str) -> None:
        self.seen += 1
