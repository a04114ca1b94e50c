#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How often class ``auto`` is right, and after how many readings.

Simulated vCPUs do one kind of work after the other, with rates that scatter by
a factor (lognormal). For each case it prints, beside what counting per second
of time would have made of the same samples:

right
    the part of readings at which the vCPU had the kind of its work
wrong
    likewise, another kind. The rest has none, and the kernel's own slice
readings
    until the kind was right after a change, median and 95th percentile; one
    reading takes ``[vqos_agent] quantum_interval_s``

Rates are of the shapes of the research's kinds, and made up: no hardware here
counts the last-level cache. No host is touched::

    tools/bench/recognition.py
"""

import argparse
from collections.abc import Callable
import dataclasses
import random
import statistics
import typing as ty

from nova_vqos.quantum import model
from nova_vqos.quantum import recognition

# Per second of CPU time: requests, waits, references, misses.
_WORK: ty.Final = {
    model.Kind.IO: (2500, 3, 1.5e6, 8e5),
    model.Kind.SPIN: (20, 900, 1.5e6, 4e5),
    model.Kind.CACHE: (20, 3, 5e7, 1.2e6),
    model.Kind.NEUTRAL: (20, 3, 3e5, 1e5),
    model.Kind.POLLUTER: (20, 3, 1.2e7, 1.2e7)}
_RATES = ('io_requests', 'spin_events', 'references', 'misses')
_KEY = 'server', 0


class Found(ty.NamedTuple):
    """What became of a vCPU's readings."""

    right: float
    wrong: float
    readings: tuple[float, float] | None


def main() -> None:
    options = parse()
    print('case                      per CPU second'
          '                per second of time')
    print(' ' * 22, '  '.join([f'{name:>8}' for name in (
        'right', 'wrong', 'readings')] * 2))
    for ran in (1.0, 0.3, 0.1, 0.05, 0.02):
        show(f'{ran:.0%} of a pCPU', 40, ran, options)
    for readings in (4, 6, 8, 10, 12, 20, 60):
        show(f'{readings} readings each', readings, 1.0, options)
    for scatter in (0.0, 0.5, 1.0):
        show(f'scatter {scatter:g}', 40, 1.0,
             argparse.Namespace(**vars(options) | {'scatter': scatter}))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--changes', type=int, default=400,
                        help='of the kind of work in each case, default 400')
    parser.add_argument('--scatter', type=float, default=0.3,
                        help='of each rate, as sigma of its logarithm, '
                        'default 0.3')
    parser.add_argument('--seed', type=int, default=1)
    return parser.parse_args()


def show(case: str, length: int, ran: float,
         options: argparse.Namespace) -> None:
    """Print one case, by both ways to count.

    :param length: readings from one change to the next
    :param ran: in which part of the time
    """
    parts = []
    for count in (lambda sample: sample,
                  lambda sample: dataclasses.replace(sample, ran=None)):
        found = simulate(length, ran, options, count)
        readings = ('-' if found.readings is None else
                    '{:.0f}, {:.0f}'.format(*found.readings))
        parts += [f'{found.right:8.3f}', f'{found.wrong:8.3f}',
                  f'{readings:>8}']
    print(f'{case:22}', '  '.join(parts))


def simulate(length: int, ran: float, options: argparse.Namespace,
             count: Callable[[recognition.Sample], recognition.Sample]
             ) -> Found:
    """:param count: what of a sample is looked at"""
    chance = random.Random(options.seed)
    recognizer = recognition.Recognizer()
    kind = model.Kind.IO
    right = wrong = 0
    until = []
    for _ in range(options.changes):
        kind = chance.choice([one for one in _WORK if one is not kind])
        first = None
        for reading in range(length):
            rates = {name: rate * ran * chance.lognormvariate(
                0, options.scatter) for name, rate in zip(
                    _RATES, _WORK[kind], strict=True)}
            recognizer.add(_KEY, count(
                recognition.Sample(**rates, ran=ran, ready=1.0)))
            seen = recognizer.kind(_KEY)
            right += seen is kind
            wrong += seen not in (kind, None)
            if first is None and seen is kind:
                first = reading + 1
        if first is not None:
            until.append(first)
    total = options.changes * length
    # Of some that were right by chance nothing follows.
    usual = (None if len(until) < options.changes / 2 else (
        statistics.median(until), statistics.quantiles(until, n=20)[-1]))
    return Found(right / total, wrong / total, usual)


if __name__ == '__main__':
    main()
