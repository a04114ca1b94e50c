# SPDX-License-Identifier: Apache-2.0
"""What the hook imports: that is most of its time (tools/bench/hook.py).

A module that is missing in these lists may be added where its task needs it,
and its time: ``python -I -S -X importtime``.
"""

import os
import subprocess
import sys

from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.profile import document
from nova_vqos.tests import functional
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit.hooks import test_rewrite

pytestmark = functional.needs_threads

OURS = {f'nova_vqos{name}' for name in (
    '', '.conf', '.conf.default_path', '.cpuset', '.cputune', '.domain_xml',
    '.files', '.hooks', '.hooks.libvirt', '.hooks.rewrite', '.light_typing',
    '.policy', '.profile', '.profile.coefficients', '.quantum',
    '.quantum.classes', '.units', '.work', '.xml_edit')}
# fractions imports decimal, numbers and re, which imports enum; configparser
# is for a hook.conf.
STDLIB = {'collections', 'configparser', 'contextlib', 'copyreg', 'decimal',
          'enum', 'fractions', 'functools', 'genericpath', 'itertools',
          'keyword', 'math', 'numbers', 'operator', 'os', 'posixpath',
          'pyexpat', 're', 'reprlib', 'signal', 'stat', 'syslog', 'types',
          'warnings', 'xml'}
# Of a server without units, where there is a hook.conf.
NOT_WITHOUT_UNITS = {
    'nova_vqos.cpuset', 'nova_vqos.cputune', 'nova_vqos.profile',
    'nova_vqos.profile.coefficients', 'nova_vqos.quantum',
    'nova_vqos.quantum.classes'}


def test_no_other_module_is_imported(tmp_path):
    hook = make_hook(tmp_path)
    # The first run has to read the whole profile.
    assert b'12000' in run(hook).stdout
    done = run(hook)
    assert b'12000' in done.stdout
    assert ours(done) == OURS
    assert stdlib(done) <= STDLIB


def test_a_server_without_units(tmp_path):
    done = run(make_hook(tmp_path), test_rewrite.STOCK_XML)
    assert done.stdout == test_rewrite.STOCK_XML
    assert ours(done) == OURS - NOT_WITHOUT_UNITS
    assert stdlib(done) <= STDLIB


def make_hook(path):
    profile_path = path / 'profile.yaml'
    document.store(test_rewrite.make_profile(p0=1.25, p1=1.25),
                   str(profile_path))
    config = path / 'hook.conf'
    config.write_text(f'[hook]\nprofile = {profile_path}\n')
    install.install(str(path), str(config), [os.getuid()])
    hook = path / default_path.HOOK_NAME
    script = hook.read_text()
    assert ' -I -S -c ' in script
    hook.write_text(script.replace(' -I -S -c ', ' -I -S -X importtime -c '))
    return hook


def run(hook, xml=test_domain_xml.MIGRATABLE):
    return subprocess.run([hook, 'server', 'migrate', 'begin', '-'],
                          input=xml, capture_output=True, check=True)


def imported(stderr):
    """Names of modules, by ``-X importtime``."""
    return {line.rpartition('|')[2].strip()
            for line in stderr.decode().splitlines()
            if line.startswith('import time:')}


def ours(done):
    return {name for name in imported(done.stderr)
            if name.startswith('nova_vqos')}


def stdlib(done):
    """Public top-level modules which Python itself does not start with."""
    bare = subprocess.run(
        [sys.executable, '-I', '-S', '-X', 'importtime', '-c', 'pass'],
        capture_output=True, check=True)
    names = {name.partition('.')[0] for name in
             imported(done.stderr) - imported(bare.stderr)}
    return {name for name in names if name[0] != '_'} - {
        'imported package', 'nova_vqos'}
