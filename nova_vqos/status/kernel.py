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

"""Checks of a host's kernel: whether it keeps caps, and speed is steady."""

from collections.abc import Iterator
import os

from nova_vqos import fingerprint as fingerprints
from nova_vqos.hypervisor import base
from nova_vqos.hypervisor import cgroup
from nova_vqos.status import findings
from nova_vqos.status import worlds

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


def look_at_sched_ext(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether a scheduler is loaded that caps do not bind."""
    state = world.first_line(f'{_SCHED_EXT}/state')
    if state is None:
        yield findings.fact('this kernel has no sched_ext')
        return
    if state == 'disabled':
        yield findings.fact('no sched_ext scheduler is loaded')
        return
    name = world.first_line(f'{_SCHED_EXT}/root/ops') or 'without a name'
    # NOTE: only those that implement cgroup_set_bandwidth (Linux 6.17) know
    # of cpu.max at all, and none has to.
    problem = (f'a sched_ext scheduler is loaded ({name}, state {state}), '
               'which is free to ignore cpu.max, weights and slices')
    if world.first_line(f'{_SCHED_EXT}/switch_all') == '0':
        yield findings.warning(
            f'{problem}; it has only the tasks that ask for it',
            'see that QEMU is not among them, or unload it')
        return
    yield findings.failure(
        f'{problem}: caps of servers may not hold',
        'end the program that loaded it, such as systemctl disable --now scx')


def look_at_frequency(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the speed of a pCPU follows its load."""
    governors: dict[str, int] = {}
    for path in world.glob(f'{_CPUFREQ}/policy*/scaling_governor'):
        governor = world.first_line(path)
        if governor:
            governors[governor] = governors.get(governor, 0) + 1
    moving = sorted(set(governors) - {'performance'})
    if moving:
        yield findings.warning(
            f'the CPU frequency governor is {", ".join(moving)}: servers '
            'that leave the CPU idle at times run slower than was calibrated',
            f'set it to performance (cpupower frequency-set -g performance), '
            f'at each boot, {_AGAIN}')
    turbo = (world.first_line(_NO_TURBO) == '0'
             or world.first_line(f'{_CPUFREQ}/boost') == '1')
    yield findings.fact(
        ('the governor is performance' if governors else
         'nobody sets the frequency here')
        + ('; turbo is on: while other pCPUs idle, servers run faster than '
           'promised' if turbo else ''))


def look_at_halt_polling(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether vCPUs that wait use up what they are entitled to."""
    halt_poll_ns = world.first_line(_HALT_POLL)
    if halt_poll_ns is None:
        yield findings.skipped('KVM is not loaded')
    elif halt_poll_ns != '0':
        yield findings.warning(
            f'{_HALT_POLL} is {halt_poll_ns}: vCPUs that wait use their cap '
            'up by polling',
            'set it to 0 (options kvm halt_poll_ns=0 in /etc/modprobe.d), '
            f'{_AGAIN}; keep it where a reply in microseconds matters more')
    else:
        yield findings.fact('vCPUs that wait do not poll')


def look_at_irq_time(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether interrupts are charged to whoever they interrupt."""
    accounting = fingerprints.of_host(
        sysroot=world.root)['irq_time_accounting']
    if accounting == 'n':
        yield findings.warning(
            'this kernel has no CONFIG_IRQ_TIME_ACCOUNTING: servers pay for '
            "the interrupts of others' network traffic that hits their pCPU",
            f'boot a kernel that has it, {_AGAIN}; or keep interrupts away '
            'from the pCPUs of servers')
    elif accounting == 'y':
        yield findings.fact('interrupts are charged to nobody')
    else:
        yield findings.fact(
            "it cannot be told: the kernel's configuration is not there")


def look_at_cgroups(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether there are the controllers by which domains are limited."""
    version = cgroup.host_version(world.root)
    emulators = [process for process in world.processes
                 if process.names[0].startswith(_EMULATOR)]
    lacking = (_lacking_v2(world, emulators) if version == 2
               else _lacking_v1(world))
    for controller, directory in lacking:
        yield findings.failure(
            f'there is no cgroup controller {controller} in '
            f'{directory}: '
            + ('no cap can be set' if controller == 'cpu' else
               'servers cannot be kept on their pCPUs'),
            'see that neither the kernel command line (cgroup_disable) nor '
            'cgroup_controllers of qemu.conf leaves it out, that systemd '
            'delegates it (DefaultCPUAccounting), and that no real-time task '
            'is in the groups above')
    yield findings.fact(
        f'the cgroups are of version {version} and have '
        f'{" and ".join(_CONTROLLERS)}; {len(emulators)} domains run')


def _lacking_v1(world: worlds.World) -> Iterator[tuple[str, str]]:
    """Each controller has a hierarchy, alone or with others."""
    mounted = {name for path in world.glob(f'{_CGROUPS}/*')
               for name in os.path.basename(path).split(',')}
    for controller in _CONTROLLERS:
        if controller not in mounted:
            yield controller, _CGROUPS


def _lacking_v2(world: worlds.World, emulators: list[worlds.Process]
                ) -> Iterator[tuple[str, str]]:
    """Controllers are handed from group to group."""
    directories = {_CGROUPS}
    if world.read(f'{_CGROUPS}/{_SYSTEMD_SLICE}/{_LIST}') is not None:
        directories = {f'{_CGROUPS}/{_SYSTEMD_SLICE}'}
    for emulator in emulators:
        try:
            place = cgroup.find(world.root, emulator.pid, 2)
        except base.HypervisorError:
            # It has just ended.
            continue
        directories.add(f'{_CGROUPS}/{os.path.dirname(place.path)}')
    for directory in sorted(directories):
        offered = (world.read(f'{directory}/{_LIST}') or '').split()
        for controller in _CONTROLLERS:
            if controller not in offered:
                yield controller, directory
