# SPDX-License-Identifier: Apache-2.0
"""Hosts whose QEMUs count the instructions of their guests.

The lab's guests are emulated, so no CPU counts for them: a TCG plugin does,
for the agent. It costs each guest a little of its speed, so it is off unless
the environment variable asks for it.
"""

import os

from nova_vqos_lab import emulator
from nova_vqos_lab import process

#: Where QEMUs count, and agents read.
DIRECTORY = '/run/nova-vqos/instructions'
VARIABLE = 'NOVA_VQOS_LAB_COUNT'

_VALUES = {'0': False, '1': True}


def is_wanted() -> bool:
    """:returns: whether the lab's hosts count

    :raises LabError: when the variable has another value
    """
    value = os.environ.get(VARIABLE, '0')
    if value not in _VALUES:
        raise process.LabError(
            f'{VARIABLE} is {value!r}, it must be {" or ".join(_VALUES)}')
    return _VALUES[value]


def build(directory: str) -> emulator.Addition:
    """Compile the plugin.

    :param directory: where to, on the machine; the host must see it at the
        same path
    :raises LabError: when it cannot be compiled
    """
    plugin = os.path.join(directory, 'count.so')
    emulator.compile_plugin('count_plugin.c', plugin)
    return emulator.Addition(plugin=f'file={plugin},directory={DIRECTORY}')
