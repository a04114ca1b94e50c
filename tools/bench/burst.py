#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What a burst does for the latency of a server that is seldom busy.

Requests of 2 ms of CPU time arrive at random (Poisson, an open loop: whether
or not the last one is served) at a process that is pinned to one pCPU, in a
cgroup of its own below ours. Its quota is what the agent sets: that of its
units, that of vqos:burst_cu while it has savings, and none, in the order
A B C C B A. Prints the 99th percentile of each, the ratios to the one without
a quota with a 90 % interval (bootstrap over rounds), and what the server saved
while it burst, by the arithmetic of the agent. Root is needed.

A ratio says something of a host with room only: where others use the pCPU,
they delay all three.
"""

import argparse
from collections.abc import Iterator
import contextlib
from fractions import Fraction
import multiprocessing
import multiprocessing.connection
import os
import pathlib
import random
import statistics
import sys
import time

from nova_vqos import units
from nova_vqos.billing import account
from nova_vqos.billing import savings

REQUEST_NS = 2_000_000
PCPU_CU = 100
PERIOD_US = units.DEFAULT_PERIOD_US
TICK_US = 4000
ORDER = ('units', 'burst', 'none', 'none', 'burst', 'units')
LIMIT = 'none'


class Cgroup:
    """A cgroup below ours, v1 or v2."""

    def __init__(self) -> None:
        own = dict(line.split(':', 2)[1:] for line in pathlib.Path(
            '/proc/self/cgroup').read_text().splitlines())
        root = pathlib.Path('/sys/fs/cgroup')
        self._unified = (root / 'cgroup.controllers').exists()
        below = next((path for names, path in own.items()
                      if 'cpu' in names.split(',')), own.get('', '/'))
        self._path = ((root if self._unified else root / 'cpu')
                      / below.lstrip('/') / f'vqos-bench-{os.getpid()}')

    def __enter__(self) -> 'Cgroup':
        self._path.mkdir()
        return self

    def __exit__(self, *_error: object) -> None:
        self._path.rmdir()

    def enter(self) -> None:
        """Move the calling process into it."""
        (self._path / 'cgroup.procs').write_text('0')

    def limit(self, cap: units.CpuCap | None) -> None:
        quota, period_us = ('max', PERIOD_US) if cap is None else cap
        if self._unified:
            (self._path / 'cpu.max').write_text(f'{quota} {period_us}')
            return
        (self._path / 'cpu.cfs_period_us').write_text(str(period_us))
        (self._path / 'cpu.cfs_quota_us').write_text(
            '-1' if cap is None else str(quota))


def serve(cgroup: Cgroup, pcpu: int,
          pipe: multiprocessing.connection.Connection) -> None:
    """Serve requests, in a process of its own, until there is no order."""
    cgroup.enter()
    os.sched_setaffinity(0, {pcpu})
    while order := pipe.recv():
        pipe.send(serve_for(*order))


def serve_for(seconds: float, load: float, seed: int
              ) -> tuple[list[float], float, float]:
    """
    :param load: part of the pCPU
    :returns: how long each request took in ms, how long all of it did in
        seconds, and the CPU seconds
    """
    chance = random.Random(seed)
    found = []
    began_ns, began_cpu_ns = time.monotonic_ns(), time.process_time_ns()
    arrival_ns = float(began_ns)
    while True:
        arrival_ns += chance.expovariate(load / REQUEST_NS)
        if arrival_ns > began_ns + seconds * 1e9:
            break
        while (left_ns := arrival_ns - time.monotonic_ns()) > 0:
            time.sleep(left_ns / 1e9)
        end_ns = time.thread_time_ns() + REQUEST_NS
        while time.thread_time_ns() < end_ns:
            pass
        found.append((time.monotonic_ns() - arrival_ns) / 1e6)
    return (found, (time.monotonic_ns() - began_ns) / 1e9,
            (time.process_time_ns() - began_cpu_ns) / 1e9)


@contextlib.contextmanager
def server(cgroup: Cgroup, pcpu: int
           ) -> Iterator[multiprocessing.connection.Connection]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=serve,
                                      args=(cgroup, pcpu, theirs))
    process.start()
    try:
        yield ours
    finally:
        ours.send(None)
        process.join()


def cap_of(cu: int) -> units.CpuCap:
    return units.cap_of_share(Fraction(cu, PCPU_CU), tick_us=TICK_US,
                              period_us=PERIOD_US)


def p99(samples: list[float]) -> float:
    return statistics.quantiles(samples, n=100)[98]


def ratio(rounds: list[dict[str, list[float]]], name: str) -> float:
    """Of all requests of some rounds together."""
    above, below = ([one for each in rounds for one in each[which]]
                    for which in (name, LIMIT))
    return p99(above) / p99(below)


def interval(rounds: list[dict[str, list[float]]],
             name: str) -> tuple[float, float]:
    chance = random.Random(1)
    found = sorted(ratio(chance.choices(rounds, k=len(rounds)), name)
                   for _ in range(500))
    return found[25], found[-26]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--units', type=int, default=30)
    parser.add_argument('--burst-cu', type=int, default=90)
    parser.add_argument('--burst-seconds', type=int, default=60)
    parser.add_argument('--load', type=float, default=0.2,
                        help='part of the pCPU (default: 0.2)')
    parser.add_argument('--seconds', type=float, default=10.0,
                        help='length of each part of a round (default: 10)')
    parser.add_argument('--rounds', type=int, default=5)
    options = parser.parse_args()
    caps = {'units': cap_of(options.units), 'burst': cap_of(options.burst_cu),
            LIMIT: None}
    terms = savings.Terms(options.units, options.burst_cu,
                          options.burst_seconds)
    # Of a server that was idle as long as it takes to burst.
    saved_cu_us = terms.most_cu_us // 10
    pcpu = max(os.sched_getaffinity(0))
    rounds: list[dict[str, list[float]]] = []
    with Cgroup() as cgroup, server(cgroup, pcpu) as pipe:
        for number in range(options.rounds):
            print(f'round {number + 1}', file=sys.stderr)
            found: dict[str, list[float]] = {name: [] for name in caps}
            for part, name in enumerate(ORDER):
                cgroup.limit(caps[name])
                # The same arrivals for all three.
                pipe.send((options.seconds, options.load,
                           2 * number + (part >= len(caps))))
                samples, took_s, used_s = pipe.recv()
                found[name] += samples
                if name == 'burst':
                    saved_cu_us = min(
                        terms.most_cu_us, saved_cu_us + terms.gained_cu_us(
                            took_s, account.to_cu_us(round(used_s * 1e9),
                                                     1.0)))
                    if saved_cu_us <= 0:
                        sys.exit('it spent all that it had: lower the load')
            rounds.append(found)
    print(f'{options.load:.0%} load, {options.units} CU, bursts at '
          f'{options.burst_cu} CU, {options.rounds} rounds')
    print('quota    requests  median ms   p99 ms   p99 / none')
    for name in caps:
        samples = [one for each in rounds for one in each[name]]
        low, high = interval(rounds, name)
        print(f'{name:8} {len(samples):8} {statistics.median(samples):10.2f} '
              f'{p99(samples):8.2f} {ratio(rounds, name):6.2f} '
              f'({low:.2f} to {high:.2f})')
    print(f'saved in the end: {account.cu_s(saved_cu_us):.0f} of '
          f'{account.cu_s(terms.most_cu_us):.0f} CU seconds')


if __name__ == '__main__':
    main()
