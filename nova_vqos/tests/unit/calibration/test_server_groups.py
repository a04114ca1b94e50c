# SPDX-License-Identifier: Apache-2.0
"""Groups as libvirt makes them for servers, on files."""

import fcntl
import os
import pathlib
import threading

import pytest

from nova_vqos.calibration import server_groups
from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.tests.unit.calibration import test_idle


@pytest.fixture(params=[1, 2])
def cgroups(tmp_path, request):
    made = test_idle.Cgroups(tmp_path, request.param, '/system.slice')
    if request.param == 2:
        (made.cpu / 'cgroup.controllers').write_text('cpu\n')
    return made, request.param


def contents(directory):
    return {str(path.relative_to(directory)): path.read_text()
            for path in directory.rglob('*') if path.is_file()}


def forget(made):
    """Remove the files that the kernel would have in groups."""
    for name in contents(made.cpu / 'vqos-test'):
        (made.cpu / 'vqos-test' / name).unlink()


def test_groups_are_as_libvirt_makes_them(cgroups):
    made, version = cgroups
    with server_groups.Tree('vqos-test', made.root) as tree:
        group = tree.server('1', vcpus=2)
        group.move_vcpu(1, 4711)
        group.move_other(4710)
        group.enter(4709)
        threads = 'tasks' if version == 1 else 'cgroup.threads'
        threaded = {'1/cpu.shares': '2048'} if version == 1 else {
            '1/cpu.weight': '200',
            'cgroup.subtree_control': '+cpu',
            '1/cgroup.subtree_control': '+cpu',
            **{f'1/{name}/cgroup.type': 'threaded'
               for name in ('vcpu0', 'vcpu1', 'emulator')}}
        assert contents(made.cpu / 'vqos-test') == {
            'cpu.idle': '1', f'1/vcpu1/{threads}': '4711',
            f'1/emulator/{threads}': '4710', '1/cgroup.procs': '4709',
            **threaded}
        forget(made)
    assert not (made.cpu / 'vqos-test').exists()


def test_groups_that_compete_with_others(cgroups):
    made, version = cgroups
    with server_groups.Tree('vqos-test', made.root, is_idle=False):
        found = contents(made.cpu / 'vqos-test')
        assert found == ({} if version == 1 else {
            'cgroup.subtree_control': '+cpu'})
        for name in found:
            (made.cpu / 'vqos-test' / name).unlink()


def test_groups_that_weigh_more_than_others(cgroups):
    made, version = cgroups
    with server_groups.Tree('vqos-test', made.root, is_idle=False, weight=16):
        group = made.cpu / 'vqos-test'
        name, value = (('cpu.shares', '16384') if version == 1
                       else ('cpu.weight', '1600'))
        assert contents(group)[name] == value
        for name in contents(group):
            (group / name).unlink()


def test_what_a_killed_run_left_is_removed(cgroups):
    made, _version = cgroups
    (made.cpu / 'vqos-test/1/vcpu0').mkdir(parents=True)
    with server_groups.Tree('vqos-test', made.root):
        assert not (made.cpu / 'vqos-test/1').exists()
        (made.cpu / 'vqos-test/cpu.idle').unlink()


def test_groups_that_are_in_use(cgroups, monkeypatch):
    monkeypatch.setattr(server_groups, '_REMOVE_S', 0.1)
    made, _version = cgroups
    busy = made.cpu / 'vqos-test/1'
    busy.mkdir(parents=True)
    (busy / 'tasks').write_text('1\n')
    with (pytest.raises(CalibrationError, match='is in use'),
          server_groups.Tree('vqos-test', made.root)):
        pytest.fail('it runs all the same')
    assert busy.exists()


def test_two_programs_are_not_in_it_at_once(cgroups, monkeypatch):
    monkeypatch.setattr(server_groups, '_LOCK_S', 0.1)
    made, _version = cgroups

    def enter():
        with server_groups.Tree('vqos-test', made.root):
            forget(made)

    with server_groups.Tree('vqos-test', made.root):
        forget(made)
        with pytest.raises(CalibrationError, match='is in use'):
            enter()
        assert (made.cpu / 'vqos-test').exists()
    enter()
    assert not (made.cpu / 'vqos-test').exists()


def test_one_program_waits_for_another(cgroups):
    made, _version = cgroups
    (made.cpu / 'vqos-test').mkdir()
    other = os.open(made.cpu / 'vqos-test', os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    timer = threading.Timer(0.2, os.close, [other])
    timer.start()
    with server_groups.Tree('vqos-test', made.root) as tree:
        assert not timer.is_alive()
        tree.server('1')
        forget(made)


def test_no_group_can_be_made(cgroups, monkeypatch):
    made, _version = cgroups

    def refuse(self, *arguments, **named):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr(pathlib.Path, 'mkdir', refuse)
    with (pytest.raises(CalibrationError,
                        match='Permission denied. Needed are root'),
          server_groups.Tree('vqos-test', made.root)):
        pytest.fail('it runs all the same')
