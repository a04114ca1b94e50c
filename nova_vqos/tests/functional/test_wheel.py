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

"""The wheel, built from what git tracks and installed beside Nova.

The environment is a fresh one with a copy of the Nova that is tested with;
all else comes from the environment that runs the tests. Building fetches what
pyproject.toml names from PyPI.
"""

import base64
import csv
import hashlib
import importlib.metadata
import os
import pathlib
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile

import pytest

from nova_vqos.tests import project

TOP = project.TOP
SHIM = 'nova/virt/vqos'
TIMEOUT_S = 240

pytestmark = pytest.mark.skipif(
    not (TOP / '.git').exists(), reason='this is no checkout of git')


def run(*argv, cwd='/', stdin=None):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('PYTHON', 'GIT_'))}
    done = subprocess.run(
        argv, cwd=cwd, env=environment, input=stdin, capture_output=True,
        text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f'{argv}: {done.stdout}{done.stderr}'
    return done.stdout


def tracked_files(checkout):
    """What git tracks and is there, changed or not."""
    names = run('git', 'ls-files', '-z', cwd=checkout).split('\0')
    return [name for name in names if name and (checkout / name).exists()]


@pytest.fixture(scope='module')
def checkout(tmp_path_factory):
    """A clean checkout of the tracked files as they are now."""
    # NOTE: pbr asks git for the version and for the files.
    checkout = tmp_path_factory.mktemp('checkout') / 'nova_vqos'
    run('git', 'clone', '-q', '--shared', '--no-checkout', str(TOP),
        str(checkout))
    for name in tracked_files(TOP):
        target = checkout / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(TOP / name, target, follow_symlinks=False)
    run('git', 'add', '-A', cwd=checkout)
    return checkout


@pytest.fixture(scope='module')
def wheel(checkout):
    path = checkout.parent
    run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps',
        '--wheel-dir', str(path), str(checkout))
    (found,) = path.glob('nova_vqos-*.whl')
    return found


class Environment:
    """A virtual environment with a copy of Nova in it."""

    def __init__(self, path):
        venv.create(path, symlinks=True)
        self.prefix = path
        self.python = str(path / 'bin' / 'python')
        self.bin = path / 'bin'
        self.site = next(path.glob('lib/python*/site-packages'))
        source = pathlib.Path(sysconfig.get_path('purelib'))
        shutil.copytree(source / 'nova', self.site / 'nova',
                        ignore=lambda directory, names: [
                            name for name in names if name == '__pycache__'
                            or pathlib.Path(directory, name)
                            == source / SHIM])
        (metadata,) = source.glob('nova-[0-9]*.dist-info')
        shutil.copytree(metadata, self.site / metadata.name)
        self.record = self.site / metadata.name / 'RECORD'
        # NOTE: .pth files in there are not read: an editable install of
        # nova_vqos is not seen.
        (self.site / 'others.pth').write_text(f'{source}\n')

    def pip(self, *arguments):
        run(sys.executable, '-m', 'pip', '--python', self.python, '-q',
            *arguments)

    def files_of_nova(self):
        """{path: hash in the form of RECORD} of all below nova/."""
        return {str(path.relative_to(self.site)): record_hash(path)
                for path in (self.site / 'nova').rglob('*')
                if path.is_file() and '__pycache__' not in path.parts}

    def recorded_files_of_nova(self):
        with self.record.open(newline='') as file:
            return {name: recorded for name, recorded, _ in csv.reader(file)
                    if name.startswith('nova/') and recorded}


def record_hash(path):
    digest = hashlib.sha256(path.read_bytes()).digest()
    return f'sha256={base64.urlsafe_b64encode(digest).rstrip(b"=").decode()}'


@pytest.fixture(scope='module')
def environment(wheel, tmp_path_factory):
    made = Environment(tmp_path_factory.mktemp('environment') / 'venv')
    assert made.files_of_nova() == made.recorded_files_of_nova()
    made.pip('install', '--no-deps', '--no-index', str(wheel))
    return made


