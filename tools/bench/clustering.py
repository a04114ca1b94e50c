#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What planning the pools of a host costs, and how it grows.

For each number of vCPUs, a quarter as many pCPUs on four sockets, servers of
all kinds and of one to eight vCPUs: the median CPU time of a plan from
nothing, of one after a vCPU changed its kind, and of one after nothing
changed, each without and with promised shares. CPU time, not that on the
clock, so that others on the machine count little; sizes take turns, so that
what disturbs one disturbs all. Then the ratio between sizes: twice as many
vCPUs should take about twice as long; and what the smaller size is to itself,
from one round to the next. Exits 1 if 1000 vCPUs on 256 pCPUs took
20 ms or more, or a ratio is above 1.5 times that of the sizes. Needs nothing
but this checkout:

    python tools/bench/clustering.py
"""

import argparse
import dataclasses
from fractions import Fraction
import itertools
import json
import pathlib
import random
import statistics
import sys
import time

import against_itself

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum.placement import plan

SIZES = {500: 128, 1000: 256, 2000: 512, 4000: 1024}
SOCKETS = 4
GOAL_VCPUS = 1000
GOAL_MS = 20
GREATEST_EXCESS = 1.5


def make_host(pcpus):
    """Four sockets of cores with two siblings."""
    of_socket = pcpus // SOCKETS
    return [model.Socket(number, tuple(
        (first, first + 1) for first in range(
            number * of_socket, (number + 1) * of_socket, 2)))
            for number in range(SOCKETS)]


def make_vcpus(count, pcpus, with_shares):
    """Servers of all kinds; shares add up to nine tenths of the pCPUs."""
    chance = random.Random(count)
    vcpus = []
    while len(vcpus) < count:
        kind = chance.choice(list(model.Kind))
        pollutes = chance.random() < 0.2
        weight = chance.randint(1, 20)
        server = f'{chance.getrandbits(128):032x}'
        for number in range(chance.choice((1, 2, 2, 4, 8))):
            vcpus.append(model.Vcpu(server, number, kind, pollutes, weight))
    vcpus = vcpus[:count]
    total = sum(vcpu.share for vcpu in vcpus)
    if not with_shares:
        return [dataclasses.replace(vcpu, share=0) for vcpu in vcpus]
    shares = [min(Fraction(1), Fraction(9 * pcpus * vcpu.share, 10 * total))
              for vcpu in vcpus]
    # As with units by default: what is promised is the cap.
    return [dataclasses.replace(vcpu, share=share, cap=share)
            for vcpu, share in zip(vcpus, shares, strict=True)]


def change_one(vcpus):
    """The same vCPUs, of which one in the middle is of another kind."""
    place = len(vcpus) // 2
    old = vcpus[place]
    kind = (model.Kind.CACHE if old.kind is not model.Kind.CACHE
            else model.Kind.IO)
    return [*vcpus[:place], dataclasses.replace(old, kind=kind),
            *vcpus[place + 1:]]


class Case:
    """A host of some size, and what planning it took."""

    def __init__(self, vcpus, pcpus, with_shares):
        self.vcpus = make_vcpus(vcpus, pcpus, with_shares)
        self.changed = change_one(self.vcpus)
        self.host = make_host(pcpus)
        self.row = {'vcpus': vcpus, 'pcpus': pcpus, 'shares': with_shares}
        self.times_ms = {'new': [], 'changed': [], 'same': []}
        self.plan = self._plan(self.vcpus, None)
        if not self.plan.separates:
            raise SystemExit(f'{vcpus} vCPUs: nothing is separated, so that '
                             'most of the work is not done')
        self.row['pools'] = len(self.plan.pools)

    def measure(self):
        for name, vcpus, before in (
                ('new', self.vcpus, None),
                ('changed', self.changed, self.plan),
                ('same', self.vcpus, self.plan)):
            begin = time.process_time()
            self._plan(vcpus, before)
            self.times_ms[name].append(1e3 * (time.process_time() - begin))

    def result(self):
        return self.row | {f'{name}_ms': statistics.median(times)
                           for name, times in self.times_ms.items()} | {
            'noise': {name: against_itself.noise(times)
                      for name, times in self.times_ms.items()}}

    def _plan(self, vcpus, before):
        return plan.make_plan(vcpus, self.host, classes.RESEARCHED_US, before)


def run(rounds, with_shares):
    cases = [Case(vcpus, pcpus, with_shares)
             for vcpus, pcpus in SIZES.items()]
    for _ in range(rounds):
        for case in cases:
            case.measure()
    return [case.result() for case in cases]


def is_fast_and_linear(results):
    """Print the ratios; whether they meet the goals."""
    met = all(row['new_ms'] < GOAL_MS and row['changed_ms'] < GOAL_MS
              for row in results if row['vcpus'] == GOAL_VCPUS)
    for less, more in itertools.combinations(results, 2):
        if less['shares'] != more['shares']:
            continue
        size = more['vcpus'] / less['vcpus']
        new = more['new_ms'] / less['new_ms']
        changed = more['changed_ms'] / less['changed_ms']
        print(f'{more["vcpus"]}/{less["vcpus"]:<5} '
              f'{"with" if less["shares"] else "without":8} shares: '
              f'new {new:5.2f}, changed {changed:5.2f} (size {size:.0f}); '
              f'to itself {less["noise"]["new"]}, '
              f'{less["noise"]["changed"]}')
        met = met and max(new, changed) <= GREATEST_EXCESS * size
    return met


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--rounds', type=int, default=31)
    parser.add_argument('--json', metavar='FILE',
                        help='also write the results there')
    arguments = parser.parse_args()
    results = []
    print(f'{"vCPUs":>6} {"pCPUs":>6} {"shares":>7} {"new ms":>8} '
          f'{"changed ms":>11} {"same ms":>8} {"pools":>6}')
    for with_shares in (False, True):
        for row in run(arguments.rounds, with_shares):
            results.append(row)
            print('{vcpus:6} {pcpus:6} {shares!s:>7} {new_ms:8.2f} '
                  '{changed_ms:11.2f} {same_ms:8.2f} {pools:6}'.format(**row))
    met = is_fast_and_linear(results)
    if arguments.json:
        with open(arguments.json, 'w') as file:
            json.dump(results, file, indent=2)
    return 0 if met else 1


if __name__ == '__main__':
    sys.exit(main())
