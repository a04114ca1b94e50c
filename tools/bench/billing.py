#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Whether servers stay within their entitlement when their I/O is charged.

Starts a host of the lab with a libvirtd of its own, real QEMU guests with a
tap on a bridge and a disk, clients in a namespace on that bridge, and the real
agent; removes everything afterwards. As root::

    tools/bench/billing.py --profile /etc/nova-vqos/profile.yaml

a: what a server of 30 CU uses in all under HTTP and under a flood of packets,
and one of 15 CU that reads its disk, by mode of billing.
b: requests a second of a server of 60 CU, alone, beside one of 30 CU that only
computes, beside one that is flooded and reads its disk, and alone once more,
which shows what is noise; by mode.
c: the ledger against CPU time counted otherwise.
d: requests a second of two like servers of 40 CU, each alone and both at once;
by mode.

With mode `guaranteed` the host has all pCPUs, in all modes of that run: choose
a and d then, and that mode last or alone.

A pCPU has 100 CU. Guests run on the first one, the load on the last one. CPU
time is read from the kernel, not from the agent; what the kernel did for a
guest outside its threads, the modelled part, is counted at its tap and its
disk, and costs what the profile says (`nova-vqos-calibrate io`). There is no
message bus. Fails where the aims are missed.
"""

import argparse
from collections.abc import Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import statistics
import sys
import time

import billing_host
import lab_host
from lab_host import say

from nova_vqos.billing import meter
from nova_vqos_lab import iomeasure

Bench = billing_host.Bench
Server = billing_host.Server
MODES = billing_host.MODES
AIM_ENTITLEMENT = 0.02
AIM_UNDISTURBED = 0.05
AIM_LEDGER = 0.05
# What was billed last is no older.
_LEDGER_S = 6.0

Row = dict[str, object]


# Proof a.

@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    """A server that does I/O.

    :ivar name: for people
    :ivar units: of the server
    :ivar load: kind and options of ioload.py; (): none
    :ivar readers: processes in the guest that read its disk
    """

    name: str
    units: int
    load: tuple[str, ...] = ()
    readers: int = 0


def scenarios(options: argparse.Namespace) -> list[Scenario]:
    every = [Scenario('http', 30, ('http', '--clients', '4')),
             Scenario('flood', 30, flood(options)),
             Scenario('disk', 15, readers=2)]
    return [one for one in every if one.name in options.scenarios]


def flood(options: argparse.Namespace) -> tuple[str, ...]:
    return 'udp', '--rate', str(options.packets), '--size', '64'


def prove_entitlement(bench: Bench) -> list[Row]:
    """a: what one server uses in all, by mode."""
    rows = []
    for scenario in scenarios(bench.options):
        with bench.server(scenario.units,
                          readers=scenario.readers) as server:
            for mode, again in bench.options.turns:
                say(f'a: {scenario.name}, {mode.name}{again}')
                bench.apply(mode, [server])
                rows.append({'scenario': scenario.name, 'mode': mode.name,
                             **measure_use(bench, scenario, server)})
                say(f'   {line_of_use(rows[-1])}')
    return rows


def measure_use(bench: Bench, scenario: Scenario, server: Server) -> Row:
    with contextlib.ExitStack() as stack:
        load = scenario.load and stack.enter_context(bench.load(
            scenario.load[0], server.guest.address, *scenario.load[1:]))
        settle(bench)
        writes = stack.enter_context(iomeasure.QuotaWrites(server.guest))
        (samples,) = iomeasure.watch([server.guest], bench.options.seconds)
        used = iomeasure.use(samples, bench.costs_ns)
        entitled = server.units / 100
        return {
            'entitled': entitled, **dataclasses.asdict(used),
            'off_by': used.total / entitled - 1,
            'most_off_by': used.most / entitled - 1,
            'done': (load.rate(samples[0].at_s, samples[-1].at_s) if load
                     else used.counted['read']),
            'failed': load.failed() if load else 0,
            'writes': writes.seen, 'limits': server.guest.limits()}


def line_of_use(row: Row) -> str:
    return (f'{row["scenario"]:6} {row["mode"]:12}'
            f'{row["vcpu"]:8.2%}{row["emulator"]:8.2%}'
            f'{row["modelled"]:8.2%}{row["total"]:8.2%}'
            f'{row["off_by"]:+8.1%}{row["most_off_by"]:+8.1%}'
            f'{row["done"]:9.0f}{row["writes"]:8}')


def print_use(rows: Sequence[Row]) -> bool:
    """:returns: whether the aim is met"""
    print('\na: parts of a pCPU that a server used, in all off its '
          'entitlement, in the worst 30 s')
    print('                     vCPU   emul. kernel  in all     off    30 s'
          ' a second  writes')
    met = True
    for merged in merge(rows, 'scenario', 'mode'):
        merged['most_off_by'] = max(
            row['most_off_by'] for row in rows
            if all(row[key] == merged[key] for key in ('scenario', 'mode')))
        print(line_of_use(merged))
        if merged['mode'] in ('charge', billing_host.GUARANTEED):
            met &= abs(merged['off_by']) <= AIM_ENTITLEMENT
    return met


# Proof b.

# The same as alone: what it differs by from that is noise.
CONTROL = 'alone again'
# What the server is beside: no server, one that computes, one that does I/O.
# The second takes as much CPU time as the third is entitled to, and as much of
# the caches: what is left between the two is the I/O's doing.
COMPANY = ('alone', 'computing', 'flooded', CONTROL)


def prove_undisturbed(bench: Bench) -> list[Row]:
    """b: a server's requests a second, by what is beside it."""
    rows = []
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(bench.server(60))
        others = {}
        if 'computing' in bench.options.company:
            others['computing'] = stack.enter_context(
                bench.server(30, number=1, spin=True))
        if 'flooded' in bench.options.company:
            others['flooded'] = stack.enter_context(
                bench.server(30, number=2, readers=2))
        for number, (mode, again) in enumerate(bench.options.turns):
            # There and back, so that a drift of the machine favours no mode.
            back = number // len(bench.options.modes) % 2
            for company in bench.options.company[::-1 if back else 1]:
                say(f'b: {mode.name}, {company}{again}')
                for name, other in others.items():
                    if name == company:
                        other.guest.resume()
                    else:
                        other.guest.pause()
                bench.apply(mode, [server, *others.values()])
                rows.append({
                    'turn': again, 'mode': mode.name, 'company': company,
                    **measure_company(bench, server, others.get(company))})
                say(f'   {rows[-1]["requests"]:.1f} requests/s, '
                    f'{rows[-1]["requests"] / rows[-1]["own"]:.1f} a CPU '
                    'second')
    return rows


