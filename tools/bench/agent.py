#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What the agent costs on a host with many servers.

Starts a host of the lab with a libvirtd of its own and a RabbitMQ, as many
small QEMU guests that halt as asked for or as the machine carries, and the
real agent; then measures the CPU time, the memory and the open files of the
agent, and the CPU time that it costs libvirtd. Removes everything afterwards.
As root::

    tools/bench/agent.py --guests 60 --seconds 60

The machine may be slower or faster than any other, and busy: --beside CHECKOUT
measures the agent of another checkout on the same guests, in turns with this
one. --billed has all servers billed. --accounted measures an agent that keeps
the accounts of servers that nobody asked to bill in turns with one that does
not; with --beside, also with the other checkout's, which does. --profile shows
where the time goes, by thread and by function of the loop; what the profiler
costs is in the latter alone.

What servers cost is extrapolated in proportion to 200 and 1000 of them. Fails
where the aims are missed.
"""

import argparse
import contextlib
import os
import pathlib
import pstats
import statistics
import sys
import time
import typing as ty

import lab_host
import rom_guests

from nova_vqos import policy
from nova_vqos.profile import io
from nova_vqos.tests.fixtures import make_profiles
from nova_vqos_lab import process

HERE = 'here'
BESIDE = 'beside'
UNACCOUNTED = 'unaccounted'
# By the number of servers: % of a core without bills, MiB.
AIMS = {200: (0.2, 80), 1000: (0.5, 160)}
# With bills: % of a core.
BILLED_AIMS = {200: 0.5}
SETTLE_LIMIT_S = 120
SETTLE_S = 100
# How often agents take turns, where there are two.
TURNS = 3
SHOWN_FUNCTIONS = 25

_PROFILED = pathlib.Path(__file__).with_name('profiled_agent.py')


class Cost(ty.NamedTuple):
    """What an agent used.

    :ivar cpu_percent: of a core
    :ivar libvirtd_percent: of a core, that libvirtd used beside it
    :ivar memory_mib: resident
    :ivar files: that it had open
    """

    cpu_percent: float
    libvirtd_percent: float
    memory_mib: float
    files: int


def main() -> int:
    parser = lab_host.parser(__doc__, guests=60, vcpus=2)
    parser.add_argument('--seconds', type=int, default=60,
                        help='to measure each agent for, in each turn '
                        '(default %(default)s)')
    parser.add_argument('--beside', metavar='CHECKOUT', type=pathlib.Path,
                        help='another checkout of this project')
    parser.add_argument('--billed', action='store_true',
                        help='bill all servers, with a disk and a tap each')
    parser.add_argument('--accounted', action='store_true',
                        help='compare with an agent whose account_all is off, '
                        'with a disk and a tap for each server')
    parser.add_argument('--turns', type=int, default=TURNS,
                        help='of each agent, where there are two (default '
                        '%(default)s)')
    parser.add_argument('--profile', action='store_true',
                        help='show where the time goes')
    options = parser.parse_args()
    if options.beside and not (options.beside / 'nova_vqos').is_dir():
        parser.error(f'--beside is {options.beside}: there is no nova_vqos')
    if options.accounted and options.billed:
        parser.error('--accounted does not go with --billed')
    lab_host.prepare()
    with lab_host.started(io=io.document(
            make_profiles.make_io()) if options.accounted else None) as bench:
        bench.start_bus()
        report = measure(bench, options)
        print_report(report)
        if options.profile:
            profile(bench, options, report['guests'])
    lab_host.save(report, options.json)
    return 0 if report['aims_met'] else 1


def measure(bench: lab_host.BenchHost, options: argparse.Namespace) -> dict:
    """Measure everything on a host that runs."""
    # The checkout of each agent, and its options.
    agents = {HERE: (lab_host.ROOT, '')}
    if options.beside:
        agents[BESIDE] = options.beside.resolve(), ''
    if options.accounted:
        agents[UNACCOUNTED] = lab_host.ROOT, 'account_all = false'
    quiet_percent = busy_percent(10, lab_host.libvirtd_pid(bench))[0]
    alone = {name: cost_of(bench, *agent, 0, options.seconds / 2)
             for name, agent in agents.items()}
    guests = len(rom_guests.start(
        bench, options.guests,
        rom_guests.Kind(vcpus=options.vcpus, idle_units=20 * options.vcpus,
                        has_devices=options.billed or options.accounted),
        limit_s=options.start_limit_s,
        specs={policy.DD_BILLING_KEY: 'account'} if options.billed else {}))
    turns: dict[str, list[Cost]] = {name: [] for name in agents}
    for _ in range(options.turns if len(agents) > 1 else 1):
        for name, agent in agents.items():
            turns[name].append(cost_of(bench, *agent, guests,
                                       options.seconds))
    report = {
        'guests': guests, 'vcpus_per_guest': options.vcpus,
        'billed': options.billed, 'seconds': options.seconds,
        'load': round(os.getloadavg()[0], 1),
        'agents': {name: summary(alone[name], costs, guests, quiet_percent)
                   for name, costs in turns.items()}}
    here = report['agents'][HERE]
    if options.billed or options.accounted:
        report['aims_met'] = all(
            here['expected'][number]['cpu_percent'] <= most
            for number, most in BILLED_AIMS.items())
    else:
        report['aims_met'] = all(
            here['expected'][number]['cpu_percent'] <= most
            and here['expected'][number]['memory_mib'] <= most_mib
            for number, (most, most_mib) in AIMS.items())
    return report


def cost_of(bench: lab_host.BenchHost, checkout: pathlib.Path, config: str,
            guests: int, seconds: float) -> Cost:
    """Measure one agent.

    :param config: lines of the section vqos_agent of its configuration
    """
    with running(bench, checkout, guests, agent=config) as agent:
        cpu_percent, libvirtd_percent = busy_percent(
            seconds, agent.pid, lab_host.libvirtd_pid(bench))
        return Cost(cpu_percent, libvirtd_percent,
                    lab_host.resident_mib(agent.pid),
                    len(os.listdir(f'/proc/{agent.pid}/fd')))


@contextlib.contextmanager
def running(bench: lab_host.BenchHost, checkout: pathlib.Path, guests: int,
            **options: ty.Any) -> ty.Iterator[process.Process]:
    """An agent that has nothing left to do for its servers."""
    agent = bench.start_agent(checkout=checkout, **options)
    log = pathlib.Path(agent.log)
    # All agents write to the same.
    begin = log.stat().st_size

    def settled() -> bool:
        text = log.read_bytes()[begin:].decode()
        return ('Answering RPC' in text and 'Connected to the hyp' in text
                and text.count('has the right cap') + text.count(
                    'before its cap was corrected') >= guests)
    try:
        process.wait_until(settled, SETTLE_LIMIT_S, 'the agent to settle',
                           log=str(log), alive=agent.alive)
        # Nothing of what led to it is to be measured, nor what an agent does
        # in its first minutes alone.
        time.sleep(SETTLE_S)
        yield agent
    finally:
        bench.stop_agent()


def busy_percent(seconds: float, *pids: int) -> list[float]:
    """How much of one core each process uses for a while."""
    elapsed_s, used_us = lab_host.measured_us(seconds, *pids)
    return [used / elapsed_s / 1e4 for used in used_us]


def summary(alone: Cost, costs: list[Cost], guests: int,
            quiet_percent: float) -> dict:
    """Of the turns of one agent."""
    cpu_percent, memory_mib, files = (
        statistics.median(getattr(cost, name) for cost in costs)
        for name in ('cpu_percent', 'memory_mib', 'files'))

    def expected(of_alone: float, now: float, number: int) -> float:
        return of_alone + (now - of_alone) / max(guests, 1) * number
    return {
        'cpu_percent_alone': alone.cpu_percent, 'cpu_percent': cpu_percent,
        'cpu_percent_turns': [cost.cpu_percent for cost in costs],
        'libvirtd_percent': statistics.median(
            cost.libvirtd_percent for cost in costs) - quiet_percent,
        'memory_mib_alone': alone.memory_mib, 'memory_mib': memory_mib,
        'files': files, 'files_per_guest': (files - alone.files) / max(
            guests, 1),
        'expected': {number: {
            'cpu_percent': expected(alone.cpu_percent, cpu_percent, number),
            'memory_mib': expected(alone.memory_mib, memory_mib, number)}
            for number in AIMS}}


def print_report(report: dict) -> None:
    print(f'{report["guests"]} guests of {report["vcpus_per_guest"]} vCPUs, '
          f'{"all" if report["billed"] else "none"} billed, '
          f'{report["seconds"]} s, load average {report["load"]}')
    for name, agent in report['agents'].items():
        turns = ', '.join(f'{each:.3f}' for each
                          in agent['cpu_percent_turns'])
        print(f'agent {name}: {agent["cpu_percent"]:.3f} % of a core '
              f'({turns}; {agent["cpu_percent_alone"]:.3f} % without '
              f'guests), {agent["memory_mib"]:.1f} MiB, '
              f'{agent["files_per_guest"]:.1f} open files a guest; '
              f'libvirtd {agent["libvirtd_percent"]:.3f} %')
        for number, one in agent['expected'].items():
            print(f'  expected at {number}: {one["cpu_percent"]:.3f} %, '
                  f'{one["memory_mib"]:.0f} MiB')
    for name, agent in report['agents'].items():
        if name != HERE:
            ratio = (report['agents'][HERE]['cpu_percent']
                     / agent['cpu_percent'])
            print(f'here over {name}: {ratio:.2f} times the CPU time')
    print(f'aims: {"met" if report["aims_met"] else "missed"}')


def profile(bench: lab_host.BenchHost, options: argparse.Namespace,
            guests: int) -> None:
    """Show where the time of the agent goes."""
    path = pathlib.Path(bench.host.path('run/nova-vqos/agent.profile'))
    switch = path.with_name(f'{path.name}.on')
    os.environ['AGENT_PROFILE'] = '/run/nova-vqos/agent.profile'
    with running(bench, lab_host.ROOT, guests,
                 program=[str(_PROFILED)]) as agent:
        before = thread_us(agent.pid)
        time.sleep(options.seconds)
        after = thread_us(agent.pid)
        switch.touch()
        time.sleep(options.seconds)
        switch.unlink()
    print('by thread, % of a core:')
    used = {name: us - before.get(name, 0.0) for name, us in after.items()}
    for name, us in sorted(used.items(), key=lambda one: -one[1]):
        print(f'  {us / options.seconds / 1e4:8.3f}  {name}')
    print('the loop by function, in as long again:')
    pstats.Stats(str(path)).strip_dirs().sort_stats('tottime').print_stats(
        SHOWN_FUNCTIONS)


def thread_us(pid: int) -> dict[str, float]:
    """CPU time of the threads of a process, by their name."""
    found: dict[str, float] = {}
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        with contextlib.suppress(OSError):
            name = (task / 'comm').read_text().strip()
            run_ns = int((task / 'schedstat').read_text().split()[0])
            found[name] = found.get(name, 0.0) + run_ns / 1e3
    return found


if __name__ == '__main__':
    sys.exit(main())
