# SPDX-License-Identifier: Apache-2.0
"""The cgroups that a host of the lab is made of, version 1 or 2.

A host owns a group below one of the lab's own; inside the host, that group is
the root of the hierarchy. Below it are ``services``, where everything of the
host runs but its guests, and ``machine``, which libvirt puts its guests into.
Above the lab's group it only delegates the controllers, which version 2
needs.
"""

from collections.abc import Iterable, Iterator
import contextlib
import dataclasses
import errno
import os
import re
import signal
import threading
import time

from nova_vqos_lab import process

SERVICES = 'services'
MACHINE = 'machine'
CONTROLLERS = ('cpu', 'cpuacct', 'cpuset')

# Of the machine's CPU time, when all of it is wanted: the lab's hosts before
# the rest of the machine, and their guests before their services. A host of a
# real cloud shares its CPUs neither with the cloud's database nor with a
# second host. As much as version 2 has, a weight of 10000: what else runs on
# the machine is not to be seen in what the guests are promised.
_LAB_SHARES = 102400
# Hosts start and stop at the same time: none is to remove the group of the lab
# while another one makes its own below.
_LAB_GROUP = threading.Lock()
_MACHINE_SHARES = 102400
# A tenth of the guests': no guest with a cap below nine tenths of its pCPU
# notices, and libvirtd answers though all guests spin and the machine is busy.
_SERVICES_SHARES = 10240
# A fiftieth of the lab's: it goes on beside other work of the machine, and no
# guest notices.
_PACE_SHARES = 2048
_DEFAULT_SHARES = 1024
# Of a guest; libvirt shortens it at 64 characters, and escapes those that are
# special to systemd.
_DOMAIN = re.compile(r'qemu-([0-9]+)-(.*)\.libvirt-qemu')
_DEFAULT_WEIGHT = 100


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """One mounted hierarchy.

    :ivar directory: where it is mounted, on the machine and in a host
    :ivar options: what mounts it, the controllers in version 1
    """

    directory: str
    options: str


@dataclasses.dataclass(frozen=True, slots=True)
class Hierarchy:
    """What a host needs of the machine's cgroups.

    :ivar version: 1 or 2
    :ivar mounts: of each of CONTROLLERS; in version 2 all are the same
    """

    version: int
    mounts: dict[str, Mount]

    def roots(self) -> list[Mount]:
        """:returns: each hierarchy once, two controllers may share one."""
        return list(dict.fromkeys(self.mounts.values()))

    def directory(self, controller: str, group: str) -> str:
        """:returns: the directory of a group, as seen from the machine."""
        return os.path.join(self.mounts[controller].directory, group)


class NoCgroupsError(process.LabError):
    """This machine's cgroups cannot hold the lab; the message says why."""


def detect(mounts_path: str = '/proc/self/mounts') -> Hierarchy:
    """Find the machine's CPU controllers.

    :param mounts_path: the table of mounts to look in
    :raises NoCgroupsError: when they are not mounted
    """
    found: dict[str, Mount] = {}
    unified = None
    with open(mounts_path, encoding='utf-8') as table:
        for line in table:
            _, directory, kind, options = line.split()[:4]
            if kind == 'cgroup':
                owned = [name for name in options.split(',')
                         if name in CONTROLLERS]
                for name in owned:
                    found.setdefault(name, Mount(directory, ','.join(owned)))
            elif kind == 'cgroup2' and unified is None:
                unified = Mount(directory, '')
    if found:
        lacking = [name for name in CONTROLLERS if name not in found]
        if lacking:
            raise NoCgroupsError(
                'cgroups of version 1 are mounted without '
                f'{", ".join(lacking)}')
        return Hierarchy(1, found)
    if unified is None:
        raise NoCgroupsError('no cgroups are mounted')
    offered = _read(os.path.join(unified.directory,
                                 'cgroup.controllers')).split()
    lacking = [name for name in ('cpu', 'cpuset') if name not in offered]
    if lacking:
        raise NoCgroupsError(
            f'cgroups at {unified.directory} do not offer '
            f'{", ".join(lacking)}')
    return Hierarchy(2, dict.fromkeys(CONTROLLERS, unified))


