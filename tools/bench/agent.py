#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What the agent costs on a host with many servers.

Starts a host of the lab with a libvirtd of its own, as many small QEMU
guests that halt as asked for or as the machine carries, and the real agent;
then measures the CPU time and the memory of the agent, and the CPU time that
its ticks cost libvirtd. Removes everything afterwards. As root::

    tools/bench/agent.py --guests 200 --seconds 60

Fails where the aims are missed. There is no message bus: the agent tries to
reach it every so often, as on any host whose bus is down; what a broker's
heartbeats cost is not in the figures. Other load on the machine makes them
worse (caches): the load average is printed.
"""

import argparse
import os
import pathlib
import sys
import time

import lab_host
import rom_guests

from nova_vqos_lab import process

WANTED_GUESTS = 200
AIM_CPU_PERCENT = 0.5
AIM_MEMORY_MIB = 80
SETTLE_LIMIT_S = 60


def main() -> int:
    parser = lab_host.parser(__doc__, guests=WANTED_GUESTS, vcpus=2)
    parser.add_argument('--seconds', type=int, default=60,
                        help='to measure for (default %(default)s)')
    options = parser.parse_args()
    lab_host.prepare()
    with lab_host.started() as bench:
        report = measure(bench, options)
    print_report(report)
    lab_host.save(report, options.json)
    return 0 if report['aims_met'] else 1


def measure(bench: lab_host.BenchHost, options: argparse.Namespace) -> dict:
    """Measure everything on a host that runs."""
    libvirtd = lab_host.libvirtd_pid(bench)
    quiet_percent = busy_percent(options.seconds / 4, libvirtd)[0]
    agent = bench.start_agent()
    wait_until_settled(agent, 'Connected to the hypervisor', 1)
    fixed_percent = busy_percent(options.seconds / 2, agent.pid)[0]
    guests = len(rom_guests.start(
        bench, options.guests,
        rom_guests.Kind(vcpus=options.vcpus, idle_units=20 * options.vcpus,
                        has_devices=False),
        limit_s=options.start_limit_s))
    wait_until_settled(agent, 'before its cap was corrected', guests)
    agent_percent, libvirtd_percent = busy_percent(
        options.seconds, agent.pid, libvirtd)
    memory_mib = lab_host.resident_mib(agent.pid)
    bench.stop_agent()
    libvirtd_percent -= quiet_percent
    scale = WANTED_GUESTS / guests
    extrapolated_percent = fixed_percent + (
        agent_percent - fixed_percent) * scale
    return {
        'guests': guests,
        'vcpus_per_guest': options.vcpus,
        'seconds': options.seconds,
        'load': round(os.getloadavg()[0], 1),
        'agent_cpu_percent_alone': round(fixed_percent, 3),
        'agent_cpu_percent': round(agent_percent, 3),
        'agent_memory_mib': round(memory_mib, 1),
        'libvirtd_cpu_percent': round(libvirtd_percent, 3),
        'agent_cpu_percent_200': round(extrapolated_percent, 3),
        'libvirtd_cpu_percent_200': round(libvirtd_percent * scale, 3),
        'aims_met': (extrapolated_percent < AIM_CPU_PERCENT
                     and memory_mib < AIM_MEMORY_MIB),
    }


def wait_until_settled(agent: process.Process, text: str,
                       times: int) -> None:
    """Wait until the agent has logged something so many times."""
    log = pathlib.Path(agent.log)
    process.wait_until(
        lambda: log.read_text().count(text) >= times, SETTLE_LIMIT_S,
        f'{times} times {text!r}', log=str(log), alive=agent.alive)
    # Nothing of what led to it is to be measured.
    time.sleep(5)


def busy_percent(seconds: float, *pids: int) -> list[float]:
    """How much of one core each process uses for a while."""
    elapsed_s, used_us = lab_host.measured_us(seconds, *pids)
    return [used / elapsed_s / 1e4 for used in used_us]


def print_report(report: dict) -> None:
    guests = report['guests']
    print(f'{guests} guests of {report["vcpus_per_guest"]} vCPUs, a '
          f'tick each second, {report["seconds"]} s, load average '
          f'{report["load"]}')
    print(f'  agent     {report["agent_cpu_percent"]:.3f} % of a core '
          f'({report["agent_cpu_percent_alone"]:.3f} % without guests), '
          f'{report["agent_memory_mib"]:.1f} MiB')
    print(f'  libvirtd  {report["libvirtd_cpu_percent"]:.3f} % of a core for '
          'the ticks')
    if guests != WANTED_GUESTS:
        print(f'extrapolated from {guests} to {WANTED_GUESTS} guests: what '
              'guests cost in proportion')
        print(f'  agent     {report["agent_cpu_percent_200"]:.3f} %')
        print(f'  libvirtd  {report["libvirtd_cpu_percent_200"]:.3f} %')
    print(f'aims (agent below {AIM_CPU_PERCENT} % and {AIM_MEMORY_MIB} MiB '
          f'for {WANTED_GUESTS}): {"met" if report["aims_met"] else "missed"}')


if __name__ == '__main__':
    sys.exit(main())
