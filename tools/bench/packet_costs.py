#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether a packet of any size is billed what it costs.

Sends packets of the sizes that `nova-vqos-calibrate io` measures, and of sizes
between them, by turns, through the same set-ups. As root, on an idle machine::

    tools/bench/packet_costs.py --seconds 240

Bills packets of the sizes between by the others, as the agent does by the mean
size of an interval, and compares that with their measured CPU time. The same
for intervals in which every second packet has the one size, and every second
the other. Fails where a bill for one size is off by more than 5 %.

With ``--vhost`` a worker of vhost receives, too, and its packets of all sizes
are billed by what was measured with a reader like QEMU's, as the agent does.
``--newer-kernel`` does all that on an emulated machine with a newer kernel,
which has vhost and Open vSwitch. Its clock goes by instructions: a nanosecond
is an instruction there::

    tools/bench/packet_costs.py --newer-kernel --vhost --sweeps 5 \\
        --modes bridge,routed,nat,openvswitch
"""

import argparse
from collections.abc import Mapping
import contextlib
import os
import pathlib
import statistics
import sys
import time

import newer_kernel

from nova_vqos.calibration import estimate
from nova_vqos.calibration.io import measure
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import traffic
from nova_vqos.profile import io

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'devstack'))

from nova_vqos.tests.host import vhost_tap

AIM = 0.05
LEFT_OUT = (128, 384, 800, 1280, 3000, 7500, 12_000, 24_000, 48_000)
MIXED = ((64, 1514), (64, 65_226), (1514, 65_226))
_MOST_SWEEPS = 10_000
_NEWER_TIMEOUT_S = 3600


def main() -> int:
    options = parse()
    if options.newer_kernel:
        output = newer_kernel.run('aim, ', _NEWER_TIMEOUT_S)
        return 0 if ' met' in output else 1
    taken = take(options)
    met = True
    for mode in options.modes:
        calibrated = measure.summary({size: taken[mode, 'rx'][size]
                                      for size in network.SIZES})
        met &= show(mode, calibrated, taken[mode, 'rx'], options.sizes)
        if options.vhost:
            name = vhost_tap.with_vhost(mode)
            met &= show(name, calibrated, taken[name, 'rx'],
                        sorted({*network.SIZES, *options.sizes}))
    print(f'aim, {AIM:.0%} at each size, {"met" if met else "missed"}')
    return 0 if met else 1


def take(options: argparse.Namespace
         ) -> dict[measure.Way, measure.Samples]:
    """Samples of received packets of all sizes, by turns."""
    pcpus = sorted(os.sched_getaffinity(0))
    bench_type = vhost_tap.Bench if options.vhost else network.Bench
    modes = [name for mode in options.modes for name in (
        mode, vhost_tap.with_vhost(mode))[:1 + options.vhost]]
    with contextlib.closing(bench_type(
            options.modes, (pcpus[0], pcpus[-1]), apart=options.apart,
            sizes=(*network.SIZES, *options.sizes))) as bench:
        return measure.sweep(
            'network', [(mode, 'rx') for mode in modes], bench.sweep,
            options.sweeps, time.monotonic() + options.seconds)


def show(mode: str, calibrated: io.Measured, samples: measure.Samples,
         left_out: list[int]) -> bool:
    """:returns: whether the aim is met"""
    measured = {size: estimate.estimate([one.kernel for one in found])
                for size, found in samples.items()}
    print(f'\n{mode}, {len(samples[min(samples)])} sweeps; ns a packet, of '
          'which the table has: ' + ', '.join(
              f'{size}: {cost.value:.0f}'
              for size, cost in calibrated.by_size.items()))
    print('   left out    billed  measured   95 %  off by  '
          'second half to first')
    met = True
    for size in left_out:
        found = measured[size]
        off_by = billed_ns(calibrated, size) / found.mean - 1
        met &= abs(off_by) <= AIM
        print(f'{size:11}{billed_ns(calibrated, size):10.0f}'
              f'{found.mean:10.0f}{(found.high - found.low) / 2:7.0f}'
              f'{off_by:+8.1%}  {halves(samples[size]):.3f}')
    print('   mixed       billed  measured         off by')
    for pair in MIXED:
        show_mixed(calibrated, {size: measured[size].mean for size in pair})
    return met


def show_mixed(calibrated: io.Measured,
               measured_ns: Mapping[int, float]) -> None:
    """:param measured_ns: of two sizes, of which there are as many packets"""
    billed, took = (billed_ns(calibrated, statistics.fmean(measured_ns)),
                    statistics.fmean(measured_ns.values()))
    print(f'{" ".join(map(str, measured_ns)):>11}{billed:10.0f}{took:10.0f}'
          f'{"":7}{billed / took - 1:+8.1%}')


def billed_ns(calibrated: io.Measured, mean_bytes: float) -> float:
    """Of a packet, where packets have a mean size."""
    return float(calibrated.cost.total_ns(2, round(2 * mean_bytes)) / 2)


def halves(found: list[network.Sample]) -> float:
    """What the machine itself changed meanwhile."""
    middle = len(found) // 2
    first, second = (statistics.median(one.kernel for one in half)
                     for half in (found[:middle], found[middle:]))
    return second / first


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=float, default=240)
    parser.add_argument('--sweeps', type=int, default=_MOST_SWEEPS,
                        help='that are made at most')
    parser.add_argument('--modes', default='bridge,routed,nat',
                        metavar='LIST')
    parser.add_argument('--vhost', action='store_true',
                        help='also with a worker of vhost that receives')
    parser.add_argument(newer_kernel.OPTION, action='store_true',
                        help='on the emulated machine of level host-v2')
    parser.add_argument('--sizes', default=','.join(map(str, LEFT_OUT)),
                        metavar='LIST', help='left out of the calibration')
    parser.add_argument('--apart', action='store_true',
                        help='this kernel has CONFIG_IRQ_TIME_ACCOUNTING')
    options = parser.parse_args()
    if options.sweeps < estimate.LEAST_SAMPLES:
        parser.error(f'--sweeps takes {estimate.LEAST_SAMPLES} and more')
    options.modes = options.modes.split(',')
    if not set(options.modes) <= set(traffic.MODES):
        parser.error(f'--modes takes some of {",".join(traffic.MODES)}')
    options.sizes = [int(size) for size in options.sizes.split(',')]
    if not all(traffic.LEAST_BYTES <= size <= traffic.MOST_BYTES
               for size in options.sizes):
        parser.error(f'--sizes takes sizes from {traffic.LEAST_BYTES} to '
                     f'{traffic.MOST_BYTES}')
    return options


if __name__ == '__main__':
    sys.exit(main())