def measure_company(bench: Bench, server: Server,
                    other: Server | None) -> Row:
    guests = [server.guest, *([other.guest] if other else [])]
    with contextlib.ExitStack() as stack:
        requests = stack.enter_context(bench.load(
            'http', server.guest.address, '--clients', '4'))
        if other and other.does_io:
            kind, *arguments = flood(bench.options)
            stack.enter_context(bench.load(
                kind, other.guest.address, *arguments))
        settle(bench)
        switches = [guest.switches() for guest in guests]
        samples = iomeasure.watch(guests, bench.options.seconds)
        switches = [guest.switches() - before for guest, before
                    in zip(guests, switches, strict=True)]
        used = [iomeasure.use(found, bench.costs_ns) for found in samples]
        return {
            'requests': requests.rate(samples[0][0].at_s,
                                      samples[0][-1].at_s),
            'failed': requests.failed(),
            'own': used[0].whole, 'total': used[0].total,
            'other_total': sum(one.total for one in used[1:]),
            'other_packets': sum(one.counted['rx'] for one in used[1:]),
            'other_dropped': sum(one.counted['dropped'] for one in used[1:]),
            'switches': switches[0] / used[0].elapsed_s,
            'other_switches': sum(switches[1:]) / used[0].elapsed_s}


def print_company(rows: Sequence[Row]) -> bool:
    """:returns: whether the aim is met"""
    print('\nb: requests of a server of 60 CU, alone and beside one of 30 CU, '
          'a second and a CPU second of its own; medians, also of what they '
          'are to alone in each round')
    print('                           a second  to alone   a CPU s  to alone'
          '    used   other switches')
    met = True
    for row in merge(with_ratios(rows), 'mode', 'company'):
        print(f'{row["mode"]:12}{row["company"]:12}{row["requests"]:11.1f}'
              f'{row["to_alone"]:10.3f}{row["a_cpu_s"]:10.1f}'
              f'{row["a_cpu_s_to_alone"]:10.3f}{row["total"]:8.1%}'
              f'{row["other_total"]:8.1%}'
              f'{row["switches"] + row["other_switches"]:9.0f}')
        if row['mode'] == 'charge' and row['company'] != CONTROL:
            met &= abs(row['to_alone'] - 1) <= AIM_UNDISTURBED
    return met


