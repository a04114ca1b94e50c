#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""The agent, with the time that each function of its loop takes.

Names the threads for the kernel, so that /proc shows what each uses. What
cProfile saw of the loop's steps, while there was a file with the name in
AGENT_PROFILE and .on, is written to AGENT_PROFILE when the loop ends.
"""

import cProfile
import os
import sys
import threading

# First: it chooses how oslo.service works.
from nova_vqos.cmd import agent  # isort: skip
from nova_vqos.agent import loop

_MOST_NAME_BYTES = 15


def main() -> int:
    run, step = threading.Thread.run, loop.Loop.step
    profile, path = cProfile.Profile(), os.environ['AGENT_PROFILE']

    def run_named(thread: threading.Thread) -> None:
        with open(f'/proc/self/task/{threading.get_native_id()}/comm', 'w',
                  encoding='utf-8') as file:
            file.write(thread.name[:_MOST_NAME_BYTES])
        try:
            run(thread)
        finally:
            if thread.name == 'loop':
                profile.dump_stats(path)

    def profiled_step(self: loop.Loop) -> None:
        if os.path.exists(f'{path}.on'):
            profile.runcall(step, self)
        else:
            step(self)

    threading.Thread.run, loop.Loop.step = run_named, profiled_step
    return agent.main()


if __name__ == '__main__':
    sys.exit(main())
