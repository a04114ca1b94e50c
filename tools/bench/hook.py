# SPDX-License-Identifier: Apache-2.0
"""What libvirt's hook costs: it holds up every migration.

Measures, interleaved in one run, the time from start to end of the hook as it
is installed, and, as yardsticks, of ``/bin/true`` and ``python -c pass`` with
the same Python. Prints medians and their ratios, and CPU time, which says on a
busy machine what the wall clock cannot. Nothing of the host is touched.
"""

import argparse
import json
import pathlib
import resource
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time

from nova_vqos.calibration import benchmark
from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.profile import cpu
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import make_profiles

FIXTURE = (pathlib.Path(install.__file__).parents[1]
           / 'tests/fixtures/data/domain.xml')
# Of `python -c pass`.
AIM = 1.2
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


def make_cases(directory):
    """What to measure: {name: (command, stdin)}."""
    profile_path = directory / 'profile.yaml'
    document.store(make_profile(), str(profile_path))
    config = directory / 'hook.conf'
    config.write_text(f'[hook]\nprofile = {profile_path}\n')
    install.install(str(directory), str(config))
    hook = str(directory / default_path.HOOK_NAME)
    console_script = pathlib.Path(
        sysconfig.get_path('scripts'), 'nova-vqos-libvirt-hook')
    xml = FIXTURE.read_bytes()
    stock_xml = b''.join(line for line in xml.splitlines(keepends=True)
                         if b'nova:extraSpec ' not in line)
    padding = b'<!--' + b' padding' * (_BIG_XML_BYTES // 8) + b'-->'
    begin = ['server', 'migrate', 'begin', '-']
    return {
        '/bin/true': (['/bin/true'], b''),
        'python -c pass': ([sys.executable, '-c', 'pass'], b''),
        'hook, server with units': ([hook, *begin], xml),
        'hook, 1 MiB of XML': ([hook, *begin], xml + padding),
        'hook, server without units': ([hook, *begin], stock_xml),
        'hook, another operation': (
            [hook, 'server', 'reconnect', 'begin', '-'], xml),
        'console script': ([str(console_script), 'server', 'reconnect',
                            'begin', '-'], xml),
    }


def measure(cases, rounds):
    """Medians in milliseconds: {case: (from start to end, of CPU)}."""
    times_ms = {name: [] for name in cases}
    for _ in range(rounds):
        for name, (command, stdin) in cases.items():
            cpu_s, started_s = cpu_of_children_s(), time.perf_counter()
            run(command, stdin)
            times_ms[name].append(((time.perf_counter() - started_s) * 1e3,
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
    parser.add_argument('--json', metavar='FILE', help='also write this file')
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        medians_ms = measure(make_cases(pathlib.Path(directory)),
                             options.rounds)
    true_ms, _ = medians_ms['/bin/true']
    python_ms, _ = medians_ms['python -c pass']
    print(f'{"":28}median ms   / true   / python -c pass   CPU ms')
    for name, (median_ms, cpu_ms) in medians_ms.items():
        print(f'{name:28}{median_ms:9.1f}{median_ms / true_ms:9.1f}'
              f'{median_ms / python_ms:19.2f}{cpu_ms:9.1f}')
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(medians_ms, indent=2))
    hook_ms, _ = medians_ms['hook, server with units']
    is_met = hook_ms <= AIM * python_ms
    print(f'aim, {AIM} times python -c pass: {"met" if is_met else "missed"}')
    return not is_met


if __name__ == '__main__':
    sys.exit(main())
