#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How well the control of charging does on simulated servers.

The servers are those of the unit tests: they use all CPU time that they can
get. The first table has a line for each pattern of I/O: the most that any 30 s
window held above the entitlement, the least that a server used of its
entitlement on the average and in its worst minute, and the most writes per
minute, of whatever start of the I/O between two rounds of the control is the
worst. The second searches for the worst window: for each amount of modelled
I/O, over many lengths of I/O and pauses. Needs nothing but this checkout; the
second takes some minutes. With --reserved a server has a reservation in place
of a quota:

    python tools/bench/charge_simulation.py [--search] [--reserved]
"""

import argparse
import itertools
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.tests.fixtures import charged
from nova_vqos.tests.unit.billing import test_runtime_charge

_LENGTH_S = 600
_SEARCH_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)
_SEARCH_ON_S = (1, 2, 3, 5, 10, 20, 30, 60)
_SEARCH_OFF_S = (5, 10, 20, 30, 45, 60, 120)
_BURSTS = ((0.2, 5, 5), (1.0, 1, 9), (0.2, 20, 20), (0.5, 30, 30),
           (0.2, 60, 60), (0.3, 61, 60), (0.6, 3, 30), (0.5, 10, 60))


def patterns() -> dict[str, charged.Pattern]:
    """By its name."""
    found = {f'constant, {share}': charged.constant(share)
             for share in (0.05, 0.2, 0.5)}
    for on_s, off_s in charged.HONEST_S:
        for share in charged.HONEST_SHARES:
            found[f'{share}, {on_s} s on, {off_s} s off'] = (
                charged.on_off(share, on_s, off_s))
    for share, on_s, off_s in _BURSTS:
        found[f'{share}, {on_s} s on, {off_s} s off'] = (
            charged.on_off(share, on_s, off_s))
    for seed in range(16):
        found[f'random each second, 0 to 0.4, seed {seed}'] = (
            charged.random_bursts(seed))
    for on_s, off_s in charged.HONEST_S:
        for share, jitter in itertools.product((0.3, 0.5, 0.8, 1.0),
                                               (0.1, 0.3)):
            found[f'{share}, {on_s} s on, {off_s} s off, each '
                  f'+- {100 * jitter:.0f} %'] = charged.uneven(
                      share, on_s, off_s, jitter, random.Random(1))
    return found


def by_pattern(kind: type[charged.Server]) -> None:
    """Print what the control does, for each pattern."""
    print(f'{"modelled I/O":42} {"worst %":>8} {"used %":>7} '
          f'{"worst minute":>12} {"writes/min":>10}')
    for name, pattern in patterns().items():
        servers = [kind(charged.later(
            pattern, phase_s)).run(_LENGTH_S)
            for phase_s in charged.PHASES_S]
        print(f'{name:42} '
              f'{100 * max(one.worst_excess() for one in servers):8.1f} '
              f'{100 * min(one.mean_share() for one in servers):7.1f} '
              f'{100 * min(one.worst_minute() for one in servers):12.1f} '
              f'{max(one.settled()[1] for one in servers):10.1f}', flush=True)


def search(kind: type[charged.Server]) -> None:
    """Print the worst of all lengths, for each amount of I/O."""
    print(f'{"modelled I/O":>12} {"worst %":>8} {"s on":>5} {"s off":>5} '
          f'{"phase s":>8} {"worst % after 60 s off or more":>31}')
    for share in _SEARCH_SHARES:
        found = []
        for on_s, off_s, phase_s in itertools.product(
                _SEARCH_ON_S, _SEARCH_OFF_S, charged.PHASES_S):
            server = kind(charged.later(
                charged.on_off(share, on_s, off_s), phase_s))
            found.append((100 * server.run(_LENGTH_S).worst_excess(), on_s,
                          off_s, phase_s))
        worst, on_s, off_s, phase_s = max(found)
        after_long = max(excess for excess, _on_s, pause_s, _phase_s in found
                         if pause_s >= 60)
        print(f'{share:12.2f} {worst:8.1f} {on_s:5d} {off_s:5d} '
              f'{phase_s:8.2f} {after_long:31.1f}', flush=True)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--search', action='store_true',
                        help='search for the worst window')
    parser.add_argument('--reserved', action='store_true',
                        help='servers whose speed is guaranteed')
    options = parser.parse_args()
    kind = (test_runtime_charge.ReservedServer if options.reserved
            else charged.Server)
    if options.search:
        search(kind)
    else:
        by_pattern(kind)


if __name__ == '__main__':
    main()
