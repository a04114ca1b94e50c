# SPDX-License-Identifier: Apache-2.0
"""The task of rally-jobs, by a real Rally.

Rally needs an environment of its own: the Python of RALLY_PYTHON, which
tools/test.sh rally makes.
"""

import json
import os
import pathlib
import subprocess

import pytest

from nova_vqos.calibration import guest
from nova_vqos.tests.fixtures import project
from nova_vqos_lab import cloud as clouds

PYTHON = os.environ.get('RALLY_PYTHON')
JOBS = project.TOP / 'rally-jobs'
COMMAND_LIMIT_S = 300
TIMES = 4
CU = 20
# The task ran, and did not meet what it promises.
FAILED = 2
ACTIONS = {'nova.boot_server', 'placement.show_allocations',
           'nova.delete_server'}
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.nightly,
    pytest.mark.requires('' if PYTHON else 'RALLY_PYTHON names no Python with '
                         'Rally: tools/test.sh rally makes '
                         'one')]


@pytest.fixture(scope='module')
def rally(lab, tmp_path_factory):
    """:returns: what runs Rally on the lab's cloud, as its administrator"""
    lab.up()
    if not lab.is_deployed:
        lab.profiles.give()
        lab.deploy()
    with lab.cloud() as cloud:
        cloud.make_image('rally', guest.find_kernel(), clouds.initramfs(),
                         guest.command_line())
    home = tmp_path_factory.mktemp('rally')
    (home / 'rally.conf').write_text(
        f'[database]\nconnection = sqlite:///{home}/rally.sqlite\n')

    def run(*arguments, status=0):
        done = subprocess.run(
            lab.inside([str(pathlib.Path(PYTHON).parent / 'rally'),
                        '--config-file', str(home / 'rally.conf'),
                        '--plugin-paths', str(JOBS / 'plugins'), *arguments]),
            env={**lab.environment(), 'HOME': str(home)}, capture_output=True,
            text=True, timeout=COMMAND_LIMIT_S, check=False)
        assert done.returncode == status, done.stdout + done.stderr
    run('db', 'create')
    run('env', 'create', '--name', 'lab', '--from-sysenv')
    return run


def start(rally, tmp_path, status=0, **arguments):
    """:returns: what Rally measured, each time that it did it"""
    report = tmp_path / 'report.json'
    rally('task', 'start', str(JOBS / 'nova_vqos.yaml'), '--task-args',
          json.dumps({'image': '^rally$', 'times': TIMES, **arguments}),
          status=status)
    rally('task', 'report', '--json', '--out', str(report))
    (done,) = json.loads(report.read_text())['tasks']
    (subtask,) = done['subtasks']
    (workload,) = subtask['workloads']
    return workload['data']


def test_each_server_claims_its_units(lab, rally, tmp_path):
    found = start(rally, tmp_path)
    assert [one['error'] for one in found] == [[]] * TIMES
    assert all({action['name'] for action in one['atomic_actions']} == ACTIONS
               for one in found)
    page = tmp_path / 'report.html'
    rally('task', 'report', '--html', '--out', str(page))
    assert 'NovaVqos.boot_and_look_at_claim' in page.read_text()
    with lab.cloud() as cloud:
        assert cloud.servers() == []


def test_another_claim_fails(rally, tmp_path):
    (one,) = start(rally, tmp_path, FAILED, times=1, concurrency=1,
                   claim=CU + 1)
    assert one['error'][0] == 'RallyAssertionError'
