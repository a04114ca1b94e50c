# SPDX-License-Identifier: Apache-2.0
"""Measuring in idle time.

A thread of policy SCHED_IDLE, or a group that is idle within another one, is
idle among its own kind alone: outside, the whole group competes by its weight
with servers. So it has to be a group right below the root of the hierarchy.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib

from nova_vqos.calibration.benchmark import CalibrationError
from nova_vqos.hypervisor.linux import procfs

#: Right below the root.
NAME = 'nova-vqos-idle'


@contextlib.contextmanager
def group(root: str = '/') -> Iterator[None]:
    """Be in a group that is idle as a whole, with all programs started then.

    Where the process is in one already, as below a slice of systemd with
    CPUWeight=idle, nothing is done; else one is made, and removed afterwards.

    :param root: where /proc and /sys are looked for, for tests
    :raises CalibrationError: when it cannot be: no root, a kernel before 5.15
    """
    mount, own = hierarchy(root)
    top = own.strip('/').split('/')[0]
    if top and procfs.read_text(mount / top / 'cpu.idle', '') == '1':
        yield
        return
    made = mount / NAME
    try:
        made.mkdir(exist_ok=True)
        (made / 'cpu.idle').write_text('1')
        (made / 'cgroup.procs').write_text(str(os.getpid()))
    except OSError as error:
        with contextlib.suppress(OSError):
            made.rmdir()
        raise CalibrationError(
            f'no idle cgroup can be made at {made}: {error.strerror}. Root '
            'and Linux 5.15 are needed, or a slice of systemd with '
            'CPUWeight=idle') from error
    try:
        yield
    finally:
        # A failure here must not lose the measurement; nor that of another
        # program that is still at work in the group.
        with contextlib.suppress(OSError):
            (mount / own.strip('/') / 'cgroup.procs').write_text(
                str(os.getpid()))
            made.rmdir()


def hierarchy(root: str) -> tuple[pathlib.Path, str]:
    """Where the cpu controller is, and this process' group there.

    :raises CalibrationError: when there is none
    """
    base = pathlib.Path(root)
    unified = None
    for line in (base / 'proc/self/cgroup').read_text().splitlines():
        hierarchy, controllers, path = line.split(':', 2)
        if 'cpu' in controllers.split(','):
            directory = base / 'sys/fs/cgroup'
            # systemd links each controller's name to the joint directory;
            # elsewhere only that may be there.
            name = 'cpu' if (directory / 'cpu').is_dir() else controllers
            return directory / name, path
        if hierarchy == '0':
            unified = base / 'sys/fs/cgroup', path
    if unified is None:
        raise CalibrationError('this host has no cgroups for CPU time')
    return unified
