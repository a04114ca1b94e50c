# SPDX-License-Identifier: Apache-2.0
"""All checks of ``nova-vqos-status``, in the order in which they run.

Its guide has a table of them: a test compares the two.
"""

from collections.abc import Callable, Iterable
import typing as ty

from oslo_upgradecheck import upgradecheck

from nova_vqos.cmd.status import agent
from nova_vqos.cmd.status import agent_units
from nova_vqos.cmd.status import config_files
from nova_vqos.cmd.status import findings
from nova_vqos.cmd.status import guarantee
from nova_vqos.cmd.status import hook
from nova_vqos.cmd.status import host
from nova_vqos.cmd.status import importing
from nova_vqos.cmd.status import machine as machines
from nova_vqos.cmd.status import network
from nova_vqos.cmd.status import nova_config
from nova_vqos.cmd.status import profile
from nova_vqos.cmd.status import roles
from nova_vqos.cmd.status import stock


class Check(ty.NamedTuple):
    """A check.

    :ivar name: for people
    :ivar roles: of the machines that it applies to
    :ivar find: its findings, at least one
    """

    name: str
    roles: tuple[str, ...]
    find: Callable[[machines.Machine], Iterable[findings.Finding]]


_COMPUTE = (machines.COMPUTE,)
_CONTROLLER = (machines.CONTROLLER,)

CHECKS = (
    Check('Role', machines.ROLES, roles.check),
    Check('Configuration', machines.ROLES, nova_config.check_files),
    Check('Python', machines.ROLES, host.check_python),
    Check('Nova', machines.ROLES, importing.check_version),
    Check('Filter and weighers, import', _CONTROLLER,
          importing.check_scheduler),
    Check('Filter', _CONTROLLER, nova_config.check_filter),
    Check('Pre-filter', _CONTROLLER, importing.check_prefilter),
    Check('Weighers', _CONTROLLER, nova_config.check_weighers),
    Check('Placement', _CONTROLLER, nova_config.check_placement),
    Check('Extra specs', _CONTROLLER, importing.check_validators),
    Check('Compute driver, import', _COMPUTE, importing.check_driver),
    Check("Nova's driver", _COMPUTE, importing.check_contract),
    Check('Compute driver', _COMPUTE, nova_config.check_driver),
    Check('Same options', _COMPUTE, nova_config.check_options),
    Check('Profile', _COMPUTE, profile.check),
    Check('Servers without units', _COMPUTE, stock.check),
    Check('Hook', _COMPUTE, hook.check),
    Check('Agent', _COMPUTE, agent.check_heartbeat),
    Check("Agent's unit", _COMPUTE, agent_units.check),
    Check('Message bus', _COMPUTE, agent.check_bus),
    Check("Agent's answer", _COMPUTE, agent.check_answer),
    Check('Quantum classes', _COMPUTE, profile.check_classes),
    Check('Preemption', _COMPUTE, profile.check_scheduling),
    Check('vhost', _COMPUTE, profile.check_vhost),
    Check('Permissions', _COMPUTE, host.check_permissions),
    Check('libvirt', _COMPUTE, host.check_libvirt),
    Check('Linux', _COMPUTE, host.check_kernel),
    Check('cgroups', _COMPUTE, host.check_cgroups),
    Check('sched_ext', _COMPUTE, host.check_sched_ext),
    Check('Frequency', _COMPUTE, host.check_frequency),
    Check('Halt polling', _COMPUTE, host.check_halt_polling),
    Check('Interrupt time', _COMPUTE, host.check_irq_time),
    Check('NAPI', _COMPUTE, network.check_napi),
    Check('Guarantees', _COMPUTE, guarantee.check),
)
#: Begins the finding of a check that ended with an unexpected error.
CRASHED = 'This check ended with an error'


def run(check: Check, machine: machines.Machine) -> upgradecheck.Result:
    """Run a check; an error in it becomes a finding."""
    found: list[findings.Finding] = []
    try:
        is_here = roles.roles(machine)
        if check.find is not roles.check and not is_here.keys() & check.roles:
            found.append(findings.skipped('this machine is no ' + (
                ' and no '.join(machines.NAMES[role]
                                for role in check.roles))))
        else:
            # One by one: an error loses no earlier finding.
            for finding in check.find(machine):
                found.append(finding)
    except config_files.Unreadable as error:
        found.append(findings.failure(
            str(error), 'correct it, then run this check again'))
    except PermissionError as error:
        found.append(findings.failure(
            f'this check needs more rights: {error}',
            'run nova-vqos-status as root'))
    except Exception as error:
        found.append(findings.failure(
            f'{CRASHED}: {type(error).__name__}: {error}',
            'if the error names no cause on this machine, report it as a bug '
            'of nova_vqos'))
    return findings.result_of(found)


class Commands(upgradecheck.UpgradeCommands):
    """``upgrade check`` of a machine."""

    display_title = 'nova_vqos: problems of this machine'

    def __init__(self, make_machine: Callable[[], machines.Machine]) -> None:
        """
        :param make_machine: called once the options are parsed
        """
        self._make_machine = make_machine

    def check(self) -> findings.Code:
        """Run all checks, and print their findings.

        :returns: the worst
        """
        machine = self._make_machine()
        self._upgrade_checks = tuple(
            (check.name, lambda _commands, check=check: run(check, machine))
            for check in CHECKS)
        return super().check()