def with_ratios(rows: Sequence[Row]) -> list[Row]:
    """Rows, each beside the one of its round and mode that is alone."""
    found = []
    for row in rows:
        alone = next(one for one in rows if one['company'] == 'alone' and all(
            one[key] == row[key] for key in ('mode', 'turn')))
        a_cpu_s = row['requests'] / row['own']
        found.append(row | {
            'a_cpu_s': a_cpu_s,
            'to_alone': row['requests'] / alone['requests'],
            'a_cpu_s_to_alone': a_cpu_s / (alone['requests']
                                           / alone['own'])})
    return found


# Proof d.

_LIKE_UNITS = 40
# Which of the two servers do something; the last is what is noise.
_WHO = {'first': (0,), 'second': (1,), 'both': (0, 1), 'first again': (0,)}


def prove_like(bench: Bench) -> list[Row]:
    """d: requests a second of two like servers, alone and together."""
    rows = []
    for mode, again in bench.options.turns:
        # What was reserved in another mode would be kept.
        with (bench.server(_LIKE_UNITS) as first,
              bench.server(_LIKE_UNITS, number=1) as second):
            servers = (first, second)
            bench.apply(mode, servers)
            for who, numbers in _WHO.items():
                say(f'd: {mode.name}, {who}{again}')
                found = measure_like(bench, servers, numbers)
                rows += [{'turn': again, 'mode': mode.name, 'who': who,
                          'server': number, **row}
                         for number, row in found.items()]
                say('   ' + ', '.join(
                    f'{row["requests"]:.1f} requests/s, {row["total"]:.1%}'
                    for row in found.values()))
    return rows


def measure_like(bench: Bench, servers: Sequence[Server],
                 numbers: Sequence[int]) -> dict[int, Row]:
    """:returns: of the servers that do something, by number"""
    for number, server in enumerate(servers):
        if number in numbers:
            server.guest.resume()
        else:
            server.guest.pause()
    with contextlib.ExitStack() as stack:
        loads = {number: stack.enter_context(bench.load(
            'http', servers[number].guest.address, '--clients',
            str(bench.options.clients))) for number in numbers}
        settle(bench)
        samples = iomeasure.watch(
            [servers[number].guest for number in numbers],
            bench.options.seconds)
        return {number: {
            'requests': loads[number].rate(found[0].at_s, found[-1].at_s),
            'failed': loads[number].failed(),
            'total': iomeasure.use(found, bench.costs_ns).total}
            for number, found in zip(numbers, samples, strict=True)}


def print_like(rows: Sequence[Row]) -> bool:
    """:returns: whether the aim is met"""
    print(f'\nd: requests a second of two servers of {_LIKE_UNITS} CU with '
          'as many clients each, medians of all rounds')
    print('                  alone    used    both    used to alone')
    found = {(row['mode'], row['server'], row['who']): row
             for row in merge(rows, 'mode', 'server', 'who')}
    met = True
    for mode, server in sorted({key[:2] for key in found}):
        alone = found[mode, server, ('first', 'second')[server]]
        both = found[mode, server, 'both']
        ratio = both['requests'] / alone['requests']
        print(f'{mode:12}{server}{alone["requests"]:10.1f}'
              f'{alone["total"]:8.1%}{both["requests"]:8.1f}'
              f'{both["total"]:8.1%}{ratio:9.3f}')
        if mode in ('charge', billing_host.GUARANTEED):
            met &= abs(ratio - 1) <= AIM_UNDISTURBED
    for mode in sorted({row['mode'] for row in rows}):
        first, again = (found[mode, 0, who]['requests']
                        for who in ('first', 'first again'))
        print(f'{mode:12}noise: alone again is {again / first:.3f} of alone')
    return met


# Proof c.

def prove_ledger(bench: Bench) -> Row:
    """c: the ledger against CPU time counted otherwise."""
    with bench.server(60, readers=1) as server:
        say('c: the ledger of a server that does all kinds of I/O')
        bench.apply(MODES['account'], [server])
        return measure_ledger(bench, server)


