# SPDX-License-Identifier: Apache-2.0
"""Runs in the guest of bench.py, as root, and measures there.

    in_guest.py DIRECTORY SECONDS [CASE ...]

Prints one JSON object a line, as soon as it is known.
"""

from collections.abc import Callable, Iterator
import contextlib
from fractions import Fraction
import json
import os
import pathlib
import socket
import statistics
import sys
import time
import traceback

import enforcements
import loads

from nova_vqos import guarantee
from nova_vqos.hypervisor import base
from nova_vqos.profile import fingerprint

ALL_PCPUS, ONE_PCPU = '0-3', '3'
# CU that do not disturb each other on four pCPUs of 100.
TOGETHER = ((5, 25, 75), (10, 50, 90), (100,))
WRITES_A_SECOND = 5
# Two short slices and a long one, on one pCPU.
SHORT_US, LONG_US = 1000, 90_000
SHORT_CU, LONG_CU = Fraction(20), Fraction(45)
INTERVAL_US, WORK_US = 10_000, 1000
# pCPUs 2 and 3 are taken for twice as fast.
FAST, FAST_CU = (2, 3), 200
FLOATING, FLOATING_CU = 5, Fraction(60)
OTHERS = 8
PACKETS_A_SECOND, PACKET_NS = 1000, 100_000
_LOOPBACK = 1
_SETTLE_S = 1.0
_SAMPLE_S = 0.02
_AFTER_S = 3.0
_STALL_LIMIT_S = 30

Enforcement = enforcements.Quota


