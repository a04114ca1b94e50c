#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How many more servers a fleet accepts with VqosPackingWeigher.

Servers of random flavors come to a simulated fleet and leave it again, by
[vqos] packing = exact on each host. The scheduler's own machinery chooses
among the hosts on which a server packs, with Nova's weighers of CPU and RAM
and those of nova_vqos at their defaults: once with packing_weight_multiplier
0, and once with its default, the same servers. Prints for each set of flavors
how many were accepted and refused in each case, the mean part of all units
that was sold, and the ratio of what was accepted and refused; and that ratio
where the weigher is without effect in both cases, and one more server is there
at first, after which the others find other hosts: within that a ratio is luck.
"""

import argparse
import collections
from fractions import Fraction
import functools
import heapq
import math
import random
import statistics
import sys

import bench_scheduler
import nova.conf
from nova.scheduler import weights
from nova.scheduler.weights import cpu
from nova.scheduler.weights import ram

from nova import objects
from nova_vqos import host_stats
from nova_vqos import packing
from nova_vqos import policy
from nova_vqos.scheduler import weigher

PCPUS = 32
PCPU_CU = 100
RAM_MB_PER_VCPU = 2048
# vCPUs, and CU of each.
FLAVORS = {
    # Without the database, which is too fast for these hosts.
    'of the cookbook': ((2, 60), (8, 50), (2, 80), (2, 30), (4, 20), (4, 60)),
    'large and small': ((2, 60), (2, 40), (1, 70), (1, 30)),
    'about a half': ((2, 55), (1, 45), (2, 35), (4, 20)),
    'many sizes': ((1, 12), (2, 25), (2, 38), (4, 44), (1, 52), (2, 61),
                   (1, 73), (2, 87)),
}


class Host:
    """A host, and its state as the scheduler has it."""

    def __init__(self, number):
        self._packed = packing.Pcpus(PCPUS, Fraction(PCPU_CU),
                                     collections.Counter())
        self.state = bench_scheduler.make_host(number, {})
        self.state.vcpus_total, self.state.cpu_allocation_ratio = PCPUS, 4.0
        self.room_cu = PCPUS * PCPU_CU
        self.change(0, 0)

    def takes(self, vcpus, cu):
        return vcpus * cu <= self.room_cu and self._packed.takes(
            Fraction(cu), vcpus)

    def change(self, vcpus, cu):
        """A server comes, or leaves.

        :param vcpus: below 0: it leaves
        """
        sizes = self._packed.vcpus
        sizes[Fraction(cu)] += vcpus
        if not sizes[Fraction(cu)]:
            del sizes[Fraction(cu)]
        self.room_cu -= vcpus * cu
        used = sum(sizes.values())
        self.state.vcpus_used = used
        self.state.free_ram_mb = (4 * PCPUS - used) * RAM_MB_PER_VCPU
        self.state.stats = host_stats.encode(host_stats.HostStats(
            room_cu=self.room_cu, pieces=tuple(
                host_stats.Piece(math.ceil(piece_cu), pcpus) for
                piece_cu, pcpus in sorted(self._packed.pieces().items(),
                                          reverse=True))))


@functools.cache
def make_spec(vcpus, cu):
    spec = bench_scheduler.make_spec({policy.UNITS_KEY: str(vcpus * cu)})
    spec.flavor.vcpus = vcpus
    return spec


def simulate(flavors, options, seed, multiplier, one_more=False):
    """
    :param one_more: whether a server more is there at first
    :returns: servers accepted and refused, mean part of units sold
    """
    for name, value in (('packing', multiplier),
                        ('units', options.units_multiplier)):
        nova.conf.CONF.set_override(f'{name}_weight_multiplier', value, 'vqos')
    handler = weights.HostWeightHandler()
    weighers = [cpu.CPUWeigher(), ram.RAMWeigher(),
                *(one() for one in weigher.all_weighers())]
    draw = random.Random(seed)
    hosts = [Host(number) for number in range(options.hosts)]
    by_state = {id(host.state): host for host in hosts}
    capacity_cu = options.hosts * PCPUS * PCPU_CU
    life = options.load * capacity_cu / statistics.fmean(
        vcpus * cu for vcpus, cu in flavors)
    leaving, counts, sold = [], collections.Counter(), []
    begin = round(2 * life)
    if one_more:
        hosts[0].change(*flavors[0])
        leaving.append((life, -1, hosts[0], *flavors[0]))
    for now in range(begin + options.servers):
        while leaving and leaving[0][0] <= now:
            _at, _number, host, vcpus, cu = heapq.heappop(leaving)
            host.change(-vcpus, cu)
        vcpus, cu = draw.choice(flavors)
        leaves_at = now + draw.expovariate(1 / life)
        states = [host.state for host in hosts if host.takes(vcpus, cu)]
        if states:
            best = handler.get_weighed_objects(weighers, states,
                                               make_spec(vcpus, cu))[0].obj
            host = by_state[id(best)]
            host.change(vcpus, cu)
            heapq.heappush(leaving, (leaves_at, now, host, vcpus, cu))
        if now >= begin:
            counts[bool(states)] += 1
            sold.append(1 - sum(one.room_cu for one in hosts) / capacity_cu)
    return counts[True], counts[False], statistics.fmean(sold)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split('\n', 1)[0])
    parser.add_argument('--hosts', type=int, default=10)
    parser.add_argument('--servers', type=int, default=4000,
                        help='that come after the fleet has filled')
    parser.add_argument('--load', type=float, default=0.98, help='part of all '
                        'units that would be sold if all were accepted')
    parser.add_argument('--fleets', type=int, default=3,
                        help='one after the other, with other servers')
    parser.add_argument('--units-multiplier', type=float, default=4.0,
                        help='units_weight_multiplier, in both cases')
    options = parser.parse_args()
    objects.register_all()
    nova.conf.CONF([], project='nova', default_config_files=[])
    weigher.VqosPackingWeigher()
    default = nova.conf.CONF.vqos.packing_weight_multiplier
    print(f'{options.fleets} fleets of {options.hosts} hosts of {PCPUS} pCPUs '
          f'of {PCPU_CU} CU, {options.servers} servers each\n'
          f'{"":16} {"without":>26} {"with":>26} {"ratio":>14}'
          '  without, to itself\n'
          f'{"flavors":16} {"accepted refused   sold":>26} '
          f'{"accepted refused   sold":>26} {"acc.":>7} {"ref.":>6}'
          f'{"acc.":>8} {"ref.":>6}')
    seeds = range(1, options.fleets + 1)
    for name, flavors in FLAVORS.items():
        (taken, refused, sold), (more, fewer, fuller), (same, left, _sold) = (
            map(sum, zip(*(simulate(flavors, options, seed, *case)
                           for seed in seeds), strict=True))
            for case in ((0.0,), (default,), (0.0, True)))
        sold, fuller = sold / options.fleets, fuller / options.fleets
        print(f'{name:16} {taken:11} {refused:7} {sold:6.1%} {more:11} '
              f'{fewer:7} {fuller:6.1%} {more / taken:7.3f} '
              f'{fewer / max(1, refused):6.2f}{same / taken:8.3f} '
              f'{left / max(1, refused):6.2f}', flush=True)


if __name__ == '__main__':
    sys.exit(main())
