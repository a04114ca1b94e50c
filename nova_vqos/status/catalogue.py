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

"""All checks of ``nova-vqos-status``, in the order in which they are made.

The guide to it has a table of them: a test compares the two.
"""

from collections.abc import Callable, Iterable
import functools
import typing as ty

from oslo_upgradecheck import upgradecheck

from nova_vqos.status import agent
from nova_vqos.status import configured
from nova_vqos.status import files
from nova_vqos.status import findings
from nova_vqos.status import hook
from nova_vqos.status import importing
from nova_vqos.status import kernel
from nova_vqos.status import measured
from nova_vqos.status import roles
from nova_vqos.status import settings
from nova_vqos.status import unit
from nova_vqos.status import versions
from nova_vqos.status import worlds


class Check(ty.NamedTuple):
    """A check.

    :ivar name: for people
    :ivar roles: machines of which it says something
    :ivar look: what it finds; one finding at least
    """

    name: str
    roles: tuple[str, ...]
    look: Callable[[worlds.World], Iterable[findings.Finding]]


_EVERYWHERE = worlds.ROLES
_COMPUTE = (worlds.COMPUTE,)
_CONTROLLER = (worlds.CONTROLLER,)

CHECKS = (
    Check('Role', _EVERYWHERE, roles.look),
    Check('Configuration', _EVERYWHERE, configured.look_at_files),
    Check('Python', _EVERYWHERE, versions.look_at_python),
    Check('Nova', _EVERYWHERE, importing.look_at_version),
    Check('Filter and weighers, import', _CONTROLLER,
          importing.look_at_scheduler),
    Check('Filter', _CONTROLLER, configured.look_at_filter),
    Check('Weighers', _CONTROLLER, configured.look_at_weighers),
    Check('Extra specs', _CONTROLLER, importing.look_at_validators),
    Check('Compute driver, import', _COMPUTE, importing.look_at_driver),
    Check('Compute driver', _COMPUTE, configured.look_at_driver),
    Check('Same options', _COMPUTE, configured.look_at_options),
    Check('Profile', _COMPUTE, measured.look_at_profile),
    Check('Hook', _COMPUTE, hook.look),
    Check('Agent', _COMPUTE, agent.look_at_life),
    Check("Agent's unit", _COMPUTE, unit.look),
    Check('Message bus', _COMPUTE, agent.look_at_bus),
    Check("Agent's answer", _COMPUTE, agent.look_at_answer),
    Check('Quantum classes', _COMPUTE, measured.look_at_classes),
    Check('Permissions', _COMPUTE, files.look),
    Check('libvirt', _COMPUTE, versions.look_at_libvirt),
    Check('Linux', _COMPUTE, versions.look_at_kernel),
    Check('cgroups', _COMPUTE, kernel.look_at_cgroups),
    Check('sched_ext', _COMPUTE, kernel.look_at_sched_ext),
    Check('Frequency', _COMPUTE, kernel.look_at_frequency),
    Check('Halt polling', _COMPUTE, kernel.look_at_halt_polling),
    Check('Interrupt time', _COMPUTE, kernel.look_at_irq_time),
)


def run(check: Check, world: worlds.World) -> upgradecheck.Result:
    """Make a check; whatever it meets is its result."""
    return findings.result_of(_findings(check, world))


def _findings(check: Check, world: worlds.World) -> list[findings.Finding]:
    found = []
    try:
        is_here = roles.roles(world)
        if check.look is not roles.look and not is_here.keys() & check.roles:
            return [findings.skipped(
                'this machine is no ' + ' and no '.join(
                    worlds.NAMES[role] for role in check.roles))]
        # One by one: what was found before it fails is of use.
        for finding in check.look(world):
            found.append(finding)
    except settings.Unreadable as error:
        found.append(findings.failure(
            str(error), 'put that right; then this check can be made'))
    except PermissionError as error:
        found.append(findings.failure(
            f'it cannot be told: {error}', 'run nova-vqos-status as root'))
    except Exception as error:
        found.append(findings.failure(
            f'this check could not be made: {type(error).__name__}: {error}',
            'if what it names is not what is wrong, this is a fault of '
            'nova_vqos: report it'))
    return found


class Commands(upgradecheck.UpgradeCommands):
    """``upgrade check`` of a machine."""

    display_title = 'nova_vqos: what is missing or wrong here'

    def __init__(self, look: Callable[[], worlds.World]) -> None:
        """
        :param look: gives the machine, once options can be read
        """
        self._look = look
        self._upgrade_checks = ()

    def check(self) -> findings.Code:
        """Make all checks, and print what was found.

        :returns: the worst
        """
        world = self._look()
        self._upgrade_checks = tuple(
            (check.name, functools.partial(_run_of, check, world))
            for check in CHECKS)
        return super().check()


def _run_of(check: Check, world: worlds.World, _commands: Commands
            ) -> upgradecheck.Result:
    return run(check, world)