class Bench:
    """Measures by one enforcement after the other."""

    def __init__(self, directory: str, seconds: int) -> None:
        self._load = f'{directory}/load'
        self._object = f'{directory}/credit.bpf.o'
        self._seconds = seconds
        self._by: Enforcement = enforcements.Quota()

    def run(self, cases: list[str]) -> None:
        compared: dict[str, Callable[[], Iterator[dict[str, object]]]] = {
            'exactness': self.exactness, 'writes': self.writes,
            'turns': self.turns, 'wakes': self.wakes,
            'speeds': self.speeds, 'others': self.others}
        alone = {'preempting': self.preempting, 'packets': self.packets,
                 'killed': self.killed, 'stalled': self.stalled}
        # NOTE: the kernel reserves 5 % of each pCPU for its class sched_ext,
        # and loads no scheduler where reservations of others leave less. After
        # those of the guarantee, one was refused (EBUSY).
        for by in ('quota', 'sched_ext', 'guarantee'):
            self._by = self._enforcement(by)
            for name, measure in (compared if by != 'sched_ext'
                                  else compared | alone).items():
                if cases and name not in cases:
                    continue
                print(time.monotonic(), by, name, file=sys.stderr, flush=True)
                try:
                    self._load_again()
                    for found in measure():
                        say(case=name, by=by, **found)
                except Exception:
                    # What the others show is worth having.
                    say(case=name, by=by, failed=traceback.format_exc())
            if isinstance(self._by, enforcements.InKernel):
                self._by.kill()

    def _enforcement(self, name: str) -> Enforcement:
        if name == 'sched_ext':
            return enforcements.InKernel(self._object)
        return (enforcements.Guarantee() if name == 'guarantee'
                else enforcements.Quota())

    def _load_again(self) -> None:
        """Load a scheduler that is gone; the kernel ends one that stalls."""
        if (isinstance(self._by, enforcements.InKernel)
                and enforcements.state() != 'enabled'):
            self._by.kill()
            self._by = self._enforcement('sched_ext')

    @property
    def _in_kernel(self) -> enforcements.InKernel:
        assert isinstance(self._by, enforcements.InKernel)
        return self._by

    @contextlib.contextmanager
    def _group(self, pcpus: str = ALL_PCPUS) -> Iterator[pathlib.Path]:
        with loads.parent('vqos', pcpus, partition=(
                pcpus != ALL_PCPUS and self._by.needs_partition)) as group:
            yield group

    @contextlib.contextmanager
    def _running(self, group: pathlib.Path,
                 promises: list[enforcements.Promise | None],
                 *kind: object) -> Iterator[list[loads.Load]]:
        """Loads with what each is promised; None: nothing."""
        made: list[loads.Load] = []
        try:
            for number, promise in enumerate(promises):
                one = loads.Load(self._load, group,
                                 f'{len(os.listdir(group))}-{number}',
                                 *(kind or ('spin',)))
                made.append(one)
                if promise is not None:
                    self._by.apply(one, promise)
            for one in made:
                one.go()
            time.sleep(_SETTLE_S)
            yield made
        finally:
            for one in made:
                one.close()

    def exactness(self) -> Iterator[dict[str, object]]:
        """What a thread that spins gets of its cap."""
        for cus in TOGETHER:
            promises = [enforcements.Promise(Fraction(cu)) for cu in cus]
            try:
                with self._group() as group, self._running(
                        group, promises) as made:
                    windows = shares(made, self._seconds)
            except base.ReservationRefused as error:
                yield {'cu': cus[0], 'refused': str(error)}
                continue
            for cu, parts in zip(cus, windows, strict=True):
                yield {'cu': cu, 'got_cu': 100 * statistics.fmean(parts),
                       'most_cu': 100 * max(parts)}

    def writes(self) -> Iterator[dict[str, object]]:
        """What rewriting a cap gives away."""
        promises = [enforcements.Promise(Fraction(50), period_us=period_us)
                    for period_us in (50_000, 100_000)]
        with self._group() as group, self._running(group, promises) as made:
            began, began_ns = run_ns(made), time.monotonic_ns()
            for number in range(self._seconds * WRITES_A_SECOND):
                time.sleep(1 / WRITES_A_SECOND)
                for one, promise in zip(made, promises, strict=True):
                    self._by.write(one, enforcements.Promise(
                        promise.cu + Fraction(number % 2, 10),
                        period_us=promise.period_us))
            wall_ns = time.monotonic_ns() - began_ns
            for promise, then, now in zip(promises, began, run_ns(made),
                                          strict=True):
                yield {'cu': 50, 'period_us': promise.period_us,
                       'got_cu': 100 * (now - then) / wall_ns}

    def turns(self) -> Iterator[dict[str, object]]:
        """Mean runs of threads with short and long slices on one pCPU."""
        promises = [enforcements.Promise(SHORT_CU, SHORT_US),
                    enforcements.Promise(SHORT_CU, SHORT_US),
                    enforcements.Promise(LONG_CU, LONG_US)]
        with self._group(ONE_PCPU) as group, self._running(
                group, promises) as made:
            before = [(one.run_ns(), one.runs()) for one in made]
            # The length of the measurement.
            time.sleep(self._seconds)
            after = [(one.run_ns(), one.runs()) for one in made]
        for promise, (then_ns, then), (now_ns, now) in zip(
                promises, before, after, strict=True):
            yield {'slice_us': promise.slice_us, 'cu': float(promise.cu),
                   'got_cu': (now_ns - then_ns) / self._seconds / 1e7,
                   'run_ms': (now_ns - then_ns) / max(1, now - then) / 1e6}

    def wakes(self) -> Iterator[dict[str, object]]:
        """How late a thread with a short slice wakes beside a long one."""
        with (self._group(ONE_PCPU) as group,
              self._running(
                  group, [enforcements.Promise(LONG_CU, LONG_US)]) as (long,),
              self._running(
                  group, [enforcements.Promise(SHORT_CU, SHORT_US)],
                  'serve', INTERVAL_US, WORK_US) as (short,)):
            first = short.intervals()
            then_ns, then = long.run_ns(), long.runs()
            # The length of the measurement.
            time.sleep(self._seconds)
            now_ns, now = long.run_ns(), long.runs()
            late_ms = short.late_ms(first)
        yield {'count': len(late_ms), 'p50_ms': quantile(late_ms, 0.5),
               'p99_ms': quantile(late_ms, 0.99), 'max_ms': late_ms[-1],
               'long_run_ms': (now_ns - then_ns) / max(1, now - then) / 1e6,
               'long_cu': (now_ns - then_ns) / self._seconds / 1e7}

    def preempting(self) -> Iterator[dict[str, object]]:
        """The same, where a pCPU is preempted twice a second at most."""
        self._in_kernel.write_map('settings', 0, 0, 500_000_000)
        yield from self.wakes()
        self._in_kernel.write_map('settings', 0, 0, 0)

    def speeds(self) -> Iterator[dict[str, object]]:
        """CU that floating threads get on pCPUs of two speeds."""
        if isinstance(self._by, enforcements.InKernel):
            for pcpu in FAST:
                self._by.write_map('speeds', pcpu, FAST_CU * 1000)
        promises = [enforcements.Promise(FLOATING_CU)] * FLOATING
        with self._group() as group, self._running(group, promises) as made:
            before, began_ns = ([one.by_pcpu_ns() for one in made],
                                time.monotonic_ns())
            # The length of the measurement.
            time.sleep(self._seconds)
            after, wall_ns = ([one.by_pcpu_ns() for one in made],
                              time.monotonic_ns() - began_ns)
        for then, now in zip(before, after, strict=True):
            used_ns = [b - a for a, b in zip(then, now, strict=True)]
            fast_ns = sum(used_ns[pcpu] for pcpu in FAST)
            slow_ns = sum(used_ns) - fast_ns
            yield {'cu': float(FLOATING_CU),
                   'got_cu': (100 * slow_ns + FAST_CU * fast_ns) / wall_ns,
                   'on_fast': fast_ns / max(1, fast_ns + slow_ns)}
        if isinstance(self._by, enforcements.InKernel):
            for pcpu in FAST:
                self._by.write_map('speeds', pcpu, 0)

    def others(self) -> Iterator[dict[str, object]]:
        """What is left of a promise beside processes of the host."""
        with (self._group() as group,
              self._running(group, [None] * OTHERS),
              self._running(group, [enforcements.Promise(Fraction(50))])
              as made):
            (parts,) = shares(made, self._seconds)
        yield {'cu': 50, 'got_cu': 100 * statistics.fmean(parts),
               'least_cu': 100 * min(parts), 'state': enforcements.state()}

    def packets(self) -> Iterator[dict[str, object]]:
        """What a thread gets that pays for packets, in each second."""
        with (self._group() as group,
              self._running(group, [enforcements.Promise(Fraction(50))])
              as made,
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sending,
              # It reads none of them.
              socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiving):
            receiving.bind(('127.0.0.1', 0))
            sending.connect(receiving.getsockname())
            self._in_kernel.write_map('taps', _LOOPBACK, PACKET_NS * 100_000,
                                      made[0].pid, 0)
            burst = round(PACKETS_A_SECOND * _SAMPLE_S)
            sent, parts, paid = 0, [], []
            for _ in range(self._seconds):
                then, began_ns, first = made[0].run_ns(), time.monotonic_ns(
                    ), sent
                while time.monotonic_ns() - began_ns < 1e9:
                    for _ in range(burst):
                        sending.send(b'x')
                    sent += burst
                    time.sleep(_SAMPLE_S)
                wall_ns = time.monotonic_ns() - began_ns
                parts.append((made[0].run_ns() - then) / wall_ns)
                paid.append((sent - first) * PACKET_NS / wall_ns)
            self._in_kernel.write_map('taps', _LOOPBACK, 0, made[0].pid, 0)
        sums = [100 * (a + b) for a, b in zip(parts, paid, strict=True)]
        yield {'cu': 50, 'got_cu': 100 * statistics.fmean(parts),
               'paid_cu': 100 * statistics.fmean(paid),
               'least_sum_cu': min(sums), 'most_sum_cu': max(sums)}

    def killed(self) -> Iterator[dict[str, object]]:
        """What a thread gets once nothing holds the scheduler any more."""
        with self._group() as group, self._running(
                group, [enforcements.Promise(Fraction(50))]) as (one,):
            began_ns = time.monotonic_ns()
            self._in_kernel.kill()
            yield follow(one, Fraction(1, 2), began_ns)

    def stalled(self) -> Iterator[dict[str, object]]:
        """The same, where the scheduler runs nothing any more."""
        with self._group() as group, self._running(
                group, [enforcements.Promise(Fraction(50))]) as (one,):
            began_ns = time.monotonic_ns()
            self._in_kernel.write_map('settings', 0, 1, 0)
            yield follow(one, Fraction(1, 2), began_ns)


