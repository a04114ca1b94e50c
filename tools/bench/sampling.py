#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""The cost of reading, and of reporting, the usage of all servers of a host.

Starts a host of the lab with a libvirtd of its own and small QEMU guests that
halt, and has sampling_readings.py measure there. Removes everything
afterwards. As root::

    tools/bench/sampling.py --guests 100

Ratios of medians are of use, for the times are the machine's; what that of a
tick is to itself, one round later, is noise.
"""

import json
import os
import sys

import against_itself
import lab_host
import rom_guests
import sampling_readings

MEASURE_LIMIT_S = 300


def main() -> int:
    parser = lab_host.parser(__doc__, guests=100, vcpus=2)
    parser.add_argument('--rounds', type=int, default=30)
    options = parser.parse_args()
    lab_host.prepare()
    with lab_host.started() as bench:
        guests = rom_guests.start(
            bench, options.guests, rom_guests.Kind(
                vcpus=options.vcpus, idle_units=20 * options.vcpus,
                has_devices=False), limit_s=options.start_limit_s)
        program = lab_host.ROOT / 'tools/bench/sampling_readings.py'
        report = json.loads(bench.host.run(
            [sys.executable, str(program), '--rounds', str(options.rounds)],
            env={'PYTHONPATH': str(lab_host.ROOT)},
            limit_s=MEASURE_LIMIT_S).stdout)
        report |= {'guests': len(guests), 'vcpus': options.vcpus,
                   'load': round(os.getloadavg()[0], 1)}
    lab_host.save(report, options.json)
    print_report(report)
    return 0


def print_report(report: dict) -> None:
    guests, medians = report['guests'], report['medians_us']
    tick_us = medians[sampling_readings.TICK]
    each_s_us = (medians[sampling_readings.SAMPLING]
                 / sampling_readings.SAMPLE_INTERVAL_S)
    print(f'{guests} guests of {report["vcpus"]} vCPUs, medians of '
          f'{report["rounds"]} rounds, load average {report["load"]}')
    print(f'{"":16}{"us of CPU time":>16}{"per guest":>12}{"of a tick":>12}')
    for name, used_us in medians.items():
        print(f'{name:16}{used_us:16.0f}{used_us / guests:12.1f}'
              f'{used_us / tick_us:12.2f}')
    print(against_itself.line('tick', report['tick_us']))
    print(f'Sampling each {sampling_readings.SAMPLE_INTERVAL_S} s costs as '
          f'much as {each_s_us / tick_us:.2f} of a tick each second, '
          f'{each_s_us / 1e4:.3f} % of a core. An answer to list_servers has '
          f'{report["bytes"] / guests:.0f} bytes for each server')


if __name__ == '__main__':
    sys.exit(main())
