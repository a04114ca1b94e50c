#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How well vCPUs fill pCPUs: the grounds of what capacity planning says.

Units are counted for a whole host. Whether a host can give all that it sold is
up to the kernel, which has to move what does not fit beside another one from
pCPU to pCPU in each period. As many spinners as vCPUs, each in a cgroup of its
own with a quota (root is needed), on pCPUs that are otherwise as good as
theirs alone: prints what part of its quota each had.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import sys
import time

# vCPUs for each two pCPUs, and the part of a pCPU that each was promised.
CASES = ((2, 1.0), (3, 0.5), (3, 0.6), (3, 2 / 3), (4, 0.45), (5, 0.36),
         (5, 0.4))


class Cgroup:
    """A cgroup of our own, v1 or v2, that is served before all others."""

    def __init__(self, number, quota_us, period_us):
        root = pathlib.Path('/sys/fs/cgroup')
        unified = (root / 'cgroup.controllers').exists()
        self._path = (root if unified else root / 'cpu') / (
            f'vqos-bench-{os.getpid()}-{number}')
        if unified:
            (root / 'cgroup.subtree_control').write_text('+cpu')
        self._settings = {
            'cpu.weight': '10000', 'cpu.max': f'{quota_us} {period_us}',
        } if unified else {
            'cpu.shares': '262144', 'cpu.cfs_period_us': str(period_us),
            'cpu.cfs_quota_us': str(quota_us)}

    def __enter__(self):
        self._path.mkdir()
        for name, value in self._settings.items():
            (self._path / name).write_text(value)
        return self

    def __exit__(self, *_error):
        self._path.rmdir()

    @contextlib.contextmanager
    def spinning(self, seconds):
        """A spinner in the cgroup, its result through a pipe."""
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=self._spin, args=(theirs, seconds))
        process.start()
        try:
            yield ours
        finally:
            process.join()

    def _spin(self, pipe, seconds):
        """CPU seconds per wall second of a spinner."""
        (self._path / 'cgroup.procs').write_text('0')
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            pass
        cpu, wall = time.process_time(), time.monotonic()
        while time.monotonic() < wall + seconds:
            pass
        pipe.send((time.process_time() - cpu) / (time.monotonic() - wall))


def parts(vcpus, part, period_us, seconds):
    """What each vCPU had of its quota."""
    quota_us = round(part * period_us)
    with contextlib.ExitStack() as stack:
        results = []
        for number in range(vcpus):
            cgroup = stack.enter_context(
                Cgroup(number, quota_us, period_us))
            results.append(stack.enter_context(cgroup.spinning(seconds)))
        return [result.recv() * period_us / quota_us for result in results]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--period-ms', type=int, default=50)
    parser.add_argument('--seconds', type=float, default=10.0,
                        help='length of one measurement (default: 10)')
    options = parser.parse_args()
    pcpus = len(os.sched_getaffinity(0))
    if pcpus % 2:
        parser.error(f'an even number of pCPUs is needed, here are {pcpus}')
    release = pathlib.Path('/proc/sys/kernel/osrelease').read_text().strip()
    print(f'{pcpus} pCPUs, Linux {release}, periods of '
          f'{options.period_ms} ms')
    print('vCPUs   part    sold   had of it: least, mean')
    for vcpus, part in CASES:
        vcpus = vcpus * pcpus // 2
        print(f'measuring {vcpus} vCPUs', file=sys.stderr)
        found = parts(vcpus, part, options.period_ms * 1000, options.seconds)
        print(f'{vcpus:5} {part:6.0%} {vcpus * part / pcpus:7.0%} '
              f'{min(found):15.1%} {sum(found) / vcpus:7.1%}')


if __name__ == '__main__':
    main()
