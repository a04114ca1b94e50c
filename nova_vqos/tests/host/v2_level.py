# SPDX-License-Identifier: Apache-2.0
"""The tests of level host on cgroup v2, on a newer kernel under QEMU.

Each file of tests is run on a machine of its own (newer_machine), or all on
one, within a bound of time. What came out is kept in build/host-v2: a second
call goes on with the files that are not done.
"""

import argparse
from collections.abc import Sequence
import json
import os
import pathlib
import shutil
import sys
import time
import typing as ty

from nova_vqos.calibration import guest
from nova_vqos.tests.host import newer_machine

_TOP = pathlib.Path(guest.__file__).parents[3]
_TESTS = pathlib.Path(__file__).parent
_MEMORY_MIB = 4096
# Of the machine's own time, which passes slower than ours.
_TEST_S = 600

_NESTED = 'it boots a newer kernel on cgroup v2 itself, wherever it runs'
#: Files that are not run here, and why.
LEFT_OUT = {
    'test_cgroup_v2.py': _NESTED,
    'test_napi.py': _NESTED,
    'test_partition.py': _NESTED,
    'test_partition_unit.py': _NESTED,
    'test_scheduling.py': _NESTED,
    'test_vhost.py': _NESTED,
    'test_vhost_packets.py': _NESTED,
    'test_kvm.py': 'there is no KVM in an emulated machine',
}


def main(arguments: Sequence[str] | None = None) -> int:
    """:returns: 0 when no test failed, and none was cut short"""
    parser = argparse.ArgumentParser(
        prog=f'python -m {__spec__.name}', description=__doc__.split('\n')[0],
        epilog='All other arguments are of pytest, and are for each file.')
    parser.add_argument('files', nargs='*', metavar='FILE', type=_file,
                        help='of tests, such as test_caps.py (default: all)')
    parser.add_argument('--minutes', type=float, default=60,
                        help='that a file may take (default: %(default)g)')
    parser.add_argument('--together', action='store_true',
                        help='all files on one machine: it starts once')
    parser.add_argument('--again', action='store_true',
                        help='also files that are done')
    parser.add_argument('--output', type=pathlib.Path,
                        default=_TOP / 'build' / 'host-v2', metavar='DIR',
                        help='where to keep what comes out')
    given, for_pytest = parser.parse_known_args(arguments)
    files = given.files or sorted(
        path.name for path in _TESTS.glob('test_*.py')
        if path.name not in LEFT_OUT)
    try:
        newer_machine.check()
        kernel = newer_machine.fetch_kernel()
        # That of guests: the machine there has no network to fetch it by.
        guest.find_kernel_with_modules()
    except (newer_machine.Lacking, guest.GuestError) as error:
        print(f'this machine lacks something: {error}', file=sys.stderr)
        return 1
    given.output.mkdir(parents=True, exist_ok=True)
    for together in [files] if given.together else [[name] for name in files]:
        wanted = [name for name in together
                  if given.again or not _kept(given.output, name).exists()]
        if wanted:
            run_files(wanted, given.output, kernel, given.minutes * 60,
                      for_pytest)
    outcomes = []
    for name in files:
        kept = _kept(given.output, name)
        found = json.loads(kept.read_text()) if kept.exists() else []
        report(name, found)
        outcomes += found or [{'outcome': 'not run'}]
    for name, reason in LEFT_OUT.items():
        print(f'not run: {name}: {reason}')
    return int(any(one['outcome'] not in ('passed', 'skipped')
                   for one in outcomes))


def _kept(output: pathlib.Path, name: str) -> pathlib.Path:
    return output / f'{name}.json'


def _file(name: str) -> str:
    name = os.path.basename(name)
    if not (_TESTS / name).is_file():
        raise argparse.ArgumentTypeError(f'there is no {_TESTS / name}')
    return name


def run_files(names: Sequence[str], output: pathlib.Path, kernel: str,
              timeout_s: float, for_pytest: Sequence[str]) -> None:
    """Run the tests of files on one machine, and keep what comes out.

    Of files that it did not come to, nothing is kept.

    :param output: for that, and what the machine leaves behind
    :param timeout_s: for each file
    """
    directory = output / names[0].removesuffix('.py')
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    began = time.monotonic()
    machine = newer_machine.run_writable(
        [sys.executable, '-m', 'nova_vqos.tests.host.v2_guest',
         f'--rootdir={_TOP}', f'--timeout={_TEST_S}', *for_pytest,
         *(str(_TESTS / name) for name in names)],
        directory, kernel=kernel, timeout_s=timeout_s * len(names),
        memory_mib=_MEMORY_MIB)
    print(f'{", ".join(names)}: {time.monotonic() - began:.0f} s'
          f'{", cut short" if machine.timed_out else ""}')
    outcomes = outcomes_of(machine.output)
    for name in names:
        found = [one for one in outcomes
                 if one['test'].partition('::')[0].endswith(f'/{name}')]
        if found:
            _kept(output, name).write_text(json.dumps(found, indent=1))


def outcomes_of(output: str) -> list[dict[str, ty.Any]]:
    """What the lines of v2_guest say, an outcome for each test.

    The worst counts: a test can pass, and fail to clean up. One without any
    is unfinished.
    """
    found: dict[str, dict[str, ty.Any]] = {}
    for line in output.splitlines():
        try:
            said = json.loads(line)
        except ValueError:
            # The last one may be cut.
            continue
        last = found.get(said['test'], {}).get('outcome')
        if 'outcome' not in said:
            found[said['test']] = {**said, 'outcome': 'unfinished'}
        elif last in (None, 'unfinished', 'passed'):
            found[said['test']] = said
    return list(found.values())


def report(name: str, outcomes: Sequence[dict]) -> None:
    """Print what came of a file, and why tests did not pass."""
    counts: dict[str, int] = {}
    for one in outcomes:
        counts[one['outcome']] = counts.get(one['outcome'], 0) + 1
        if one['outcome'] != 'passed':
            lines = one.get('text', '').strip().splitlines() or ['']
            print(f'  {one["outcome"]}: {one["test"].rpartition("::")[2]}: '
                  f'{lines[-1]}')
    print(f'{name}: ' + (', '.join(
        f'{count} {outcome}' for outcome, count in sorted(counts.items()))
        or 'nothing was run: see its console'), flush=True)


if __name__ == '__main__':
    sys.exit(main())
