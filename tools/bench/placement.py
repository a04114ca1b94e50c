#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What it costs guests to share pCPUs: floating, exclusive, stacked.

Guests of one vCPU count in their memory, emulated and without an operating
system. They are timed from outside: by the machine's clock, when each has
counted so far. All go on until the last one has.

exclusive   each has a pCPU of its own: as many as there are pCPUs
floating    each may run on all pCPUs, as servers with units do
stacked     all are pinned to the first pCPU

A slowdown is how long a guest takes for the same work, over what it takes
alone, on the pCPU that it would have in exclusive: before and after the others
of its round, which come in another order in each round. Of the guests together
it prints the mean, and the slowest; of the rounds the mean, with its interval
of 95 %. The control is the first guest alone once more, and the ratio of
floating over exclusive compares both in the same rounds.

  tools/bench/placement.py --rounds 12

Needs root, libvirtd and QEMU. Others' work on the machine counts as theirs.
"""

import argparse
from collections.abc import Iterator, Sequence
import contextlib
import dataclasses
import json
import math
import os
import random
import statistics
import sys
import time

import lab_host
import prettytable

from nova_vqos.calibration import estimate
from nova_vqos.calibration import runner
from nova_vqos.tests.host import guests
from nova_vqos_lab import host as hosts
from nova_vqos_lab import meter
from nova_vqos_lab import process
from nova_vqos_lab import rom

EXCLUSIVE, FLOATING, STACKED = MODES = 'exclusive', 'floating', 'stacked'
_CONTROL = 'control'
_ROM = '/var/lib/libvirt/count.rom'
_LEAST_ROUNDS = 10
_LIMIT_S = 60
# After a change of pins, until guests run where they are to.
_SETTLED_S = 0.2
_LOOK_S = 0.002
# A longer reading may be of another moment.
_LONGEST_READING_S = 0.0005
_MOST_GUESTS = 16


def main() -> int:
    options = _options()
    lab_host.prepare()
    # Guests have all pCPUs: without that, readings come late.
    runner.go_first()
    if missing := hosts.missing_requirements(slow=False):
        print('; '.join(missing), file=sys.stderr)
        return 2
    with lab_host.started() as bench, _guests(bench, options.guests) as made:
        found = measure(made, sorted(bench.host.pcpus), options)
    report = {
        'kernel': os.uname().release, 'pcpus': len(os.sched_getaffinity(0)),
        'rounds': options.rounds, 'seconds': options.seconds,
        'cells': [dataclasses.asdict(one) for one in found]}
    lab_host.save(report, options.json)
    print(json.dumps(report, indent=1)
          if options.format == 'json' else table(found))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=(
        argparse.RawDescriptionHelpFormatter))
    parser.add_argument('--guests', type=int, default=4,
                        help='at most (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=12,
                        help=f'at least {_LEAST_ROUNDS} (default %(default)s)')
    parser.add_argument('--seconds', type=float, default=1.0,
                        help='that the work takes a guest alone, about '
                        '(default %(default)s)')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    if not 1 <= options.guests <= _MOST_GUESTS:
        parser.error(f'--guests must be from 1 to {_MOST_GUESTS}')
    if options.rounds < _LEAST_ROUNDS:
        parser.error(f'--rounds must be {_LEAST_ROUNDS} or more')
    if not 0.1 <= options.seconds <= 10:
        parser.error('--seconds must be from 0.1 to 10')
    return options


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A ratio in each round.

    :ivar mean: of the rounds
    :ivar low: of its interval of 95 %
    :ivar high: of its interval of 95 %
    :ivar rounds: all of them
    """

    mean: float
    low: float
    high: float
    rounds: tuple[float, ...]

    def __str__(self) -> str:
        return f'{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})'


