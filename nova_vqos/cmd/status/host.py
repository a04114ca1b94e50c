# SPDX-License-Identifier: Apache-2.0
"""Checks of a host: versions, file permissions, cgroups, steady speed."""

from collections.abc import Iterator, Sequence
import os
import re
import stat
import subprocess
import sys
import typing as ty

from nova_vqos.cmd.status import agent_units
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import hook
from nova_vqos.cmd.status import machine as machines
from nova_vqos.conf import default_path
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor.linux import cgroup
from nova_vqos.profile import kernel

LEAST_LIBVIRT = (8, 0)
LEAST_KERNEL = (5, 15)
LEAST_PYTHON = (3, 11)
_SBIN = '/usr/sbin'
_TIMEOUT_S = 10

_OTHERS_READ = 0o007
_NOT_OWNER = 0o077

_SCHED_EXT = '/sys/kernel/sched_ext'
_CPUFREQ = '/sys/devices/system/cpu/cpufreq'
_NO_TURBO = '/sys/devices/system/cpu/intel_pstate/no_turbo'
_HALT_POLL = '/sys/module/kvm/parameters/halt_poll_ns'
_CGROUPS = '/sys/fs/cgroup'
_LIST = 'cgroup.controllers'
_SYSTEMD_SLICE = 'machine.slice'
_EMULATOR = 'qemu-system-'
# The kernel limits CPU time by the first, libvirt pins by the second.
_CONTROLLERS = ('cpu', 'cpuset')
_AGAIN = 'and calibrate this host again'


class _Rule(ty.NamedTuple):
    """What the mode of a file must be.

    :ivar forbidden: bits of the mode
    :ivar needed: bits of the mode
    :ivar consequence: of a wrong bit
    :ivar remedy: arguments of chmod
    :ivar of_agent: whether it may belong to the agent's user
    """

    path: str
    forbidden: int
    needed: int
    consequence: str
    remedy: str
    of_agent: bool = False


def ask_libvirt() -> str:
    """Ask libvirt's daemon for its version.

    :raises Unanswered: when there is none
    """
    problem = 'neither virtqemud nor libvirtd is installed'
    for daemon in hook.DAEMONS:
        try:
            return subprocess.run(
                [f'{_SBIN}/{daemon}', '--version'], capture_output=True,
                text=True, timeout=_TIMEOUT_S, check=True).stdout
        except FileNotFoundError:
            continue
        except (OSError, subprocess.SubprocessError) as error:
            problem = str(error)
    raise machines.Unanswered(problem)


