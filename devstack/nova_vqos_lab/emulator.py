# SPDX-License-Identifier: Apache-2.0
"""A host's QEMU with something more: plugins, a library, memory of guests.

In the host's mount namespace alone, QEMU is replaced by a wrapper that runs
it so.
"""

from collections.abc import Sequence
import os
import re
import shutil
import typing as ty

from nova_vqos_lab import process

QEMU = '/usr/bin/qemu-system-x86_64'

#: More RAM than libvirt gives guests, where QEMU needs it: see mend().
MORE_RAM_BYTES = 8192
_HERE = os.path.dirname(os.path.abspath(__file__))


class Addition(ty.NamedTuple):
    """What QEMU is run with.

    :ivar plugin: value of its option -plugin; '': none
    :ivar preload: a library for LD_PRELOAD; '': none
    :ivar ram_bytes: more RAM for each guest
    """

    plugin: str = ''
    preload: str = ''
    ram_bytes: int = 0


def mend() -> list[Addition]:
    """What keeps emulated guests whole in a live migration.

    Before QEMU 9.0, and its commit 03bfc2188f06, an emulated vCPU goes on to
    write to pages that were just read as unchanged, and its last writes may be
    missing on the destination: of 60 migrations of a busy guest by QEMU 7.2.22
    two broke it, and none of 60 with 8 KiB more of RAM
    (tools/bench/emulated_migrations.py --migrations 60). It happens only where
    RAM is a multiple of 256 KiB, as libvirt makes it: 64 pages are read at a
    time then.
    """
    return [Addition(ram_bytes=MORE_RAM_BYTES)] if _version() < (9, 0) else []


def missing_requirements(plugins: bool) -> list[str]:
    """:returns: what this machine lacks for it, in sentences.

    :param plugins: whether plugins are wanted
    """
    if not os.path.exists(QEMU):
        # Callers that need QEMU report it.
        return []
    found = []
    if plugins and '-plugin' not in process.run([QEMU, '-help']).stdout:
        found.append('QEMU here was built without TCG plugins, which make '
                     'one of the hosts slow and count instructions')
    if shutil.which('gcc') is None:
        found.append('there is no C compiler: install the packages gcc and '
                     'libc6-dev')
    return found


def wrap(directory: str,
         additions: Sequence[Addition]) -> list[tuple[str, str]]:
    """Compile a wrapper that runs QEMU with additions.

    :param directory: where to, on the machine; the host must see it at the
        same path
    :returns: what the host has to mount, in this order: (what, where)
    :raises LabError: when it cannot be compiled
    """
    real = os.path.join(directory, 'usr', 'bin', os.path.basename(QEMU))
    wrapper = os.path.join(directory, 'qemu-wrapper')
    _make_place(real)
    options = [f'-DVQOS_QEMU="{real}"']
    plugins = ','.join(f'"{one.plugin}"' for one in additions if one.plugin)
    if plugins:
        options.append(f'-DVQOS_PLUGINS={plugins}')
    preloads = ':'.join(one.preload for one in additions if one.preload)
    if preloads:
        options.append(f'-DVQOS_PRELOAD="{preloads}"')
    more_bytes = sum(one.ram_bytes for one in additions)
    if more_bytes:
        options.append(f'-DVQOS_MORE_RAM={more_bytes}')
    compile_source('qemu_wrapper.c', wrapper, *options)
    return [(QEMU, real), (wrapper, QEMU)]


def compile_plugin(source: str, target: str, *options: str) -> None:
    """Compile a plugin for the QEMU of this machine.

    :param source: beside this file
    :raises LabError: when it cannot be compiled
    """
    compile_source(source, target, '-shared', '-fPIC', '-fvisibility=hidden',
                   f'-DVQOS_PLUGIN_API={_plugin_api()}', *options)


def compile_source(source: str, target: str, *options: str) -> None:
    """Compile a program or a library.

    :param source: beside this file
    :raises LabError: when it cannot be compiled
    """
    os.makedirs(os.path.dirname(target), exist_ok=True)
    process.run(['gcc', '-std=gnu11', '-O2', '-Wall', '-Wextra', '-Werror',
                 *options, '-o', target, os.path.join(_HERE, source)])


def _make_place(real: str) -> None:
    """Make the file that the real QEMU is mounted on.

    QEMU looks for its firmware and modules relative to where it is started
    from, hence the links beside it.
    """
    prefix = os.path.dirname(os.path.dirname(real))
    os.makedirs(os.path.dirname(real), exist_ok=True)
    with open(real, 'ab'):
        pass
    for name in ('share', 'lib', 'libexec'):
        link = os.path.join(prefix, name)
        if not os.path.islink(link):
            os.symlink(f'/usr/{name}', link)


def _plugin_api() -> int:
    """:returns: the version of the plugin interface to compile for."""
    version = _version()
    return 1 if version < (9, 0) else 2 if version == (9, 0) else 3


def _version() -> tuple[int, int]:
    shown = process.run([QEMU, '--version']).stdout
    found = re.search(r'version (\d+)\.(\d+)', shown)
    if found is None:
        raise process.LabError(f'{QEMU} does not say its version: {shown}')
    return int(found[1]), int(found[2])
