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

"""How well vCPUs fill pCPUs: the grounds of what capacity planning says.

Units are counted for a whole host. Whether a host can give all that it sold is
up to the kernel, which has to move what does not fit beside another one from
pCPU to pCPU in each period. As many spinners as vCPUs, each in a cgroup of its
own with a quota (root is needed), on pCPUs that are otherwise as good as
theirs alone: prints what part of its quota each had.
"""

import argparse
import contextlib
import os
import pathlib
import sys

import period

# vCPUs for each two pCPUs, and the part of a pCPU that each was promised.
CASES = ((2, 1.0), (3, 0.5), (3, 0.6), (3, 2 / 3), (4, 0.45), (5, 0.36),
         (5, 0.4))


class Cgroup(period.Cgroup):
    """One of many, which is served before whoever else is there."""

    def __init__(self, number):
        super().__init__()
        self.path = self.path.with_name(f'{self.path.name}-{number}')

    def __enter__(self):
        super().__enter__()
        if self.unified:
            (self.path / 'cpu.weight').write_text('10000')
        else:
            (self.path / 'cpu.shares').write_text('262144')
        return self


def parts(vcpus, part, period_us, seconds):
    """What each vCPU had of its quota."""
    quota_us = round(part * period_us)
    with contextlib.ExitStack() as stack:
        results = []
        for number in range(vcpus):
            cgroup = stack.enter_context(Cgroup(number))
            cgroup.limit(quota_us, period_us)
            results.append(stack.enter_context(
                cgroup.run(None, period.spin, seconds)))
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
