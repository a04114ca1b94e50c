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

"""nova-vqos-calibrate io on this machine: real packets, real disks, short."""

import contextlib
import json
import os
import pathlib
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
from nova_vqos.billing import usage
from nova_vqos.calibration.io import disk
from nova_vqos.tests import make_profiles

PROGRAM = os.path.join(os.path.dirname(sys.executable), 'nova-vqos-calibrate')
MARK = 'NOVA_VQOS_TEST_RUN'
# A quiet machine needs 20 s of it.
TIMEOUT_S = 200
# As short as it can be.
SHORT = ('--sweeps', '4', '--max-seconds', '5', '--beside-guests')

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


@pytest.fixture(scope='module', autouse=True)
def tools():
    missing = [tool for tool in ('ip', 'nft', 'losetup', 'setpriv')
               if shutil.which(tool) is None]
    if len(os.sched_getaffinity(0)) < 2:
        missing.append('a second pCPU')
    if missing and os.environ.get('CI') == 'true':
        pytest.fail(f'{missing} are missing')
    if missing:
        pytest.skip(f'{missing} are missing')


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
    return os.environ | {MARK: mark,
                         'PYTHONPATH': os.pathsep.join(sys.path)}


def calibrate(mark, *arguments, before=(), **changes):
    return subprocess.run([*before, PROGRAM, 'io', *arguments], text=True,
                          capture_output=True, check=False,
                          timeout=TIMEOUT_S, env=environment(mark) | changes)


def machine():
    """What of the machine's own network somebody might have changed."""
    return [subprocess.run(command, check=True, capture_output=True).stdout
            for command in (
                ['ip', '-json', 'link', 'show'], ['ip', 'address', 'show'],
                ['nft', 'list', 'ruleset'])] + [
        pathlib.Path('/proc/sys/net/ipv4/ip_forward').read_text()]


@contextlib.contextmanager
def loop_device(directory, content=b''):
    file = directory / 'device'
    with file.open('wb') as made:
        made.write(content)
        made.truncate(disk.FILE_BYTES)
    done = subprocess.run(['losetup', '--find', '--show', str(file)],
                          check=False, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f'no loop device can be had: {done.stderr}')
    try:
        yield done.stdout.strip()
    finally:
        subprocess.run(['losetup', '--detach', done.stdout.strip()],
                       check=True)


def test_the_whole(path, mark, tmp_path):
    held, before = profile.load(path), machine()
    with loop_device(tmp_path) as device:
        done = calibrate(mark, path, *SHORT, '--disk-directory', '/var/tmp',
                         '--block-device', device, '-f', 'json')
        assert done.returncode == 0, done.stderr
        # So that it can be measured once more.
        assert not any(pathlib.Path(device).read_bytes())
    assert marked(mark) == []
    assert machine() == before
    rows = {(row['kind'], row['direction']): row
            for row in json.loads(done.stdout)}
    assert rows.keys() == {
        *((mode, direction) for mode in ('bridge', 'routed', 'nat')
          for direction in ('rx', 'tx')),
        *((kind, operation) for kind in (
            'file, direct', 'file, buffered', 'block, direct')
          for operation in ('read', 'write'))}
    for mode in ('bridge', 'routed', 'nat'):
        received = rows[mode, 'rx']
        # A few hundred instructions at least, and no millisecond.
        assert 100 < received['request_ns'] < 100_000
        assert received['low'] <= received['request_ns'] <= received['high']
        # Who sends pays for it all the way.
        assert rows[mode, 'tx']['request_ns'] < received['request_ns'] / 2
    written = profile.load(path)
    assert written._replace(io=None) == held
    costs = written.io_costs
    kind = usage.InterfaceKind('bridge', 'vhost')
    assert costs.interfaces[kind].rx.request_ns > 100
    assert usage.DiskKind('block', False) in costs.disks
    # However few samples there are, to wake somebody takes its time.
    wake = written.io_profile.wake
    assert 0 < wake.high < 1_000_000 and wake.low < wake.high
    assert written.io_profile.unmeasured.keys() == {
        'openvswitch', 'vhost', 'block, buffered'}
    assert 'openvswitch' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle(path, mark, number):
    held, before = profile.load(path), machine()
    with subprocess.Popen(
            [PROGRAM, 'io', path, '--beside-guests'], text=True,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            env=environment(mark)) as process:
        for line in process.stderr:
            if 'sweeps; so far' in line:
                break
        assert len(marked(mark)) > 4
        process.send_signal(number)
        process.communicate(timeout=TIMEOUT_S)
    assert process.returncode in (128 + number, -number)
    until = time.monotonic() + 10
    while marked(mark) and time.monotonic() < until:
        time.sleep(0.1)
    assert marked(mark) == []
    assert machine() == before
    assert profile.load(path) == held


def test_without_nft_the_rest_is_measured(path, mark, tmp_path):
    (tmp_path / 'ip').symlink_to(shutil.which('ip'))
    done = calibrate(mark, path, *SHORT, '-f', 'json', PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {row['kind'] for row in json.loads(done.stdout)} == {'bridge',
                                                                'routed'}
    assert 'nftables' in profile.load(path).io_profile.unmeasured['nat']
    assert 'install the package nftables' in done.stderr


def test_something_is_on_the_device(path, mark, tmp_path):
    held = profile.load(path)
    with loop_device(tmp_path, b'a file system') as device:
        done = calibrate(mark, path, *SHORT, '--block-device', device)
        assert done.returncode == 1
        assert 'which would be lost' in done.stderr
        assert pathlib.Path(device).read_bytes().startswith(b'a file system')
    assert profile.load(path) == held


@pytest.mark.parametrize(('before', 'arguments', 'said'), [
    (('setpriv', '--bounding-set', '-sys_admin'), (), 'run as root'),
    (('setpriv', '--bounding-set', '-net_admin'), (), 'CAP_NET_ADMIN'),
    ((), ('--disk-directory', '/dev/shm'), 'is on tmpfs, which has no disk'),
    ((), ('--disk-directory', '/none'), '/none is no directory'),
    ((), ('--block-device', '/dev/null'), 'is no block device'),
    ((), ('--pcpus', '0'), 'with two pCPUs, and here are 1'),
    ((), ('--mode', 'magic'), "choose from 'bridge', 'routed', 'nat'"),
    ((), ('--max-seconds', '-1'), "'-1' is not seconds"),
])
def test_what_cannot_be(path, mark, before, arguments, said):
    held = profile.load(path)
    done = calibrate(mark, path, '--beside-guests', *arguments,
                     before=before)
    assert done.returncode != 0
    assert said in done.stderr
    assert 'Traceback' not in done.stderr
    assert marked(mark) == []
    assert profile.load(path) == held


def test_a_profile_of_another_host(path, mark):
    held = profile.load(path)
    profile.store(held._replace(
        fingerprint=held.fingerprint | {'kernel': '1.0'}), path)
    done = calibrate(mark, path)
    assert done.returncode == 1
    assert "kernel was '1.0'" in done.stderr
