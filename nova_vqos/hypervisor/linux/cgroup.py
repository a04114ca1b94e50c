# SPDX-License-Identifier: Apache-2.0
"""Where the cgroups of domains are, and how their files are understood."""

import os

from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import procfs

# NOTE: libvirt's way to say 'no limit' where -1 is refused
# (VIR_CGROUP_CPU_QUOTA_MAX in src/util/vircgroup.h).
UNLIMITED_QUOTA_US = 17_592_186_044_415

US_NS = 1000
#: The file of a cgroup with its CPU time, by the version of cgroups.
TIME_FILES = {1: 'cpuacct.usage', 2: 'cpu.stat'}


class CgroupError(base.HypervisorError):
    """A domain's cgroup cannot be found or read."""


def unreadable(path: str, error: Exception) -> CgroupError:
    """Make the error of a cgroup that is not there or not understood."""
    gone = isinstance(error, OSError) and error.errno in procfs.GONE
    return CgroupError(
        f'cgroup {path} {"is gone" if gone else "cannot be read"}: {error}')


def write(path: str, value: str) -> None:
    """Write a file of cgroupfs.

    :raises OSError: when the kernel refuses
    """
    # NOTE: neither made nor truncated: cgroupfs has the files that it has.
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode('ascii'))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(descriptor)


def host_version(root: str) -> int:
    """The version of cgroups: 2 where they are unified on this host, else 1.

    :param root: where /sys is looked for
    """
    return 2 if os.path.exists(os.path.join(
        root, 'sys/fs/cgroup/cgroup.controllers')) else 1


def find(root: str, pid: int | str, version: int,
         controller: str = 'cpu') -> tuple[str, str]:
    """Find the cgroup of the domain whose emulator has a process id.

    :param root: where /proc and /sys are looked for
    :param controller: of version 1, where each may have a hierarchy of its own
    :returns: its directory, and the name of the topmost cgroup above it
    :raises CgroupError: when it is in none
    """
    mount, path = find_process(root, pid, version, controller)
    directory, name = os.path.split(path)
    # The emulator's threads are below the domain, beside its vCPUs.
    domain = directory if name == 'emulator' else path
    if domain == '/':
        raise CgroupError('the emulator is in the root cgroup')
    path = domain.lstrip('/')
    return os.path.join(mount, path), path.partition('/')[0]


def find_process(root: str, pid: int | str, version: int,
                 controller: str) -> tuple[str, str]:
    """Find the hierarchy that a process is in, and where below it.

    :param pid: of the process, or ``self``
    :raises CgroupError: when it is in none
    """
    try:
        with open(os.path.join(root, f'proc/{pid}/cgroup')) as file:
            lines = file.read().splitlines()
    except OSError as error:
        raise CgroupError(
            f'the cgroup of process {pid} is unknown: {error}') from error
    for line in lines:
        hierarchy, _, rest = line.partition(':')
        controllers, _, path = rest.partition(':')
        if version == 1 and controller in controllers.split(','):
            return _mount(root, controller, controllers), path
        if version == 2 and hierarchy == '0':
            return os.path.join(root, 'sys/fs/cgroup'), path
    raise CgroupError(f'process {pid} is in no {controller} cgroup')


def _mount(root: str, controller: str, controllers: str) -> str:
    # NOTE: where two controllers share a hierarchy, systemd links each one's
    # name to it; elsewhere only the joint name may be there.
    for name in (controller, controllers):
        mount = os.path.join(root, 'sys/fs/cgroup', name)
        if os.path.isdir(mount):
            break
    return mount


def time_ns(content: bytes, version: int) -> int:
    """Parse the CPU time of a cgroup.

    :param content: of the file with it, see TIME_FILES
    :raises ValueError: when it is not understood
    """
    if version == 1:
        return int(content)
    return field(content, b'usage_usec') * US_NS


def field(content: bytes, name: bytes, default: int | None = None) -> int:
    """Parse a number of a flat-keyed file of cgroupfs.

    :param default: where there is no such field
    :raises ValueError: when there is none, or it is no number
    """
    before, found, rest = (b'\n' + content).partition(b'\n' + name + b' ')
    if not found:
        if default is None:
            raise ValueError(f'no {name.decode()} in {before[:80]!r}')
        return default
    return int(rest.partition(b'\n')[0])
