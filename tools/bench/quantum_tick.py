#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What slices and pools cost a host with many servers.

Starts a host of the lab with a libvirtd of its own and small QEMU guests that
halt, and the real agent, which looks at all of them each second: it reads and
sets slices of all threads, reads how long vCPUs ran, recognises what those of
class auto do, and plans pools. Measures what agent and libvirtd use, by turns:

  off      the agent checks slices only once in ten minutes
  default  all servers are of class default
  classes  they are of io, spin, cache and neutral in turn: two pools
  auto     the agent finds out what they do

and prints what one look costs, in ticks of the agent without any, and what a
second of both is to one without, with a look every five seconds, the default.
Removes everything afterwards. As root:

  tools/bench/quantum_tick.py --guests 100

All classes are taken to be enforced by this kernel, whether they are or not:
what it costs to set a slice does not depend on it. Ratios of medians are of
use, for the times are the machine's; what those of off are to themselves, one
round later, is noise.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import platform
import statistics
import sys
import time
import typing as ty

import against_itself
import lab_host
import rom_guests

from nova_vqos import policy
from nova_vqos.conf import default_path
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result

MODES = {
    'off': ('default',), 'default': ('default',),
    'classes': ('io', 'spin', 'cache', 'neutral'),
    'auto': ('auto',)}
TICK_S = 1.0
_LOOK_S = 1.0
_NEVER_S = 600.0
# By default: see [vqos_agent] quantum_interval_s.
_USUAL_S = 5.0
_BOTH = 'both_us'
_STATE = 'run/nova-vqos/agent.json'

Row = dict[str, ty.Any]


def main() -> int:
    options = parse()
    lab_host.prepare()
    with lab_host.started() as bench:
        pretend_enforced(bench)
        guests = rom_guests.start(
            bench, options.guests, rom_guests.Kind(
                # So little that two pCPUs can keep what is promised to all.
                vcpus=options.vcpus, idle_units=options.vcpus,
                has_devices=False),
            limit_s=options.start_limit_s)
        report = {'guests': len(guests), 'vcpus': options.vcpus,
                  'rows': measure(bench, guests, options),
                  'load': round(os.getloadavg()[0], 1)}
    lab_host.save(report, options.json)
    print_report(report, options)
    return 0


def parse() -> argparse.Namespace:
    parser = lab_host.parser(__doc__, guests=100, vcpus=1)
    parser.add_argument('--rounds', type=int, default=3,
                        help='through all modes (default %(default)s)')
    parser.add_argument('--seconds', type=float, default=20,
                        help='of each measurement (default %(default)s)')
    parser.add_argument('--settle', type=float, default=8,
                        help='seconds before each (default %(default)s)')
    return parser.parse_args()


def pretend_enforced(bench: lab_host.BenchHost) -> None:
    """Leave a record by which all classes are enforced."""
    path = pathlib.Path(bench.host.path(default_path.PROBE_RESULT.lstrip('/')))
    path.parent.mkdir(parents=True, exist_ok=True)
    boot_id = pathlib.Path('/proc/sys/kernel/random/boot_id').read_text()
    probe_result.store(probe_result.ProbeResult(
        kernel=platform.release(), boot_id=boot_id.strip(), tick_us=1000,
        measured_at='2026-01-01T00:00:00Z', outcomes={
            classes.DEFAULT: probe_result.Outcome(None, 3000.0, enforced=None),
            **{name: probe_result.Outcome(
                slice_us, float(slice_us), enforced=True,
                work_us=probe_result.LONG_WORKS_US[-1])
               for name, slice_us in classes.RESEARCHED_US.items()}},
    ), str(path))


def measure(bench: lab_host.BenchHost, guests: Sequence[rom_guests.RomGuest],
            options: argparse.Namespace) -> list[Row]:
    """What agent and libvirtd use, by mode."""
    rows = []
    for number in range(options.rounds):
        for mode, names in MODES.items():
            lab_host.say(f'{mode}, round {number + 1} of {options.rounds}')
            for count, guest in enumerate(guests):
                guest.set_flavor({policy.QUANTUM_CLASS_KEY:
                                  names[count % len(names)]})
            interval_s = _NEVER_S if mode == 'off' else _LOOK_S
            agent = bench.start_agent(
                agent=f'quantum_interval_s = {interval_s}\n')
            # Not a wait for anything: the agent is to be in its steady state.
            time.sleep(options.settle)
            elapsed_s, (agent_us, libvirtd_us) = lab_host.measured_us(
                options.seconds, agent.pid, lab_host.libvirtd_pid(bench))
            check_pools(bench, mode)
            bench.stop_agent()
            ticks = elapsed_s / TICK_S
            rows.append({'mode': mode, 'agent_us': agent_us / ticks,
                         'libvirtd_us': libvirtd_us / ticks,
                         _BOTH: (agent_us + libvirtd_us) / ticks})
            lab_host.say(f'   {rows[-1]}')
    return rows


def check_pools(bench: lab_host.BenchHost, mode: str) -> None:
    """See that the agent did what it was measured for."""
    state = json.loads(pathlib.Path(bench.host.path(_STATE)).read_text())
    pools = state['quantum']['pools']
    if mode != 'auto' and bool(pools) != (mode == 'classes'):
        raise AssertionError(f'the agent made pools {pools}, mode {mode}')


def print_report(report: Row, options: argparse.Namespace) -> None:
    guests = report['guests']
    medians = {mode: {key: statistics.median(
        row[key] for row in report['rows'] if row['mode'] == mode)
        for key in ('agent_us', 'libvirtd_us', _BOTH)} for mode in MODES}
    print(f'{guests} guests of {report["vcpus"]} vCPUs; a tick and a look '
          f'each second; medians of {options.rounds} rounds of '
          f'{options.seconds:g} s; load average {report["load"]}')
    print(f'{"":10}{"us of CPU time a tick":>32}{"a look":>10}'
          f'{"per guest":>12}{"in ticks":>10}{"to off":>9}')
    print(f'{"":10}{"agent":>10}{"libvirtd":>11}{"both":>11}'
          f'{"us":>10}{"us":>12}')
    tick_us = medians['off'][_BOTH]
    for mode, found in medians.items():
        look_us = found[_BOTH] - tick_us
        print(f'{mode:10}{found["agent_us"]:10.0f}'
              f'{found["libvirtd_us"]:11.0f}{found[_BOTH]:11.0f}'
              f'{look_us:10.0f}{look_us / guests:12.1f}'
              f'{look_us / tick_us:10.2f}'
              f'{1 + look_us / tick_us * TICK_S / _USUAL_S:9.2f}')
    print(against_itself.line('off', [
        row[_BOTH] for row in report['rows'] if row['mode'] == 'off']))


if __name__ == '__main__':
    sys.exit(main())
