# SPDX-License-Identifier: Apache-2.0
"""Who may write what libvirt runs as root."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import nova_vqos
from nova_vqos.conf import default_path
from nova_vqos.hooks import install
from nova_vqos.tests import functional
from nova_vqos.tests.unit import test_domain_xml

pytestmark = [
    functional.needs_threads,
    pytest.mark.requires('' if os.geteuid() == 0 else
                         'files of several users are made by root')]

XML = test_domain_xml.MIGRATABLE
NOBODY = 65534
# What the hook runs, and what a directory of it may hold besides.
PARTS = ('site', 'site/nova_vqos', 'site/nova_vqos/units.py',
         'site/nova_vqos/hooks', 'site/nova_vqos/hooks/rewrite.py',
         'site/nova_vqos/profile/__pycache__',
         'site/nova_vqos/profile/__pycache__/coefficients.pyc', 'bin',
         'bin/python')


class Site:
    """A copy of nova_vqos and its own Python, to be installed from.

    The packages of this Python are not part of the hook.
    """

    def __init__(self, directory):
        self.directory = directory
        package = pathlib.Path(nova_vqos.__file__).parent
        shutil.copytree(package, directory / 'site/nova_vqos', ignore=(
            shutil.ignore_patterns('tests', '__pycache__')))
        for name in PARTS:
            if name.endswith('.pyc'):
                (directory / name).parent.mkdir()
                (directory / name).touch()
        (directory / 'bin').mkdir()
        (directory / 'bin/python').symlink_to(os.path.realpath(sys.executable))
        self.hook = directory / 'hooks' / default_path.HOOK_NAME
        self.config = directory / 'hook.conf'

    def install(self, *arguments):
        return subprocess.run(
            [self.directory / 'bin/python', '-I', '-S', '-c',
             'import sys; sys.path.append(sys.argv.pop(1)); '
             'from nova_vqos.hooks import libvirt; sys.exit(libvirt.main())',
             self.directory / 'site', '--install',
             '--hooks-dir', self.directory / 'hooks',
             '--config', self.config, *arguments],
            capture_output=True, text=True, timeout=60, check=False)

    def run(self):
        return subprocess.run(
            [self.hook, 'server', 'migrate', 'begin', '-'], input=XML,
            capture_output=True, timeout=60, check=False)

    def give_away(self, name):
        """Let another user own a part, or the link to it."""
        os.chown(self.directory / name, NOBODY, NOBODY,
                 follow_symlinks=name != 'bin/python')


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def test_what_root_alone_may_write_is_run(site):
    done = site.install()
    assert done.returncode == 0, done.stderr
    assert install.parse(site.hook.read_text()) == (str(site.config), ())
    # Without a profile the guest passes: it was run.
    assert b'profile' in site.run().stderr


# Whoever owns a link may not change what it is, but for its directory.
@pytest.mark.parametrize('part', PARTS[:-1])
def test_a_part_of_another_user(site, part):
    site.give_away(part)
    done = site.install()
    assert done.returncode == 1
    assert f'{site.directory / part} may be written by others' in done.stderr
    assert not site.hook.exists()
    # He is root, and root says so.
    done = site.install('--trust', str(NOBODY))
    assert done.returncode == 0, done.stderr
    assert install.parse(site.hook.read_text()).trusted == (NOBODY,)
    assert b'profile' in site.run().stderr


@pytest.mark.parametrize('mode', [0o775, 0o757])
@pytest.mark.parametrize('part', ['site', 'site/nova_vqos/hooks/rewrite.py'])
def test_a_part_that_others_may_write(site, part, mode):
    (site.directory / part).chmod(mode)
    os.chown(site.directory / part, 0, NOBODY)
    done = site.install()
    assert done.returncode == 1
    assert str(site.directory / part) in done.stderr


def test_what_became_unsafe_since_is_not_run(site):
    assert site.install().returncode == 0
    (site.directory / 'site/nova_vqos/hooks/rewrite.py').write_text(
        'import os; os._exit(3)\n')
    site.give_away('site/nova_vqos/hooks/rewrite.py')
    done = site.run()
    assert (done.returncode, done.stdout) == (0, XML)
    assert b'rewrite.py may be written by others than root' in done.stderr
    site.config.write_text('[hook]\non_error = refuse\n')
    done = site.run()
    assert (done.returncode, done.stdout) == (1, b'')


def test_a_directory_of_any_name(tmp_path):
    directory = tmp_path / 'it\'s [a] "b" * ? \\ $HOME'
    directory.mkdir()
    site = Site(directory)
    assert site.install().returncode == 0
    assert b'profile' in site.run().stderr
    site.give_away('site/nova_vqos/profile/__pycache__/coefficients.pyc')
    assert b'coefficients.pyc may be written' in site.run().stderr


def test_an_unknown_user_is_refused(site):
    done = site.install('--trust', 'no-such-user')
    assert done.returncode == 2
    assert "there is no user 'no-such-user'" in done.stderr
