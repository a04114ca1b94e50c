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

"""Nova's own functional tests of its libvirt driver, with ours and with its.

Both run at once, each with half of the workers, on the Nova that is
installed. Ours sells units, on a calibrated host, and takes servers without:
what Nova's tests boot. Many of them give Nova ten seconds for something: what
differs on a busy machine is to be run again by itself (-k).
"""

import argparse
from collections.abc import Sequence
import contextlib
import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import time

from nova_vqos import fingerprint
from nova_vqos import profile as profiles
from nova_vqos.tests import functional
from nova_vqos.tests.functional import host_files
from nova_vqos.tests.upstream import compare
from nova_vqos.tests.upstream import plugin

TESTS = 'nova.tests.functional.libvirt'
# Of a test: Nova's own bound first, then that of its worker.
_TEST_S = 300
_WORKER_S = 420
_PROGRESS_S = 60

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
    runs = {driver: start(driver, options, directory)
            for driver in (plugin.STOCK, plugin.VQOS)}
    wait(runs, directory)
    # 1: tests failed, which is shown. All else is no run.
    for driver, run in runs.items():
        if run.returncode not in (0, 1):
            print(f'error: pytest with {driver} ended with {run.returncode}, '
                  f'see {_log(directory, driver)}', file=sys.stderr)
            return 1
    return show(directory)


def write_host_files(directory: str) -> None:
    """Write a profile that fits this machine, for all hosts of the tests."""
    profiles.store(
        host_files.make_profile('compute1', {'0-15': 1.0},
                                fingerprint=fingerprint.of_host()),
        os.path.join(directory, 'profile.yaml'))


def start(driver: str, options: argparse.Namespace,
          directory: str) -> subprocess.Popen:
    """Start the tests with one of the two drivers."""
    with contextlib.suppress(FileNotFoundError):
        # Of an earlier run.
        os.unlink(_junit(directory, driver))
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
    command = [
        sys.executable, '-m', 'pytest', '-v', '-W', 'ignore',
        '-p', plugin.__name__, '-p', 'no:cacheprovider',
        '--timeout', str(_WORKER_S), '--timeout-method', 'thread',
        '-o', 'junit_family=xunit1', '--junit-xml', _junit(directory, driver),
        '--compute-driver', driver, '--pyargs', options.tests]
    if functional.THREADED:
        # On eventlet xdist's workers hang.
        command += ['-n', str(options.workers), '--max-worker-restart', '20']
    if options.k:
        command += ['-k', options.k]
    with open(_log(directory, driver), 'wb') as log:
        return subprocess.Popen(command, cwd=directory, env=environment,
                                stdin=subprocess.DEVNULL, stdout=log,
                                stderr=subprocess.STDOUT)


def wait(runs: dict[str, subprocess.Popen], directory: str) -> None:
    """Wait for both, and say how far they are."""
    began = said = time.monotonic()
    try:
        while any(run.poll() is None for run in runs.values()):
            time.sleep(1)
            if time.monotonic() - said > _PROGRESS_S:
                said = time.monotonic()
                far = ', '.join(f'{driver} {_progress(directory, driver)}'
                                for driver in runs)
                print(f'   {far} after {said - began:.0f} s', flush=True)
    finally:
        for run in runs.values():
            run.terminate()
            run.wait()


def show(directory: str) -> int:
    """Print what both came to.

    :returns: exit status
    """
    try:
        stock, vqos = (
            compare.read_junit(_junit(directory, driver), plugin.DRIVERS)
            for driver in (plugin.STOCK, plugin.VQOS))
    except (OSError, ValueError) as exc:
        print(f'error: a run came to nothing: {exc}', file=sys.stderr)
        return 1
    differences = compare.compare(stock, vqos, KNOWN)
    print(compare.table(stock, vqos, differences))
    if not any(one.drivers for one in vqos.values()):
        print('error: no driver of nova_vqos sold units in any test',
              file=sys.stderr)
        return 1
    return compare.status(stock, vqos, differences)


def _progress(directory: str, driver: str) -> str:
    with open(_log(directory, driver), encoding='utf-8',
              errors='replace') as log:
        far = re.findall(r'\[ *(\d+%)\]', log.read())
    return far[-1] if far else '0%'


def _junit(directory: str, driver: str) -> str:
    return os.path.join(directory, f'{driver}.xml')


def _log(directory: str, driver: str) -> str:
    return os.path.join(directory, f'{driver}.log')


if __name__ == '__main__':
    sys.exit(main())
