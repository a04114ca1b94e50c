# SPDX-License-Identifier: Apache-2.0
"""nova-vqos-calibrate io on this machine: real packets, real disks, short."""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest

from nova_vqos.billing import usage
from nova_vqos.calibration.io import disk
from nova_vqos.calibration.io import network
from nova_vqos.calibration.io import traffic
from nova_vqos.profile import document
from nova_vqos.tests.fixtures import requirement
from nova_vqos.tests.host import calibration_run
from nova_vqos.tests.host import newer_machine

# A quiet machine needs 20 s of it.
TIMEOUT_S = 200
NEWER_TIMEOUT_S = 540
# As short as it can be.
SHORT = ('--sweeps', '4', '--max-seconds', '5', '--beside-guests')

pytestmark = pytest.mark.timeout(2 * TIMEOUT_S)


mark, path = calibration_run.mark, calibration_run.path
environment, marked = calibration_run.environment, calibration_run.marked


@pytest.fixture(scope='module', autouse=True)
def tools():
    requirement.need_programs('ip', 'nft', 'losetup', 'setpriv')
    if len(os.sched_getaffinity(0)) < 2:
        requirement.need('a second pCPU is missing')


def calibrate(mark, *arguments, **options):
    return calibration_run.run(mark, 'io', *arguments, timeout_s=TIMEOUT_S,
                               **options)


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
        requirement.need(f'no loop device can be had: {done.stderr}')
    try:
        yield done.stdout.strip()
    finally:
        subprocess.run(['losetup', '--detach', done.stdout.strip()],
                       check=True)


@pytest.mark.measured
def test_the_whole(path, mark, tmp_path):
    held, before = document.load(path), machine()
    with loop_device(tmp_path) as device:
        done = calibrate(mark, path, *SHORT, '--disk-directory', '/var/tmp',
                         '--block-device', device, '-f', 'json')
        assert done.returncode == 0, done.stderr
        # So that it can be measured once more.
        assert not any(pathlib.Path(device).read_bytes())
    assert marked(mark) == []
    assert machine() == before
    rows = {(row['kind'], row['direction'], row['bytes']): row
            for row in json.loads(done.stdout)}
    modes = [mode for mode in traffic.MODES if not traffic.missing_tool(mode)]
    assert rows.keys() == {
        *((mode, direction, size) for mode in modes
          for direction in ('rx', 'tx') for size in network.SIZES),
        *((kind, operation, size) for kind in (
            'file, direct', 'file, buffered', 'block, direct')
          for operation in ('read', 'write') for size in disk.SIZES)}
    for mode in modes:
        received, full = rows[mode, 'rx', 64], rows[mode, 'rx', 1514]
        # A few hundred instructions at least, and no millisecond.
        assert 100 < received['cost_ns'] < 100_000
        assert received['low'] <= received['cost_ns'] <= received['high']
        # Who sends pays for it all the way.
        assert rows[mode, 'tx', 64]['cost_ns'] < received['cost_ns'] / 2
        # A large packet is not divided into its 45 frames.
        assert rows[mode, 'rx', max(network.SIZES)]['cost_ns'] < (
            45 * full['cost_ns'] / 2)
    written = document.load(path)
    assert written._replace(io=None) == held
    costs = written.io_costs
    kind = usage.InterfaceKind('bridge', 'vhost')
    assert costs.interfaces[kind].rx.total_ns(1, 64) > 100
    assert usage.DiskKind('block', False) in costs.disks
    assert written.io_profile.unmeasured.keys() == {
        'vhost', 'block, buffered', *traffic.MODES} - {*modes}
    assert 'openvswitch' in done.stderr


@pytest.mark.parametrize('number', [signal.SIGTERM, signal.SIGKILL])
def test_ended_in_the_middle(path, mark, number):
    held, before = document.load(path), machine()
    with subprocess.Popen(
            [calibration_run.PROGRAM, 'io', path, '--beside-guests'],
            text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
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
    assert document.load(path) == held


def test_without_nft_the_rest_is_measured(path, mark, tmp_path):
    (tmp_path / 'ip').symlink_to(shutil.which('ip'))
    done = calibrate(mark, path, *SHORT, '-f', 'json', PATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert {row['kind'] for row in json.loads(done.stdout)} == {'bridge',
                                                                'routed'}
    assert 'nftables' in document.load(path).io_profile.unmeasured['nat']
    assert 'install the package nftables' in done.stderr


def test_something_is_on_the_device(path, mark, tmp_path):
    held = document.load(path)
    with loop_device(tmp_path, b'a file system') as device:
        done = calibrate(mark, path, *SHORT, '--block-device', device)
        assert done.returncode == 1
        assert 'which would be lost' in done.stderr
        assert pathlib.Path(device).read_bytes().startswith(b'a file system')
    assert document.load(path) == held


@pytest.mark.parametrize(('before', 'arguments', 'said'), [
    (('setpriv', '--bounding-set', '-sys_admin'), (), 'run as root'),
    (('setpriv', '--bounding-set', '-net_admin'), (), 'CAP_NET_ADMIN'),
    ((), ('--disk-directory', '/dev/shm'), 'is on tmpfs, which has no disk'),
    ((), ('--mode', 'magic'), "invalid choice: 'magic'"),
])
def test_what_cannot_be(path, mark, before, arguments, said):
    held = document.load(path)
    done = calibrate(mark, path, '--beside-guests', *arguments, before=before)
    assert done.returncode != 0
    assert said in done.stderr
    assert 'Traceback' not in done.stderr
    assert marked(mark) == []
    assert document.load(path) == held


def test_a_profile_of_another_host(path, mark):
    held = document.load(path)
    document.store(held._replace(
        fingerprint=held.fingerprint | {'kernel': '1.0'}), path)
    done = calibrate(mark, path)
    assert done.returncode == 1
    assert "kernel was '1.0'" in done.stderr


@pytest.mark.nightly
@pytest.mark.timeout(NEWER_TIMEOUT_S + 60)
def test_all_modes_on_a_newer_kernel(tmp_path):
    """Which has Open vSwitch, as this machine's may not."""
    costs = newer_machine.observe(
        'nova_vqos.tests.host.calibrate_io_guest', tmp_path,
        timeout_s=NEWER_TIMEOUT_S,
        load=('tun', 'veth', 'bridge', 'nft_chain_nat', 'nft_nat',
              'openvswitch'))['costs']
    for mode, found in costs.items():
        print(mode, found)
    assert costs.keys() == {*traffic.MODES}
    for found in costs.values():
        # Who sends pays for it all the way.
        assert found['tx']['64'] < found['rx']['64'] / 2
    assert costs['openvswitch']['rx']['64'] > costs['bridge']['rx']['64']
    assert costs['nat']['rx']['64'] > costs['routed']['rx']['64']
