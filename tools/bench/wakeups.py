#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""How long a thread waits that wakes beside busy ones, by slice and work.

That is what a slice of class io is for. On one pCPU two threads always run,
with the kernel's own slice, and a third wakes at uneven intervals, works for a
moment, and sleeps: a sixth of the pCPU or less. Each is in groups like
libvirt's for a server. Shown is how long the third took beyond its work, in
us, medians of all rounds; slices are in us, and "kernel" is the kernel's own.
As root, on an idle machine::

    tools/bench/wakeups.py --rounds 5

``--newer-kernel`` does it on an emulated machine of one pCPU with a newer
kernel, whose clock goes by instructions. ``--kernel-slice`` sets what its
kernel gives each thread: 2800 is what Linux 7.3 does on eight pCPUs or more::

    tools/bench/wakeups.py --newer-kernel --kernel-slice 2800 --rounds 2
"""

import argparse
from collections.abc import Mapping
import contextlib
import ctypes
import os
import pathlib
import platform
import statistics
import sys

import newer_kernel

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import probe
from nova_vqos.calibration.probe import spinners
from nova_vqos.calibration.probe import waker
from nova_vqos.profile import kernel

WORKS_US = 200, 400, 800, 1200, 2000
SLICES_US = None, 100, 300, 500, 700, 1000, 1400, 2000
_WINDOW_S = 0.3
_TIMEOUT_S = 1800
_GROUP = 'vqos-bench-wakeups'
_DEBUG = pathlib.Path('/sys/kernel/debug')
_SCHEDULER = _DEBUG / 'sched'
# What it prints of both begins so.
_TITLE = 'Linux '


def main() -> int:
    options = parse()
    if options.newer_kernel:
        output = newer_kernel.run(_TITLE, _TIMEOUT_S, '--in-machine')
        return 0 if _TITLE in output else 1
    if options.kernel_slice is not None:
        set_kernels_slice(options.kernel_slice)
    show(measure(options.rounds))
    return 0


def measure(rounds: int) -> Mapping[int, Mapping[int | None, float]]:
    """:returns: waits in us, by work and slice"""
    idle, busiest = probe.idle_pcpus('/')
    if not idle:
        raise SystemExit(f'no pCPU is idle: the least busy one, {busiest}')
    pcpu = idle[0]
    found: dict[int, dict[int | None, list[float]]] = {
        work_us: {slice_us: [] for slice_us in SLICES_US}
        for work_us in WORKS_US}
    with contextlib.ExitStack() as stack:
        tree = stack.enter_context(server_groups.Tree(_GROUP, is_idle=False))
        busy = stack.enter_context(spinners.spinning(tree, pcpu, 'busy'))
        woken = stack.enter_context(waker.waking(tree, pcpu, 'waker', busy))
        for _ in range(rounds):
            for work_us, waits in found.items():
                for slice_us, seen in waits.items():
                    seen.append(woken.measure(
                        slice_us, work_us, _WINDOW_S).mean_us)
        print(f'{_TITLE}{platform.release()}, {kernel.scheduling()}\n'
              f'slice of the kernel {woken.kernels_slice_us()} us, {rounds} '
              'rounds')
    return {work_us: {slice_us: statistics.median(seen)
                      for slice_us, seen in waits.items()}
            for work_us, waits in found.items()}


def show(found: Mapping[int, Mapping[int | None, float]]) -> None:
    print('    work' + ''.join(
        f'{"kernel" if slice_us is None else slice_us:>8}'
        for slice_us in SLICES_US))
    for work_us, waits in found.items():
        print(f'{work_us:8}' + ''.join(
            f'{wait_us:8.0f}' for wait_us in waits.values()))


def set_kernels_slice(slice_us: int) -> None:
    """Of a kernel that is this bench's own."""
    (_SCHEDULER / 'base_slice_ns').write_text(str(1000 * slice_us))


def prepare_newer_machine() -> None:
    """What systemd does elsewhere."""
    pathlib.Path('/sys/fs/cgroup/cgroup.subtree_control').write_text('+cpu')
    if ctypes.CDLL(None, use_errno=True).mount(
            b'debugfs', os.fsencode(_DEBUG), b'debugfs', 0, None):
        raise OSError(ctypes.get_errno(), 'mount of debugfs')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rounds', type=int, default=5,
                        help='through all works and slices (default '
                        '%(default)s)')
    parser.add_argument(newer_kernel.OPTION, action='store_true',
                        help='on an emulated machine with a newer kernel')
    parser.add_argument('--kernel-slice', type=int, metavar='US',
                        help='what that gives each thread (default: its own)')
    parser.add_argument('--in-machine', action='store_true',
                        help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.kernel_slice is not None and not (
            options.newer_kernel or options.in_machine):
        parser.error('--kernel-slice is for --newer-kernel: the settings of '
                     'this machine stay as they are')
    if options.rounds < 1:
        parser.error('--rounds must be 1 or more')
    if options.in_machine:
        prepare_newer_machine()
    return options


if __name__ == '__main__':
    sys.exit(main())
