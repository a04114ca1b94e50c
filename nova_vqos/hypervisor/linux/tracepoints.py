# SPDX-License-Identifier: Apache-2.0
"""The numbers of the kernel's tracepoints, by which they are counted.

Only root reads them. What needs no more of a root program than such a number
has it in a record: the probe writes the one of KVM's exits, and the agent
reads it (:data:`nova_vqos.conf.default_path.KVM_EXIT`).
"""

import pathlib
import re

from nova_vqos import files

KVM_EXIT = 'kvm/kvm_exit'

#: Where tracefs is mounted.
TRACING = '/sys/kernel/tracing'

_NUMBER = re.compile(r'[1-9][0-9]{0,8}\n?')


class Unknown(Exception):
    """The number of a tracepoint is not known; the message says why."""


def number(name: str, recorded: str, tracing: str = TRACING) -> int:
    """The number of a tracepoint, from the kernel or from a record.

    :param name: with its subsystem, such as KVM_EXIT
    :param recorded: path of a record
    :raises Unknown: when neither can be read
    """
    try:
        return _parsed(_path(name, tracing).read_text())
    except (OSError, ValueError) as error:
        problem = _problem(name, error)
    try:
        return _parsed(files.read(recorded).decode('ascii'))
    except (files.FileError, ValueError):
        raise Unknown(f'{problem}, and nova-vqos-probe has recorded none'
                      ) from None


def record(name: str, path: str, tracing: str = TRACING) -> None:
    """Write the number of a tracepoint for programs that are not root.

    Where this kernel has none, or it cannot be read, there is no record then.

    :raises OSError: when it cannot be written
    """
    try:
        found = _parsed(_path(name, tracing).read_text())
    except (OSError, ValueError):
        pathlib.Path(path).unlink(missing_ok=True)
        return
    files.write(f'{found}\n', path, mode=0o644)


def _path(name: str, tracing: str) -> pathlib.Path:
    return pathlib.Path(tracing, 'events', name, 'id')


def _parsed(text: str) -> int:
    """:raises ValueError: when it is no number of a tracepoint"""
    if not _NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _problem(name: str, error: Exception) -> str:
    if isinstance(error, PermissionError):
        return f'only root can read the number of tracepoint {name}'
    if isinstance(error, FileNotFoundError):
        return (f'this kernel has no tracepoint {name} now, or tracefs is not '
                f'mounted')
    return f'the number of tracepoint {name} cannot be read: {error}'
