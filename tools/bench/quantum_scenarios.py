#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What slices and pools are worth: the research's scenarios S1 to S5.

The research had 16 vCPUs on the four pCPUs of a socket. Given four pCPUs this
does the same; given two it has eight vCPUs, four on a pCPU as before: half of
each kind. Where that is an odd number's half, 5 becomes 2 of spin, io and (in
S3) polluter, and 3 of cache: S1 is 2 spin, 3 cache, 3 neutral; S2 is 2 io, 3
cache, 3 polluter; S3 is 3 cache, 2 polluter, 3 neutral.

A vCPU is a thread in a cgroup of its own, as libvirt makes them, in a group of
the bench's own below the root. All spin vCPUs are those of one server, any
other vCPU is a server by itself; all are promised as much as there is. What
they do is what nova-vqos-calibrate quantum measures with:

  io        answers requests that come at random times, whether it keeps up or
            not, and always has work of its own beside them
  spin      enters critical sections of a fair lock, and spins while it waits
  cache     walks a list; one on each pCPU together are as long as the
            longest that the last-level cache was seen to hold, up to half of
            it, for one that runs alone
  neutral   walks a list that its pCPU's own cache holds twice
  polluter  walks a list that the last-level cache cannot hold by half

Arms take turns in each round, while the loads run on:

  stock     the kernel's slice for all, and all pCPUs; a second arm is stock
            again: what lies within its ratios is noise, and in brackets
  1ms 90ms  this slice for all, and all pCPUs
  ours      what the agent's planner says: pools, and a slice for each
  research  the research's pools as they are, also where a server's spinning
            vCPUs get fewer pCPUs than there are of them

Performance is relative to stock in the same round, above 1 is better: median,
least and most of all rounds. "per CPU time" leaves out that a pool may give a
vCPU more or less time than it had; a latency's performance is stock's latency
by that of the arm. Then how long vCPUs ran at a time. As root:

  tools/bench/quantum_scenarios.py --rounds 5 --seconds 4