def create(hierarchy: Hierarchy, group: str) -> None:
    """Make a host's group, for its first process to enter.

    In version 2 no process may enter a group that delegates controllers, and
    the first process of a host has to, to make the group the root of the
    host's hierarchy. Hence the rest comes after it went on to its services.

    :param group: of the host, one of the lab's and one of its own: LAB/HOST
    :raises NoCgroupsError: when the machine does not let us
    """
    lab = os.path.dirname(group)
    with _LAB_GROUP, _explained(hierarchy):
        for mount in hierarchy.roots():
            _make(hierarchy, mount, lab)
            _make(hierarchy, mount, group)
            _make(hierarchy, mount, os.path.join(group, SERVICES),
                  hand_down=False)
        set_shares(hierarchy, lab, _LAB_SHARES)


def divide(hierarchy: Hierarchy, group: str, pcpus: Iterable[int]) -> None:
    """Divide a host's group between its services and its guests.

    :param group: of the host, which no process is in itself any more
    :param pcpus: those that the host's guests run on; its services run on
        all, as they would interfere with nothing on a host of its own
    :raises NoCgroupsError: when the machine does not let us
    """
    machine = os.path.join(group, MACHINE)
    cpus = ','.join(str(pcpu) for pcpu in sorted(pcpus))
    with _explained(hierarchy):
        for mount in hierarchy.roots():
            _make(hierarchy, mount, machine)
        # See weigh_equally().
        set_shares(hierarchy, os.path.dirname(group), _LAB_SHARES)
        set_shares(hierarchy, machine, _MACHINE_SHARES)
        set_shares(hierarchy, os.path.join(group, SERVICES),
                    _SERVICES_SHARES)
        _write(hierarchy.directory('cpuset', machine), 'cpuset.cpus', cpus)


def weigh_equally(hierarchy: Hierarchy, group: str) -> None:
    """Give a host's services and its guests the weights of a stock host.

    And the whole lab that of anything else on the machine: when its hosts are
    busy, what controls them is to go on.

    :param group: of the host, after :func:`divide`
    """
    for name in (os.path.dirname(group), os.path.join(group, MACHINE),
                 os.path.join(group, SERVICES)):
        set_shares(hierarchy, name, _DEFAULT_SHARES)


def create_pace(hierarchy: Hierarchy, group: str) -> None:
    """Make a host's part of what gets a fiftieth of the lab's hosts' weight.

    :param group: two names: of the whole, beside the lab's group, and of the
        part, which weighs as much as the others
    :raises NoCgroupsError: when the machine does not let us
    """
    with _explained(hierarchy):
        _make(hierarchy, hierarchy.mounts['cpu'], group, hand_down=False)
        set_shares(hierarchy, os.path.dirname(group), _PACE_SHARES)


def enter(hierarchy: Hierarchy, group: str, pid: int) -> None:
    """Put a process into a group that create_pace() made."""
    _write(hierarchy.directory('cpu', group), 'cgroup.procs', str(pid))


def remove(hierarchy: Hierarchy, group: str) -> None:
    """Kill what runs in a group or below, and remove it.

    :param group: of a host, or the lab's, which takes all hosts along
    :raises LabError: when something cannot be removed in 20 s
    """
    roots = [os.path.join(mount.directory, group)
             for mount in hierarchy.roots()]
    deadline = time.monotonic() + 20
    while True:
        for root in roots:
            for directory in _bottom_up(root):
                try:
                    os.rmdir(directory)
                except FileNotFoundError:
                    pass
                except OSError:
                    _kill(directory)
        left = [root for root in roots if os.path.isdir(root)]
        if not left:
            return
        if time.monotonic() > deadline:
            raise process.LabError(
                f'cgroups cannot be removed: {", ".join(left)}; processes in '
                f'them: {sorted(set(members(hierarchy, group)))}')
        time.sleep(0.02)


