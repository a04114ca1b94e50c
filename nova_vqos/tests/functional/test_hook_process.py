# SPDX-License-Identifier: Apache-2.0
"""The hook as libvirt runs it: an installed script, a process of its own."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from nova_vqos import cputune
from nova_vqos import units
from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.hooks import libvirt
from nova_vqos.profile import document
from nova_vqos.tests import functional
from nova_vqos.tests.unit import test_domain_xml
from nova_vqos.tests.unit.hooks import test_rewrite

# The hook is a program of its own, with nothing of Nova in it; here it is the
# tests that eventlet's os.write would have wait for a pipe for ever.
pytestmark = functional.needs_threads

XML = test_domain_xml.MIGRATABLE


class Hook:
    """An installed hook."""

    def __init__(self, path):
        self.directory = path
        self.config_path = path / 'hook.conf'
        self.profile_path = path / 'profile.yaml'
        self.configure('pass')
        document.store(test_rewrite.make_profile(p0=1.25, p1=1.25),
                       str(self.profile_path))
        install.install(str(path), str(self.config_path), [os.getuid()])
        self.path = path / default_path.HOOK_NAME

    def configure(self, on_error):
        self.config_path.write_text(
            f'[hook]\nprofile = {self.profile_path}\non_error = {on_error}\n')

    def run(self, xml, operation='migrate', sub_operation='begin',
            name='server', **options):
        return subprocess.run(
            [self.path, name, operation, sub_operation, '-'], input=xml,
            capture_output=True, timeout=60, env={}, cwd='/', check=False,
            **options)

    def break_script(self, old, new):
        text = self.path.read_text()
        assert old in text
        self.path.write_text(text.replace(old, new))


@pytest.fixture
def hook(tmp_path):
    return Hook(tmp_path)


def test_a_guest_comes_in(hook):
    done = hook.run(XML)
    assert (done.returncode, done.stderr) == (0, b'')
    assert done.stdout == XML.replace(b'15000', b'12000').replace(
        b'614', str(shares()).encode())


def shares():
    return units.shares(60, cputune.host_cgroup_version())


def test_more_than_a_pipe_holds(hook):
    padding = b'<!-- x -->' * 200_000
    done = hook.run(XML + padding)
    assert done.returncode == 0
    assert done.stdout.endswith(b'</domain>\n' + padding)


def test_more_than_the_limit(hook):
    xml = XML + b' ' * (6 * 1024 * 1024)
    assert hook.run(xml).stdout == xml
    hook.configure('refuse')
    done = hook.run(xml)
    assert (done.returncode, done.stdout) == (1, b'')
    assert b'refused: the XML has more than' in done.stderr


def test_in_a_directory_of_any_name(tmp_path):
    directory = tmp_path / 'it\'s; a "b" $HOME `id` \\'
    directory.mkdir()
    assert b'12000' in Hook(directory).run(XML).stdout


@pytest.mark.parametrize('operation', ['reconnect', 'prepare', 'started'])
def test_other_operations_start_no_python(hook, operation):
    hook.break_script(sys.executable, '/bin/false')
    done = hook.run(XML, operation)
    assert (done.returncode, done.stdout, done.stderr) == (0, b'', b'')


@pytest.mark.parametrize('gone', [sys.executable, libvirt.__file__])
def test_nova_vqos_was_removed(hook, gone):
    """The migration goes on, unless the operator wants it refused."""
    hook.break_script(gone, '/nonexistent')
    done = hook.run(XML)
    assert (done.returncode, done.stdout) == (0, XML)
    assert b'nova_vqos is gone' in done.stderr
    hook.configure('refuse')
    done = hook.run(XML)
    assert (done.returncode, done.stdout) == (1, b'')


def test_a_name_from_another_host_cannot_write_log_lines(hook):
    """The shells of Debian read escapes in what they echo."""
    hook.break_script(sys.executable, '/nonexistent')
    done = hook.run(XML, name=r'a\nERROR b')
    assert done.stdout == XML
    assert done.stderr.startswith(rb'nova-vqos hook: a\nERROR b: ')
    assert done.stderr.count(b'\n') == 1


def test_half_of_nova_vqos_was_removed(hook, tmp_path):
    package = pathlib.Path(libvirt.__file__).parents[1]
    copy = tmp_path / 'copy' / 'nova_vqos'
    for name in ('__init__.py', 'hooks/__init__.py', 'hooks/libvirt.py',
                 'hooks/rewrite.py'):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(package / name, copy / name)
    # As the shell quotes it.
    hook.break_script(f'{package.parent}\'"\'"\')',
                      f'{tmp_path / "copy"}\'"\'"\')')
    done = hook.run(XML)
    assert (done.returncode, done.stdout) == (0, XML)
    assert b'passed unchanged' in done.stderr


def test_libvirt_stops_listening(hook):
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, 'wb') as target, pytest.raises(
            subprocess.CalledProcessError):
        subprocess.run([hook.path, 'server', 'migrate', 'begin', '-'],
                       input=XML, stdout=target, stderr=subprocess.PIPE,
                       timeout=60, check=True)
