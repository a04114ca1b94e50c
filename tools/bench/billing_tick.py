#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What billing costs a host with many servers.

Starts a host of the lab with a libvirtd of its own and small QEMU guests, each
with a tap on a bridge and a disk in a file: most of them halt, some read their
disks all the time. Removes everything afterwards. As root::

    tools/bench/billing_tick.py --guests 100 --busy 10

With the real agent it then measures what agent and libvirtd use, with billing
of all servers off, on account, and charged, by turns; and after that, once and
without the agent, what of a reading, and of a write, costs how much
(billing_readings.py).

Ratios of medians are of use, for the times are the machine's; what those with
billing off, or of a tick, are to themselves one round later is noise.
"""

import argparse
from collections.abc import Sequence
import contextlib
import json
import os
import sqlite3
import statistics
import sys
import time

import against_itself
import lab_host
import rom_guests

from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles

MODES = ('off', 'account', 'charge')
# Of the agent, by default.
TICK_S = 1.0
READINGS_LIMIT_S = 600
# What was billed last is no older, nearly idle servers among them.
_BILLED_S = 36.0
_LEDGER = 'var/lib/nova-vqos/ledger.sqlite'
_BOTH = 'both_us'

Row = dict[str, object]


def main() -> int:
    options = parse()
    lab_host.prepare()
    report: Row = {'guests': 0, 'busy': options.busy}
    with lab_host.started(io=io.document(
            make_profiles.make_io())) as bench:
        guests = rom_guests.start(
            bench, options.guests, rom_guests.Kind(vcpus=options.vcpus),
            busy=options.busy, limit_s=options.start_limit_s)
        report['guests'] = len(guests)
        report['busy'] = sum(guest.is_busy for guest in guests)
        report['rows'] = measure_modes(bench, guests, options)
        if options.readings:
            report['readings'] = measure_readings(bench, options)
        report['load'] = round(os.getloadavg()[0], 1)
    lab_host.save(report, options.json)
    print_modes(report, options)
    if options.readings:
        print_readings(report)
    return 0


def parse() -> argparse.Namespace:
    parser = lab_host.parser(__doc__, guests=100, vcpus=1)
    parser.add_argument('--busy', type=int, default=10,
                        help='of them, that read their disks '
                        '(default %(default)s)')
    parser.add_argument('--rounds', type=int, default=3,
                        help='through all modes (default %(default)s)')
    parser.add_argument('--seconds', type=float, default=30,
                        help='of each measurement; idle guests are asked '
                        'about their disks every 30 (default %(default)s)')
    parser.add_argument('--settle', type=float, default=8,
                        help='seconds before each (default %(default)s)')
    parser.add_argument('--readings', type=int, default=15, metavar='ROUNDS',
                        help='of what a reading costs; 0: none '
                        '(default %(default)s)')
    options = parser.parse_args()
    if not 0 <= options.busy <= options.guests:
        parser.error('--busy must be 0 to --guests')
    return options


def measure_modes(bench: lab_host.BenchHost,
                  guests: Sequence[rom_guests.RomGuest],
                  options: argparse.Namespace) -> list[Row]:
    """What agent and libvirtd use, by mode of billing."""
    rows = []
    agent = bench.start_agent()
    pids = agent.pid, lab_host.libvirtd_pid(bench)
    for number in range(options.rounds):
        for mode in MODES:
            lab_host.say(f'{mode}, round {number + 1} of {options.rounds}')
            for guest in guests:
                guest.set_billing(mode)
            # Not a wait for anything: the agent is to be in its steady state.
            time.sleep(options.settle)
            before = rom_guests.requests(guests)
            elapsed_s, (agent_us, libvirtd_us) = lab_host.measured_us(
                options.seconds, *pids)
            billed = servers_billed(bench)
            if billed != (0 if mode == 'off' else len(guests)):
                raise AssertionError(f'{billed} servers were billed, mode '
                                     f'{mode}')
            ticks = elapsed_s / TICK_S
            rows.append({
                'mode': mode, 'agent_us': agent_us / ticks,
                'libvirtd_us': libvirtd_us / ticks,
                _BOTH: (agent_us + libvirtd_us) / ticks,
                'requests': sum(rom_guests.requests(guests)) - sum(before)})
            lab_host.say(f'   {rows[-1]}')
    bench.stop_agent()
    return rows


def servers_billed(bench: lab_host.BenchHost) -> int:
    """How many servers the agent's ledger has of a moment ago."""
    path = bench.host.path(_LEDGER)
    if not os.path.exists(path):
        return 0
    with contextlib.closing(sqlite3.connect(
            f'file:{path}?mode=ro', uri=True, timeout=10)) as connection:
        now_s = time.monotonic()
        return sum(
            now_s - json.loads(baseline)['read_at_s'] < _BILLED_S
            for (baseline,) in connection.execute(
                'SELECT baseline FROM servers') if baseline)


