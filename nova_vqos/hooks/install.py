# SPDX-License-Identifier: Apache-2.0
"""Installs the hook in libvirt's directory, and removes it.

The installed file is a short shell script in ``qemu.d``. libvirt (6.5 and
later) runs the hooks there in the order of their names, each with the XML that
the previous one printed. The script starts Python for two operations only, and
without ``site``, which in an environment with many packages takes as long as
all of the hook (tools/bench/hook.py).

libvirt runs the hook as root. A user who can write nova_vqos, its Python, or a
directory above one of them can become root at the next migration. So such a
hook is neither installed nor run, unless the operator trusts that user. The
installation and the script check this with the same find(1) command.
"""

import argparse
from collections.abc import Collection, Iterator, Sequence
import contextlib
import os
import pathlib
import pwd
import re
import shlex
import subprocess
import sys
import typing as ty

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
    problem='nova_vqos is gone, but not its hook'
else
    problem=$({look} 2>&1)
fi
if [ -n "$problem" ]; then
    printf 'nova-vqos hook: %s: %s\\n' "$1" "$problem" >&2
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


_PACKAGE = pathlib.Path(hooks.__file__).resolve().parents[1]
# Those of nova_vqos that the hook imports from.
_SUBPACKAGES = ('', 'conf', 'hooks', 'profile', 'quantum')
_FAULT = '%p may be written by others than root'
# How long find(1) may take.
_LOOK_LIMIT_S = 60


class InstallError(Exception):
    """The hook cannot be installed or removed as asked."""


class Installed(ty.NamedTuple):
    """What a script of ours was made for.

    :ivar config: path of the hook's configuration
    :ivar trusted: ids of the users besides root who may write what it runs
    """

    config: str
    trusted: tuple[int, ...]


def script(config: str = default_path.HOOK_CONFIG,
           trusted: Collection[int] = ()) -> str:
    """The shell script for libvirt.

    :param config: path of the hook's configuration
    :param trusted: ids of users who may write what it runs, besides root
    """
    # NOTE: the directory of nova_vqos: all other imports are Python's own.
    module = _PACKAGE / 'hooks/libvirt.py'
    start = _START.format(directory=str(module.parents[2]), config=config)
    return _SCRIPT.format(
        mark=hooks.MARK,
        operations=' | '.join(f"'{operation} {sub_operation}'"
                              for operation, sub_operation
                              in hooks.REWRITTEN),
        python=shlex.quote(sys.executable),
        module=shlex.quote(str(module)),
        config=shlex.quote(config), look=shlex.join(_look(trusted)),
        start=shlex.quote(start))


def parse(content: str) -> Installed | None:
    """What an installed script was made for; None: it is none of ours.

    What a damaged one does not say is as by default.
    """
    if hooks.MARK not in content:
        return None
    config, uids = default_path.HOOK_CONFIG, set[int]()
    found = re.search('^ *grep .* && exit 1$', content, re.MULTILINE)
    look = re.search(r'^ *problem=\$\((.*) 2>&1\)$', content, re.MULTILINE)
    with contextlib.suppress(ValueError, IndexError):
        words = shlex.split(look[1]) if look else []
        uids = {int(uid) for name, uid in zip(words, words[1:], strict=False)
                if name == '-uid'}
        config = shlex.split(found[0])[3] if found else config
    return Installed(config, tuple(sorted(uids - {0})))


def find_fault(trusted: Collection[int] = ()) -> str:
    """What of the hook others than root may write; '': nothing.

    :param trusted: ids of users who may, too
    """
    done = subprocess.run(_look(trusted), capture_output=True, text=True,
                          check=False, timeout=_LOOK_LIMIT_S)
    return (done.stdout + done.stderr).strip()


