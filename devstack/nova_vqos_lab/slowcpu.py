# SPDX-License-Identifier: Apache-2.0
"""A slower host without slower silicon, in one of two ways.

The host's QEMU is replaced, in its mount namespace alone, by a wrapper that
runs it with something more:

instructions
    A TCG plugin, by which each instruction of a guest costs a little more, a
    division much more. That is a real, application-dependent difference in
    the CPU time that work costs, as between unlike CPUs, only wider.
clock
    A library that lets QEMU's threads work for a fixed share of their CPU
    time, whatever their work is: a CPU of the same make, and of a lower clock.

(A quota on the whole host, or a thief thread, would be neither: a second of
CPU time would still do the same work.)
"""

import os
import re
import shutil

from nova_vqos_lab import process

QEMU = '/usr/bin/qemu-system-x86_64'
# What a division waits for. With it, work takes so many times the CPU time
# (QEMU 7.2): sysbench's prime numbers 2.4, sha256 1.7, sort 1.4, awk 1.2,
# gzip 1.1.
MULTIPLICATIONS = 40
# Percent of CPU time that is left for work by a lower clock.
SHARE = 50

#: Ways of being slow, of which the environment variable chooses one; the first
#: is the default.
WAYS = INSTRUCTIONS, CLOCK = 'instructions', 'clock'
VARIABLE = 'NOVA_VQOS_LAB_SLOW'

_HERE = os.path.dirname(os.path.abspath(__file__))


def chosen() -> str:
    """:returns: the way that was asked for, one of WAYS

    :raises LabError: when it is none
    """
    way = os.environ.get(VARIABLE, WAYS[0])
    if way not in WAYS:
        raise process.LabError(
            f'{VARIABLE} is {way!r}, it must be {" or ".join(WAYS)}')
    return way


def missing_requirements() -> list[str]:
    """:returns: what this machine lacks to slow a host down, in sentences.

    :raises LabError: see chosen
    """
    if not os.path.exists(QEMU):
        # Callers that need QEMU report it.
        return []
    found = []
    if (chosen() == INSTRUCTIONS
            and '-plugin' not in process.run([QEMU, '-help']).stdout):
        found.append('QEMU here was built without TCG plugins, which make '
                     'one of the hosts slow')
    if shutil.which('gcc') is None:
        found.append('there is no C compiler: install the packages gcc and '
                     'libc6-dev')
    return found


def build(directory: str) -> list[tuple[str, str]]:
    """Compile the wrapper, and what it runs QEMU with in the chosen way.

    :param directory: where to, on the machine; the host must see it at the
        same path
    :returns: what the host has to mount, in this order: (what, where)
    :raises LabError: when it cannot be compiled
    """
    way = chosen()
    real = os.path.join(directory, 'usr', 'bin', os.path.basename(QEMU))
    library = os.path.join(directory, f'slowcpu-{way}.so')
    wrapper = os.path.join(directory, 'qemu-wrapper')
    _make_place(real)
    if way == INSTRUCTIONS:
        _compile('slowcpu_plugin.c', library, '-shared', '-fPIC',
                 '-fvisibility=hidden', f'-DVQOS_PLUGIN_API={_plugin_api()}',
                 f'-DVQOS_MULTIPLICATIONS={MULTIPLICATIONS}')
    else:
        build_clock(library)
    macro = 'VQOS_PLUGIN' if way == INSTRUCTIONS else 'VQOS_PRELOAD'
    _compile('slowcpu_wrapper.c', wrapper, f'-DVQOS_QEMU="{real}"',
             f'-D{macro}="{library}"')
    return [(QEMU, real), (wrapper, QEMU)]


def build_clock(path: str) -> None:
    """Compile the library of a lower clock, for LD_PRELOAD.

    :raises LabError: when it cannot be compiled
    """
    _compile('slowcpu_clock.c', path, '-shared', '-fPIC',
             f'-DVQOS_SHARE={SHARE}')


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
    shown = process.run([QEMU, '--version']).stdout
    version = re.search(r'version (\d+)\.(\d+)', shown)
    if version is None:
        raise process.LabError(f'{QEMU} does not say its version: {shown}')
    if int(version[1]) < 9:
        return 1
    return 2 if (version[1], version[2]) == ('9', '0') else 3


def _compile(source: str, target: str, *options: str) -> None:
    process.run(['gcc', '-std=gnu11', '-O2', '-Wall', '-Wextra', '-Werror',
                 *options, '-o', target, os.path.join(_HERE, source)])