def measure_readings(bench: lab_host.BenchHost,
                     options: argparse.Namespace) -> Row:
    """Have a program on the host measure what readings cost."""
    # As the host sees it.
    libvirtd = bench.host.run(['pgrep', '-x', 'libvirtd']).stdout.strip()
    program = lab_host.ROOT / 'tools/bench/billing_readings.py'
    return json.loads(bench.host.run(
        [sys.executable, str(program), '--rounds', str(options.readings),
         '--libvirtd', libvirtd],
        env={'PYTHONPATH': str(lab_host.ROOT)},
        limit_s=READINGS_LIMIT_S).stdout)


def print_modes(report: Row, options: argparse.Namespace) -> None:
    guests = report['guests']
    medians = {mode: {key: statistics.median(
        row[key] for row in report['rows'] if row['mode'] == mode)
        for key in ('agent_us', 'libvirtd_us', _BOTH, 'requests')}
        for mode in MODES}
    print(f'{guests} guests of {options.vcpus} vCPUs with a tap and a disk '
          f'each, {report["busy"]} of them reading it; a tick each second; '
          f'medians of {options.rounds} rounds of {options.seconds:g} s; load '
          f'average {report["load"]}')
    print(f'{"":10}{"us of CPU time a tick":>32}{"per guest":>12}'
          f'{"to off":>9}{"of a core":>11}')
    print(f'{"":10}{"agent":>10}{"libvirtd":>11}{"both":>11}')
    for mode, found in medians.items():
        print(f'{mode:10}{found["agent_us"]:10.0f}'
              f'{found["libvirtd_us"]:11.0f}{found[_BOTH]:11.0f}'
              f'{found[_BOTH] / guests:12.1f}'
              f'{found[_BOTH] / medians["off"][_BOTH]:9.2f}'
              f'{found[_BOTH] / TICK_S / 1e6:11.2%}')
    print(against_itself.line('off', [
        row[_BOTH] for row in report['rows'] if row['mode'] == 'off']))


def print_readings(report: Row) -> None:
    guests, readings = report['guests'], report['readings']
    print(f'\nWithout the agent, medians of {readings["rounds"]} rounds')
    print(f'{"":18}{"us per guest":>26}{"of a tick":>22}{"wall":>9}')
    print(f'{"":18}{"own":>13}{"libvirtd":>13}{"own":>11}{"both":>11}'
          f'{"ms":>9}')
    medians = readings['medians']
    tick = medians['tick']
    for name, found in medians.items():
        both = found['own_us'] + found['libvirtd_us']
        print(f'{name:18}{found["own_us"] / guests:13.1f}'
              f'{found["libvirtd_us"] / guests:13.1f}'
              f'{found["own_us"] / tick["own_us"]:11.2f}'
              f'{both / (tick["own_us"] + tick["libvirtd_us"]):11.2f}'
              f'{found["wall_us"] / 1e3:9.1f}')
    print(against_itself.line('tick', readings['tick_own_us']) + ', own')


if __name__ == '__main__':
    sys.exit(main())
