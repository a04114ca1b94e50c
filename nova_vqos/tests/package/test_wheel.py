# SPDX-License-Identifier: Apache-2.0
"""The wheel, where tools/package.sh has installed it beside a Nova.

NOVA_VQOS_SOURCE names the checkout that it was made from.
"""

import base64
import hashlib
import importlib.metadata
import os
import pathlib
import subprocess
import sys
import sysconfig

import pytest

from nova_vqos.tests.fixtures import requirement

SHIM = 'nova/virt/vqos'
SITE = pathlib.Path(sysconfig.get_path('purelib'))
PROGRAMS = pathlib.Path(sysconfig.get_path('scripts'))
TIMEOUT_S = 240
ENTRY_POINTS = importlib.metadata.distribution('nova_vqos').entry_points


@pytest.fixture(scope='module')
def source():
    return pathlib.Path(os.environ['NOVA_VQOS_SOURCE'])


def run(*argv, **options):
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith(('PYTHON', 'GIT_'))}
    done = subprocess.run(argv, env=environment, capture_output=True,
                          text=True, timeout=TIMEOUT_S, check=False,
                          **{'cwd': '/', **options})
    assert done.returncode == 0, f'{argv}: {done.stdout}{done.stderr}'
    return done.stdout


def test_it_has_every_file_but_the_tests(source):
    # The tempest plugin's package is linked to where it is installed.
    wanted = {name.removeprefix('tempest_plugin/'): source / name
              for name in run('git', 'ls-files', '-z', cwd=source).split('\0')
              if name.startswith(('nova_vqos/', f'{SHIM}/', 'tempest_plugin/'))
              and not name.startswith('nova_vqos/tests/')}
    found = {str(file) for file in importlib.metadata.files('nova_vqos')
             if file.suffix != '.pyc' and '.dist-info' not in str(file)}
    data = {name for name in found if name.startswith('../')
            and '/bin/' not in name}
    assert {name for name in found if not name.startswith('../')} == set(
        wanted)
    assert {name.lstrip('./') for name in data} == {
        'etc/nova-vqos/hook.conf', 'etc/nova-vqos/nova-vqos.conf.sample',
        *(f'share/nova-vqos/{name}' for name in (
            'metadefs/compute-vqos.json',
            'nova-vqos-agent.service', 'nova-vqos-ceilometer.yaml',
            'nova-vqos-cloud.json',
            'nova-vqos-cloudkitty.yml',
            'nova-vqos-host.json', 'nova-vqos-server.json',
            'nova-vqos-helper.service', 'nova-vqos-helper.socket',
            'nova-vqos-partition.service', 'nova-vqos-partition.timer',
            'nova-vqos-probe.service', 'nova-vqos.sysusers',
            'nova-vqos-vendordata.service',
            'nova-vqos-verify.service', 'nova-vqos-verify.timer',
            'nova-vqos.rules.yml', '50-nova-vqos.rules', 'vqosidle.slice'))}
    for name, path in wanted.items():
        assert (SITE / name).read_bytes() == path.read_bytes(), name


def test_the_files_of_nova_are_untouched():
    recorded = [file for file in importlib.metadata.files('nova')
                if str(file).startswith('nova/') and file.hash]
    assert len(recorded) > 1000
    assert [str(file) for file in recorded
            if sha256(file.locate()) != file.hash.value] == []
    others = {str(path.relative_to(SITE))
              for path in (SITE / 'nova').rglob('*') if path.is_file()
              and '__pycache__' not in path.parts}.difference(
                  map(str, recorded))
    assert all(name.startswith(f'{SHIM}/') for name in others)


def sha256(path):
    """The hash of a file in the form of RECORD."""
    digest = hashlib.sha256(path.read_bytes()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b'=').decode()


def test_nova_finds_the_driver():
    code = ('from nova.virt import driver\n'
            'from oslo_utils import importutils\n'
            'found = importutils.import_module("nova.virt.vqos.driver")\n'
            'import nova_vqos\n'
            'assert issubclass(found.VqosLibvirtDriver, driver.ComputeDriver)'
            '\nprint(found.__file__, nova_vqos.__file__, driver.__file__)')
    for path in run(sys.executable, '-W', 'ignore', '-c', code).split():
        assert path.startswith(str(SITE))


@pytest.mark.parametrize('group', sorted(ENTRY_POINTS.groups))
def test_entry_points(group):
    if group == 'tempest.test_plugins':
        requirement.need_modules('tempest')
    if group == 'watcher_strategies':
        requirement.need_modules('watcher')
    found = ENTRY_POINTS.select(group=group)
    # Each program sets up Nova and oslo.service in its own way.
    one_by_one = group == 'console_scripts'
    for some in [[one] for one in found] if one_by_one else [found]:
        run(sys.executable, '-W', 'ignore', '-c',
            'from importlib import metadata\n' + ''.join(
                f'metadata.EntryPoint({one.name!r}, {one.value!r}, '
                f'{group!r}).load()\n' for one in some))
    if one_by_one:
        assert all(os.access(PROGRAMS / one.name, os.X_OK) for one in found)


def test_the_hook_works_from_there(source, tmp_path):
    run(str(PROGRAMS / 'nova-vqos-libvirt-hook'), '--install',
        '--hooks-dir', str(tmp_path))
    hook = tmp_path / 'qemu.d' / '90-nova-vqos'
    xml = "<domain type='qemu'><vcpu>1</vcpu></domain>\n"
    assert run(str(hook), 'server', 'migrate', 'begin', '-', input=xml) == xml
    text = hook.read_text()
    assert str(SITE) in text
    assert sys.executable in text
    assert str(source) not in text
