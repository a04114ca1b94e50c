# SPDX-License-Identifier: Apache-2.0
"""Checks of the configuration of Nova, Placement, the agent and the hook."""

from collections.abc import Callable, Iterator
import typing as ty

from nova_vqos import files
from nova_vqos.cmd.status import config_files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import hook
from nova_vqos.cmd.status import machine as machines
from nova_vqos.cmd.status import roles
from nova_vqos.conf import default_path
from nova_vqos.conf import vqos
from nova_vqos.hooks import rewrite
from nova_vqos.profile import document
from nova_vqos.quantum import classes

DRIVER = 'vqos.VqosLibvirtDriver'
FILTER = 'VqosFilter'
FILTER_CLASS = 'nova_vqos.scheduler.filter.VqosFilter'
_STOCK_FILTERS = 'nova.scheduler.filters.all_filters'
WEIGHERS = 'nova_vqos.scheduler.weigher.all_weighers'
_STOCK_WEIGHERS = 'nova.scheduler.weights.all_weighers'
# Nova looks below nova.virt first, and for the whole name then.
_DRIVERS = (DRIVER, f'nova.virt.{DRIVER}')
_VIRT_TYPES = ('kvm', 'qemu')

_RETRIES = ('placement', 'allocation_conflict_retry_count')
_RETRIES_LABEL = config_files.label(*_RETRIES)
# One attempt. Nova repeats a request that meets another one.
_RIGHT_RETRIES = 1

# Where these differ, agent and nova-compute write different caps, or miss
# each other.
_EQUAL = (
    (None, 'host'), ('vqos', 'profile_path'), ('vqos', 'agent_state_path'),
    ('vqos', 'period_us'), ('vqos', 'cache_max_period_us'),
    ('vqos', 'quantum_slices'), ('vqos', 'correction_reserve_cu'))
# Where these differ, operators' tools see less of the host.
_EQUAL_FOR_TOOLS = (('vqos', 'compute_state_path'),)
# These matter to the agent only where the pCPUs of the host are unlike.
_EQUAL_ON_UNLIKE = (('vqos', 'reserved_cu'), ('vqos', 'dd_reserve'),
                    ('vqos', 'allocation_ratio'))


