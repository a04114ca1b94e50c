# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate quantum on this machine: real work, short."""

import contextlib
import json
import platform
import signal
import subprocess
import time

import pytest

from nova_vqos.calibration import idle
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.quantum import bench
from nova_vqos.hypervisor.linux import sched_attr
from nova_vqos.profile import document
from nova_vqos.profile import quantum
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import calibration_run

# A quiet machine needs 12 s of it.
TIMEOUT_S = 120
# One kind and one slice, as short as it can be.
SHORT = ('--kind', 'neutral', '--slice', '30', '--max-seconds', '8',
         '--rounds', '3', '--beside-guests')

pytestmark = [pytest.mark.measured, pytest.mark.timeout(2 * TIMEOUT_S)]


mark, path = calibration_run.mark, calibration_run.path
environment, marked = calibration_run.environment, calibration_run.marked


@pytest.fixture(scope='module', autouse=True)
def tools():
    requirement.need_programs('sysbench')
    if sched_attr.slice_us(0) is None:
        requirement.need(f'Linux {platform.release()} has no slices to set')


def tree():
    mount, _own = idle.hierarchy('/')
    return mount / bench.TREE


def calibrate(mark, *arguments):
    return calibration_run.run(mark, 'quantum', *arguments,
                               timeout_s=TIMEOUT_S)


def test_one_kind(request, path, mark):
    held = document.load(path)
    done = calibrate(mark, path, *SHORT, '-f', 'json')
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row['runnable'], row['slice_ms']) for row in rows] == [
        (runnable, slice_ms) for runnable in (2, 4)
        for slice_ms in ('default', '30')]
    made = document.load(path)
    assert made._replace(quantum=None).id == held.id
    (curve,) = made.quantum_profile.curves
    assert curve.kind == 'neutral'
    assert all(0.2 < curve.normalised(point) < 5 for point in curve.points)
    assert made.quantum_profile.unmeasured.keys() == (
        quantum.CLASSES.keys() - {'neutral'})
    # Nothing is left of it.
    assert marked(mark) == []
    assert not tree().exists()
    if any(point.disturbed for point in curve.points):
        requirement.undecided(
            request.node,
            'others were at work on the pCPU: no slice holds there')
    # Whatever it costs: longer slices were really had.
    for runnable in curve.runnables:
        default, longer = curve.points_of(runnable)
        assert longer.mean_run_us > 2 * default.mean_run_us


@contextlib.contextmanager
def at_work(mark, path):
    """A run, while its servers are started."""
    # NOTE: where a shell runs the tests in the background, it has them, and
    # all that they start, ignore SIGINT.
    with subprocess.Popen(
            ['env', '--default-signal=INT', calibration_run.PROGRAM,
             'quantum', path, *SHORT],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            env=environment(mark)) as process:
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(marked(mark)) < 4:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.02)
        yield process


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_ended_early_it_leaves_nothing(path, mark, number):
    before = document.load(path)
    with at_work(mark, path) as process:
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) != 0
    assert marked(mark) == []
    assert not tree().exists()
    assert document.load(path).id == before.id


def test_killed_it_leaves_nobody_at_work(path, mark):
    """What it cannot remove then, the next one does."""
    with at_work(mark, path) as process:
        process.kill()
    deadline_s = time.monotonic() + TIMEOUT_S
    while marked(mark):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    with server_groups.Tree(bench.TREE):
        pass
    assert not tree().exists()


def test_what_cannot_be_done_is_said(path, mark):
    before = document.load(path)
    done = calibrate(mark, path, '--pcpus', '8000')
    assert done.returncode == 1
    assert 'pCPUs 8000 cannot be used' in done.stderr
    assert 'Traceback' not in done.stderr
    assert document.load(path).id == before.id


@pytest.mark.parametrize('arguments', [
    ['--kind', 'batch'], ['--slice', '0.05'], ['--rounds', '2']])
def test_bad_options(path, mark, arguments):
    done = calibrate(mark, path, *arguments)
    assert done.returncode == 2
    assert 'usage: ' in done.stderr
