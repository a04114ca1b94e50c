#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What the weighers cost, against Nova's CPUWeigher.

That one is among the simplest, and enabled by default. All weigh the same host
states in the same process, in turns, through the scheduler's own machinery, at
its usual log level (info). Prints the median CPU time of a request for each,
the ratio of the two, the extremes of the ratio among the rounds, and what a
host costs more. Exits 1 if a ratio is above its limit.

What each case compares:

* ``no class, no units``: a flavor with nothing of ours.
* ``units``, ``class``: a flavor with one of them, or both, each weigher alone.
"""

import sys
import time

import bench_scheduler
from nova.scheduler import weights
from nova.scheduler.weights import cpu

from nova_vqos import policy
from nova_vqos.scheduler import weigher

# Of a request that asks for something of ours: reading a text of several
# numbers takes longer than subtracting two.
LIMIT = 2.5
# Of one that asks for nothing: it has to be for nothing.
IDLE_LIMIT = 1.1


def make_hosts(count):
    hosts = []
    for number in range(count):
        host = bench_scheduler.make_host(number, {
            'vqos_room_cu': str(number % 9000),
            # As many sizes as a host of large and small vCPUs leaves.
            'vqos_pieces': ' '.join(
                f'{cu}:{number % 7 + 1}' for cu in range(
                    100 - number % 10, 0, -10)),
            'vqos_quantum_pools': (
                f'cache:{number % 16 + 1}:{number % 40} default:20:60 '
                f'io:{number % 7}:{number % 30} polluters:{number % 50}')})
        host.vcpus_total, host.vcpus_used = 64, number % 64
        host.cpu_allocation_ratio = 4.0
        hosts.append(host)
    return hosts


def measure(handler, one, hosts, spec):
    """CPU seconds that a weigher needs for one request."""
    begin = time.process_time()
    handler.get_weighed_objects([one], hosts, spec)
    return time.process_time() - begin


def compare(name, ours, hosts, extra_specs, rounds, limit):
    handler = weights.HostWeightHandler()
    stock = cpu.CPUWeigher()
    spec = bench_scheduler.make_spec(extra_specs)
    our_times, stock_times = [], []
    for _ in range(rounds):
        bench_scheduler.read_anew(hosts)
        our_times.append(measure(handler, ours, hosts, spec))
        stock_times.append(measure(handler, stock, hosts, spec))
    found = bench_scheduler.result(f'{type(ours).__name__}, {name}', hosts,
                                   our_times, stock_times, limit=limit)
    return found | {
        'met': found['ratio'] <= limit, 'more_us_per_host': (
            found['vqos_ms'] - found['stock_ms']) / len(hosts) * 1e3}


def run(count, rounds):
    hosts = make_hosts(count)
    quantum = weigher.VqosQuantumWeigher()
    fit = weigher.VqosUnitsWeigher()
    packing = weigher.VqosPackingWeigher()
    units = {policy.UNITS_KEY: '200'}
    for ours in quantum, fit, packing:
        yield compare('no class, no units', ours, hosts, {}, rounds,
                      IDLE_LIMIT)
    yield compare('units', fit, hosts, units, rounds, LIMIT)
    yield compare('units', packing, hosts, units, rounds, LIMIT)
    yield compare('units', quantum, hosts, units, rounds, IDLE_LIMIT)
    for name in 'io', 'cache', 'neutral':
        yield compare(f'class {name}', quantum, hosts,
                      {**units, policy.QUANTUM_CLASS_KEY: name}, rounds,
                      LIMIT)


if __name__ == '__main__':
    sys.exit(bench_scheduler.main(
        __doc__, run,
        f'{"case":40} {"stock ms":>9} {"vqos ms":>9} {"ratio":>6} '
        f'{"limit":>6} {"us a host":>10}  (least, greatest)  '
        'stock against itself',
        '{case:40} {stock_ms:9.2f} {vqos_ms:9.2f} {ratio:6.3f} '
        '{limit:6.1f} {more_us_per_host:10.2f}  '
        '({least_ratio:.3f}, {greatest_ratio:.3f})  '
        '({least_noise:.3f}, {greatest_noise:.3f})'))
