# SPDX-License-Identifier: Apache-2.0
"""Stands for sysbench: an event takes as much CPU time on any machine.

By the clock of its own CPU time, which is also what the runner reads: so the
score of a round is known beforehand, however fast and busy the machine is.
"""

import os
import sys
import time

_START_S = 0.05
EVENT_S = 0.02
#: In the environment: how many times slower than that.
SLOWDOWN = 'NOVA_VQOS_TEST_SLOWDOWN'


def main():
    if '--version' in sys.argv:
        print('sysbench 1.0.20')
        return
    (events,) = (int(word.partition('=')[2]) for word in sys.argv
                 if word.startswith('--events='))
    event_s = EVENT_S * float(os.environ.get(SLOWDOWN, '1'))
    until_s = _START_S + events * event_s
    while time.process_time() < until_s:
        pass
    # What an interpreter does at its end is no event.
    os._exit(0)


if __name__ == '__main__':
    main()
