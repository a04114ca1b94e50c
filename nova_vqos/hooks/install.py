# SPDX-License-Identifier: Apache-2.0
"""Installs the hook in libvirt's directory, and removes it.

The installed file is a short shell script in ``qemu.d``. libvirt (6.5 and
later) runs the hooks there in the order of their names, each with the XML that
the previous one printed. The script starts Python for two operations only, and
without ``site``, which in an environment with many packages takes as long as
all of the hook (tools/bench/hook.py).
"""

import argparse
from collections.abc import Sequence
import os
import pathlib
import re
import shlex
import sys

from nova_vqos import hooks
from nova_vqos.conf import default_path
from nova_vqos.hooks import rewrite

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
import os, sys
sys.path.append({directory!r})
from nova_vqos.hooks.libvirt import main
# Without Python's own clean-up, which takes 4 ms.
os._exit(main(config={config!r}))
"""


class InstallError(Exception):
    """The hook cannot be installed or removed as asked."""


def script(config: str = default_path.HOOK_CONFIG) -> str:
    """The shell script for libvirt.

    :param config: path of the hook's configuration
    """
    # NOTE: the directory of nova_vqos: all other imports are Python's own.
    module = pathlib.Path(__file__).with_name('libvirt.py')
    start = _START.format(directory=str(module.parents[2]), config=config)
    return _SCRIPT.format(
        mark=hooks.MARK,
        operations=' | '.join(f"'{operation} {sub_operation}'"
                              for operation, sub_operation
                              in hooks.REWRITTEN),
        python=shlex.quote(sys.executable),
        module=shlex.quote(str(module)),
        config=shlex.quote(config),
        start=shlex.quote(start))


def config_of(content: str) -> str | None:
    """The path of the configuration in an installed script.

    :returns: None: it is no script of ours
    """
    if hooks.MARK not in content:
        return None
    found = re.search('^ *grep .* && exit 1$', content, re.MULTILINE)
    return shlex.split(found[0])[3] if found else None


def install(hooks_dir: str, config: str) -> bool:
    """Install the hook, or replace an older one.

    :returns: whether the file was written
    :raises InstallError: when another program's file is in its place, or the
        configuration is invalid
    :raises OSError: when it cannot be written
    """
    error = rewrite.load_settings(config).error
    if error:
        raise InstallError(error)
    path = pathlib.Path(hooks_dir, default_path.HOOK_NAME)
    _check_not_foreign(path)
    content = script(config)
    if hooks.is_installed(hooks_dir) and path.read_text() == content:
        return False
    path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    # NOTE: libvirt runs each executable in qemu.d, so the new file is made
    # outside.
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
    :raises InstallError: when another program's file is in its place
    :raises OSError: when it cannot be removed
    """
    path = pathlib.Path(hooks_dir, default_path.HOOK_NAME)
    _check_not_foreign(path)
    there = path.exists()
    path.unlink(missing_ok=True)
    return there


def main(arguments: Sequence[str]) -> int:
    """The command line for operators."""
    parser = argparse.ArgumentParser(
        prog='nova-vqos-libvirt-hook',
        description='The qemu hook of libvirt: gives a guest that migrates '
        'to this host its CPU cap for this host. libvirt runs it with NAME '
        'OPERATION SUB-OPERATION EXTRA, operators run it with:')
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument('--install', action='store_true',
                        help='install the hook, or update it')
    action.add_argument('--uninstall', action='store_true',
                        help='remove the hook, if it is installed')
    parser.add_argument('--hooks-dir', default=default_path.HOOKS,
                        help="directory of libvirt's hooks (%(default)s)")
    parser.add_argument('--config', default=default_path.HOOK_CONFIG,
                        help='configuration of the hook; the file may be '
                        'missing (%(default)s)')
    options = parser.parse_args(arguments)
    path = pathlib.Path(options.hooks_dir, default_path.HOOK_NAME)
    try:
        if options.uninstall:
            state = 'removed' if uninstall(options.hooks_dir) else 'not there'
        elif install(options.hooks_dir, os.path.abspath(options.config)):
            state = ('installed; libvirt reads its hooks when it starts: '
                     'restart virtqemud or libvirtd if this is the first')
        else:
            state = 'up to date'
    except (InstallError, OSError) as error:
        sys.stderr.write(f'error: {error}\n')
        return 1
    sys.stdout.write(f'{path}: {state}\n')
    return 0


def _check_not_foreign(path: pathlib.Path) -> None:
    if os.path.lexists(path) and not hooks.is_ours(str(path)):
        raise InstallError(f'{path} is not ours: not changed')