def remove_if_empty(hierarchy: Hierarchy, group: str) -> None:
    """Remove a group unless something is below it or in it."""
    with _LAB_GROUP:
        for mount in hierarchy.roots():
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(mount.directory, group))


def remove_abandoned(directory: str) -> None:
    """Remove a group and all below it, unless a process is in one."""
    with contextlib.suppress(OSError):
        for each in _bottom_up(directory):
            os.rmdir(each)


def members(hierarchy: Hierarchy, group: str) -> Iterator[int]:
    """:returns: the pids in a group and below."""
    for mount in hierarchy.roots():
        for directory in _bottom_up(os.path.join(mount.directory, group)):
            yield from _pids(directory)


def threads(hierarchy: Hierarchy, group: str) -> list[int]:
    """:returns: ids of the threads of a group, as the machine sees them"""
    name = 'tasks' if hierarchy.version == 1 else 'cgroup.threads'
    return [int(word) for word in _read(
        hierarchy.directory('cpu', f'{group}/{name}')).split()]


def vcpu_group(hierarchy: Hierarchy, group: str, domain: str,
               vcpu: int) -> str | None:
    """Find what libvirt made for a vCPU, in the latest run of its guest.

    That of an earlier one is left where both libvirtd and QEMU were killed.

    :param group: of the host
    :param domain: name of the guest
    :returns: the vCPU's group, or None while there is none
    """
    machine = os.path.join(group, MACHINE)
    below = hierarchy.directory('cpu', machine)
    try:
        names = os.listdir(below)
    except FileNotFoundError:
        return None
    found = {}
    for name in names:
        match = _DOMAIN.fullmatch(name)
        if match is not None and match[2] == domain:
            found[int(match[1])] = name
    for _, name in sorted(found.items(), reverse=True):
        for part in (f'vcpu{vcpu}', f'libvirt/vcpu{vcpu}'):
            if os.path.isdir(os.path.join(below, name, part)):
                return os.path.join(machine, name, part)
    return None


def weight_group(vcpu: str) -> str:
    """:param vcpu: group of a vCPU, as :func:`vcpu_group` has it
    :returns: the group that has the weight of its domain: where libvirt made
        a group of its own for the rest of its limits, the one above
    """
    domain = os.path.dirname(vcpu)
    return (os.path.dirname(domain) if os.path.basename(domain) == 'libvirt'
            else domain)


def read_cap(hierarchy: Hierarchy, group: str) -> tuple[int, int]:
    """Read a group's CPU cap.

    :returns: quota (-1: none) and period, in microseconds
    :raises OSError: when the group is not there (any more)
    """
    directory = hierarchy.directory('cpu', group)
    if hierarchy.version == 1:
        return (int(_read(f'{directory}/cpu.cfs_quota_us')),
                int(_read(f'{directory}/cpu.cfs_period_us')))
    quota, period = _read(f'{directory}/cpu.max').split()
    return (-1 if quota == 'max' else int(quota)), int(period)


def write_quota(hierarchy: Hierarchy, group: str, quota_us: int) -> None:
    """Write a group's quota behind libvirt's back, in one step.

    The period stays: to write both takes several steps in version 1, and the
    agent is quick enough to see what is between them.
    """
    directory = hierarchy.directory('cpu', group)
    if hierarchy.version == 1:
        _write(directory, 'cpu.cfs_quota_us', str(quota_us))
    else:
        _write(directory, 'cpu.max', str(quota_us))


def read_shares(hierarchy: Hierarchy, group: str) -> int:
    """:returns: cpu.shares in version 1, cpu.weight in version 2."""
    directory = hierarchy.directory('cpu', group)
    name = 'cpu.shares' if hierarchy.version == 1 else 'cpu.weight'
    return int(_read(os.path.join(directory, name)))