"""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
import functools
import json
import os
import platform
import sys
import typing as ty

import lab_host
import quantum_results
import quantum_servers

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.calibration.quantum import loads
from nova_vqos.hypervisor import base
from nova_vqos.quantum import classes
from nova_vqos.quantum import model
from nova_vqos.quantum.placement import cpus
from nova_vqos.quantum.placement import plan
from nova_vqos.quantum.placement import pools

_IO, _SPIN, _CACHE = model.Kind.IO, model.Kind.SPIN, model.Kind.CACHE
_NEUTRAL, _POLLUTER = model.Kind.NEUTRAL, model.Kind.POLLUTER

#: vCPUs of each kind, by the number of pCPUs.
SCENARIOS: Mapping[int, Mapping[str, Mapping[model.Kind, int]]] = {
    4: {'S1': {_SPIN: 5, _CACHE: 5, _NEUTRAL: 6},
        'S2': {_IO: 5, _CACHE: 5, _POLLUTER: 6},
        'S3': {_CACHE: 5, _POLLUTER: 5, _NEUTRAL: 6},
        'S4': {_IO: 4, _SPIN: 4, _CACHE: 4, _POLLUTER: 4},
        'S5': {_IO: 4, _SPIN: 4, _CACHE: 4, _POLLUTER: 2, _NEUTRAL: 2}},
    2: {'S1': {_SPIN: 2, _CACHE: 3, _NEUTRAL: 3},
        'S2': {_IO: 2, _CACHE: 3, _POLLUTER: 3},
        'S3': {_CACHE: 3, _POLLUTER: 2, _NEUTRAL: 3},
        'S4': {_IO: 2, _SPIN: 2, _CACHE: 2, _POLLUTER: 2},
        'S5': {_IO: 2, _SPIN: 2, _CACHE: 2, _POLLUTER: 1, _NEUTRAL: 1}},
}

Settings = Mapping[tuple[str, int], quantum_servers.Setting]
_MS_US = 1000


class Arm(ty.NamedTuple):
    """A way to run the vCPUs of a scenario.

    :ivar settings: of all of them
    :ivar pools: for people; none where no vCPU is apart
    """

    settings: Settings
    pools: tuple[model.Pool, ...] = ()


def one_slice(slice_us: int | None, vcpus: Sequence[model.Vcpu],
              socket: model.Socket, _slices_us: Mapping[str, int]) -> Arm:
    """The same for all."""
    return Arm({vcpu.key: quantum_servers.Setting(slice_us, socket.pcpus)
                for vcpu in vcpus})


def planned(vcpus: Sequence[model.Vcpu], socket: model.Socket,
            slices_us: Mapping[str, int]) -> Arm:
    """As the agent does it."""
    made = plan.make_plan(vcpus, [socket], {
        name: slice_us for name, slice_us in slices_us.items()
        if name in classes.POOLED})
    parts = cpus.assign_to_spinning(made.pools)
    return Arm({vcpu.key: quantum_servers.Setting(
        slices_us.get(classes.IO) if vcpu.kind is model.Kind.IO
        else pool.slice_us, parts.get(
            vcpu.key, pool.pcpus if made.separates else socket.pcpus))
        for pool in made.pools for vcpu in pool.vcpus}, made.pools)


def researched(vcpus: Sequence[model.Vcpu], socket: model.Socket,
               _slices_us: Mapping[str, int]) -> Arm:
    """As the research has it: what our planner leaves out of it, too."""
    pcpus = sorted(socket.pcpus)
    made = []
    for cluster in pools.clusters(vcpus, len(pcpus), classes.RESEARCHED_US):
        own, pcpus = pcpus[:cluster.pcpus], pcpus[cluster.pcpus:]
        made.append(model.Pool(socket.number, frozenset(own),
                               cluster.slice_us, cluster.vcpus))
    return Arm({vcpu.key: quantum_servers.Setting(pool.slice_us, pool.pcpus)
                for pool in made for vcpu in pool.vcpus}, tuple(made))


ARMS: Mapping[str, Callable[[Sequence[model.Vcpu], model.Socket,
                             Mapping[str, int]], Arm]] = {
    quantum_results.STOCK: functools.partial(one_slice, None),
    quantum_results.CONTROL: functools.partial(one_slice, None),
    '1ms': functools.partial(one_slice, 1 * _MS_US),
    '90ms': functools.partial(one_slice, 90 * _MS_US),
    'ours': planned,
    'research': researched,
}

# A comparison, and what it is worth.
_ALWAYS = (quantum_results.STOCK, quantum_results.CONTROL)


def main() -> int:
    """Run the scenarios that are asked for, and print what they gave."""
    options = parse()
    lab_host.prepare()
    windows: list[quantum_results.Window] = []
    pools: dict[str, ty.Any] = {}
    try:
        with tree_of_ours() as tree:
            lists = quantum_servers.measure_lists(tree, options.pcpus)
        for scenario in options.scenarios:
            windows += run(scenario, options, lists, pools)
    except (CalibrationError, base.HypervisorError) as error:
        print(error, file=sys.stderr)
        return 1
    machine = {
        'kernel': platform.release(), 'pcpus': sorted(options.pcpus),
        'classes': options.classes,
        'lists_kib': {kind.value: count * loads.LINE_BYTES // 1024
                      for kind, count in lists.items()},
        'load': round(os.getloadavg()[0], 1)}
    if options.format == 'json':
        print(json.dumps({
            'machine': machine, 'rounds': options.rounds,
            'seconds': options.seconds, 'pools': pools,
            'rows': quantum_results.in_primitives(windows, options.arms)},
            indent=1))
        return 0
    print(f'{len(options.pcpus)} pCPUs, Linux {machine["kernel"]}, '
          f'{options.rounds} rounds of {options.seconds:g} s for each arm; '
          'lists of ' + ', '.join(f'{size} KiB ({kind})' for kind, size
                                  in machine['lists_kib'].items()))
    for scenario in options.scenarios:
        print(f'\n{scenario}: {described(scenario, options.pcpus)}; the loads '
              f'had {quantum_results.share(windows, scenario):.0%} of the '
              'pCPUs\' time')
        for arm, made in pools[scenario].items():
            print(f'  {arm}: ' + '; '.join(map(description, made)))
        quantum_results.print_scenario(windows, scenario, options.arms)
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--scenarios', nargs='+', metavar='NAME',
                        choices=SCENARIOS[2], default=list(SCENARIOS[2]),
                        help='which ones (default: all)')
    parser.add_argument('--arms', nargs='+', metavar='NAME', choices=ARMS,
                        default=list(ARMS),
                        help='which ones beside '
                        f'{" and ".join(_ALWAYS)} (default: all)')
    add_classes(parser)
    parser.add_argument('--rounds', type=int, default=5,
                        help='through all arms (default %(default)s)')
    parser.add_argument('--seconds', type=float, default=4.0,
                        help='of each measurement (default %(default)s)')
    parser.add_argument('--pause', type=float, default=1.0,
                        help='seconds from the change of arms to the '
                        'measurement (default %(default)s)')
    parser.add_argument('--pcpus', type=pcpus_of, metavar='N,N',
                        default=frozenset(sorted(os.sched_getaffinity(0))[:2]),
                        help='two or four that share a last-level cache '
                        '(default: the first two)')
    parser.add_argument('-f', '--format', choices=('table', 'json'),
                        default='table')
    options = parser.parse_args()
    options.scenarios = list(dict.fromkeys(options.scenarios))
    options.arms = [arm for arm in ARMS if arm in _ALWAYS
                    or arm in options.arms]
    if options.rounds < 1 or options.seconds <= 0 or options.pause < 0:
        parser.error('--rounds must be 1 or more, --seconds above 0, --pause '
                     '0 or more')
    if len(options.pcpus) not in SCENARIOS:
        parser.error(f'--pcpus must be {" or ".join(map(str, SCENARIOS))} of '
                     'those that this process may run on')
    return options


def pcpus_of(text: str) -> frozenset[int]:
    try:
        found = frozenset(int(number) for number in text.split(','))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f'{text!r} is not a list of numbers, such as 0,1') from None
    if not found <= os.sched_getaffinity(0):
        raise argparse.ArgumentTypeError(
            f'{text}: this process may not run on all of them')
    return found


def run(scenario: str, options: argparse.Namespace,
        lists: Mapping[model.Kind, int], pools: dict[str, ty.Any],
        ) -> list[quantum_results.Window]:
    """Let all arms have their turns, round by round.

    :param lists: see :func:`quantum_servers.measure_lists`
    :param pools: gets those of the arms that have any
    """
    counts = SCENARIOS[len(options.pcpus)][scenario]
    windows = []
    with (tree_of_ours() as tree,
          quantum_servers.Servers(tree, len(options.pcpus)) as servers):
        lab_host.say(f'{scenario}: {described(scenario, options.pcpus)}')
        loads.check_memory(loads.LINE_BYTES * sum(
            count * lists.get(kind, 0) for kind, count in counts.items()))
        for kind, vcpus in start_order(counts):
            servers.start(kind, vcpus, lists.get(kind, 0))
        made = arms(servers, options)
        pools[scenario] = {name: [in_primitives(pool) for pool in arm.pools]
                           for name, arm in made.items() if arm.pools}
        for number in range(options.rounds):
            names = options.arms
            # No arm is always first, or always after the same one.
            first = number % len(names)
            for name in names[first:] + names[:first]:
                servers.set_up(made[name].settings)
                windows.append(quantum_results.Window(
                    scenario, name, number,
                    *servers.measure(options.pause, options.seconds)))
            lab_host.say(f'{scenario}: round {number + 1} of '
                         f'{options.rounds}')
    return windows


def tree_of_ours(weight: int = 1) -> server_groups.Tree:
    """Competes with others as any program does: not idle.

    :param weight: of so many groups
    """
    return server_groups.Tree(f'nova-vqos-bench-{os.getpid()}',
                              is_idle=False, weight=weight)


def start_order(counts: Mapping[model.Kind, int]
                ) -> Iterable[tuple[model.Kind, int]]:
    """Kind and vCPUs of each server."""
    for kind, count in counts.items():
        if kind is _SPIN:
            yield kind, count
        else:
            yield from ((kind, 1) for _ in range(count))


def add_classes(parser: argparse.ArgumentParser) -> None:
    """Add what the kernel enforces, as options."""
    parser.add_argument('--classes', nargs='*', metavar='NAME',
                        choices=classes.SLICED, default=list(classes.SLICED),
                        help='those that nova-vqos-probe says this kernel '
                        'enforces: others get no slice (default: all)')
    parser.add_argument('--io-slice', type=int, default=466, metavar='US',
                        help='slice of class io that it chose (default '
                        '%(default)s)')


def enforced_us(options: argparse.Namespace) -> dict[str, int]:
    """The slices of the classes that are given, by class."""
    known_us = {**classes.DEFAULT_SLICES_US, classes.IO: options.io_slice}
    return {name: known_us[name] for name in options.classes}


def arms(servers: quantum_servers.Servers,
         options: argparse.Namespace) -> Mapping[str, Arm]:
    socket = model.Socket(0, tuple((pcpu,) for pcpu in sorted(options.pcpus)))
    share = Fraction(len(options.pcpus), len(servers.vcpus))
    vcpus = [model.Vcpu(name, number, kind, share=share)
             for name, number, kind in servers.vcpus]
    slices_us = enforced_us(options)
    return {name: ARMS[name](vcpus, socket, slices_us)
            for name in options.arms}


def described(scenario: str, pcpus: frozenset[int]) -> str:
    counts = SCENARIOS[len(pcpus)][scenario]
    return ', '.join(f'{count} {kind.value}'
                     for kind, count in counts.items())


def in_primitives(pool: model.Pool) -> dict[str, ty.Any]:
    kinds = [vcpu.kind.value for vcpu in pool.vcpus]
    return {'pcpus': sorted(pool.pcpus), 'slice_us': pool.slice_us,
            'vcpus': {kind: kinds.count(kind) for kind in sorted(set(kinds))}}


def description(pool: Mapping[str, ty.Any]) -> str:
    """A pool for people."""
    vcpus = ', '.join(f'{count} {kind}'
                      for kind, count in pool['vcpus'].items())
    pcpus = ', '.join(map(str, pool['pcpus']))
    slice_us = pool['slice_us']
    quantum = ('the kernel\'s slice' if slice_us is None
               else f'{slice_us / _MS_US:g} ms')
    return f'{vcpus or "no vCPU"} on pCPU {pcpus}, {quantum}'


if __name__ == '__main__':
    sys.exit(main())
