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

"""nova-vqos-calibrate quantum on this machine: real work, short."""

import contextlib
import json
import os
import pathlib
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid

import pytest

from nova_vqos import fingerprint
from nova_vqos import profile
from nova_vqos import quantum_profile
from nova_vqos.calibration import idle
from nova_vqos.calibration import server_groups
from nova_vqos.calibration.quantum import bench
from nova_vqos.hypervisor import sched_attr
from nova_vqos.tests import make_profiles

PROGRAM = os.path.join(os.path.dirname(sys.executable), 'nova-vqos-calibrate')
MARK = 'NOVA_VQOS_TEST_RUN'
# A quiet machine needs 12 s of it.
TIMEOUT_S = 120
# One kind and one slice, as short as it can be.
SHORT = ('--kind', 'neutral', '--slice', '30', '--max-seconds', '8',
         '--rounds', '3', '--beside-guests')

pytestmark = [pytest.mark.quiet, pytest.mark.timeout(2 * TIMEOUT_S)]


@pytest.fixture(scope='module', autouse=True)
def tools():
    if shutil.which('sysbench') is None:
        if os.environ.get('CI') == 'true':
            pytest.fail('sysbench is not installed')
        pytest.skip('sysbench is not installed')
    if sched_attr.slice_us(0) is None:
        pytest.skip(f'Linux {platform.release()} has no slices to set')


@pytest.fixture
def path(tmp_path):
    """The profile of this host, made up but for its fingerprint."""
    made = str(tmp_path / 'profile.yaml')
    profile.store(make_profiles.make_profile(
        socket.gethostname(),
        make_profiles.make_class(os.sched_getaffinity(0), 1.0),
        fingerprint=fingerprint.of_host()), made)
    return made


@pytest.fixture
def mark():
    """Tells what a run started from all else; nothing of it may be left."""
    made = uuid.uuid4().hex
    yield made
    for process in marked(made):
        os.kill(process, signal.SIGKILL)


def marked(mark):
    found = []
    for process in pathlib.Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if f'{MARK}={mark}'.encode() in (process / 'environ').read_bytes():
                found.append(int(process.name))
    return found


def environment(mark):
    return os.environ | {MARK: mark, 'PYTHONPATH': os.pathsep.join(sys.path)}


def tree():
    mount, _own = idle.hierarchy('/')
    return mount / bench.TREE


def calibrate(mark, *arguments):
    return subprocess.run([PROGRAM, 'quantum', *arguments], text=True,
                          capture_output=True, check=False,
                          timeout=TIMEOUT_S, env=environment(mark))


def test_one_kind(path, mark):
    held = profile.load(path)
    done = calibrate(mark, path, *SHORT, '-f', 'json')
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row['runnable'], row['slice_ms']) for row in rows] == [
        (runnable, slice_ms) for runnable in (2, 4)
        for slice_ms in ('default', '30')]
    made = profile.load(path)
    assert made._replace(quantum=None).id == held.id
    (curve,) = made.quantum_profile.curves
    assert curve.kind == 'neutral'
    assert all(0.2 < curve.normalised(point) < 5 for point in curve.points)
    assert made.quantum_profile.unmeasured.keys() == (
        quantum_profile.CLASSES.keys() - {'neutral'})
    # Nothing is left of it.
    assert marked(mark) == []
    assert not tree().exists()
    if any(point.disturbed for point in curve.points):
        pytest.skip('others were at work on the pCPU: no slice holds there')
    # Whatever it costs: longer slices were really had.
    for runnable in curve.runnables:
        default, longer = curve.of(runnable)
        assert longer.mean_run_us > 2 * default.mean_run_us


@contextlib.contextmanager
def at_work(mark, path):
    """A run, while its servers are started."""
    # NOTE: where a shell runs the tests in the background, it has them, and
    # all that they start, ignore SIGINT.
    with subprocess.Popen(
            ['env', '--default-signal=INT', PROGRAM, 'quantum', path, *SHORT],
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
    before = profile.load(path)
    with at_work(mark, path) as process:
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) != 0
    assert marked(mark) == []
    assert not tree().exists()
    assert profile.load(path).id == before.id


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


@pytest.mark.parametrize(('arguments', 'said'), [
    (['--max-seconds', '1'], '--max-seconds 1 is too little for 3 rounds'),
    (['--pcpus', '8000'], 'pCPUs 8000 cannot be used')])
def test_what_cannot_be_done_is_said(path, mark, arguments, said):
    before = profile.load(path)
    done = calibrate(mark, path, *arguments)
    assert done.returncode == 1
    assert said in done.stderr
    assert 'Traceback' not in done.stderr
    assert profile.load(path).id == before.id


@pytest.mark.parametrize('arguments', [
    ['--kind', 'batch'], ['--slice', '0.05'], ['--slice', '101'],
    ['--rounds', '2'], ['--max-seconds', '0']])
def test_bad_options(path, mark, arguments):
    done = calibrate(mark, path, *arguments)
    assert done.returncode == 2
    assert 'usage: ' in done.stderr
