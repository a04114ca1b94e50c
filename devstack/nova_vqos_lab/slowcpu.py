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

"""A slower host without slower silicon.

The host's QEMU is replaced, in its mount namespace alone, by a wrapper that
loads a TCG plugin into it: each instruction of a guest costs a little more, a
division much more. That is a real, application-dependent difference in the
CPU time that work costs, as between unlike CPUs. (A quota on the whole host,
or a thief thread, would be none: a second of CPU time would still do the same
work.)
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

_HERE = os.path.dirname(os.path.abspath(__file__))


def missing_requirements() -> list[str]:
    """:returns: what this machine lacks to slow a host down, in sentences."""
    if not os.path.exists(QEMU):
        # Said by whoever needs QEMU at all.
        return []
    found = []
    if '-plugin' not in process.run([QEMU, '-help']).stdout:
        found.append('QEMU here was built without TCG plugins, which make '
                     'one of the hosts slow')
    if shutil.which('gcc') is None:
        found.append('there is no C compiler: install the packages gcc and '
                     'libc6-dev')
    return found


def build(directory: str) -> list[tuple[str, str]]:
    """Compile the plugin and the wrapper.

    :param directory: where to, on the machine; the host must see it at the
        same path
    :returns: what the host has to mount, in this order: (what, where)
    :raises LabError: when it cannot be compiled
    """
    real = os.path.join(directory, 'usr', 'bin', os.path.basename(QEMU))
    plugin = os.path.join(directory, 'slowcpu.so')
    wrapper = os.path.join(directory, 'qemu-wrapper')
    _make_place(real)
    _compile('slowcpu_plugin.c', plugin, '-shared', '-fPIC',
             '-fvisibility=hidden', f'-DVQOS_PLUGIN_API={_plugin_api()}',
             f'-DVQOS_MULTIPLICATIONS={MULTIPLICATIONS}')
    _compile('slowcpu_wrapper.c', wrapper, f'-DVQOS_QEMU="{real}"',
             f'-DVQOS_PLUGIN="{plugin}"')
    return [(QEMU, real), (wrapper, QEMU)]


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
