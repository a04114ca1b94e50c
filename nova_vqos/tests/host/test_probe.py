# SPDX-License-Identifier: Apache-2.0
"""The probe on this kernel."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import pytest

from nova_vqos.calibration import idle
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import probe
from nova_vqos.cmd import probe as command
from nova_vqos.quantum import classes
from nova_vqos.quantum import probe_result
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import test_slices
from nova_vqos_lab import process

LIMIT_S = 60
GROUP = 'nova-vqos-probe-test'
FREE = ('default', 'neutral', 'spin')

# Two processes in its groups. They want no time: how much they get is the
# machine's affair.
_WORK = f"""
import contextlib
import functools
import signal
import time
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.probe import spinners
from nova_vqos.cmd import probe
signal.signal(signal.SIGTERM, probe._exit)
with (server_groups.Tree({GROUP!r}, is_idle=False) as tree,
      contextlib.ExitStack() as stack):
    for name in 'ab':
        stack.enter_context(spinners.process(
            {min(os.sched_getaffinity(0))},
            functools.partial(spinners.enter_as_vcpu, tree.server(name)),
            lambda: time.sleep({10 * LIMIT_S})))
    print('at work', flush=True)
    time.sleep({10 * LIMIT_S})
"""


def run(*arguments):
    return subprocess.run(
        [sys.executable, '-m', 'nova_vqos.cmd.probe', '--config-dir',
         os.devnull, *arguments], capture_output=True, text=True,
        check=False, timeout=LIMIT_S)


def group(name):
    mount, _own = idle.hierarchy('/')
    return pathlib.Path(mount, name)


@pytest.mark.measured
@test_slices.needs_slices
def test_what_this_kernel_enforces(request, tmp_path):
    path = str(tmp_path / 'quantum.json')
    done = run('--record', path, '-f', 'json')
    assert done.returncode in (0, command.NOT_MEASURED), done.stderr
    found = {row['class']: row for row in json.loads(done.stdout)}
    if done.returncode == command.NOT_MEASURED:
        requirement.undecided(request.node, next(
            row['reason'] for row in found.values()
            if row['enforced'] is None))
    assert found['default']['enforced']
    assert probe_result.enforced_classes(
        probe_result.load(path), classes.DEFAULT_SLICES_US) == (
            *FREE, 'io', 'cache')
    assert found['cache']['slice_us'] == classes.DEFAULT_SLICES_US['cache']
    # It gets its pCPU before others, whatever the tick.
    assert classes.MIN_SLICE_US <= found['io']['slice_us'] < 3000
    assert found['io']['wait_us'] < found['default']['wait_us']
    assert not group(probe.NAME).exists()


def test_a_busy_machine_is_not_measured(tmp_path):
    path = tmp_path / 'quantum.json'
    pcpus = sorted(os.sched_getaffinity(0))
    # Each of them is taken from the probe, not from others.
    busy = [subprocess.Popen(
        [sys.executable, '-c', f'import os; os.sched_setaffinity(0, {{{pcpu}}}'
         '); print(flush=True)\nwhile True: pass'], stdout=subprocess.PIPE)
        for pcpu in pcpus]
    try:
        for spinner in busy:
            spinner.stdout.read(1)
        done = run('--record', str(path))
    finally:
        for spinner in busy:
            spinner.kill()
            spinner.communicate()
    assert done.returncode == command.NOT_MEASURED, done.stderr
    assert 'not measured: no pCPU was idle' in done.stdout
    assert probe_result.enforced_classes(
        probe_result.load(str(path)), classes.DEFAULT_SLICES_US) == FREE
    assert not group(probe.NAME).exists()


@pytest.mark.parametrize('number, left', [(signal.SIGTERM, False),
                                          (signal.SIGKILL, True)])
def test_nothing_runs_on_when_it_is_ended(number, left):
    with subprocess.Popen([sys.executable, '-c', _WORK],
                          stdout=subprocess.PIPE) as started:
        assert started.stdout.readline() == b'at work\n'
        # Threaded groups of version 2 list no processes. Each has one thread.
        files = [file for name in ('tasks', 'cgroup.threads')
                 for file in group(GROUP).rglob(name)]
        tasks = [int(task) for file in files
                 for task in file.read_text().split()]
        assert len(set(tasks)) == 2
        started.send_signal(number)
        assert started.wait(LIMIT_S) != 0
    process.wait_until(
        lambda: not any(map(is_alive, tasks)), LIMIT_S,
        'the end of what it had started')
    assert group(GROUP).exists() is left
    if left:
        with server_groups.Tree(GROUP, is_idle=False):
            pass
        # The next one takes it over, and away.
        assert not group(GROUP).exists()


def is_alive(pid):
    try:
        with open(f'/proc/{pid}/stat', encoding='ascii') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False