@dataclasses.dataclass(frozen=True)
class Cell:
    """Guests that are placed in a way.

    :ivar mode: one of MODES, or the control
    :ivar guests: how many
    :ivar slowdown: mean of the guests
    :ivar slowest: of the slowest of them
    :ivar over_exclusive: slowdown over that of as many with exclusive; None:
        there are none
    """

    mode: str
    guests: int
    slowdown: Estimate
    slowest: Estimate
    over_exclusive: Estimate | None = None


class _Counting:
    """A guest that counts, and is paused meanwhile."""

    def __init__(self, host: hosts.Host) -> None:
        guest = guests.Guest(host, rom=_ROM, kind='qemu', shares_memory=True)
        self._name = guest.name
        self._domain = guest.domain()
        self._vcpu: meter.Vcpu = process.wait_until(
            lambda: meter.of_rom(host, guest.name), _LIMIT_S, guest.name)
        self._most_pcpus = max(os.sched_getaffinity(0)) + 1
        self._domain.suspend()

    def pin(self, pcpus: Sequence[int]) -> None:
        self._domain.pinVcpu(0, tuple(
            pcpu in pcpus for pcpu in range(self._most_pcpus)))

    def resume(self) -> None:
        self._domain.resume()

    def suspend(self) -> None:
        self._domain.suspend()

    def read(self) -> tuple[float, int]:
        """:returns: when it was read, and what it has counted by then"""
        until_s = time.monotonic() + _LIMIT_S
        while time.monotonic() < until_s:
            began_s = time.monotonic()
            count = self._vcpu.read()[1]
            ended_s = time.monotonic()
            if ended_s - began_s <= _LONGEST_READING_S:
                return (began_s + ended_s) / 2, count
        raise process.LabError(
            f'{self._name} could not be read at once within {_LIMIT_S} s')

    def close(self) -> None:
        try:
            self._vcpu.close()
        finally:
            self._domain.destroy()


@contextlib.contextmanager
def _guests(bench: lab_host.BenchHost, wanted: int
            ) -> Iterator[list[_Counting]]:
    with open(bench.host.path(_ROM.lstrip('/')), 'wb') as file:
        file.write(rom.first(rom.COUNT))
    with contextlib.ExitStack() as stack:
        made = []
        for _ in range(wanted):
            made.append(_Counting(bench.host))
            stack.callback(made[-1].close)
        yield made


def measure(made: Sequence[_Counting], pcpus: Sequence[int],
            options: argparse.Namespace) -> list[Cell]:
    """:param made: guests, as many as there may be in a cell
    :param pcpus: of the host
    :param options: rounds and seconds
    :returns: all cells, the control last
    """
    cells = [(mode, count) for mode in MODES
             for count in range(1, len(made) + 1)
             if mode != EXCLUSIVE or 1 < count <= len(pcpus)]
    cells.append((_CONTROL, 1))
    own = [[pcpus[number % len(pcpus)]] for number in range(len(made))]
    work = _work(made[0], own[0], options.seconds)
    slowdowns: dict[tuple[str, int], list[list[float]]] = {
        cell: [] for cell in cells}
    order = random.Random(1)
    for number in range(options.rounds):
        lab_host.say(f'round {number + 1} of {options.rounds}')
        before = _alone(made, own, work)
        shuffled = order.sample(cells, len(cells))
        took = {(mode, count): _times(
            made[:count], _pins(mode, count, pcpus), work)
            for mode, count in shuffled}
        alone = [math.sqrt(first * second) for first, second in zip(
            before, _alone(made, own, work), strict=True)]
        for cell, times_s in took.items():
            slowdowns[cell].append([
                time_s / alone_s for time_s, alone_s
                in zip(times_s, alone[:len(times_s)], strict=True)])
    means = {cell: [statistics.fmean(one) for one in found]
             for cell, found in slowdowns.items()}
    return [Cell(
        mode, count, _estimate(means[mode, count]),
        _estimate([max(one) for one in slowdowns[mode, count]]),
        _estimate([one / other for one, other in zip(
            means[mode, count], means[EXCLUSIVE, count], strict=True)])
        if mode == FLOATING and (EXCLUSIVE, count) in means else None)
        for mode, count in cells]


