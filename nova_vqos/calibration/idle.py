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

"""Measuring in time that nobody else wants.

A thread of policy SCHED_IDLE, or a group that is idle within another one, is
idle among its own kind alone: outside, the whole group competes by its weight
with servers. So it has to be a group right below the root of the hierarchy.
"""

from collections.abc import Iterator
import contextlib
import os
import pathlib

from nova_vqos.calibration.benchmark import CalibrationError

#: Right below the root.
NAME = 'nova-vqos-idle'


@contextlib.contextmanager
def group(root: str = '/') -> Iterator[None]:
    """Be in a group that is idle as a whole, with all that is started then.

    Where the process is in one already, as below a slice of systemd's with
    CPUWeight=idle, nothing is done; else one is made, and removed after.

    :param root: where /proc and /sys are looked for, for tests
    :raises CalibrationError: when it cannot be: no root, a kernel before 5.15
    """
    mount, own = hierarchy(root)
    top = own.strip('/').split('/')[0]
    if top and _is_idle(mount / top):
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
        # What was measured must not be lost for that; nor may what another
        # one, still at work in it, is measuring.
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


def _is_idle(directory: pathlib.Path) -> bool:
    try:
        return (directory / 'cpu.idle').read_text().strip() == '1'
    except OSError:
        return False