def check_libvirt(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether libvirt is new enough."""
    try:
        text = machine.ask_libvirt()
    except machines.Unanswered as error:
        yield findings.failure(
            f'the version of libvirt is unknown: {error}',
            'install libvirt-daemon-system, or the package of that name in '
            'your distribution')
        return
    yield from _check_version('libvirt', text, LEAST_LIBVIRT)


def check_kernel(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the kernel is new enough."""
    yield from _check_version('Linux', machine.kernel, LEAST_KERNEL)


def check_python(_machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the Python of this program, and of the agent, is."""
    yield from _check_version(
        'Python', '.'.join(map(str, sys.version_info[:3])), LEAST_PYTHON)


def _check_version(name: str, text: str, least: tuple[int, int]
                   ) -> Iterator[findings.Finding]:
    needed = '.'.join(map(str, least))
    found = re.search(r'[0-9]+(\.[0-9]+)+', text)
    if found is None:
        yield findings.warning(
            f'the version of {name} is unknown: {text[:80]!r}',
            f'check that it is {needed} or newer')
        return
    numbers = tuple(int(part) for part in found[0].split('.')[:2])
    if numbers < least:
        yield findings.failure(
            f'this is {name} {found[0]}, which nova_vqos does not support',
            f'update it to {needed} or newer')
    yield findings.fact(f'this is {name} {found[0]}')


def check_permissions(machine: machines.Machine
                      ) -> Iterator[findings.Finding]:
    """Whether other users can read secrets, or write files that root uses."""
    agent_uid = agent_units.find_uid(machine)
    for rule in _rules(machine):
        try:
            status = os.stat(machine.path(rule.path))
        except FileNotFoundError:
            # Other checks report the files that have to exist.
            continue
        mode = stat.S_IMODE(status.st_mode)
        if mode & rule.forbidden or ~mode & rule.needed:
            yield findings.failure(
                f'{rule.path} has mode {mode:04o}: {rule.consequence}',
                f'chmod {rule.remedy} {rule.path}')
        owners = {0, os.geteuid(), agent_uid if rule.of_agent else 0}
        if status.st_uid not in owners and (
                rule.forbidden & hook.OTHERS_WRITE):
            yield findings.warning(
                f'{rule.path} belongs to user {status.st_uid}, who is '
                'neither root nor runs this program',
                f'chown root {rule.path}, unless the services run as that '
                'user')
    yield findings.fact('only their owners read secrets and write our files')


def _rules(machine: machines.Machine) -> Iterator[_Rule]:
    if machine.own.get(None, 'transport_url'):
        for path in machine.own.files:
            yield _Rule(machine.own_path(path), _OTHERS_READ, 0,
                        'all users can read the password of the message bus',
                        'o=')
    profile, ledger, state = (
        machine.compute.get('vqos', 'profile_path'),
        machine.own.get('vqos_agent', 'ledger_path'),
        machine.compute.get('vqos', 'agent_state_path'))
    of_agent = (*map(os.path.dirname, (ledger, state)), ledger, state)
    for path in (*of_agent, os.path.dirname(profile), profile,
                 hook.config_path(machine), default_path.HOOK_CONFIG):
        yield _Rule(path, hook.OTHERS_WRITE, 0,
                    'users other than its owner can change what root uses',
                    'go-w', path in of_agent)
    for path in profile, state:
        yield _Rule(path, 0, stat.S_IROTH,
                    'nova-compute, which is not root, cannot read it', 'o+r')
    yield _Rule(ledger, _NOT_OWNER, 0,
                'other users can read the usage and debt of servers', 'go=',
                of_agent=True)


def check_sched_ext(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether a scheduler is loaded that may ignore caps."""
    state = machine.first_line(f'{_SCHED_EXT}/state')
    if state is None:
        yield findings.fact('this kernel has no sched_ext')
        return
    if state == 'disabled':
        yield findings.fact('no sched_ext scheduler is loaded')
        return
    name = machine.first_line(f'{_SCHED_EXT}/root/ops') or 'without a name'
    # NOTE: only those that implement cgroup_set_bandwidth (Linux 6.17) see
    # cpu.max at all, and none has to.
    problem = (f'a sched_ext scheduler is loaded ({name}, state {state}), '
               'which may ignore cpu.max, weights and slices')
    if machine.first_line(f'{_SCHED_EXT}/switch_all') == '0':
        yield findings.warning(
            f'{problem}; it schedules only the tasks that ask for it',
            'check that QEMU does not, or unload it')
        return
    yield findings.failure(
        f'{problem}: caps of servers may not hold',
        'end the program that loaded it, such as systemctl disable --now scx')


def check_frequency(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the speed of a pCPU follows its load."""
    governors = {machine.first_line(path) for path in machine.glob(
        f'{_CPUFREQ}/policy*/scaling_governor')} - {None, ''}
    moving = sorted(map(str, governors - {'performance'}))
    if moving:
        yield findings.warning(
            f'the CPU frequency governor is {", ".join(moving)}: servers '
            'that leave the CPU idle at times run slower than calibrated',
            f'set it to performance (cpupower frequency-set -g performance), '
            f'at each boot, {_AGAIN}')
    turbo = (machine.first_line(_NO_TURBO) == '0'
             or machine.first_line(f'{_CPUFREQ}/boost') == '1')
    yield findings.fact(
        ('the governor is performance' if governors else
         'this machine has no frequency governor')
        + ('; turbo is on: while other pCPUs idle, servers run faster than '
           'promised' if turbo else ''))


def check_halt_polling(machine: machines.Machine
                       ) -> Iterator[findings.Finding]:
    """Whether vCPUs that wait use up their entitlement."""
    halt_poll_ns = machine.first_line(_HALT_POLL)
    if halt_poll_ns is None:
        yield findings.skipped('KVM is not loaded')
    elif halt_poll_ns != '0':
        yield findings.warning(
            f'{_HALT_POLL} is {halt_poll_ns}: vCPUs that wait use their cap '
            'up by polling',
            'set it to 0 (options kvm halt_poll_ns=0 in /etc/modprobe.d), '
            f'{_AGAIN}; leave it where replies in microseconds matter more')
    else:
        yield findings.fact('vCPUs that wait do not poll')


def check_irq_time(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether servers pay for interrupts of others."""
    accounting = kernel.value(
        kernel.build_options(machine.root, machine.kernel),
        'CONFIG_IRQ_TIME_ACCOUNTING')
    if accounting == 'n':
        yield findings.warning(
            'this kernel has no CONFIG_IRQ_TIME_ACCOUNTING: servers pay for '
            "the interrupts of others' network traffic on their pCPU",
            f'boot a kernel that has it, {_AGAIN}; or move interrupts away '
            'from the pCPUs of servers')
    elif accounting == 'y':
        yield findings.fact('no server pays for interrupts')
    else:
        yield findings.fact(
            "the kernel's configuration is missing, so this is unknown")


def check_cgroups(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether domains have the controllers that limit them."""
    version = cgroup.host_version(machine.root)
    emulators = [process for process in machine.processes
                 if process.names[0].startswith(_EMULATOR)]
    lacking = (_lacking_v2(machine, emulators) if version == 2
               else _lacking_v1(machine))
    for controller, directory in lacking:
        yield findings.failure(
            f'there is no cgroup controller {controller} in '
            f'{directory}: ' + (
                'no cap can be set' if controller == 'cpu' else
                'libvirt cannot pin servers to their pCPUs'),
            'check that neither the kernel command line (cgroup_disable) nor '
            'cgroup_controllers of qemu.conf excludes it, that systemd '
            'delegates it (DefaultCPUAccounting), and that no real-time task '
            'is in the groups above')
    yield findings.fact(
        f'the cgroups are of version {version} and have '
        f'{" and ".join(_CONTROLLERS)}; {len(emulators)} domains run')


def _lacking_v1(machine: machines.Machine) -> Iterator[tuple[str, str]]:
    """Each controller has a hierarchy, alone or with others."""
    mounted = {name for path in machine.glob(f'{_CGROUPS}/*')
               for name in os.path.basename(path).split(',')}
    for controller in _CONTROLLERS:
        if controller not in mounted:
            yield controller, _CGROUPS


def _lacking_v2(machine: machines.Machine,
                emulators: Sequence[machines.Process]
                ) -> Iterator[tuple[str, str]]:
    """A group offers its controllers to the groups below it."""
    directories = {_CGROUPS}
    if machine.read(f'{_CGROUPS}/{_SYSTEMD_SLICE}/{_LIST}') is not None:
        directories = {f'{_CGROUPS}/{_SYSTEMD_SLICE}'}
    for emulator in emulators:
        try:
            domain, _ = cgroup.find(machine.root, emulator.pid, 2)
        except base.HypervisorError:
            # It has just ended.
            continue
        directories.add(machine.own_path(os.path.dirname(domain)))
    for directory in sorted(directories):
        offered = (machine.read(f'{directory}/{_LIST}') or '').split()
        for controller in _CONTROLLERS:
            if controller not in offered:
                yield controller, directory