def files_to_install(checkout):
    # The tempest plugin's package is linked to where it is installed.
    tempest = 'tempest_plugin/'
    return {name.removeprefix(tempest) for name in tracked_files(checkout)
            if name.startswith(('nova_vqos/', f'{SHIM}/', tempest))}


def test_every_file_is_in_it_and_no_other(checkout, wheel):
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist()
                 if '.dist-info/' not in name and '.data/' not in name}
        data = {name.split('.data/data/')[1] for name in archive.namelist()
                if '.data/' in name}
    assert found == files_to_install(checkout)
    assert data == {'etc/nova-vqos/hook.conf',
                    'etc/nova-vqos/nova-vqos.conf.sample',
                    *(f'share/nova-vqos/{name}' for name in (
                        'nova-vqos-agent.service', 'nova-vqos-cloud.json',
                        'nova-vqos-host.json', 'nova-vqos-server.json',
                        'nova-vqos-verify.service', 'nova-vqos-verify.timer',
                        'nova-vqos.rules.yml', 'vqosidle.slice'))}
    assert {f'{SHIM}/__init__.py', f'{SHIM}/driver.py'} <= found


def test_every_file_is_installed(checkout, environment):
    for name in files_to_install(checkout):
        assert (environment.site / name).read_bytes() == (
            checkout / name).read_bytes(), name


def test_the_files_of_nova_are_untouched(environment):
    found = environment.files_of_nova()
    recorded = environment.recorded_files_of_nova()
    assert len(recorded) > 1000
    assert {name: found.get(name) for name in recorded} == recorded
    assert all(name.startswith(f'{SHIM}/')
               for name in found.keys() - recorded.keys())


def test_nova_finds_the_driver(environment):
    code = ('from nova.virt import driver\n'
            'from oslo_utils import importutils\n'
            'found = importutils.import_module("nova.virt.vqos.driver")\n'
            'import nova_vqos\n'
            'assert issubclass(found.VqosLibvirtDriver, driver.ComputeDriver)'
            '\nprint(found.__file__, nova_vqos.__file__, driver.__file__)')
    for path in run(environment.python, '-W', 'ignore', '-c', code).split():
        assert path.startswith(str(environment.site))


def test_all_entry_points_are_in_it(environment):
    (metadata,) = environment.site.glob('nova_vqos-*.dist-info')
    found = importlib.metadata.Distribution.at(metadata).entry_points
    assert len(found) >= 6
    for entry_point in found:
        code = ('import importlib.metadata as metadata\n'
                '(found,) = [e for e in metadata.distribution("nova_vqos")'
                f'.entry_points if (e.group, e.name) == '
                f'{(entry_point.group, entry_point.name)!r}]\n'
                'found.load()\nimport nova_vqos\nprint(nova_vqos.__file__)')
        output = run(environment.python, '-W', 'ignore', '-c', code)
        assert output.strip().startswith(str(environment.site)), entry_point
        if entry_point.group == 'console_scripts':
            assert os.access(environment.bin / entry_point.name, os.X_OK)


def test_the_hook_works_from_there(environment, tmp_path):
    run(str(environment.bin / 'nova-vqos-libvirt-hook'), '--install',
        '--hooks-dir', str(tmp_path))
    xml = "<domain type='qemu'><vcpu>1</vcpu></domain>\n"
    assert run(str(tmp_path / 'qemu.d' / '90-nova-vqos'), 'server', 'migrate',
               'begin', '-', stdin=xml) == xml
    text = (tmp_path / 'qemu.d' / '90-nova-vqos').read_text()
    assert str(environment.site) in text
    assert environment.python in text
    assert str(TOP) not in text


def test_nothing_of_it_is_left_and_all_of_nova(wheel, tmp_path):
    environment = Environment(tmp_path / 'venv')
    environment.pip('install', '--no-deps', '--no-index', str(wheel))
    environment.pip('uninstall', '--yes', 'nova_vqos')
    assert not (environment.site / 'nova_vqos').exists()
    assert not list(environment.prefix.rglob('*nova[-_]vqos*'))
    assert environment.files_of_nova() == environment.recorded_files_of_nova()
