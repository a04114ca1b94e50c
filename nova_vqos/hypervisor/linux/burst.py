# SPDX-License-Identifier: Apache-2.0
"""Bursts of a domain's cgroups: quota that a group may save up.

nova_vqos sets none. One that another program has set lets a group exceed its
cap for a while, and keeps the cap from being lowered.

NOTE: tg_set_cfs_bandwidth() in kernel/sched/core.c answers EINVAL to a quota
below the group's burst.
"""

from collections.abc import Iterable
import os
import re

from nova_vqos.hypervisor.linux import cgroup

_FILES = {1: 'cpu.cfs_burst_us', 2: 'cpu.max.burst'}
_CHILD = re.compile(r'(vcpu|iothread)[0-9]+|emulator')


def clear(root: str, pid: int, version: int) -> dict[str, int]:
    """Set the bursts of a domain's group, and of those in it, to 0.

    :param root: where /proc and /sys are looked for
    :param pid: of the domain's emulator
    :param version: of cgroups, 1 or 2
    :returns: what was cleared: burst in microseconds by path of its file
    :raises CgroupError: when it cannot be found, or the kernel refuses
    """
    domain, _top = cgroup.find(root, pid, version)
    cleared = {}
    try:
        for group in _groups(domain):
            path = os.path.join(group, _FILES[version])
            burst_us = _read(path)
            if burst_us:
                cgroup.write(path, '0')
                cleared[path] = burst_us
    except (OSError, ValueError) as error:
        raise cgroup.CgroupError(
            f'a burst below {domain} cannot be cleared: {error}') from error
    return cleared


def _groups(domain: str) -> Iterable[str]:
    yield domain
    for name in sorted(os.listdir(domain)):
        if _CHILD.fullmatch(name):
            yield os.path.join(domain, name)


def _read(path: str) -> int:
    try:
        with open(path, encoding='ascii') as file:
            return int(file.read())
    except FileNotFoundError:
        # A kernel before 5.14, or a vCPU that has just been unplugged.
        return 0
