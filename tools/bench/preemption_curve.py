#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How often vCPUs of a server that spins are preempted beside each other.

The research's PSP, over the number of the server's vCPUs: how often one of
them lost its pCPU while another one ran. Beside it run two servers that walk
lists which the last-level cache holds. The ways are those of
quantum_mixes.py: the stock kernel, and the agent's code, where flavors name
the class of each server; in the order A B B A in each round. As root::

  tools/bench/preemption_curve.py --vcpus 2 4 6 8
"""

import argparse
from collections.abc import Callable, Sequence
import os
import pathlib
import statistics
import sys
import tempfile
import time

import lab_host
import quantum_agent
import quantum_scenarios
import quantum_servers

from nova_vqos.agent.quantum import preemptions
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.quantum import model

_STOCK, _NAMED = 'stock', 'named'
_ORDER = (_STOCK, _NAMED, _NAMED, _STOCK)
# For the agent to make its pools.
_LEARN_S = 20.0
_PAUSE_S = 1.5
# The kernel keeps 128 turns of each vCPU: half a second of them at least.
_LOOK_S = 0.4


def main() -> int:
    options = parse()
    lab_host.prepare()
    print(f'Linux {os.uname().release}, {len(options.pcpus)} pCPUs; '
          'preemptions a second of each vCPU, while another one ran: the mean '
          'of all measurements, the least and the most')
    print(f'vCPUs {_STOCK:>24} {_NAMED:>24}  the agent to stock')
    try:
        with quantum_scenarios.tree_of_ours(options.weight) as tree:
            lists = quantum_servers.measure_lists(tree, options.pcpus)
        for vcpus in options.vcpus:
            found = measure(vcpus, options, lists)
            shown = [f'{statistics.fmean(found[way]):.1f} '
                     f'({min(found[way]):.1f} to {max(found[way]):.1f})'
                     for way in (_STOCK, _NAMED)]
            ratio = statistics.fmean(found[_NAMED]) / max(
                statistics.fmean(found[_STOCK]), 1e-9)
            print(f'{vcpus:5} {shown[0]:>24} {shown[1]:>24}  {ratio:.2f}',
                  flush=True)
    except CalibrationError as error:
        print(f'{pathlib.Path(sys.argv[0]).name}: {error}', file=sys.stderr)
        return 1
    return 0


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--vcpus', type=int, nargs='+', default=[2, 4, 6, 8],
                        help='of the server that spins (default: 2 4 6 8)')
    parser.add_argument('--rounds', type=int, default=3,
                        help='two measurements of each way (default '
                        '%(default)s)')
    parser.add_argument('--seconds', type=float, default=4.0,
                        help='of each measurement (default %(default)s)')
    quantum_agent.add_options(parser)
    options = parser.parse_args()
    if min(options.vcpus) < 2:
        parser.error('--vcpus must be 2 or more: one vCPU has no other')
    if options.rounds < 1 or options.seconds <= 0:
        parser.error('--rounds must be 1 or more, --seconds above 0')
    return options


def measure(vcpus: int, options: argparse.Namespace,
            lists: dict[model.Kind, int]) -> dict[str, list[float]]:
    """:returns: rates of a vCPU, of each measurement, by way"""
    found: dict[str, list[float]] = {way: [] for way in _ORDER}
    with (quantum_scenarios.tree_of_ours(options.weight) as tree,
          quantum_servers.Servers(tree, len(options.pcpus)) as servers,
          tempfile.TemporaryDirectory(prefix='vqos-bench-') as directory):
        spinning = servers.start(model.Kind.SPIN, vcpus, 0)
        kinds = {spinning: model.Kind.SPIN, **{
            servers.start(model.Kind.CACHE, 1, lists[model.Kind.CACHE]):
            model.Kind.CACHE for _ in range(2)}}
        agent = quantum_agent.Agent(
            servers, {name: kind.value for name, kind in kinds.items()},
            kinds, options.pcpus, quantum_scenarios.enforced_us(options),
            str(pathlib.Path(directory, 'quantum.json')))
        servers.run_before_all()
        stock = {(name, number): quantum_servers.Setting(None, options.pcpus)
                 for name, number, _kind in servers.vcpus}
        servers.set_up(stock)
        agent.wait(_LEARN_S)
        for number in range(options.rounds):
            lab_host.say(f'{vcpus} vCPUs: round {number + 1} of '
                         f'{options.rounds}')
            for way in _ORDER:
                servers.set_up(stock)
                wait = time.sleep if way == _STOCK else agent.wait
                if way == _NAMED:
                    agent.leap()
                wait(_PAUSE_S)
                found[way].append(statistics.fmean(rates(
                    servers.threads(spinning), wait, options.seconds)) / vcpus)
        agent.close()
    return found


def rates(threads: Sequence[int], wait: Callable[[float], None],
          seconds: float) -> list[float]:
    """As the agent counts them, of all threads together."""
    reader = preemptions.PreemptionReader()
    server = {'server': dict(enumerate(threads))}
    found = []
    until_s = time.monotonic() + seconds
    reader.read(server)
    while time.monotonic() < until_s:
        wait(_LOOK_S)
        found += reader.read(server).values()
    reader.close()
    if not found:
        raise CalibrationError('the kernel records no turns: CAP_PERFMON, '
                               'or kernel.perf_event_paranoid')
    return found


if __name__ == '__main__':
    sys.exit(main())
