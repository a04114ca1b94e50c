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

"""How well the control of charging does on simulated servers.

Prints two tables. The first is by pattern of I/O, and by what the kernel
limits: all that runs for a server, or its vCPUs alone, which the agent does
not do. It holds the most that any 30 s window held above the entitlement, the
same where the I/O begins with a round of the control ("phase 0"), what was
used of the entitlement on the average, and the writes per minute, once it had
settled; but for the second of them, of whatever phase of the pattern against
the control's rounds is the worst. The second table searches for the worst: by
how much modelled I/O there is while there is any, it holds the worst window of
all lengths of I/O and pauses, and which they were. Needs nothing but this
checkout, and a minute or two:

    python tools/bench/charge_simulation.py
"""

import argparse
from collections.abc import Callable
import functools
import itertools
import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.tests.unit import test_charge

_LENGTH_S = 1200
_SEARCH_LENGTH_S = 600
# What the threads of a server use for its I/O, in terms of the modelled part.
_THREADS = 0.5
# How long after a round of the control I/O begins: a round is 2 s.
_PHASES = 8
_SEARCH_SHARES = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0)
_SEARCH_ON_S = (1, 2, 3, 5, 10, 20, 30, 60)
_SEARCH_OFF_S = (5, 10, 20, 30, 45, 60, 120)
_chance = random.Random(0)
_BURSTS = [_chance.choice((0, 1)) * _chance.uniform(0, 0.4)
           for _ in range(_LENGTH_S + 1)]
_PATTERNS = {
    'constant, 0.05': test_charge.constant(0.05),
    'constant, 0.2': test_charge.constant(0.2),
    'constant, 0.5': test_charge.constant(0.5),
    '0.2, 5 s on, 5 s off': test_charge.on_off(0.2, 5, 5),
    '1.0, 1 s on, 9 s off': test_charge.on_off(1.0, 1, 9),
    '0.2, 20 s on, 20 s off': test_charge.on_off(0.2, 20, 20),
    '0.5, 30 s on, 30 s off': test_charge.on_off(0.5, 30, 30),
    '0.2, 60 s on, 60 s off': test_charge.on_off(0.2, 60, 60),
    '0.3, 61 s on, 60 s off': test_charge.on_off(0.3, 61, 60),
    '0.6, 3 s on, 30 s off': test_charge.on_off(0.6, 3, 30),
    'random, 0 to 0.4': lambda now_s: _BURSTS[int(now_s) % len(_BURSTS)],
}

Pattern = Callable[[float], float]


def limited_as_a_whole(pattern: Pattern) -> test_charge.Server:
    return test_charge.Server(pattern, threads=_THREADS)


def limited_in_its_vcpus(pattern: Pattern) -> test_charge.Server:
    """All of its I/O is beside the limit, as the modelled part is."""
    return test_charge.Server(
        lambda now_s: (1 + _THREADS) * pattern(now_s), threads=0.0)


@functools.lru_cache
def phases_s() -> list[float]:
    return [number * test_charge.INTERVAL_S / _PHASES
            for number in range(_PHASES)]


def by_pattern() -> None:
    """Print what the control does, for each pattern."""
    print(f'{"modelled I/O":24} {"limited":8} {"worst %":>8} '
          f'{"at phase 0":>10} {"used %":>7} {"writes/min":>10}')
    for name, pattern in _PATTERNS.items():
        for limited, make_server in (('all', limited_as_a_whole),
                                     ('vCPUs', limited_in_its_vcpus)):
            servers = [
                make_server(test_charge.later(pattern, phase_s)).run(_LENGTH_S)
                for phase_s in phases_s()]
            excesses = [100 * server.worst_excess() for server in servers]
            used = min(server.mean_share() for server in servers)
            writes = max(server.settled()[1] for server in servers)
            print(f'{name:24} {limited:8} {max(excesses):8.1f} '
                  f'{excesses[0]:10.1f} {100 * used:7.1f} {writes:10.1f}',
                  flush=True)


def search() -> None:
    """Print the worst of all lengths, for each amount of I/O."""
    print(f'{"modelled I/O":>12} {"worst %":>8} {"s on":>5} {"s off":>5} '
          f'{"phase s":>8} {"worst % after 60 s off or more":>31}')
    for share in _SEARCH_SHARES:
        found = []
        for on_s, off_s, phase_s in itertools.product(
                _SEARCH_ON_S, _SEARCH_OFF_S, phases_s()):
            server = limited_as_a_whole(test_charge.later(
                test_charge.on_off(share, on_s, off_s), phase_s))
            excess = server.run(_SEARCH_LENGTH_S).worst_excess()
            found.append((100 * excess, on_s, off_s, phase_s))
        worst, on_s, off_s, phase_s = max(found)
        after_long = max(excess for excess, _on_s, pause_s, _phase_s in found
                         if pause_s >= 60)
        print(f'{share:12.2f} {worst:8.1f} {on_s:5d} {off_s:5d} '
              f'{phase_s:8.2f} {after_long:31.1f}', flush=True)


def main() -> None:
    """Print the tables."""
    argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    by_pattern()
    print()
    search()


if __name__ == '__main__':
    main()