def check_files(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the files can be read, and all our options in them exist."""
    found = roles.roles(machine)
    configs = [config for role, config in (
        (machines.COMPUTE, machine.compute), (machines.COMPUTE, machine.own),
        (machines.CONTROLLER, machine.controller)) if role in found]
    # Most often the same files for both roles.
    problems = dict.fromkeys(
        problem for config in configs for problem in config.problems())
    for problem in problems:
        yield findings.failure(
            problem, 'correct it, and restart the services that read it; '
            '--nova-config and --config-file name files in other places')
    yield findings.fact(
        'the files are valid: ' + ', '.join(dict.fromkeys(map(str, configs))))


def check_driver(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether nova-compute is configured to use our driver."""
    driver = machine.compute.get(None, 'compute_driver')
    if driver not in _DRIVERS:
        yield findings.failure(
            f'[DEFAULT] compute_driver of {machine.compute} is '
            f'{driver or "not set"}: this host sells no CPU units and caps '
            'no server', f'set it to {DRIVER}, and restart nova-compute')
    virt_type = machine.compute.get('libvirt', 'virt_type')
    if virt_type not in _VIRT_TYPES:
        yield findings.failure(
            f'[libvirt] virt_type of {machine.compute} is {virt_type}: '
            'hosts sell no CPU units with it', 'set it to kvm or qemu')
    yield findings.fact(f'nova-compute is configured to use {driver}')


def check_filter(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether nova-scheduler is configured to use our filter."""
    config = machine.controller
    enabled = config.get('filter_scheduler', 'enabled_filters')
    available = config.get('filter_scheduler', 'available_filters')
    if FILTER not in enabled:
        yield findings.failure(
            f'[filter_scheduler] enabled_filters of {config} has no {FILTER}: '
            'Nova sends servers to hosts that are too slow for them',
            f'add {FILTER} and the default filters, which Nova drops once '
            'the option is set, and restart nova-scheduler')
    if FILTER_CLASS not in available:
        yield findings.failure(
            f'[filter_scheduler] available_filters of {config} has no '
            f'{FILTER_CLASS}: nova-scheduler does not start with it enabled',
            f'add a line available_filters = {FILTER_CLASS} beside the line '
            f'available_filters = {_STOCK_FILTERS}')
    yield findings.fact(f'{FILTER} is enabled')


def check_weighers(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether nova-scheduler is configured to use our weighers."""
    used = machine.controller.get('filter_scheduler', 'weight_classes')
    if WEIGHERS not in used and not any(
            name.startswith('nova_vqos.scheduler.weigher.') for name in used):
        yield findings.warning(
            f'[filter_scheduler] weight_classes of {machine.controller} has '
            f'no {WEIGHERS}: Nova prefers neither hosts with a pool of the '
            "server's quantum class nor hosts that its units and vCPUs fit "
            'best',
            f'set it to {_STOCK_WEIGHERS}, {WEIGHERS}, and restart '
            'nova-scheduler; to weigh without them, add them and set [vqos] '
            'quantum_weight_multiplier, units_weight_multiplier and '
            'packing_weight_multiplier to 0')
    yield findings.fact('our weighers are in use')


def check_placement(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether Placement is configured to sell no more than there is."""
    config = machine.placement
    if not config.files:
        yield findings.fact(
            f'Not known here: there is no {config}, check {_RETRIES_LABEL} '
            'where Placement runs')
        return
    value = config.get(*_RETRIES)
    if value != _RIGHT_RETRIES:
        consequence = ('accepts no claim at all' if value == 0 else
                       'sells more units of a host than it has, when requests '
                       'come at the same time')
        yield findings.warning(
            f'{_RETRIES_LABEL} of {config} is {value}: Placement '
            f'{consequence}',
            f'set it to {_RIGHT_RETRIES}, and restart Placement')
    yield findings.fact(f'{_RETRIES_LABEL} is {value}')


def check_options(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether nova-compute, agent and hook have equal options."""
    for group, name in _EQUAL:
        yield from compare(machine, group, name, findings.failure)
    for group, name in _EQUAL_FOR_TOOLS:
        yield from compare(machine, group, name, findings.warning)
    grade = (findings.failure if _has_unlike_pcpus(machine)
             else findings.warning)
    for group, name in _EQUAL_ON_UNLIKE:
        yield from compare(machine, group, name, grade)
    yield from _compare_hook(machine)
    yield findings.fact('nova-compute, agent and hook have equal options')


def compare(machine: machines.Machine, group: str | None, name: str,
            grade: Callable[[str, str], findings.Finding],
            consequence: str = '') -> Iterator[findings.Finding]:
    """Whether nova-compute and the agent have the same value of an option.

    :param grade: makes the finding if they do not
    :param consequence: if they do not
    """
    theirs, ours = (_normal(name, config.get(group, name))
                    for config in (machine.compute, machine.own))
    if theirs != ours:
        yield grade(
            f'{config_files.label(group, name)} is {theirs} in '
            f'{machine.compute} and {ours} in {machine.own}{consequence}',
            'set both to the same value, and restart nova-compute and '
            'nova-vqos-agent')


def _normal(name: str, value: ty.Any) -> ty.Any:
    """One form for values of the same meaning."""
    return (dict(sorted(classes.slices_us(value).items()))
            if name == 'quantum_slices' else value)


def _compare_hook(machine: machines.Machine) -> Iterator[findings.Finding]:
    path = hook.config_path(machine)
    found = rewrite.load_settings(machine.path(path))
    problem = found.error
    if not problem:
        try:
            periods = rewrite.periods(found)
        except (ValueError, rewrite.HookError) as error:
            problem = f'{path}: {error}'
    if problem:
        yield findings.failure(
            f'the configuration of the hook is invalid: {problem}',
            'correct it: until then guests arrive with the cap of their '
            'previous host')
        return
    config = machine.compute
    wanted = vqos.periods(config.conf)
    values = [
        ('period_us', periods.plain_us, wanted.plain_us),
        ('cache_max_period_us', periods.cache_longest_us,
         wanted.cache_longest_us),
        ('quantum_slices, class cache,', periods.cache_slice_us,
         wanted.cache_slice_us),
        ('profile', found.profile_path or default_path.PROFILE,
         config.get('vqos', 'profile_path'))]
    for name, has, needs in values:
        if has != needs:
            yield findings.failure(
                f'{name} of [hook] is {has} in {path} and {needs} in '
                f'{config}: guests that migrate in get another cap than the '
                'agent wants', f'set it to {needs} in {path}')


def _has_unlike_pcpus(machine: machines.Machine) -> bool:
    try:
        profile = document.load(
            machine.path(machine.compute.get('vqos', 'profile_path')))
    except files.FileError:
        # The check of the profile reports it.
        return False
    return len(profile.cpu_classes) > 1
