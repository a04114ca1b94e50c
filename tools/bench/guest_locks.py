#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""What Linux guests of KVM lose that share a pCPU while they wait for locks.

An emulated machine of two pCPUs, whose CPU has AMD's virtualisation, has a
real KVM, and real Linux guests run there, by turns, with three kinds of locks:

  default     QEMU's CPU kvm64 as it is, without paravirtual locks: Linux takes
              a simple lock instead, which is not fair
  pv          kvm-pv-unhalt: waiters of its spin locks halt after a while
  native      the same, and the guest was booted with nopvspin: fair spin locks
              (qspinlock), as on a machine of its own

Each does what guest_locks.c describes, once with all pCPUs of the machine for
its vCPUs, and once with half of them. Shown is how often it did that in a
second of CPU time, with half relative to all, medians; and for comparison
that of work without locks. Emulation makes all of it slower alike, but not the
time until the kernel takes a pCPU from a vCPU. As root, on an idle machine::

    tools/bench/guest_locks.py --rounds 3
"""

import argparse
from collections.abc import Iterator
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

from nova_vqos.calibration import guest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / 'devstack'))

from nova_vqos.tests.host import newer_machine

_SOURCE = pathlib.Path(__file__).with_name('guest_locks.c')
_KINDS = 'kernel', 'program', 'none'
#: By the kind of locks: of QEMU's CPU, and of the guest's kernel.
GUESTS = {'default': ('kvm64', ''), 'pv': ('kvm64,+kvm-pv-unhalt', ''),
          'native': ('kvm64,+kvm-pv-unhalt', 'nopvspin')}
_PLACES = {'all': {0, 1}, 'half': {0}}
_TURN_MS = 1500
_TIMEOUT_S = 1800
_INIT = """\
#!/bin/sh
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
dmesg | grep -o 'PV .*spinlock.*' | head -n 1
exec /load {vcpus} {turn_ms}
"""


def main() -> int:
    options = parse()
    if options.in_machine:
        for name in GUESTS:
            print(json.dumps({'locks': name, **measure(name, options)}),
                  flush=True)
        return 0
    with tempfile.TemporaryDirectory(prefix='vqos-bench-') as directory:
        done = on_machine(pathlib.Path(directory), options)
    found = [json.loads(line) for line in done.output.splitlines()
             if line.startswith('{')]
    show(found, options)
    if len(found) < len(GUESTS):
        print(done.console[-4000:], file=sys.stderr)
        return 1
    return 0


def on_machine(directory: pathlib.Path,
               options: argparse.Namespace) -> newer_machine.Run:
    """Run this program on the emulated machine."""
    kernel = newer_machine.fetch_kernel()
    # Its own /var/cache is not ours.
    shutil.copy(kernel, directory / 'vmlinuz')
    program = directory / 'load'
    subprocess.run(['gcc', '-O2', '-static', '-o', str(program),
                    str(_SOURCE)], check=True, timeout=60)
    guest.build_initramfs(
        str(directory / 'initrd'), [],
        _INIT.format(vcpus=options.vcpus, turn_ms=_TURN_MS),
        files={'/load': str(program)})
    place = directory / 'machine'
    place.mkdir()
    return newer_machine.run_read_only(
        [sys.executable, os.path.abspath(__file__), *sys.argv[1:],
         '--in-machine', str(directory)], place, kernel=kernel,
        timeout_s=_TIMEOUT_S, pcpus=2, options=('-cpu', 'EPYC'),
        load=(newer_machine.KVM,))


def measure(name: str, options: argparse.Namespace) -> dict[str, object]:
    """:returns: what its kernel says of its locks, and by place and kind how
        often it did that in a second of CPU time, in each round
    """
    found: dict[str, dict[str, list[float]]] = {
        place: {kind: [] for kind in _KINDS} for place in _PLACES}
    with contextlib.closing(start(name, options)) as lines:
        said = next(lines).strip()
        pid = int(next(lines))
        for _ in range(options.rounds):
            for place, pcpus in _PLACES.items():
                for thread in os.listdir(f'/proc/{pid}/task'):
                    os.sched_setaffinity(int(thread), pcpus)
                for line in lines:
                    if line.startswith(f'did {_KINDS[-1]}'):
                        break
                for kind in _KINDS:
                    before_s = cpu_s(pid)
                    _did, _kind, times, _s = next(lines).split()
                    found[place][kind].append(
                        int(times) / (cpu_s(pid) - before_s))
    return {'said': said, 'rates': found}


def start(name: str, options: argparse.Namespace) -> Iterator[str]:
    """Run a guest: first what it says of its locks, then QEMU's process.

    Then what it did, a line each.
    """
    cpu, arguments = GUESTS[name]
    with subprocess.Popen(
            ['qemu-system-x86_64', '-accel', 'kvm', '-cpu', cpu, '-smp',
             str(options.vcpus), '-m', '96', '-nodefaults',
             '-no-user-config', '-display', 'none', '-no-reboot', '-serial',
             'stdio', '-kernel', f'{options.in_machine}/vmlinuz', '-initrd',
             f'{options.in_machine}/initrd', '-append',
             f'console=ttyS0 quiet panic=-1 tsc=reliable {arguments}'],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if line.startswith(('PV ', 'did ')):
                    yield line
                    yield str(process.pid)
                    break
            yield from process.stdout
        finally:
            process.kill()


def cpu_s(pid: int) -> float:
    """CPU time of a process, of all of its threads."""
    fields = pathlib.Path(f'/proc/{pid}/stat').read_text().rpartition(
        ')')[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


def show(found: list[dict], options: argparse.Namespace) -> None:
    print(f'{options.vcpus} vCPUs, {options.rounds} rounds')
    print(f'{"locks":10}' + ''.join(f'{kind:>28}' for kind in _KINDS))
    for one in found:
        texts = []
        for kind in _KINDS:
            ratios = [half / whole for whole, half in zip(
                one['rates']['all'][kind], one['rates']['half'][kind],
                strict=True)]
            texts.append(f'{statistics.median(ratios):.3f} '
                         f'({min(ratios):.3f} to {max(ratios):.3f})')
        print(f'{one["locks"]:10}' + ''.join(f'{text:>28}' for text in texts)
              + f'  {one["said"]}')


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--vcpus', type=int, default=2, choices=range(2, 9),
                        help='of each guest (default %(default)s)')
    parser.add_argument('--rounds', type=int, default=3,
                        help='in both places (default %(default)s)')
    parser.add_argument('--in-machine', metavar='DIR', help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error('--rounds must be 1 or more')
    return options


if __name__ == '__main__':
    sys.exit(main())
