#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a scheduler of our own in the kernel would do better than what we have.

Boots an emulated machine of four pCPUs with a newer kernel (see
newer_machine), and has it measure the same by CFS quotas, by guarantees, which
are reservations in the kernel's deadline class, and by credit.bpf.c, a
scheduler for its class sched_ext. As root, with clang, gcc, and the headers of
libbpf, which is loaded there, too::

    tools/experiments/sched_ext/bench.py --clang clang-14

The machine's clock goes by instructions. ``--clock real`` has it go by time,
which is faster, but what else this machine does then shows in the figures.
"""

import argparse
import contextlib
import json
import pathlib
import subprocess
import sys
import tempfile

import table

from nova_vqos.tests.host import newer_machine

# An instruction takes 2 ns.
BY_INSTRUCTIONS = ('-icount', 'shift=1', '-cpu', 'Nehalem')
HERE = pathlib.Path(__file__).parent
PCPUS = 4


def main() -> int:
    options = parse()
    with tempfile.TemporaryDirectory() as directory:
        build(directory, options.clang)
        done = newer_machine.run_read_only(
            [sys.executable, str(HERE / 'in_guest.py'), directory,
             str(options.seconds), *options.cases],
            pathlib.Path(directory), kernel=newer_machine.fetch_kernel(),
            timeout_s=options.timeout, pcpus=PCPUS,
            options=(BY_INSTRUCTIONS
                     if options.clock == 'instructions' else ()))
    found = []
    for line in done.output.splitlines():
        # The last one may be cut short.
        with contextlib.suppress(json.JSONDecodeError):
            found.append(json.loads(line))
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1))
    table.show(found)
    if not found or not found[-1].get('done'):
        print(done.console[-12000:], file=sys.stderr)
        return 1
    return 0


def build(directory: str, clang: str) -> None:
    subprocess.run(
        [*clang.split(), '-target', 'bpf', '-mcpu=v3', '-O2', '-g', '-Wall',
         # Debian has the kernel's asm/ below that.
         '-I/usr/include/x86_64-linux-gnu', '-c',
         str(HERE / 'credit.bpf.c'), '-o', f'{directory}/credit.bpf.o'],
        check=True)
    subprocess.run(['gcc', '-O2', '-static', str(HERE / 'load.c'), '-o',
                    f'{directory}/load'], check=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seconds', type=int, default=5,
                        help='of each measurement (default: %(default)s)')
    parser.add_argument('--cases', nargs='+', default=[], metavar='NAME',
                        help='default: all of in_guest.py')
    parser.add_argument('--clock', choices=('instructions', 'real'),
                        default='instructions')
    parser.add_argument('--timeout', type=int, default=1800, metavar='SECONDS')
    parser.add_argument('--clang', default='clang', metavar='COMMAND')
    parser.add_argument('--json', metavar='FILE')
    return parser.parse_args()


if __name__ == '__main__':
    sys.exit(main())