def follow(load: loads.Load, share: Fraction,
           began_ns: int) -> dict[str, object]:
    """What a load gets until the scheduler is gone, and some seconds after.

    :returns: how long it took; what it got meanwhile, and then; and how far
        its use was ever above its cap, from the beginning and after it
    """
    first_ns, above_ns = load.run_ns(), [0.0]

    def sample(since_ns: int, used_ns: int) -> None:
        time.sleep(_SAMPLE_S)
        above_ns.append(load.run_ns() - used_ns - float(share) * (
            time.monotonic_ns() - since_ns))

    while enforcements.state() != 'disabled':
        sample(began_ns, first_ns)
        if time.monotonic_ns() - began_ns > _STALL_LIMIT_S * 1e9:
            break
    gone_ns, used_ns = time.monotonic_ns(), load.run_ns()
    most_until_ns = max(above_ns)
    above_ns[:] = [0.0]
    while time.monotonic_ns() - gone_ns < _AFTER_S * 1e9:
        sample(gone_ns, used_ns)
    ended_ns = time.monotonic_ns()
    return {'cu': float(100 * share), 'state': enforcements.state(),
            'gone_ms': (gone_ns - began_ns) / 1e6,
            'until_cu': 100 * (used_ns - first_ns) / (gone_ns - began_ns),
            'above_until_ms': most_until_ns / 1e6,
            'after_cu': 100 * (load.run_ns() - used_ns) / (
                ended_ns - gone_ns),
            'above_after_ms': max(above_ns) / 1e6}