def _look(trusted: Collection[int]) -> list[str]:
    """The command that prints what others may write, and nothing otherwise.

    Others than its owner may add files to a directory with the sticky bit,
    such as /tmp, but not replace any.
    """
    users = [0, *sorted(set(trusted) - {0})]
    groups = sorted({0, *_primary_groups(users)})
    places = dict.fromkeys(
        str(above) for place in (
            _PACKAGE, pathlib.Path(os.__file__).resolve().parent,
            *_links(sys.executable)) for above in (place, *place.parents))
    kept = [str(directory / cache) for directory in (
        _PACKAGE / name for name in _SUBPACKAGES)
        for cache in ('', '__pycache__')]
    return [
        'find', '-L', *places,
        '(', '(', *(word for uid in users
                    for word in ('!', '-uid', str(uid))), ')',
        '-o', '!', '(', '-type', 'd', '-perm', '-1000', ')',
        '(', '-perm', '/002', '-o', '-perm', '/020',
        *(word for gid in groups for word in ('!', '-gid', str(gid))),
        ')', ')', '-printf', _FAULT, '-quit',
        # Of other directories nothing but themselves.
        '-o', *(word for directory in kept for word in (
            '!', '-path', _as_pattern(directory))), '-prune']


def _as_pattern(path: str) -> str:
    """A path as fnmatch(3) takes it."""
    return re.sub(r'([*?\[\\])', r'\\\1', path)


def _primary_groups(uids: Collection[int]) -> Iterator[int]:
    """The primary group of each user that is known here."""
    for uid in uids:
        try:
            yield pwd.getpwuid(uid).pw_gid
        except KeyError:
            continue


def _links(path: str) -> Iterator[pathlib.Path]:
    """A file, and what it links to, link by link."""
    found = pathlib.Path(os.path.abspath(path))
    while found.is_symlink():
        yield found
        found = pathlib.Path(os.path.normpath(
            found.parent / os.readlink(found)))
    yield found


def install(hooks_dir: str, config: str,
            trusted: Collection[int] = ()) -> bool:
    """Install the hook, or replace an older one.

    :param trusted: ids of users who may write what it runs, besides root
    :returns: whether the file was written
    :raises InstallError: when another program's file is in its place, the
        configuration is invalid, or others may write what it runs
    :raises OSError: when it cannot be written
    """
    fault = find_fault(trusted)
    if fault:
        raise InstallError(
            f'{fault}, and libvirt runs the hook as root: install nova_vqos '
            'where only root may write, or trust them by --trust USER')
    error = rewrite.load_settings(config).error
    if error:
        raise InstallError(error)
    path = pathlib.Path(hooks_dir, default_path.HOOK_NAME)
    _check_not_foreign(path)
    content = script(config, trusted)
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
    parser.add_argument('--trust', metavar='USER', action='append',
                        type=_uid, default=[],
                        help='accept that this user, by name or id, may '
                        'write what libvirt then runs as root: that makes '
                        'him root (may be repeated)')
    options = parser.parse_args(arguments)
    path = pathlib.Path(options.hooks_dir, default_path.HOOK_NAME)
    try:
        if options.uninstall:
            state = 'removed' if uninstall(options.hooks_dir) else 'not there'
        elif install(options.hooks_dir, os.path.abspath(options.config),
                     options.trust):
            state = ('installed; libvirt reads its hooks when it starts: '
                     'restart virtqemud or libvirtd if this is the first')
        else:
            state = 'up to date'
    except (InstallError, OSError) as error:
        sys.stderr.write(f'error: {error}\n')
        return 1
    sys.stdout.write(f'{path}: {state}\n')
    return 0


def _uid(text: str) -> int:
    """The id of a user, by name or id.

    :raises argparse.ArgumentTypeError: when there is none
    """
    try:
        return (int(text) if text.isascii() and text.isdecimal()
                else pwd.getpwnam(text).pw_uid)
    except KeyError:
        raise argparse.ArgumentTypeError(
            f'there is no user {text!r}') from None


def _check_not_foreign(path: pathlib.Path) -> None:
    if os.path.lexists(path) and not hooks.is_ours(str(path)):
        raise InstallError(f'{path} is not ours: not changed')
