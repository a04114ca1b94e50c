#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0

"""Shows which faults in a module its unit tests would miss.

Makes mutants of the module, one small change each, and runs the module's
tests against each of them. A mutant that no test fails for has survived: a
test is missing, or the change makes no difference. Survivors are shown as
diffs. Needs the environment of tools/test.sh; mutmut, whose operators these
are, is installed below build. All runs in a copy of the tree.

Besides mutmut's operators, conditions are negated and calls whose result is
not used are left out. Other than `mutmut run`, constants and properties count.
Annotations, casts, decorators, log lines and texts with a space do not: tests
assert on no sentence.
"""

import argparse
import builtins
import collections
from collections.abc import Callable, Sequence
import contextlib
import importlib.util
import json
import os
import pathlib
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import typing as ty

TOP = pathlib.Path(__file__).resolve().parent.parent
REQUIREMENTS = ('mutmut==3.8.1', 'libcst==1.9.0')
LIBRARY = TOP / 'build' / '-'.join(REQUIREMENTS).replace('==', '-')
RESULTS = TOP / 'build' / 'mutants'
UNIT = 'nova_vqos/tests/unit/'

# Modules that are run where none is named, and the tests of those that have
# others than test_MODULE*.py in the folder that mirrors theirs.
CAPS = (UNIT + 'agent/caps',)
MODULES = {
    'nova_vqos/units.py': (
        UNIT + 'test_units.py', UNIT + 'test_cputune.py',
        UNIT + 'test_policy.py', UNIT + 'test_work.py'),
    'nova_vqos/cputune.py': (
        UNIT + 'test_cputune.py', UNIT + 'test_work.py',
        UNIT + 'agent/correction', *CAPS),
    'nova_vqos/policy.py': (UNIT + 'test_policy.py',),
    'nova_vqos/billing/charge.py': (
        UNIT + 'billing/test_charge.py', UNIT + 'agent/caps/test_charged.py'),
    'nova_vqos/hooks/rewrite.py': (UNIT + 'hooks',),
    'nova_vqos/scheduler/filter.py': (
        UNIT + 'scheduler/test_filter.py',
        UNIT + 'scheduler/test_filter_core_types.py',
        UNIT + 'scheduler/test_prefilter.py'),
    'nova_vqos/scheduler/fitness.py': (
        UNIT + 'scheduler/test_fitness.py', UNIT + 'scheduler/test_filter.py',
        UNIT + 'scheduler/test_filter_core_types.py'),
    'nova_vqos/agent/caps/controller.py': (
        *CAPS, UNIT + 'agent/burst/test_controller.py',
        UNIT + 'agent/ceiling/test_controller.py'),
    'nova_vqos/agent/caps/desired.py': CAPS,
    'nova_vqos/agent/caps/pinning.py': CAPS,
    'nova_vqos/agent/caps/state.py': CAPS,
}

KILLED, SURVIVED, TIMEOUT, BROKEN = 'killed', 'survived', 'timeout', 'broken'
# By pytest's exit status; a mutant that cannot be imported interrupts it, or
# has no tests, one that ends it by a signal does not pass them.
OUTCOMES = {0: SURVIVED, 1: KILLED, 2: KILLED, 4: KILLED}
MEMORY_BYTES = 4 << 30
PROGRESS_S = 30.0


def install() -> ty.Any:
    """:returns: the module that makes mutants, with what it needs"""
    if not LIBRARY.is_dir():
        # Whole or not at all, and for another run as well.
        LIBRARY.parent.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=LIBRARY.parent) as directory:
            made = pathlib.Path(directory, 'library')
            subprocess.run([sys.executable, '-m', 'pip', 'install', '-q',
                            '--no-deps', '--target', str(made),
                            *REQUIREMENTS], check=True)
            with contextlib.suppress(OSError):
                made.rename(LIBRARY)
    # Last: pytest is that of the environment.
    sys.path += [str(LIBRARY), str(TOP / 'tools' / 'lib')]
    return importlib.import_module('mutants')


