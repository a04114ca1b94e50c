#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How soon the agent restores a cap that another program changed.

Starts a host of the lab with a libvirtd of its own, small QEMU guests that
halt, and the real agent. Changes the caps of guests that are right, each way
on guests of its own and at moments that do not depend on one another, and
measures how long what was written stays. Removes everything afterwards. As
root::

    tools/bench/restoring.py

The ways:

  libvirt  the quota of all vCPUs by libvirt's API, which sends an event
  process  the quota of a vCPU by a process of the host, which the kernel
           reports
  missed   the same with an agent that the kernel's reports do not reach: it
           has to read quotas
  period   the period, with that agent; cgroups of version 1 alone, where quota
           and period are two files

Fails where one takes longer than it may. Times are those of a tick and of how
often servers are read in turn: they hardly depend on the machine.
"""

from collections.abc import Callable, Sequence
import os
import pathlib
import random
import statistics
import sys
import threading
import time
import typing as ty

import lab_host
import libvirt
import rom_guests

from nova_vqos_lab import process

# How long each may take, in seconds. A write comes after the look that finds
# out, and is done within a tick.
MOST_S = {'libvirt': 1.0, 'process': 1.0, 'missed': 10.0, 'period': 60.0}
# Of an agent that reports reach, and of one that they do not.
REPORTED, MISSED = ('libvirt', 'process'), ('missed', 'period')
DEAF = pathlib.Path(__file__).with_name('deaf_agent.py')
SETTLE_LIMIT_S = 120
# Changes begin within this time.
_SPREAD_S = 20
_POLL_S = 0.005
_SLOW_POLL_S = 0.05
# Of a guest's cap, which is 10 % of a pCPU.
_WRONG_QUOTA_US = 77_000
_WRONG_PERIOD_US = 123_000


class Change(ty.NamedTuple):
    """A change of a guest's cap, and its end.

    :ivar restored_s: how long it stayed; None: longer than was waited
    """

    way: str
    restored_s: float | None


def main() -> int:
    parser = lab_host.parser(__doc__, guests=80, vcpus=1)
    options = parser.parse_args()
    lab_host.prepare()
    with lab_host.started() as bench:
        ways = [way for way in MOST_S
                if way != 'period' or bench.host.hierarchy.version == 1]
        half = options.guests // 2
        guests = rom_guests.start(
            bench, options.guests, rom_guests.Kind(
                vcpus=options.vcpus, idle_units=10 * options.vcpus,
                has_devices=False), limit_s=options.start_limit_s)
        changes = []
        for program, some, by in (
                (('-m', 'nova_vqos.cmd.agent'), guests[:half], REPORTED),
                ((str(DEAF),), guests[half:], MISSED)):
            start_agent(bench, program, len(guests))
            changes += measure(bench, some, [way for way in by if way in ways])
            bench.stop_agent()
    report = summary(changes, ways)
    lab_host.save({'guests': len(guests), 'load': round(
        os.getloadavg()[0], 1), 'ways': report}, options.json)
    print_report(report, len(guests))
    return 0 if all(one['is_met'] for one in report.values()) else 1


def start_agent(bench: lab_host.BenchHost, program: Sequence[str],
                guests: int) -> None:
    """Start an agent, and wait until all guests have their caps."""
    agent = bench.start_agent(program=program)
    log = pathlib.Path(agent.log)
    # All agents write to the same.
    begin = log.stat().st_size
    process.wait_until(
        lambda: (text := log.read_bytes()[begin:].decode()).count(
            'has the right cap')
        + text.count('before its cap was corrected') >= guests,
        SETTLE_LIMIT_S, 'the agent to settle', log=str(log),
        alive=agent.alive)


def measure(bench: lab_host.BenchHost,
            guests: Sequence[rom_guests.RomGuest],
            ways: Sequence[str]) -> list[Change]:
    """Change each guest's cap once."""
    changes: list[Change] = []
    writers = {'libvirt': by_libvirt, 'process': by_process,
               'missed': by_process, 'period': period}
    chosen = random.Random(1)
    threads = []
    for number, guest in enumerate(guests):
        way = ways[number % len(ways)]
        delay_s = chosen.uniform(0, _SPREAD_S)
        threads.append(threading.Thread(
            target=lambda *arguments: changes.append(change(*arguments)),
            args=(bench, guest, way, writers[way], delay_s)))
    longest_s = _SPREAD_S + 2 * max(MOST_S[way] for way in ways)
    lab_host.say(f'{len(guests)} changes, {longest_s:.0f} s at the most')
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return changes