def _estimate(ratios: Sequence[float]) -> Estimate:
    mean = statistics.fmean(ratios)
    half = (estimate.student_t(len(ratios) - 1) * statistics.stdev(ratios)
            / math.sqrt(len(ratios)))
    return Estimate(mean, mean - half, mean + half, tuple(ratios))


def _pins(mode: str, count: int, pcpus: Sequence[int]
          ) -> list[Sequence[int]]:
    """:returns: the pCPUs of each guest"""
    if mode == FLOATING:
        return [pcpus] * count
    if mode == STACKED:
        return [pcpus[:1]] * count
    return [[pcpu] for pcpu in pcpus[:count]]


def _work(guest: _Counting, pcpus: Sequence[int], seconds: float) -> int:
    """:returns: what a guest counts alone in that time"""
    with _running([guest], [pcpus]):
        began_s, counted = guest.read()
        time.sleep(seconds)
        ended_s, count = guest.read()
    if count == counted:
        raise process.LabError('a guest counts nothing')
    return round((count - counted) / (ended_s - began_s) * seconds)


def _alone(made: Sequence[_Counting], own: Sequence[Sequence[int]],
           work: int) -> list[float]:
    """:returns: the time of each guest alone on its own pCPU, in seconds"""
    return [_times([guest], [pcpus], work)[0]
            for guest, pcpus in zip(made, own, strict=True)]


def _times(active: Sequence[_Counting], pins: Sequence[Sequence[int]],
           work: int) -> list[float]:
    """:param work: that each is to count
    :returns: the time of each, in seconds
    :raises LabError: when one does not come to its end
    """
    ended_s: dict[int, float] = {}
    with _running(active, pins):
        began = [guest.read() for guest in active]
        before = list(began)
        # Stacked, each takes the time of all.
        limit_s = _LIMIT_S * len(active)
        until_s = time.monotonic() + limit_s
        while len(ended_s) < len(active):
            if time.monotonic() > until_s:
                raise process.LabError(
                    f'{len(active) - len(ended_s)} of {len(active)} guests '
                    f'did not count up to {work} within {limit_s:.0f} s')
            time.sleep(_LOOK_S)
            for number, guest in enumerate(active):
                now_s, count = guest.read()
                goal = began[number][1] + work
                if number not in ended_s and count >= goal:
                    then_s, counted = before[number]
                    ended_s[number] = then_s + (now_s - then_s) * (
                        goal - counted) / (count - counted)
                before[number] = now_s, count
    return [ended_s[number] - began[number][0]
            for number in range(len(active))]


@contextlib.contextmanager
def _running(active: Sequence[_Counting], pins: Sequence[Sequence[int]]
             ) -> Iterator[None]:
    for guest, pcpus in zip(active, pins, strict=True):
        guest.pin(pcpus)
        guest.resume()
    time.sleep(_SETTLED_S)
    yield
    for guest in active:
        guest.suspend()


def table(found: Sequence[Cell]) -> str:
    """:returns: for people: a row for each number of guests"""
    known = {(one.mode, one.guests): one for one in found}
    shown = prettytable.PrettyTable(
        ['guests', 'exclusive', 'floating', 'floating, slowest',
         'floating / exclusive', 'stacked', 'stacked, slowest'], align='r')
    for count in sorted({one.guests for one in found}):
        floating, stacked = known[FLOATING, count], known[STACKED, count]
        exclusive = known.get((EXCLUSIVE, count))
        shown.add_row([
            count, exclusive.slowdown if exclusive else
            '1' if count == 1 else '-',
            floating.slowdown, floating.slowest,
            floating.over_exclusive or '-', stacked.slowdown,
            stacked.slowest])
    return f'{shown}\ncontrol: {known[_CONTROL, 1].slowdown}'


if __name__ == '__main__':
    sys.exit(main())
