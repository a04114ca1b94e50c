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

"""Checks of what configuration files say."""

from collections.abc import Callable, Iterator
import typing as ty

from nova_vqos import profile as profiles
from nova_vqos import tuning
from nova_vqos.hooks import rewrite
from nova_vqos.quantum import classes
from nova_vqos.status import findings
from nova_vqos.status import hook
from nova_vqos.status import roles
from nova_vqos.status import settings
from nova_vqos.status import worlds

DRIVER = 'vqos.VqosLibvirtDriver'
FILTER = 'VqosFilter'
FILTER_CLASS = 'nova_vqos.scheduler.filter.VqosFilter'
_STOCK_FILTERS = 'nova.scheduler.filters.all_filters'
WEIGHERS = 'nova_vqos.scheduler.weigher.all_weighers'
_STOCK_WEIGHERS = 'nova.scheduler.weights.all_weighers'
# Nova looks below nova.virt first, and for the whole name then.
_DRIVERS = (DRIVER, f'nova.virt.{DRIVER}')
_VIRT_TYPES = ('kvm', 'qemu')

# Where they differ, agent and nova-compute write other caps, or miss each
# other.
_ALIKE = (
    (None, 'host'), ('vqos', 'profile_path'), ('vqos', 'agent_state_path'),
    ('vqos', 'period_us'), ('vqos', 'cache_max_period_us'),
    ('vqos', 'quantum_slices'))
# Where they differ, operators' tools know less of the host.
_ALIKE_FOR_TOOLS = (('vqos', 'compute_state_path'),)
# Of no consequence to the agent of a host whose pCPUs are all alike.
_ALIKE_ON_UNLIKE = (('vqos', 'reserved_cu'), ('vqos', 'allocation_ratio'))


