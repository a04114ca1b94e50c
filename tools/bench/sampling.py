#!/usr/bin/env python3
# Licensed under the Apache License, Version 2.0 (the "License"); you may
# not use this file except in compliance with the License. You may obtain
# a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS, WITHOUT
# WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied. See the
# License for the specific language governing permissions and limitations
# under the License.

"""What it costs to read, and to tell, what all servers of a host used.

Starts a host of the lab with a libvirtd of its own and small QEMU guests that
halt, and has sampling_readings.py measure there. Removes everything
afterwards. As root::

    tools/bench/sampling.py --guests 100

Ratios of medians are of use, for the times are the machine's.
"""

import argparse
import json
import os
import pathlib
import sys

import lab_host
import rom_guests
import sampling_readings

MEASURE_LIMIT_S = 300
SAMPLE_INTERVAL_S = 10.0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__.split('\n', maxsplit=1)[0])
    parser.add_argument('--guests', type=int, default=100)
    parser.add_argument('--vcpus', type=int, default=2,
                        help='of each guest (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=30)
    parser.add_argument('--start-limit-s', type=int, default=240,
                        help='start no more guests after this many seconds')
    parser.add_argument('--json', metavar='FILE')
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
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(report, indent=1))
    print_report(report)
    return 0


def print_report(report: dict) -> None:
    guests, medians = report['guests'], report['medians_us']
    tick_us = medians[sampling_readings.TICK]
    each_s_us = medians[sampling_readings.SAMPLING] / SAMPLE_INTERVAL_S
    print(f'{guests} guests of {report["vcpus"]} vCPUs, medians of '
          f'{report["rounds"]} rounds, load average {report["load"]}')
    print(f'{"":16}{"us of CPU time":>16}{"per guest":>12}{"of a tick":>12}')
    for name, used_us in medians.items():
        print(f'{name:16}{used_us:16.0f}{used_us / guests:12.1f}'
              f'{used_us / tick_us:12.2f}')
    print(f'Sampling each {SAMPLE_INTERVAL_S:g} s costs as much as '
          f'{each_s_us / tick_us:.2f} of a tick each second, '
          f'{each_s_us / 1e4:.3f} % of a core. An answer to list_servers has '
          f'{report["bytes"] / guests:.0f} bytes for each server')


if __name__ == '__main__':
    sys.exit(main())