def run_ns(made: list[loads.Load]) -> list[int]:
    return [one.run_ns() for one in made]


def shares(made: list[loads.Load], seconds: int) -> list[list[float]]:
    """Of a pCPU's time that each load got, in each second."""
    found: list[list[float]] = [[] for _ in made]
    for _ in range(seconds):
        before, began_ns = run_ns(made), time.monotonic_ns()
        # The length of the measurement.
        time.sleep(1)
        after, wall_ns = run_ns(made), time.monotonic_ns() - began_ns
        for parts, then, now in zip(found, before, after, strict=True):
            parts.append((now - then) / wall_ns)
    return found


def quantile(values: list[float], part: float) -> float:
    return values[int(len(values) * part)]


def kernel_log(text: str) -> list[str]:
    """Lines of the kernel's log with a text in them."""
    descriptor, found = os.open('/dev/kmsg', os.O_RDONLY | os.O_NONBLOCK), []
    with contextlib.suppress(BlockingIOError):
        while True:
            line = os.read(descriptor, 8192).decode(errors='replace')
            if text in line:
                found.append(line.partition(';')[2].splitlines()[0])
    os.close(descriptor)
    return found


def say(**found: object) -> None:
    print(json.dumps(found), flush=True)


def main() -> None:
    directory, seconds, *cases = sys.argv[1:]
    # As systemd does.
    (loads.CGROUPS / 'cgroup.subtree_control').write_text('+cpu +cpuset')
    say(kernel=os.uname().release, pcpus=os.cpu_count(),
        tick_us=fingerprint.tick_us(), most_share=float(guarantee.MOST_SHARE))
    try:
        Bench(directory, int(seconds)).run(cases)
    except Exception:
        say(failed=traceback.format_exc())
    say(log=kernel_log('sched_ext'))
    say(done=True)


if __name__ == '__main__':
    main()