def measure_ledger(bench: Bench, server: Server) -> Row:
    with (bench.load('http', server.guest.address, '--clients', '4'),
          bench.load('udp', server.guest.address, '--rate', '2000')):
        settle(bench)
        # The agent reads every two seconds, and never when we do.
        (samples,) = iomeasure.watch([server.guest], _LEDGER_S)
        began_s, began = bench.ledger(server)
        (more,) = iomeasure.watch([server.guest], bench.options.seconds)
        ended_s, ended = bench.ledger(server)
        samples += more
    first, last = (iomeasure.at(samples, moment_s)
                   for moment_s in (began_s, ended_s))
    billed = {name: ended[name] - began[name] for name in ended}
    counted = {
        'vcpu': (last.cpu.vcpu - first.cpu.vcpu) / 1e9,
        'emulator': (last.cpu.emulator - first.cpu.emulator) / 1e9,
        'process': (last.process_ns - first.process_ns) / 1e9,
        **{name: cost_ns / 1e9 for name, cost_ns in bench.costs_by_part_ns(
            {name: last.counted[name] - first.counted[name]
             for name in last.counted}).items()}}
    billed['process'] = sum(billed[name] for name in (
        'vcpu', *meter.MEASURED_IO))
    return {'seconds': ended_s - began_s, 'billed': billed,
            'counted': counted}


def print_ledger(found: Row) -> bool:
    """:returns: whether the aim is met"""
    print(f'\nc: CPU seconds in {found["seconds"]:.0f} s, billed '
          'and counted otherwise')
    met = True
    for name, counted in found['counted'].items():
        billed = found['billed'][name]
        off_by = billed / counted - 1 if counted else 0.0
        print(f'{name:10}{billed:10.3f}{counted:10.3f}{off_by:+8.2%}')
        met &= abs(off_by) <= AIM_LEDGER
    return met


def settle(bench: Bench) -> None:
    # Not a wait for anything: the agent is to be in its steady state.
    time.sleep(bench.options.settle)


def merge(rows: Sequence[Row], *keys: str) -> list[Row]:
    """The medians of rows that are of the same."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [{name: statistics.median(row[name] for row in group)
             if isinstance(value, (int, float)) else value
             for name, value in group[0].items()}
            for group in groups.values()]


PROOFS = {'a': (prove_entitlement, print_use),
          'b': (prove_undisturbed, print_company),
          'c': (prove_ledger, print_ledger),
          'd': (prove_like, print_like)}


def main() -> int:
    options = parse()
    lab_host.prepare()
    bench = Bench(options)
    report: Row = {'load': os.getloadavg()[0]}
    try:
        bench.start()
        for name in options.only:
            report[name] = PROOFS[name][0](bench)
    finally:
        bench.remove()
        if options.json:
            pathlib.Path(options.json).write_text(
                json.dumps(report, indent=1))
    met = [PROOFS[name][1](report[name]) for name in options.only]
    print(f'load average {report["load"]:.1f}; aims '
          f'{"met" if all(met) else "missed"}')
    return 0 if all(met) else 1


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', default='a,b,c', metavar='LIST',
                        help='proofs to run (default %(default)s)')
    parser.add_argument('--modes', metavar='LIST',
                        default='stock,off,account,charge',
                        help='of a, b and d, of these and guaranteed (default '
                             '%(default)s)')
    parser.add_argument('--scenarios', default='http,flood,disk',
                        metavar='LIST', help='of a (default %(default)s)')
    parser.add_argument('--company', default=','.join(COMPANY),
                        metavar='LIST', help='of b (default %(default)s)')
    parser.add_argument('--seconds', type=float, default=60,
                        help='of each measurement (default %(default)s)')
    parser.add_argument('--settle', type=float, default=30,
                        help='seconds before each (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=1,
                        help='through all modes (default %(default)s)')
    parser.add_argument('--packets', type=int, default=10_000,
                        help='of a flood, a second (default %(default)s)')
    parser.add_argument('--clients', type=int, default=16,
                        help='of each server in d (default %(default)s)')
    parser.add_argument('--profile', metavar='FILE',
                        help='host profile to take the costs of I/O from')
    parser.add_argument('--json', metavar='FILE')
    options = parser.parse_args()
    options.only = options.only.split(',')
    if not set(options.only) <= set(PROOFS):
        parser.error(f'--only takes some of {",".join(PROOFS)}')
    modes = options.modes = options.modes.split(',')
    if not set(modes) <= set(MODES):
        parser.error(f'--modes takes some of {",".join(MODES)}')
    if not 5 <= options.seconds <= 3600 or not 0 <= options.settle <= 600:
        parser.error('--seconds must be 5 to 3600, --settle 0 to 600')
    options.scenarios = options.scenarios.split(',')
    options.company = options.company.split(',')
    if not {'alone'} <= set(options.company) <= set(COMPANY):
        parser.error(f'--company takes some of {",".join(COMPANY)}, alone '
                     'among them')
    options.turns = [
        (MODES[name], f', round {number + 1} of {options.rounds}')
        for number in range(options.rounds) for name in modes]
    return options


if __name__ == '__main__':
    sys.exit(main())