def change(bench: lab_host.BenchHost, guest: rom_guests.RomGuest, way: str,
           write: Callable[[lab_host.BenchHost, rom_guests.RomGuest], None],
           delay_s: float) -> Change:
    """Change a guest's cap, and see for how long."""
    time.sleep(delay_s)
    name = guest.domain.name()
    right = bench.host.vcpu_cap(name)
    began_s = time.monotonic()
    write(bench, guest)
    # Twice as long as it may take: to say how much too long it was.
    while time.monotonic() < began_s + 2 * MOST_S[way]:
        if bench.host.vcpu_cap(name) == right:
            return Change(way, time.monotonic() - began_s)
        time.sleep(_POLL_S if MOST_S[way] <= 1 else _SLOW_POLL_S)
    return Change(way, None)


def by_libvirt(_bench: lab_host.BenchHost,
               guest: rom_guests.RomGuest) -> None:
    guest.domain.setSchedulerParametersFlags(
        {'vcpu_quota': _WRONG_QUOTA_US}, libvirt.VIR_DOMAIN_AFFECT_LIVE)


def by_process(bench: lab_host.BenchHost,
               guest: rom_guests.RomGuest) -> None:
    host = bench.host
    group = os.path.relpath(host.vcpu_cgroup(guest.domain.name()), host.cgroup)
    name = ('cpu.cfs_quota_us' if host.hierarchy.version == 1 else 'cpu.max')
    host.run(['sh', '-c', f'echo {_WRONG_QUOTA_US} >"$0"',
              host.hierarchy.directory('cpu', f'{group}/{name}')])


def period(bench: lab_host.BenchHost, guest: rom_guests.RomGuest) -> None:
    pathlib.Path(bench.host.hierarchy.directory(
        'cpu', bench.host.vcpu_cgroup(guest.domain.name())),
        'cpu.cfs_period_us').write_text(str(_WRONG_PERIOD_US))


def summary(changes: Sequence[Change], ways: Sequence[str]
            ) -> dict[str, dict[str, ty.Any]]:
    """By way."""
    found = {}
    for way in ways:
        times_s = sorted(one.restored_s for one in changes
                         if one.way == way and one.restored_s is not None)
        late = sum(one.way == way and one.restored_s is None
                   for one in changes)
        found[way] = {
            'changes': len(times_s) + late, 'not_restored': late,
            'median_s': statistics.median(times_s) if times_s else None,
            'longest_s': times_s[-1] if times_s else None,
            'most_s': MOST_S[way],
            'is_met': bool(times_s) and not late
            and times_s[-1] <= MOST_S[way]}
    return found


def print_report(report: dict[str, dict[str, ty.Any]], guests: int) -> None:
    print(f'{guests} guests, seconds until a change was restored:')
    print(f'{"way":<11} {"changes":>7} {"median":>7} {"longest":>7} '
          f'{"wanted":>7}')
    for way, one in report.items():
        median, longest = (
            '-' if one[name] is None else f'{one[name]:.2f}'
            for name in ('median_s', 'longest_s'))
        late = (f', {one["not_restored"]} not within twice as long'
                if one['not_restored'] else '')
        print(f'{way:<11} {one["changes"]:>7} {median:>7} {longest:>7} '
              f'{one["most_s"]:>7.0f}{late}')


if __name__ == '__main__':
    sys.exit(main())