def copy_tree(directory: pathlib.Path) -> None:
    """Copy what is in the checkout, but for what git ignores."""
    names = subprocess.run(
        ['git', 'ls-files', '-z', '--cached', '--others',
         '--exclude-standard'], cwd=TOP, check=True, capture_output=True,
        text=True).stdout.split('\0')
    for name in filter(None, names):
        if (TOP / name).is_file():
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(TOP / name, directory / name)


def tests_of(module: str) -> list[str]:
    """The files and folders of a module's unit tests."""
    if MODULES.get(module):
        return list(MODULES[module])
    path = pathlib.Path(module)
    folder = TOP / UNIT / path.parent.relative_to('nova_vqos')
    return [str(found.relative_to(TOP))
            for found in sorted(folder.glob(f'test_{path.stem}*.py'))]


def mutate_import(module: str, source: str) -> None:
    """Have a module imported from another source."""
    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, _fullname: str) -> ty.Any:
            return compile(source, module, 'exec', dont_inherit=True)

    class Finder:
        @staticmethod
        def find_spec(name: str, _path: ty.Any, _target: ty.Any = None
                      ) -> ty.Any:
            if name != module.removesuffix('.py').replace('/', '.'):
                return None
            return importlib.util.spec_from_file_location(
                name, module, loader=Loader(name, module))
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def fork(work: Callable[[], int]) -> int:
    """Do something in a child that says nothing; its process id."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(nothing, number)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        status = work()
    finally:
        os._exit(status)


def run_pytest(arguments: Sequence[str], *plugins: object) -> int:
    import hypothesis
    import pytest

    # To shrink what failed is of no use here.
    hypothesis.settings.register_profile(
        'mutants', deadline=None, database=None,
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),
        suppress_health_check=[hypothesis.HealthCheck.too_slow])
    return int(pytest.main([
        '-x', '-q', '-W', 'ignore', '-p', 'no:cacheprovider', '--tb=no',
        '--hypothesis-profile=mutants', '--hypothesis-seed=0', *arguments],
        plugins))


def warm_up(tests: Sequence[str]) -> None:
    """Import what the tests need of others, so that no child has to."""
    with tempfile.NamedTemporaryFile() as listed:
        def work() -> int:
            status = run_pytest(['--collect-only', *tests])
            with open(listed.name, 'w') as stream:
                json.dump(list(sys.modules), stream)
            return status
        os.waitpid(fork(work), 0)
        names = json.load(listed) if os.stat(listed.name).st_size else []
    os.environ.setdefault('OS_NOVA_DISABLE_EVENTLET_PATCHING', '1')
    # As conftest.py does, which is too late once its imports were done.
    importlib.import_module('nova.monkey_patch').patch()
    for name in names:
        if not name.startswith(('nova_vqos', 'conftest', '__', 'test_')):
            try:
                importlib.import_module(name)
            except Exception:  # nosec B112
                # A child imports it, or fails.
                continue


class Recorder:
    """A plugin of pytest that records which functions each test calls.

    :ivar called: functions that were called in this test
    :ivar calls: by test, how long it took, and the functions that it called
    """

    def __init__(self) -> None:
        self.called: set[int] = set()
        self.calls: dict[str, tuple[float, list[int]]] = {}
        self._began_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        self.called.clear()
        self._began_s = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.calls[nodeid] = (time.monotonic() - self._began_s,
                              sorted(self.called))


class Killer:
    """A plugin of pytest that writes down the test that fails."""

    def __init__(self, target: int) -> None:
        self._target = target

    def pytest_runtest_logreport(self, report: ty.Any) -> None:
        if report.failed:
            os.write(self._target, report.nodeid.encode())


class Runner:
    """Runs the tests of one module against its mutants."""

    def __init__(self, module: str, recording: str, tests: Sequence[str],
                 jobs: int) -> None:
        """:param recording: source of the module, see mutants.recording()"""
        self._module = module
        self._recording = recording
        self._tests = tests
        self._jobs = jobs
        self._calls: dict[str, tuple[float, list[int]]] = {}
        # Tests that killed, by the function of the mutant, the last one last.
        self._killers: dict[ty.Any, list[str]] = collections.defaultdict(list)
        self._running: dict[int, tuple[ty.Any, float, int]] = {}
        self.outcomes: dict[ty.Any, str] = {}

    def check(self) -> float:
        """Run the tests against the module as it is; how long that takes."""
        with tempfile.NamedTemporaryFile() as calls:
            def work() -> int:
                recorder = Recorder()
                builtins.record_call = recorder.called.add
                mutate_import(self._module, self._recording)
                status = run_pytest(self._tests, recorder)
                with open(calls.name, 'w') as stream:
                    json.dump(recorder.calls, stream)
                return status
            _pid, status = os.waitpid(fork(work), 0)
            if status:
                raise SystemExit(
                    f'error: the tests of {self._module} fail without any '
                    f'mutant: {" ".join(self._tests)}')
            self._calls = json.load(calls)
        return sum(took_s for took_s, _called in self._calls.values())

    def run(self, mutants: Sequence[ty.Any], limit_s: float,
            timeout_s: float) -> None:
        began_s = shown_s = time.monotonic()
        left = list(reversed(mutants))
        try:
            while left or self._running:
                while left and len(self._running) < self._jobs:
                    self._begin(left.pop(), time.monotonic() + timeout_s)
                self._wait()
                now_s = time.monotonic()
                if now_s - began_s > limit_s:
                    left.clear()
                if sys.stdout.isatty() or now_s - shown_s > PROGRESS_S:
                    shown_s = now_s
                    self._show(len(mutants), now_s - began_s)
        finally:
            for pid in self._running:
                os.kill(pid, signal.SIGKILL)

    def _tests_of(self, mutant: ty.Any) -> list[str]:
        """Those that call the function with the mutant.

        Those come first that killed others in this function, then the
        fastest. A mutant outside of all functions concerns all tests.
        """
        if mutant.function is None:
            # As files: they may have other tests then, or none.
            return list(self._tests)
        tests = [test for test, (_took_s, called) in self._calls.items()
                 if mutant.function in called]
        killers = self._killers[mutant.function]
        return sorted(tests, key=lambda test: (
            -killers.index(test) - 1 if test in killers else 0,
            self._calls[test][0]))

    def _begin(self, mutant: ty.Any, deadline_s: float) -> None:
        tests = self._tests_of(mutant)
        if not tests:
            self.outcomes[mutant] = SURVIVED
            return
        killer, target = os.pipe()

        def work() -> int:
            mutate_import(self._module, mutant.source)
            return run_pytest(tests, Killer(target))
        self._running[fork(work)] = mutant, deadline_s, killer
        os.close(target)

    def _wait(self) -> None:
        if not self._running:
            return
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid in self._running:
            code = os.waitstatus_to_exitcode(status)
            self._finish(pid, OUTCOMES.get(
                code, KILLED if code < 0 else BROKEN))
            return
        time.sleep(0.01)
        for pid, (_mutant, deadline_s, _killer) in list(
                self._running.items()):
            if time.monotonic() > deadline_s:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                self._finish(pid, TIMEOUT)

    def _finish(self, pid: int, outcome: str) -> None:
        mutant, _deadline_s, killer = self._running.pop(pid)
        self.outcomes[mutant] = outcome
        with open(killer) as stream:
            test = stream.read()
        killers = self._killers[mutant.function]
        if test in killers:
            killers.remove(test)
        if test:
            killers.append(test)

    def _show(self, number: int, took_s: float) -> None:
        end = '\r' if sys.stdout.isatty() else '\n'
        print(f'{len(self.outcomes)} of {number} mutants, '
              f'{self.count(SURVIVED)} survived, {took_s:.0f} s', end=end,
              flush=True)

    def count(self, *outcomes: str) -> int:
        return sum(found in outcomes for found in self.outcomes.values())


def run_module(module: str, maker: ty.Any,
               arguments: argparse.Namespace) -> str:
    """:returns: a line of the table"""
    source = pathlib.Path(module).read_text()
    mutants = maker.make(source)
    tests = arguments.test or tests_of(module)
    if not tests:
        raise SystemExit(f'error: {module} has no tests of its own: name them')
    stored = RESULTS / f'{module.replace("/", ".")}.json'
    if arguments.lines:
        first, last = map(int, arguments.lines.split('-'))
        mutants = [mutant for mutant in mutants
                   if first <= mutant.line <= last]
    left: list[str] = []
    if arguments.again:
        if not stored.is_file():
            raise SystemExit(f'error: {module} was not run before')
        left = json.loads(stored.read_text())
        mutants = [mutant for mutant in mutants if mutant.change in left]
    number = len(mutants)
    if arguments.sample and arguments.sample < number:
        mutants = random.Random(arguments.seed).sample(
            mutants, arguments.sample)
    print(f'\n{module}: {len(mutants)} of {number} mutants; '
          f'{" ".join(tests)}', flush=True)
    warm_up(tests)
    runner = Runner(module, maker.recording(source), tests, arguments.jobs)
    whole_s = runner.check()
    began_s = time.monotonic()
    runner.run(mutants, arguments.minutes * 60, timeout_s=5 + 5 * whole_s)
    survivors = [mutant for mutant, outcome in runner.outcomes.items()
                 if outcome in (SURVIVED, BROKEN)]
    for mutant in survivors:
        print(f'\n{module}:{mutant.line} {runner.outcomes[mutant]}\n'
              f'{mutant.change}')
    RESULTS.mkdir(parents=True, exist_ok=True)
    tried_again = {mutant.change for mutant in runner.outcomes}
    stored.write_text(json.dumps(
        [mutant.change for mutant in survivors]
        + [change for change in left if change not in tried_again], indent=1))
    tried, killed = len(runner.outcomes), runner.count(KILLED, TIMEOUT)
    return (f'{module:36} {tried:5} of {number:4} mutants: '
            f'{killed:4} killed ({runner.count(TIMEOUT)} by time), '
            f'{tried - killed:3} survived: {100 * killed / max(1, tried):.1f}'
            f' %; {time.monotonic() - began_s:.0f} s')


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        'module', nargs='?', help='e.g. nova_vqos/units.py; all of those of '
        'MODULES in this file where none is named')
    parser.add_argument(
        'test', nargs='*', help='files of tests; test_MODULE*.py of its '
        'folder, or those of MODULES in this file, where none is named')
    parser.add_argument('--lines', metavar='FIRST-LAST',
                        help='only mutants of these lines of the module')
    parser.add_argument('--again', action='store_true',
                        help='only mutants that survived the last time')
    parser.add_argument('--sample', type=int, metavar='N',
                        help='only N mutants of each module, chosen at random')
    parser.add_argument('--seed', type=int, default=0, metavar='N',
                        help='of the sample; 0 without it')
    parser.add_argument('--jobs', type=int, default=1, metavar='N',
                        help='run N mutants at once; 1 without it')
    parser.add_argument(
        '--minutes', type=float, default=30.0, metavar='N',
        help='stop after N minutes for each module; 30 without it')
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    maker = install()
    # Each mutant imports the rest anew.
    sys.dont_write_bytecode = False
    with tempfile.TemporaryDirectory() as directory:
        copy_tree(pathlib.Path(directory))
        os.chdir(directory)
        sys.path.insert(0, directory)
        lines = [run_module(module, maker, arguments)
                 for module in ([arguments.module] if arguments.module
                                else MODULES)]
    print('', *lines, sep='\n')
    return 0


if __name__ == '__main__':
    sys.exit(main())
