# SPDX-License-Identifier: Apache-2.0
"""Check of a host that guarantees speed: kernel, configuration, agent."""

from collections.abc import Iterator
import re

from nova_vqos import agent_state
from nova_vqos import cpuset
from nova_vqos import files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines
from nova_vqos.hypervisor.linux import frequency
from nova_vqos.hypervisor.linux import partition

_RUNTIME = '/proc/sys/kernel/sched_rt_runtime_us'
_PERIOD = '/proc/sys/kernel/sched_rt_period_us'
_ONLINE = '/sys/devices/system/cpu/online'
# The first Linux that keeps a part of each pCPU for other threads, whatever
# it admits (its fair server).
_FAIR_SERVER = (6, 12)
_LIMIT = ('set kernel.sched_rt_runtime_us to 950000 of a period of 1000000 '
          '(sysctl, and in /etc/sysctl.d)')
_RESTART = 'and restart nova-vqos-agent'


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether a host that is to guarantee speed can."""
    if not machine.own.get('vqos_agent', 'guarantees_speed'):
        yield findings.skipped('[vqos_agent] guarantees_speed of '
                               f'{machine.own} is not set')
        return
    yield from _check_kernel(machine)
    yield from _check_pcpus(machine)
    yield from _check_ratio(machine)
    yield from _check_frequency(machine)
    yield from _check_agent(machine)


def _check_kernel(machine: machines.Machine) -> Iterator[findings.Finding]:
    runtime_us, period_us = (
        _number(machine.first_line(path)) for path in (_RUNTIME, _PERIOD))
    if runtime_us is None or period_us is None:
        yield findings.failure(
            f'{_RUNTIME} cannot be understood: how much time the kernel '
            'reserves is unknown',
            'boot a kernel of a distribution, with SCHED_DEADLINE')
    elif runtime_us < 0:
        yield findings.failure(
            f'{_RUNTIME} is {runtime_us}: the kernel reserves more time than '
            'there is, so that no speed is guaranteed, and all else on this '
            'host may stop', f'{_LIMIT}, {_RESTART}')
    elif runtime_us == 0:
        yield findings.failure(
            f'{_RUNTIME} is 0: the kernel reserves nothing',
            f'{_LIMIT}, {_RESTART}')
    elif runtime_us >= period_us and _release(machine) < _FAIR_SERVER:
        yield findings.failure(
            f'{_RUNTIME} is as long as the period, {period_us} us: this '
            'kernel leaves no time to what has no reservation',
            f'{_LIMIT}, {_RESTART}')


def _check_pcpus(machine: machines.Machine) -> Iterator[findings.Finding]:
    shared = machine.compute.get('compute', 'cpu_shared_set')
    pcpus, others = (config.get('vqos', 'guaranteed_pcpus')
                     for config in (machine.own, machine.compute))
    if pcpus != others:
        yield findings.failure(
            f'[vqos] guaranteed_pcpus is {cpuset.format_pcpus(pcpus)!r} in '
            f'{machine.own} and {cpuset.format_pcpus(others)!r} in '
            f'{machine.compute}', 'set both to the same pCPUs, and restart '
            'nova-vqos-partition, nova-vqos-agent and nova-compute')
        return
    if pcpus:
        problem = partition.Partition(pcpus, '', machine.root).problem()
        if problem:
            yield findings.failure(
                problem, f'start {partition.UNIT}, and read its log')
    elif not shared:
        return
    online = machine.first_line(_ONLINE) or ''
    try:
        wanted = pcpus or cpuset.parse_pcpus(online)
        # NOTE: Nova also accepts ^N, our parser does not.
        found = cpuset.parse_pcpus(shared or online)
    except ValueError:
        yield findings.warning(
            f'[compute] cpu_shared_set of {machine.compute} is {shared!r}: '
            f'the check cannot compare it with the pCPUs of this host, '
            f'{online!r}', 'write it as a list of ranges, such as 0-7')
        return
    if wanted - found or pcpus and found - wanted:
        yield findings.failure(
            f'[compute] cpu_shared_set of {machine.compute} is not '
            f'{cpuset.format_pcpus(wanted)}: the kernel reserves time only '
            'for threads that may run on all pCPUs of their partition',
            'set it so, calibrate this host again, and restart nova-compute; '
            'or set [vqos] guaranteed_pcpus to the pCPUs that servers have')


def _check_ratio(machine: machines.Machine) -> Iterator[findings.Finding]:
    ratio = machine.compute.get('vqos', 'allocation_ratio')
    if ratio > 1:
        yield findings.warning(
            f'[vqos] allocation_ratio of {machine.compute} is {ratio:g}: '
            'Placement sells more units than the kernel reserves, so that '
            'guaranteed servers are refused late, and others get less than '
            'their units', 'set it to 1, and restart nova-compute')


def _check_frequency(machine: machines.Machine
                     ) -> Iterator[findings.Finding]:
    if not frequency.is_counted(machine.root):
        return
    scale = machine.own.get('vqos_agent', 'least_frequency_scale')
    counted = ('the CPU reports its frequency and turbo is not switched off: '
               'the kernel counts reserved time in seconds at full clock')
    steady = ('switch turbo off (intel_pstate/no_turbo), calibrate this host '
              'again')
    if not scale:
        yield findings.failure(
            f'{counted}, and the agent guarantees no speed',
            f'{steady}, {_RESTART}; or set [vqos_agent] '
            'least_frequency_scale')
    else:
        yield findings.warning(
            f'{counted}, and guarantees depend on [vqos_agent] '
            f'least_frequency_scale of {machine.own}, {scale:g}',
            f'{steady}, or measure that value again after each change of '
            'firmware, power limit or cooling')


def _check_agent(machine: machines.Machine) -> Iterator[findings.Finding]:
    path = machine.compute.get('vqos', 'agent_state_path')
    try:
        state = agent_state.from_text(machine.read(path) or '')
    except files.FileInvalid as error:
        yield findings.failure(
            f'{path} does not say what this host guarantees: {error}',
            'see the check of the agent')
        return
    total_pcpus = state.guarantee_total_pcpus
    if total_pcpus is None:
        yield findings.warning(
            'the agent has not measured yet what can be reserved',
            'run this check again in two minutes; then look up the reason in '
            'the log of the agent')
    elif not total_pcpus:
        yield findings.failure(
            'the agent says that it guarantees no speed',
            'look up the reason in its alarms (nova-vqos-manage host show), '
            'or in its log; after a change of the configuration restart '
            'nova-vqos-agent')
    else:
        yield findings.fact(
            f'this host can reserve {total_pcpus:.2f} pCPUs for servers, of '
            f'which {state.guarantee_pcpus or 0:.2f} are free')


def _number(text: str | None) -> int | None:
    return (int(text) if text is not None
            and re.fullmatch('-?[0-9]{1,18}', text) else None)


def _release(machine: machines.Machine) -> tuple[int, ...]:
    """The first two numbers of the kernel's release; none: not known."""
    found = re.match('([0-9]+)[.]([0-9]+)', machine.kernel)
    return tuple(map(int, found.groups())) if found else ()
