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

Prints a table: the most that any 30 s window held above the entitlement, what
was used of the entitlement on the average, and the writes per minute, once it
had settled, for each pattern of I/O, by what the kernel limits: all that runs
for a server, or its vCPUs alone, which the agent does not do. Needs nothing
but this checkout:

    python tools/bench/charge_simulation.py
"""

import pathlib
import random
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from nova_vqos.tests.unit import test_charge

_LENGTH_S = 1200
# What the threads of a server use for its I/O, in terms of the modelled part.
_THREADS = 0.5
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
    # Begins in the middle of an interval, so that it is seen late.
    '0.3, 61 s on, 60 s off': test_charge.on_off(0.3, 61, 60),
    '0.6, 3 s on, 30 s off': test_charge.on_off(0.6, 3, 30),
    'random, 0 to 0.4': lambda now_s: _BURSTS[int(now_s)],
}


def limited_as_a_whole(pattern):
    return test_charge.Server(pattern, threads=_THREADS)


def limited_in_its_vcpus(pattern):
    """All of its I/O is beside the limit, as the modelled part is."""
    return test_charge.Server(
        lambda now_s: (1 + _THREADS) * pattern(now_s), threads=0.0)


def main() -> None:
    """Print the table."""
    print(f'{"modelled I/O":24} {"limited":8} {"worst %":>8} {"used %":>7} '
          f'{"writes/min":>10}')
    for name, pattern in _PATTERNS.items():
        for limited, make_server in (('all', limited_as_a_whole),
                                     ('vCPUs', limited_in_its_vcpus)):
            server = make_server(pattern).run(_LENGTH_S)
            _limits, writes = server.settled()
            print(f'{name:24} {limited:8} '
                  f'{100 * server.worst_excess():8.1f} '
                  f'{100 * server.mean_share():7.1f} {writes:10.1f}')


if __name__ == '__main__':
    main()
