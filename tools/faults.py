#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Shows whether the tests find faults that were made by hand.

tools/faults.toml has them: mistakes that a developer may make, each with the
tests that are there to see it. All of these have to pass without any fault,
and those of a fault have to fail with it. Needs the environment of
tools/test.sh, and for tests of hosts root. All runs in a copy of the tree.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
import typing as ty

import mutate

FAULTS = pathlib.Path(__file__).with_suffix('.toml')
# pytest's status where a test failed.
FOUND = 1


def load() -> list[dict[str, ty.Any]]:
    """:returns: what, path, before, after, and tests of each fault"""
    with open(FAULTS, 'rb') as stream:
        return tomllib.load(stream)['fault']


def level_of(fault: dict[str, ty.Any]) -> str:
    """:returns: the level of tests that a fault needs, e.g. unit"""
    return fault['tests'][0].split('/')[2]


def run_tests(tests: list[str], directory: str) -> int:
    """:returns: pytest's status"""
    return subprocess.run(
        [sys.executable, '-m', 'pytest', '-x', '-q', '-W', 'ignore', '-p',
         'no:cacheprovider', '--tb=no', *tests], cwd=directory, check=False,
        env=os.environ | {'PYTHONPATH': directory,
                          'PYTHONDONTWRITEBYTECODE': '1'},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode


def run_with(fault: dict[str, ty.Any], directory: str) -> int:
    """Run the tests of a fault in a copy of the tree that has it.

    :raises SystemExit: when the file is not what the fault is made of
    """
    path = pathlib.Path(directory, fault['path'])
    text = path.read_text(encoding='utf-8')
    if text.count(fault['before']) != 1:
        raise SystemExit(f'error: {fault["path"]} has "{fault["before"]}" '
                         f'{text.count(fault["before"])} times, not once')
    path.write_text(text.replace(fault['before'], fault['after']),
                    encoding='utf-8')
    try:
        return run_tests(fault['tests'], directory)
    finally:
        path.write_text(text, encoding='utf-8')


def main() -> int:
    faults = load()
    levels = sorted({level_of(one) for one in faults})
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('path', nargs='*', help='only faults in these files, '
                        'or below these folders')
    parser.add_argument('--level', action='append', choices=levels,
                        help='only those whose tests are of this level')
    arguments = parser.parse_args()
    wanted = [one for one in faults
              if level_of(one) in (arguments.level or levels)
              and (not arguments.path
                   or one['path'].startswith(tuple(arguments.path)))]
    if not wanted:
        parser.error('no fault is made there')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    missed = 0
    with tempfile.TemporaryDirectory() as directory:
        mutate.copy_tree(pathlib.Path(directory))
        tests = sorted({test for one in wanted for test in one['tests']})
        print(f'without any fault: {len(tests)} files and tests', flush=True)
        status = run_tests(tests, directory)
        if status:
            raise SystemExit(f'error: pytest ends with {status} without any '
                             f'fault: {" ".join(tests)}')
        for number, fault in enumerate(wanted, 1):
            began_s = time.monotonic()
            found = run_with(fault, directory) == FOUND
            missed += not found
            print(f'{number:3} of {len(wanted)} '
                  f'{"found " if found else "MISSED"} '
                  f'{time.monotonic() - began_s:4.0f} s  {fault["what"]}',
                  flush=True)
    print(f'{len(wanted) - missed} of {len(wanted)} were found')
    return bool(missed)


if __name__ == '__main__':
    sys.exit(main())
