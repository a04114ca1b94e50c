# SPDX-License-Identifier: Apache-2.0
"""Nova's own functional tests of its libvirt driver, with ours and with its.

Both run at once, each with half of the workers, on the Nova that is
installed. Ours sells units, on a calibrated host, and takes servers without:
what Nova's tests boot. Many of them give Nova ten seconds for something, which
is not enough on a busy machine: what differs is run again by itself, and then
counts as it ended there.
"""

import argparse
from collections.abc import Iterable, Mapping, Sequence
import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

from nova_vqos.profile import document
from nova_vqos.profile import fingerprint
from nova_vqos.tests import functional
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.upstream import compare
from nova_vqos.tests.upstream import plugin

TESTS = 'nova.tests.functional.libvirt'
# Of a test: Nova's own bound first, then that of its worker.
_TEST_S = 300
_WORKER_S = 420
_PROGRESS_S = 60
_DRIVERS = (plugin.STOCK, plugin.VQOS)
# If more differ, it is not by chance.
_MOST_AGAIN = 30

_ALL_USAGES = ('it compares all usages of a host, which has one of '
               'CUSTOM_VQOS_CPU_UNIT as well')

#: Tests that end differently, by the ends of their names, and why.
KNOWN = {
    f'.test_{name}': _ALL_USAGES for name in (
        'create_server_with_dedicated_policy_old_configuration',
        'create_server_with_hugepages',
        'create_server_with_isolate_thread_policy_old_configuration',
        'create_server_with_mixed_policy',
        'create_server_with_mixed_policy_asymmetric_multi_numa',
        'create_server_with_numa_topology', 'resize_vcpu_to_pcpu')}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both, and show both.

    :returns: 0 when they came to the same, or all differences are known
    """
    parser = argparse.ArgumentParser(
        prog=f'python -m {__spec__.name}', description=__doc__.split('\n')[0])
    parser.add_argument('tests', nargs='?', default=TESTS,
                        help='package or module (default: %(default)s)')
    parser.add_argument('-k', metavar='EXPRESSION', help="pytest's -k")
    parser.add_argument('-n', '--workers', type=int, default=2,
                        help='of each of the two (default: %(default)s)')
    parser.add_argument('-o', '--output', metavar='DIRECTORY',
                        help='for logs and JUnit XML (default: a new one)')
    options = parser.parse_args(arguments)
    directory = os.path.abspath(
        options.output or tempfile.mkdtemp(prefix='vqos-upstream-'))
    os.makedirs(directory, exist_ok=True)
    print(f'== logs are in {directory}', flush=True)
    write_host_files(directory)
    selection = [options.tests, *(['-k', options.k] if options.k else [])]
    if functional.THREADED:
        # On eventlet xdist's workers hang.
        selection += ['-n', str(options.workers), '--max-worker-restart', '20']
    try:
        found = run(_DRIVERS, selection, directory)
        again = [one.test for one in compare.compare(*found, KNOWN)
                 if not one.why]
        if 0 < len(again) <= _MOST_AGAIN:
            print(f'== {len(again)} tests that differ, again, one by one',
                  flush=True)
            for driver, outcomes in zip(_DRIVERS, found, strict=True):
                outcomes.update(*run([driver], map(_node_id, again),
                                     directory, suffix='-again'))
    except (OSError, ValueError) as exc:
        print(f'error: a run came to nothing: {exc}', file=sys.stderr)
        return 1
    return show(*found)


def run(drivers: Sequence[str], selection: Iterable[str], directory: str,
        suffix: str = '') -> list[dict[str, compare.Outcome]]:
    """Run tests with some drivers, at once.

    :param selection: pytest's arguments: which tests, by how many workers
    :param directory: where the hosts' profile is, and logs and results go
    :param suffix: of the names of these
    :returns: of each driver how its tests ended
    :raises OSError, ValueError: when one has no results
    """
    selection = list(selection)
    paths = [os.path.join(directory, f'{driver}{suffix}')
             for driver in drivers]
    runs = {path: start(driver, selection, directory, path)
            for driver, path in zip(drivers, paths, strict=True)}
    wait(runs)
    for path, one in runs.items():
        # 1: tests failed, which is shown. All else is no run.
        if one.returncode not in (0, 1):
            raise ValueError(f'pytest ended with {one.returncode}, see '
                             f'{path}.log')
    return [compare.read_junit(f'{path}.xml', plugin.DRIVERS)
            for path in paths]


def write_host_files(directory: str) -> None:
    """Write a profile that fits this machine, for all hosts of the tests."""
    document.store(
        host_files.make_profile('compute1', {'0-15': 1.0},
                                fingerprint=fingerprint.of_host()),
        os.path.join(directory, 'profile.yaml'))


def start(driver: str, selection: Sequence[str], directory: str,
          path: str) -> subprocess.Popen:
    """Start tests with one of the two drivers.

    :param path: of its log and results, without .log and .xml
    """
    with contextlib.suppress(FileNotFoundError):
        # Of an earlier run.
        os.unlink(f'{path}.xml')
    environment = {
        **os.environ,
        # As the installed Nova runs its computes by default.
        'OS_NOVA_DISABLE_EVENTLET_PATCHING': str(functional.THREADED),
        'OS_TEST_TIMEOUT': str(_TEST_S),
        # NOTE: options by environment, as oslo.config reads them: Nova's
        # tests reset all that is set otherwise.
        'OS_WSGI__API_PASTE_CONFIG': os.path.join(
            sysconfig.get_path('data'), 'etc', 'nova', 'api-paste.ini'),
        'OS_VQOS__PROFILE_PATH': os.path.join(directory, 'profile.yaml'),
        'OS_VQOS__SERVERS_WITHOUT_UNITS': 'allow',
    }
    with open(f'{path}.log', 'wb') as log:
        return subprocess.Popen(
            [sys.executable, '-m', 'pytest', '-v', '-W', 'ignore',
             '-p', plugin.__name__, '-p', 'no:cacheprovider',
             # What tests are named from, wherever this began.
             '--rootdir', sysconfig.get_path('purelib'),
             '--timeout', str(_WORKER_S), '--timeout-method', 'thread',
             '-o', 'junit_family=xunit1', '--junit-xml', f'{path}.xml',
             '--compute-driver', driver, '--pyargs', *selection],
            cwd=directory, env=environment, stdin=subprocess.DEVNULL,
            stdout=log, stderr=subprocess.STDOUT)


def wait(runs: Mapping[str, subprocess.Popen]) -> None:
    """Wait for all, and say how far they are.

    :param runs: by path, without .log
    """
    began = said = time.monotonic()
    try:
        while any(run.poll() is None for run in runs.values()):
            time.sleep(1)
            if time.monotonic() - said > _PROGRESS_S:
                said = time.monotonic()
                far = ', '.join(f'{os.path.basename(path)} {_progress(path)}'
                                for path in runs)
                print(f'   {far} after {said - began:.0f} s', flush=True)
    finally:
        for run in runs.values():
            run.terminate()
            run.wait()


def show(stock: Mapping[str, compare.Outcome],
         vqos: Mapping[str, compare.Outcome]) -> int:
    """Print what both came to.

    :returns: exit status
    """
    differences = compare.compare(stock, vqos, KNOWN)
    print(compare.table(stock, vqos, differences))
    if not any(one.drivers for one in vqos.values()):
        print('error: no driver of nova_vqos sold units in any test',
              file=sys.stderr)
        return 1
    return compare.status(stock, vqos, differences)


def _node_id(test: str) -> str:
    """A test by its name in JUnit XML, for pytest."""
    module_and_class, name = test.rsplit('.', 1)
    return '::'.join((*module_and_class.rsplit('.', 1), name))


def _progress(path: str) -> str:
    with open(f'{path}.log', encoding='utf-8', errors='replace') as log:
        far = re.findall(r'\[ *(\d+%)\]', log.read())
    return far[-1] if far else '0%'


if __name__ == '__main__':
    sys.exit(main())
