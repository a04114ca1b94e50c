# SPDX-License-Identifier: Apache-2.0
"""A slower host without slower silicon, in one of two ways.

The host's QEMU is run with something more, see emulator:

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

from nova_vqos_lab import emulator
from nova_vqos_lab import process

# What a division waits for. With it, work takes so many times the CPU time
# (QEMU 7.2): sysbench's prime numbers 2.4, sha256 1.7, sort 1.4, awk 1.2,
# gzip 1.1.
MULTIPLICATIONS = 40
# Percent of CPU time that is left for work by a lower clock.
SHARE = 50

#: Ways of being slow, of which the environment variable chooses one; the first
#: is the default.
WAYS = CLOCK, INSTRUCTIONS = 'clock', 'instructions'
VARIABLE = 'NOVA_VQOS_LAB_SLOW'


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
    return emulator.missing_requirements(plugins=chosen() == INSTRUCTIONS)


def build(directory: str) -> emulator.Addition:
    """Compile what slows QEMU down in the chosen way.

    :param directory: where to, on the machine; the host must see it at the
        same path
    :raises LabError: when it cannot be compiled
    """
    way = chosen()
    library = os.path.join(directory, f'slowcpu-{way}.so')
    if way == CLOCK:
        build_clock(library)
        return emulator.Addition(preload=library)
    emulator.compile_plugin('slowcpu_plugin.c', library,
                            f'-DVQOS_MULTIPLICATIONS={MULTIPLICATIONS}')
    return emulator.Addition(plugin=f'file={library}')


def build_clock(path: str) -> None:
    """Compile the library of a lower clock, for LD_PRELOAD.

    :raises LabError: when it cannot be compiled
    """
    emulator.compile_source('slowcpu_clock.c', path, '-shared', '-fPIC',
                            f'-DVQOS_SHARE={SHARE}')