def look_at_files(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the configuration can be read, and all of it means something."""
    found = roles.roles(world)
    read = [files for role, files in (
        (worlds.COMPUTE, world.compute), (worlds.COMPUTE, world.own),
        (worlds.CONTROLLER, world.controller)) if role in found]
    # Most often the same files for both roles.
    problems = dict.fromkeys(
        problem for files in read for problem in files.problems())
    for problem in problems:
        yield findings.failure(
            problem, 'put it right, and restart what reads it; --nova-config '
            'and --config-file name files that are elsewhere')
    yield findings.fact(
        'it can be read: ' + ', '.join(dict.fromkeys(map(str, read))))


def look_at_driver(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether nova-compute is told to use our driver, where it can."""
    driver = world.compute.get(None, 'compute_driver')
    if driver not in _DRIVERS:
        yield findings.failure(
            f'[DEFAULT] compute_driver of {world.compute} is '
            f'{driver or "not set"}: this host sells no CPU units and caps '
            'nobody',
            f'set it to {DRIVER}, and restart nova-compute')
    virt_type = world.compute.get('libvirt', 'virt_type')
    if virt_type not in _VIRT_TYPES:
        yield findings.failure(
            f'[libvirt] virt_type of {world.compute} is {virt_type}: units '
            'are not sold with it', 'set it to kvm or qemu')
    yield findings.fact(f'nova-compute is to use {driver}')


def look_at_filter(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the scheduler asks our filter."""
    read = world.controller
    enabled = read.get('filter_scheduler', 'enabled_filters')
    available = read.get('filter_scheduler', 'available_filters')
    if FILTER not in enabled:
        yield findings.failure(
            f'[filter_scheduler] enabled_filters of {read} has no {FILTER}: '
            'servers are sent to hosts that are too slow for them',
            f'add {FILTER} to those that are enabled, which Nova enables no '
            'more by itself once the option is set, and restart '
            'nova-scheduler')
    if FILTER_CLASS not in available:
        yield findings.failure(
            f'[filter_scheduler] available_filters of {read} has no '
            f'{FILTER_CLASS}: nova-scheduler does not start with it enabled',
            f'add available_filters = {FILTER_CLASS} in a line of its own, '
            f'beside available_filters = {_STOCK_FILTERS}')
    yield findings.fact(f'{FILTER} is enabled')


def look_at_weighers(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether the scheduler asks our weighers."""
    used = world.controller.get('filter_scheduler', 'weight_classes')
    if WEIGHERS not in used and not any(
            name.startswith('nova_vqos.scheduler.weigher.') for name in used):
        yield findings.warning(
            f'[filter_scheduler] weight_classes of {world.controller} has no '
            f'{WEIGHERS}: servers are not put where their quantum class has a '
            'pool, nor where units fit best',
            f'set it to {_STOCK_WEIGHERS}, {WEIGHERS}, and restart '
            'nova-scheduler; where that is not wanted, add it all the same '
            'and set [vqos] quantum_weight_multiplier and '
            'units_weight_multiplier to 0')
    yield findings.fact('our weighers are used')


def look_at_options(world: worlds.World) -> Iterator[findings.Finding]:
    """Whether nova-compute, agent and hook are told the same."""
    for group, name in _ALIKE:
        yield from _compare(world, group, name, findings.failure)
    for group, name in _ALIKE_FOR_TOOLS:
        yield from _compare(world, group, name, findings.warning)
    grade = (findings.failure if _has_unlike_pcpus(world)
             else findings.warning)
    for group, name in _ALIKE_ON_UNLIKE:
        yield from _compare(world, group, name, grade)
    yield from _compare_hook(world)
    yield findings.fact('nova-compute, agent and hook are told the same')


def _compare(world: worlds.World, group: str | None, name: str,
             grade: Callable[[str, str], findings.Finding]
             ) -> Iterator[findings.Finding]:
    theirs, ours = (_normal(name, read.get(group, name))
                    for read in (world.compute, world.own))
    if theirs != ours:
        yield grade(
            f'{settings.label(group, name)} is {theirs} in {world.compute} '
            f'and {ours} in {world.own}',
            'give both the same, and restart nova-compute and '
            'nova-vqos-agent')


def _normal(name: str, value: ty.Any) -> ty.Any:
    """One form for what means the same."""
    return (dict(sorted(classes.slices_us(value).items()))
            if name == 'quantum_slices' else value)


def _compare_hook(world: worlds.World) -> Iterator[findings.Finding]:
    path = hook.config_path(world)
    found = rewrite.load_settings(world.path(path))
    problem = found.error
    if not problem:
        try:
            hooks_periods = rewrite.periods(found)
        except (ValueError, rewrite.HookError) as error:
            problem = f'{path}: {error}'
    if problem:
        yield findings.failure(
            f'the hook is not told what to do: {problem}',
            'put it right: until then guests come in with the cap of the '
            'host that they left')
        return
    read = world.compute
    wanted = tuning.Periods(
        read.get('vqos', 'period_us'), read.get('vqos', 'cache_max_period_us'),
        classes.slices_us(read.get('vqos', 'quantum_slices'))[classes.CACHE])
    values = [
        ('period_us', hooks_periods.plain_us, wanted.plain_us),
        ('cache_max_period_us', hooks_periods.cache_longest_us,
         wanted.cache_longest_us),
        ('quantum_slices, class cache,', hooks_periods.cache_slice_us,
         wanted.cache_slice_us),
        ('profile', found.profile_path or profiles.DEFAULT_PATH,
         read.get('vqos', 'profile_path'))]
    for name, has, needs in values:
        if has != needs:
            yield findings.failure(
                f'{name} of [hook] is {has} in {path} and {needs} in {read}: '
                'guests that migrate in get another cap than the agent '
                'wants', f'set it to {needs} in {path}')


def _has_unlike_pcpus(world: worlds.World) -> bool:
    try:
        profile = profiles.load(
            world.path(world.compute.get('vqos', 'profile_path')))
    except profiles.ProfileError:
        # The check of the profile says it.
        return False
    return len(profile.cpu_classes) > 1
