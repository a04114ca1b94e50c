#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How often pools are made, and what they leave to each vCPU.

Random hosts of one socket, with two to five vCPUs on a pCPU: 30 % of kind
cache, 20 % neutral and 10 % polluters, which want all that they can get, and
40 % of kind io, which want a tenth, a third or all of a pCPU's time. Nothing
is run: the planner plans, and CPU time is what max-min fairness leaves to
each vCPU, in its pool and without pools. The kernel enforces cache alone::

    tools/bench/pool_fairness.py

pools
    of the hosts, with pools
long
    of the vCPUs of kind cache, that have long slices
least
    of all vCPUs in pools, the least part of the CPU time that they would have
    without pools
"""

import argparse
from collections.abc import Sequence
import dataclasses
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum.placement import plan

_KINDS = ((model.Kind.CACHE, 30), (model.Kind.NEUTRAL, 20),
          (model.Kind.POLLUTER, 10), (model.Kind.IO, 40))
_IO_TENTHS = (1, 3, 10)
_PCPUS = (2, 4, 8, 16, 32, 64)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--hosts', type=int, default=300,
                        help='of each size (default %(default)s)')
    parser.add_argument('--seed', type=int, default=1)
    options = parser.parse_args()
    if options.hosts < 1:
        parser.error('--hosts must be 1 or more')
    print('pCPUs  pools   long  least')
    for pcpus in _PCPUS:
        chance = random.Random(options.seed)
        separated = long = cache = 0
        least = 1.0
        for _ in range(options.hosts):
            vcpus = some_vcpus(chance, pcpus)
            made = plan.make_plan(
                vcpus, [model.Socket(0, tuple((n,) for n in range(pcpus)))],
                {classes.CACHE: classes.DEFAULT_SLICES_US[classes.CACHE]})
            separated += made.separates
            cache += sum(vcpu.kind is model.Kind.CACHE for vcpu in vcpus)
            long += sum(vcpu.kind is model.Kind.CACHE for pool in made.pools
                        if pool.slice_us for vcpu in pool.vcpus)
            if made.separates:
                without = level(vcpus, pcpus)
                least = min(least, *(
                    min(wants(vcpu), inside) / min(wants(vcpu), without)
                    for pool in made.pools
                    for inside in [level(pool.vcpus, len(pool.pcpus))]
                    for vcpu in pool.vcpus))
        print(f'{pcpus:5} {separated / options.hosts:6.0%} {long / cache:6.0%}'
              f' {least:6.2f}')


def some_vcpus(chance: random.Random, pcpus: int) -> list[model.Vcpu]:
    kinds, weights = zip(*_KINDS, strict=True)
    vcpus = [model.Vcpu(f'server{number}', 0,
                        chance.choices(kinds, weights)[0])
             for number in range(round(chance.uniform(2, 5) * pcpus))]
    return [dataclasses.replace(vcpu, tenths=chance.choice(_IO_TENTHS))
            if vcpu.kind is model.Kind.IO else vcpu for vcpu in vcpus]


def wants(vcpu: model.Vcpu) -> float:
    """Of a pCPU."""
    return vcpu.tenths / model.TENTHS


def level(vcpus: Sequence[model.Vcpu], pcpus: int) -> float:
    """What each vCPU gets, if it wants that much."""
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if sum(min(wants(vcpu), middle) for vcpu in vcpus) > pcpus:
            high = middle
        else:
            low = middle
    return high


if __name__ == '__main__':
    main()
