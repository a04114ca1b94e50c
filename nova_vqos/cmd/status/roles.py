# SPDX-License-Identifier: Apache-2.0
"""The roles of a machine in its cloud."""

from collections.abc import Iterator
import os

from nova_vqos.cmd.status import config_files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import machine as machines
from nova_vqos.conf import default_path

# A running program is the best evidence.
_PROGRAMS = {
    machines.COMPUTE: ('nova-compute', 'nova-vqos-agent'),
    machines.CONTROLLER: ('nova-scheduler', 'nova-api', 'nova-api-wsgi'),
}
# Options that only machines of a role set.
_OPTIONS = {
    machines.COMPUTE: ((None, 'compute_driver'),),
    machines.CONTROLLER: (('filter_scheduler', 'enabled_filters'),
                          ('filter_scheduler', 'available_filters'),
                          ('api_database', 'connection')),
}
_FILES = {
    machines.COMPUTE: (
        default_path.CONFIG, default_path.PROFILE,
        f'{default_path.HOOKS}/{default_path.HOOK_NAME}'),
    machines.CONTROLLER: (),
}


def roles(machine: machines.Machine) -> dict[str, str]:
    """The roles of the machine, and the evidence for each."""
    if machine.given_roles:
        return dict.fromkeys(machine.given_roles, 'as --role says')
    found = {role: next(_evidence(machine, role), '')
             for role in machines.ROLES}
    return {role: evidence for role, evidence in found.items() if evidence}


def check(machine: machines.Machine) -> Iterator[findings.Finding]:
    """Whether the roles of the machine can be detected."""
    found = roles(machine)
    if found:
        yield findings.fact('This machine is a ' + ' and a '.join(
            f'{machines.NAMES[role]} ({evidence})'
            for role, evidence in found.items()))
        return
    yield findings.failure(
        'this machine shows no role, compute host or controller: no program '
        f'of Nova runs, and {machine.compute} sets none of their options',
        'give the role with --role, and the configuration with --nova-config')


def _evidence(machine: machines.Machine, role: str) -> Iterator[str]:
    for process in machine.find_processes(*_PROGRAMS[role]):
        name = next(name for name in process.names if name in _PROGRAMS[role])
        yield f'{name} runs'
    config = (machine.compute if role == machines.COMPUTE
              else machine.controller)
    for group, name in _OPTIONS[role]:
        try:
            if config.is_set(group, name):
                yield f'{config} has {config_files.label(group, name)}'
        except config_files.Unreadable:
            # The check of the files reports it.
            break
    for path in _FILES[role]:
        if os.path.lexists(machine.path(path)):
            yield f'{path} exists'
