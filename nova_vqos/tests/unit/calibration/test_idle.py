# SPDX-License-Identifier: Apache-2.0
"""The group in which a profile is verified beside guests."""

import os
import pathlib

import pytest

from nova_vqos.calibration import idle
from nova_vqos.calibration.benchmark import CalibrationError


class Cgroups:
    """A machine's cgroups, as files; the kernel's own files are made by hand.

    :ivar cpu: root of the hierarchy with the cpu controller
    """

    def __init__(self, root, version, own):
        self.root = str(root)
        base = root / 'sys/fs/cgroup'
        self.cpu = base / 'cpu' if version == 1 else base
        (self.cpu / own.strip('/')).mkdir(parents=True, exist_ok=True)
        (root / 'proc/self').mkdir(parents=True)
        (root / 'proc/self/cgroup').write_text(
            f'7:cpu,cpuacct:{own}\n3:cpuset:/other\n0::/unified\n'
            if version == 1 else f'0::{own}\n')

    def make_idle(self, name, value='1'):
        (self.cpu / name / 'cpu.idle').write_text(f'{value}\n')

    def procs(self, name):
        return (self.cpu / name / 'cgroup.procs').read_text()


@pytest.fixture(params=[1, 2])
def cgroups(tmp_path, request):
    def make(own):
        return Cgroups(tmp_path, request.param, own)
    return make


@pytest.mark.parametrize('own', ['/', '/system.slice/ssh.service'])
def test_it_is_made_below_the_root(cgroups, own):
    made = cgroups(own)
    with idle.group(made.root):
        assert (made.cpu / idle.NAME / 'cpu.idle').read_text() == '1'
        assert made.procs(idle.NAME) == str(os.getpid())
    # Back where it came from.
    assert made.procs(own.strip('/') or '.') == str(os.getpid())


def test_one_that_is_idle_within_another_is_not_idle(cgroups):
    made = cgroups('/system.slice/verify.service')
    made.make_idle('system.slice/verify.service')
    made.make_idle('system.slice', '0')
    with idle.group(made.root):
        assert (made.cpu / idle.NAME).exists()


def test_there_is_one(cgroups):
    made = cgroups('/vqosidle.slice/verify.service')
    made.make_idle('vqosidle.slice')
    with idle.group(made.root):
        assert not (made.cpu / idle.NAME).exists()


def test_back_also_after_an_error(cgroups):
    made = cgroups('/system.slice')
    with pytest.raises(ValueError, match='broken'), idle.group(made.root):
        raise ValueError('broken')
    assert made.procs('system.slice') == str(os.getpid())


def test_it_is_removed(cgroups, monkeypatch):
    """What the kernel's own files would not be in the way of."""
    removed = []
    monkeypatch.setattr(pathlib.Path, 'rmdir',
                        lambda self: removed.append(self))
    made = cgroups('/system.slice')
    with idle.group(made.root):
        assert removed == []
    assert removed == [made.cpu / idle.NAME]


def test_none_can_be_made(cgroups):
    made = cgroups('/')
    # As of a hierarchy where groups cannot be made.
    (made.cpu / idle.NAME).write_text('')
    with (pytest.raises(CalibrationError,
                        match='Root and Linux 5.15 are needed'),
          idle.group(made.root)):
        pytest.fail('it runs all the same')


def test_no_cgroups(tmp_path):
    (tmp_path / 'proc/self').mkdir(parents=True)
    (tmp_path / 'proc/self/cgroup').write_text('3:memory:/\n')
    with (pytest.raises(CalibrationError, match='no cgroups'),
          idle.group(str(tmp_path))):
        pytest.fail('it runs all the same')
