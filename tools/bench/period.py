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

"""What the CFS period costs: the grounds of the default period.

For each period, in a cgroup of its own (root is needed), on one pCPU:

* how far a spinner under a cap is off it, when nobody writes its quota, and
  when somebody writes the same value again every second;
* the 99th percentile of open-loop latency: requests of 2 ms of work arrive at
  random, at 30, 60 and 90 % of what the cap allows.

Prints ratios against the longest period, from one run.
"""

import argparse
import contextlib
import multiprocessing
import os
import pathlib
import random
import statistics
import sys
import time

WORK_S = 0.002
CAP = 0.3
LOADS = (0.3, 0.6, 0.9)


class Cgroup:
    """A cgroup of our own with a limit of CPU bandwidth, v1 or v2."""

    def __init__(self):
        root = pathlib.Path('/sys/fs/cgroup')
        self.unified = (root / 'cgroup.controllers').exists()
        self.path = (root if self.unified else root / 'cpu') / (
            f'vqos-bench-{os.getpid()}')

    def __enter__(self):
        if self.unified:
            (self.path.parent / 'cgroup.subtree_control').write_text('+cpu')
        self.path.mkdir()
        return self

    def __exit__(self, *_error):
        self.path.rmdir()

    def limit(self, quota_us, period_us):
        if self.unified:
            (self.path / 'cpu.max').write_text(f'{quota_us} {period_us}')
        else:
            (self.path / 'cpu.cfs_quota_us').write_text('-1')
            (self.path / 'cpu.cfs_period_us').write_text(str(period_us))
            self.write_quota(quota_us, period_us)

    def write_quota(self, quota_us, period_us):
        if self.unified:
            (self.path / 'cpu.max').write_text(f'{quota_us} {period_us}')
        else:
            (self.path / 'cpu.cfs_quota_us').write_text(str(quota_us))

    @contextlib.contextmanager
    def run(self, pcpu, function, *args):
        """A process in the cgroup, its result through a pipe.

        :param pcpu: that it may run on; None: any
        """
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(
            target=_in_cgroup, args=(self.path, pcpu, function, theirs, args))
        process.start()
        try:
            yield ours
        finally:
            process.join()


def _in_cgroup(path, pcpu, function, pipe, args):
    if pcpu is not None:
        os.sched_setaffinity(0, {pcpu})
    (path / 'cgroup.procs').write_text('0')
    pipe.send(function(*args))


def spin(seconds):
    """CPU seconds had per wall second, by one who always wants more."""
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        pass
    cpu, wall = time.process_time(), time.monotonic()
    while time.monotonic() < wall + seconds:
        pass
    return (time.process_time() - cpu) / (time.monotonic() - wall)


def serve(seconds, load, seed):
    """Latencies of requests that arrive whether or not we keep up."""
    rate = load * CAP / WORK_S
    random_numbers = random.Random(seed)
    start = time.monotonic()
    arrival, latencies = start, []
    while (arrival := arrival + random_numbers.expovariate(rate)) < (
            start + seconds):
        time.sleep(max(0, arrival - time.monotonic()))
        done = time.thread_time() + WORK_S
        while time.thread_time() < done:
            pass
        latencies.append(time.monotonic() - arrival)
    return statistics.quantiles(latencies, n=100)[98]


def spinner_error(cgroup, pcpu, period_us, cap, seconds, write_every_s):
    quota_us = round(cap * period_us)
    cgroup.limit(quota_us, period_us)
    with cgroup.run(pcpu, spin, seconds) as result:
        while not result.poll(write_every_s):
            if write_every_s:
                cgroup.write_quota(quota_us, period_us)
        return result.recv() / cap - 1


def latency_s(cgroup, pcpu, period_us, load, seconds):
    cgroup.limit(round(CAP * period_us), period_us)
    with cgroup.run(pcpu, serve, seconds, load, 1) as result:
        return result.recv()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--periods-ms', type=int, nargs='+',
                        default=[10, 20, 50, 100])
    parser.add_argument('--seconds', type=float, default=8.0,
                        help='length of one measurement (default: 8)')
    parser.add_argument('--pcpu', type=int,
                        default=max(os.sched_getaffinity(0)))
    options = parser.parse_args()
    rows = []
    with Cgroup() as cgroup:
        for period_ms in options.periods_ms:
            period_us = 1000 * period_ms
            print(f'measuring a period of {period_ms} ms, '
                  f'{5 * options.seconds:.0f} s', file=sys.stderr)
            rows.append((
                period_ms,
                spinner_error(cgroup, options.pcpu, period_us, 0.5,
                              options.seconds, None),
                spinner_error(cgroup, options.pcpu, period_us, 0.5,
                              options.seconds, 1.0),
                *(latency_s(cgroup, options.pcpu, period_us, load,
                            options.seconds) for load in LOADS)))
    last = rows[-1]
    print('period  off the cap   written every 1 s   p99 of 2 ms requests '
          f'(ratio to {last[0]} ms)')
    print('                                          '
          + '   '.join(f'{load:.0%} load' for load in LOADS))
    for period_ms, quiet, written, *latencies in rows:
        print(f'{period_ms:4} ms {quiet:+11.2%} {written:+18.2%}   '
              + '  '.join(f'{latency * 1000:5.0f} ({latency / base:.2f})'
                          for latency, base in zip(latencies, last[3:],
                                                   strict=True)))


if __name__ == '__main__':
    main()
