# SPDX-License-Identifier: Apache-2.0
"""What libvirt's hook costs: it holds up every migration.

Measures, interleaved in one run, the time from start to end of the hook as it
is installed, and, as yardsticks, of ``/bin/true`` and of ``python -c pass``:
with the Python of this environment, whose packages may have work to do at its
start (``*.pth``), in an empty virtual environment, and without ``site``.
Prints medians and their ratios, and CPU time, which says on a busy machine
what the wall clock cannot. The hook is installed twice, so that the run shows
what it differs from itself by; with ``--beside`` also from another checkout.
Nothing of the host is touched.
"""

import argparse
import json
import pathlib
import random
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import typing as ty
import venv

from nova_vqos.calibration import benchmark
from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.profile import coefficients
from nova_vqos.profile import cpu
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import make_profiles

FIXTURE = (pathlib.Path(install.__file__).parents[1]
           / 'tests/fixtures/data/domain.xml')
# Of `python -c pass`.
AIM = 1.2
PYTHON = 'python -c pass'
HOOK = 'hook, server with units'
AGAIN = 'the same hook again'
LIMIT_S = 60
_BIG_XML_BYTES = 1024 * 1024


def make_profile():
    """A profile of 64 pCPUs in two classes, by all benchmarks.

    As a calibration of such a host writes it: each pCPU has 8 samples or more
    of each benchmark.
    """
    names = benchmark.DEFAULT_SET
    classes = []
    for first, coefficient in ((0, 0.8), (32, 1.25)):
        measurement = cpu.Measurement(
            coefficient, coefficient * 0.995, coefficient * 1.005, tuple(
                make_profiles.make_score(
                    coefficient, benchmark=name,
                    samples=tuple(650.25 + i for i in range(8 * 32)))
                for name in names))
        classes.append(cpu.CpuClass(
            frozenset(range(first, first + 32)), measurement, measurement))
    return make_profiles.make_profile(
        'bench', *classes, fingerprint={'tick_us': '4000'},
        reference=make_profiles.make_reference(
            'bench', *map(make_profiles.make_benchmark, names)))


class Case(ty.NamedTuple):
    """What to measure.

    :ivar forgotten: a file that is removed before each run; None: none
    """

    command: list[str]
    stdin: bytes = b''
    forgotten: pathlib.Path | None = None


def make_cases(directory, beside):
    """The cases by name.

    :param beside: another checkout of nova_vqos; None: none
    """
    this = pathlib.Path(install.__file__).parents[2]
    hook, _profile_path = install_hook(directory / 'A', this)
    again, _profile_path = install_hook(directory / 'B', this)
    first, profile_path = install_hook(directory / 'first', this)
    venv.create(directory / 'venv')
    console_script = pathlib.Path(
        sysconfig.get_path('scripts'), 'nova-vqos-libvirt-hook')
    xml = FIXTURE.read_bytes()
    stock_xml = b''.join(line for line in xml.splitlines(keepends=True)
                         if b'nova:extraSpec ' not in line)
    padding = b'<!--' + b' padding' * (_BIG_XML_BYTES // 8) + b'-->'
    begin = ['server', 'migrate', 'begin', '-']
    other = ['server', 'reconnect', 'begin', '-']
    cases = {
        '/bin/true': Case(['/bin/true']),
        PYTHON: Case([sys.executable, '-c', 'pass']),
        'the same, in an empty venv': Case(
            [str(directory / 'venv/bin/python'), '-c', 'pass']),
        'the same, without site': Case(
            [sys.executable, '-I', '-S', '-c', 'pass']),
        HOOK: Case([hook, *begin], xml),
        AGAIN: Case([again, *begin], xml),
        'hook, first with a profile': Case(
            [first, *begin], xml,
            pathlib.Path(f'{profile_path}{coefficients.SUFFIX}')),
        'hook, 1 MiB of XML': Case([hook, *begin], xml + padding),
        'hook, server without units': Case([hook, *begin], stock_xml),
        'hook, another operation': Case([hook, *other], xml),
        'console script': Case([str(console_script), *other], xml),
    }
    if beside:
        old, _profile_path = install_hook(directory / 'beside', beside)
        cases[f'hook of {beside}'[:31]] = Case([old, *begin], xml)
    return cases


def install_hook(directory, checkout):
    """Install the hook of a checkout.

    :returns: its path, and that of its profile
    """
    directory.mkdir()
    profile_path = directory / 'profile.yaml'
    document.store(make_profile(), str(profile_path))
    config = directory / 'hook.conf'
    config.write_text(f'[hook]\nprofile = {profile_path}\n')
    subprocess.run(
        [sys.executable, '-c', 'import sys; sys.path.insert(0, sys.argv[1]); '
         'from nova_vqos.hooks import install; install.install(*sys.argv[2:])',
         checkout, directory, config], check=True)
    return str(directory / default_path.HOOK_NAME), profile_path


def measure(cases, rounds):
    """Medians in milliseconds: {case: (from start to end, of CPU)}.

    In another order in each round: a command that always runs behind the same
    other one finds its caches.
    """
    times_ms = {name: [] for name in cases}
    order = list(cases)
    for number in range(-1, rounds):
        random.shuffle(order)
        for name in order:
            case = cases[name]
            if case.forgotten:
                case.forgotten.unlink(missing_ok=True)
            cpu_s, started_s = cpu_of_children_s(), time.perf_counter()
            run(case.command, case.stdin)
            # Not the first: it writes bytecode, and beside the profile.
            if number >= 0:
                times_ms[name].append(
                    ((time.perf_counter() - started_s) * 1e3,
                     (cpu_of_children_s() - cpu_s) * 1e3))
    return {name: tuple(map(statistics.median, zip(*times, strict=True)))
            for name, times in times_ms.items()}


def run(command, stdin):
    """Run a command to its end.

    NOTE: with a timeout, Python looks for the end in steps that double: all
    results would be 31.5 or 63.5 ms.
    """
    with subprocess.Popen(command, stdin=subprocess.PIPE,
                          stdout=subprocess.DEVNULL) as process:
        watchdog = threading.Timer(LIMIT_S, process.kill)
        watchdog.start()
        try:
            process.communicate(stdin)
        finally:
            watchdog.cancel()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def cpu_of_children_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--rounds', type=int, default=40)
    parser.add_argument('--beside', metavar='DIR', type=pathlib.Path,
                        help='measure the hook of this checkout as well')
    parser.add_argument('--json', metavar='FILE', help='also write this file')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        medians_ms = measure(make_cases(
            pathlib.Path(directory), options.beside), options.rounds)
    true_ms, _ = medians_ms['/bin/true']
    python_ms, python_cpu_ms = medians_ms[PYTHON]
    print(f'{"":31}median ms   / true   / {PYTHON}   CPU ms   / {PYTHON}')
    for name, (median_ms, cpu_ms) in medians_ms.items():
        print(f'{name:31}{median_ms:9.1f}{median_ms / true_ms:9.1f}'
              f'{median_ms / python_ms:19.2f}{cpu_ms:9.1f}'
              f'{cpu_ms / python_cpu_ms:19.2f}')
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(medians_ms, indent=2))
    hook_ms, _ = medians_ms[HOOK]
    again_ms, _ = medians_ms[AGAIN]
    print(f'the hook differs from itself by {abs(1 - again_ms / hook_ms):.1%}')
    is_met = hook_ms <= AIM * python_ms
    print(f'aim, {AIM} times {PYTHON}: {"met" if is_met else "missed"}')
    return not is_met


if __name__ == '__main__':
    sys.exit(main())
