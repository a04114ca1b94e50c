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

"""Installs the hook where libvirt looks for it, and removes it.

What is installed is a shell script of a few lines below ``qemu.d``, which
libvirt (6.5 and later) runs in the order of names, each with the XML that the
one before printed. It returns from all operations but the two that matter
without starting Python, and starts Python without ``site``: half of the time
that the console script takes (tools/bench/hook.py).
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
import re
import shlex
import sys

from nova_vqos.hooks import libvirt
from nova_vqos.hooks import rewrite

DEFAULT_HOOKS_DIR = '/etc/libvirt/hooks'
# Late in the order: ours is the last word on the cap.
NAME = 'qemu.d/90-nova-vqos'
_MARK = '# Written by nova-vqos-libvirt-hook --install'

_SCRIPT = """\
#!/bin/sh
{mark}; changes are lost.
case "$2 $3" in
{operations}) ;;
*) exit 0 ;;
esac
python={python}
if [ ! -x "$python" ] || [ ! -f {module} ]; then
    echo "nova-vqos hook: $1: nova_vqos is gone, but not its hook" >&2
    grep -Eqs '^on_error *[=:] *refuse' {config} && exit 1
    exec cat
fi
exec "$python" -I -S -c {start} "$@"
"""
_START = """\
import sys
sys.path.append({directory!r})
from nova_vqos.hooks.libvirt import main
sys.exit(main(config={config!r}))
"""


class InstallError(Exception):
    """The hook cannot be installed or removed as asked."""


def script(config: str = libvirt.DEFAULT_CONFIG) -> str:
    """The shell script that libvirt is to run.

    :param config: path of the hook's configuration
    """
    # NOTE: of nova_vqos itself: all else that the hook imports is Python's.
    start = _START.format(
        directory=str(pathlib.Path(libvirt.__file__).parents[2]),
        config=config)
    return _SCRIPT.format(
        mark=_MARK,
        operations=' | '.join(f"'{operation} {sub_operation}'"
                              for operation, sub_operation
                              in libvirt.REWRITTEN),
        python=shlex.quote(sys.executable),
        module=shlex.quote(libvirt.__file__),
        config=shlex.quote(config),
        start=shlex.quote(start))


def installed_path(hooks_dir: str = DEFAULT_HOOKS_DIR) -> pathlib.Path | None:
    """Where the hook is installed, None if it is not.

    For the driver, which tells the scheduler of it.
    """
    path = pathlib.Path(hooks_dir, NAME)
    return path if _is_ours(path) and os.access(path, os.X_OK) else None


def config_of(content: str) -> str | None:
    """The configuration that an installed script goes by.

    :returns: None where it is no script of ours
    """
    if _MARK not in content:
        return None
    found = re.search('^ *grep .* && exit 1$', content, re.MULTILINE)
    return shlex.split(found[0])[3] if found else None


def install(hooks_dir: str, config: str) -> bool:
    """Install the hook, or the newer one.

    :returns: whether something had to be done
    :raises InstallError: when a foreign file is in its place, or the
        configuration is wrong
    :raises OSError: when it cannot be written
    """
    error = rewrite.load_settings(config).error
    if error:
        raise InstallError(error)
    path = pathlib.Path(hooks_dir, NAME)
    _check_not_foreign(path)
    content = script(config)
    if installed_path(hooks_dir) and path.read_text() == content:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # NOTE: libvirt runs whatever is executable below qemu.d, so it is made
    # beside it.
    temporary = path.parent.parent / f'.{path.name}.{os.getpid()}'
    try:
        temporary.write_text(content)
        temporary.chmod(0o755)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return True


def uninstall(hooks_dir: str) -> bool:
    """Remove the hook.

    :returns: whether it was there
    :raises InstallError: when a foreign file is in its place
    :raises OSError: when it cannot be removed
    """
    path = pathlib.Path(hooks_dir, NAME)
    _check_not_foreign(path)
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def main(arguments: Sequence[str]) -> int:
    """The command line that operators use."""
    parser = argparse.ArgumentParser(
        prog='nova-vqos-libvirt-hook',
        description='The qemu hook of libvirt, which gives a guest that '
        'comes in the CPU cap that this host has to have. libvirt calls it '
        'with NAME OPERATION SUB-OPERATION EXTRA; operators with:')
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument('--install', action='store_true',
                        help='install the hook, which may be there already')
    action.add_argument('--uninstall', action='store_true',
                        help='remove the hook, which may be gone already')
    parser.add_argument('--hooks-dir', default=DEFAULT_HOOKS_DIR,
                        help="libvirt's hooks (%(default)s)")
    parser.add_argument('--config', default=libvirt.DEFAULT_CONFIG,
                        help='configuration of the hook, which need not '
                        'exist (%(default)s)')
    options = parser.parse_args(arguments)
    path = pathlib.Path(options.hooks_dir, NAME)
    try:
        if options.uninstall:
            state = 'removed' if uninstall(options.hooks_dir) else 'not there'
        elif install(options.hooks_dir, os.path.abspath(options.config)):
            state = ('installed; libvirt looks for hooks when it starts: '
                     'restart virtqemud or libvirtd if this was the first')
        else:
            state = 'up to date'
    except (InstallError, OSError) as error:
        sys.stderr.write(f'error: {error}\n')
        return 1
    sys.stdout.write(f'{path}: {state}\n')
    return 0


def _is_ours(path: pathlib.Path) -> bool:
    try:
        with path.open(encoding='utf-8', errors='replace') as file:
            return _MARK in file.read(4096)
    except OSError:
        return False


def _check_not_foreign(path: pathlib.Path) -> None:
    if os.path.lexists(path) and not _is_ours(path):
        raise InstallError(f'{path} is not ours: it is left as it is')