def cpu_time_ns(hierarchy: Hierarchy, group: str) -> int:
    """:returns: the CPU time that a group and those below it have used."""
    directory = hierarchy.directory('cpuacct', group)
    if hierarchy.version == 1:
        return int(_read(f'{directory}/cpuacct.usage'))
    return _read_stat(directory)['usage_usec'] * 1000


def throttled_periods(hierarchy: Hierarchy, group: str) -> int:
    """:returns: in how many periods a group has used up its quota."""
    return _read_stat(hierarchy.directory('cpu', group))['nr_throttled']


def _read_stat(directory: str) -> dict[str, int]:
    return {name: int(value) for name, value in (
        line.split() for line in _read(f'{directory}/cpu.stat').splitlines())}


@contextlib.contextmanager
def _explained(hierarchy: Hierarchy) -> Iterator[None]:
    try:
        yield
    except OSError as exc:
        hint = ''
        if hierarchy.version == 2 and exc.errno == errno.EBUSY:
            hint = (', since there are processes in its root (as in a '
                    'container): version 2 forbids that')
        raise NoCgroupsError(f'cgroups cannot be made: {exc}{hint}') from exc


def _make(hierarchy: Hierarchy, mount: Mount, name: str,
          hand_down: bool = True) -> None:
    directory = os.path.join(mount.directory, name)
    parent = os.path.dirname(directory)
    if hierarchy.version == 2 and hand_down:
        enabled = _read(f'{parent}/cgroup.subtree_control').split()
        for controller in ('cpu', 'cpuset'):
            if controller not in enabled:
                _write(parent, 'cgroup.subtree_control', f'+{controller}')
    os.makedirs(directory, exist_ok=True)
    if hierarchy.version == 1 and mount == hierarchy.mounts['cpuset']:
        # A new group is born without any, and then takes no process.
        for file in ('cpuset.cpus', 'cpuset.mems'):
            if not _read(f'{directory}/{file}').strip():
                _write(directory, file, _read(f'{parent}/{file}').strip())


def set_shares(hierarchy: Hierarchy, name: str, shares: int) -> None:
    """Give a group its weight, in terms of version 1."""
    directory = hierarchy.directory('cpu', name)
    if hierarchy.version == 1:
        _write(directory, 'cpu.shares', str(shares))
    else:
        _write(directory, 'cpu.weight',
               str(max(1, shares * _DEFAULT_WEIGHT // _DEFAULT_SHARES)))


def _bottom_up(root: str) -> list[str]:
    return [directory for directory, _, _ in os.walk(root, topdown=False)]


def _pids(directory: str) -> list[int]:
    try:
        if not _is_threaded(directory):
            return [int(pid) for pid in
                    _read(f'{directory}/cgroup.procs').split()]
        # The kernel lists only the threads of such a group.
        threads = _read(f'{directory}/cgroup.threads').split()
    except OSError:
        return []
    found = (process.of_thread(int(thread)) for thread in threads)
    return list(dict.fromkeys(pid for pid in found if pid is not None))


def _is_threaded(directory: str) -> bool:
    """:returns: whether a group has threads, not processes; in version 1
        none does, and no root has the file
    """
    try:
        return _read(f'{directory}/cgroup.type').strip() == 'threaded'
    except FileNotFoundError:
        return False


def _kill(directory: str) -> None:
    for pid in _pids(directory):
        # Ours by where they are; 0 is a process of another pid namespace.
        if pid > 0:
            process.Process(pid).signal(signal.SIGKILL)


def _read(path: str) -> str:
    with open(path, encoding='ascii') as stream:
        return stream.read()


def _write(directory: str, name: str, value: str) -> None:
    with open(os.path.join(directory, name), 'w', encoding='ascii') as stream:
        stream.write(value)
