#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a burst does for the latency of a server that is seldom busy.

A real QEMU guest serves requests of 2 ms of CPU time, which arrive at random
(Poisson, an open loop: whether or not the last one is served), for 20 % of a
pCPU in the mean. A real agent sets its quota: that of its units, that of
vqos:burst_cu, which its savings pay for, and none (vqos:cap=floor). One guest
runs at a time, in the order A B C, then C B A. Prints the 99th percentile of
each, and its ratio to that without a quota with a 90 % interval (bootstrap
over blocks).

Says something of an idle machine only: where others use the pCPU, they delay
all three.
"""

from collections.abc import Mapping
import random
import statistics
import time
import typing as ty

import lab_host
import latency_guest

from nova_vqos import policy
from nova_vqos_lab import process

_LIMIT_S = 120
# Until requests that arrived before its quota was right are served.
_SETTLE_S = 3.0
_BLOCK_S = 5.0
# Until the guest has saved a tenth of its bound, it bursts after some seconds.
_BURST_SECONDS = 20
_UNLIMITED = 'none'

#: Milliseconds of each request, by blocks.
Blocks: ty.TypeAlias = list[list[float]]


class Arm(ty.NamedTuple):
    """One of the things that are compared.

    :ivar specs: of the flavor, beside its units
    :ivar cu: that its quota is; None: it has no quota
    """

    specs: Mapping[str, str]
    cu: int | None


def arms(units: int, burst_cu: int) -> dict[str, Arm]:
    return {
        'units': Arm({}, units),
        'burst': Arm({policy.BURST_KEY: str(burst_cu),
                      policy.BURST_SECONDS_KEY: str(_BURST_SECONDS)},
                     burst_cu),
        _UNLIMITED: Arm({policy.CAP_KEY: 'floor'}, None)}


def measure(bench: lab_host.BenchHost, name: str, arm: Arm, units: int,
            blocks: int) -> Blocks:
    """Start a guest, and time its requests once its quota is right."""
    assert bench.agent is not None
    served = latency_guest.LatencyGuest(
        bench, name, units, arm.specs, latency_guest.SERVES_AT_RANDOM)
    try:
        process.wait_until(served.done, _LIMIT_S, 'the first request')
        process.wait_until(
            lambda: bench.quota_cu(name) == arm.cu, _LIMIT_S,
            f'a quota of {arm.cu or "no"} CU', log=bench.agent.log)
        time.sleep(_SETTLE_S)
        found = []
        for _ in range(blocks):
            first = served.done()
            # The length of the measurement.
            time.sleep(_BLOCK_S)
            found.append(served.since_ms(first))
        if bench.quota_cu(name) != arm.cu:
            raise process.LabError(f'{name}: its quota changed meanwhile')
        return found
    finally:
        served.domain.destroy()


def p99_ms(blocks: Blocks) -> float:
    return statistics.quantiles(
        [took for block in blocks for took in block], n=100)[98]


def interval(above: Blocks, below: Blocks) -> tuple[float, float]:
    """Of the ratio of their 99th percentiles."""
    chance = random.Random(1)
    found = sorted(
        p99_ms(chance.choices(above, k=len(above)))
        / p99_ms(chance.choices(below, k=len(below))) for _ in range(500))
    return found[25], found[-26]


def main() -> None:
    parser = lab_host.argparse.ArgumentParser(
        description=__doc__.split('\n', 1)[0])
    parser.add_argument('--units', type=int, default=30)
    parser.add_argument('--burst-cu', type=int, default=90)
    parser.add_argument('--blocks', type=int, default=4,
                        help=f'of {_BLOCK_S:g} s, of each arm in each round '
                        '(default: %(default)s)')
    parser.add_argument('--rounds', type=int, default=3)
    options = parser.parse_args()
    lab_host.prepare()
    compared = arms(options.units, options.burst_cu)
    found: dict[str, Blocks] = {name: [] for name in compared}
    with lab_host.started() as bench:
        latency_guest.install(bench)
        bench.start_agent()
        for number in range(options.rounds):
            for name in [*compared][::-1 if number % 2 else 1]:
                lab_host.say(f'round {number + 1} of {options.rounds}: {name}')
                found[name] += measure(bench, name, compared[name],
                                       options.units, options.blocks)
        bench.stop_agent()
    print(f'{options.units} CU, bursts at {options.burst_cu} CU, requests of '
          f'{latency_guest.REQUEST_MS:g} ms, one in '
          f'{latency_guest.REQUEST_INTERVAL_MS:g} ms')
    print('quota    requests  median ms   p99 ms   p99 / none')
    for name, blocks in found.items():
        took_ms = [took for block in blocks for took in block]
        low, high = interval(blocks, found[_UNLIMITED])
        print(f'{name:8} {len(took_ms):8} {statistics.median(took_ms):10.2f} '
              f'{p99_ms(blocks):8.2f} '
              f'{p99_ms(blocks) / p99_ms(found[_UNLIMITED]):6.2f} '
              f'({low:.2f} to {high:.2f})')


if __name__ == '__main__':
    main()
