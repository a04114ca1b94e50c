# SPDX-License-Identifier: Apache-2.0
"""Chance tries the lab's cloud: all that can be done to servers, and to it.

Each step is decided by the seed, its number, and the servers that there are.
After each, what must hold is looked at: see :mod:`soak_checks`.
"""

from collections.abc import Callable
import contextlib
import dataclasses
import random
import time

from keystoneauth1 import exceptions as keystone_exceptions

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import config
from nova_vqos_lab import process
from nova_vqos_lab import soak_checks
from nova_vqos_lab import soak_steps

#: After a step, all that must hold does within that.
LIMIT_S = 5
_SETTLE_LIMIT_S = 180
_END_LIMIT_S = 60
_INTERVAL_S = 0.25
_FEWEST, _MOST = 2, 6
# How often a step boots a server, does nothing to any, and breaks a part of
# the cloud beside what it does.
_BOOTS, _RESTS, _DISTURBS = 0.2, 0.15, 0.4
_LATEST_DISTURBANCE_S = 2


@dataclasses.dataclass
class Soak:
    """A run of it.

    :ivar steps: how many were done
    :ivar repairs: how often an administrator mended what stock Nova had left
    :ivar violations: of what must hold
    """

    seed: int
    steps: int = 0
    repairs: int = 0
    violations: list[soak_checks.Violation] = dataclasses.field(
        default_factory=list)

    def summary(self) -> str:
        """:returns: the last line of the output"""
        return (f'{self.steps} steps, {self.repairs} repairs of what Nova '
                f'left, {len(self.violations)} violations')


def run(lab: clouds.Lab, seed: int, minutes: float,
        most_steps: int | None = None) -> Soak:
    """Do steps until the time is over; no server is left.

    :param lab: with nova_vqos deployed, and no servers
    :param most_steps: to end after so many, whatever the time
    :raises process.LabError: when the lab itself does not work
    """
    done = Soak(seed)
    with lab.cloud() as cloud:
        if soak_checks.servers(cloud):
            raise process.LabError('the lab has servers: delete them first')
        prepare(cloud)
    with lab.cloud() as cloud:
        world = soak_steps.World(lab, cloud)
        with world.small_disks():
            driver = _Driver(world, soak_checks.Checks(
                lab, cloud, world.interrupted), done)
            end = time.monotonic() + minutes * 60
            while time.monotonic() < end and done.steps != most_steps:
                driver.step()
            driver.end()
    return done


def prepare(cloud: client.Cloud) -> None:
    """Make flavors and image, unless an earlier run has."""
    known = {one['name'] for one in cloud.compute(
        'GET', '/flavors').body['flavors']}
    for name, (cu, vcpus, specs) in soak_steps.FLAVORS.items():
        if name not in known:
            cloud.make_flavor(name, {policy.UNITS_KEY: str(cu), **specs},
                              vcpus=vcpus)
    if not cloud.has_image(soak_steps.IMAGE):
        cloud.make_image(soak_steps.IMAGE, guest.find_kernel(),
                         clouds.initramfs(), config.IDLE_GUEST)


def choose(chance: random.Random, servers: dict[str, soak_checks.Server]
           ) -> tuple[soak_steps.Action | None, soak_checks.Server | None,
                      soak_steps.Disturbance | None]:
    """Decide what a step does.

    :returns: what to ask of Nova, about which server (None: about a new one),
        and what to break; the first and the last are not both None
    """
    drawn = chance.random()
    action = server = None
    if len(servers) < _FEWEST or (
            drawn < _BOOTS and len(servers) < _MOST):
        action = soak_steps.BOOT
    elif drawn < 1 - _RESTS:
        # Of one in error that is being deleted nothing can be asked.
        possible = sorted(filter(_actions, servers.values()),
                          key=lambda one: one.name)
        if possible:
            server = chance.choice(possible)
            action = chance.choice(_actions(server))
    if action and chance.random() > _DISTURBS:
        return action, server, None
    return action, server, chance.choice(soak_steps.DISTURBANCES)


def _actions(server: soak_checks.Server) -> list[soak_steps.Action]:
    return [one for one in soak_steps.ACTIONS if server.status in one.statuses]


class _Driver:
    """Decides, does, and looks."""

    def __init__(self, world: soak_steps.World, checks: soak_checks.Checks,
                 done: Soak) -> None:
        self._world = world
        self._checks = checks
        self._done = done
        # What the step before may have left, that Nova sees only now.
        self._late_faults: frozenset[str] = frozenset()

    def step(self) -> None:
        """Do one thing, or two at the same time, and look at everything."""
        self._done.steps += 1
        # Of its own, so that what one step draws changes no other.
        chance = random.Random(f'{self._done.seed} {self._done.steps}')
        self._world.chance = chance
        began = time.monotonic()
        before = self._settled({})
        self._say(f'step {self._done.steps}, {len(before)} servers')
        action, server, disturbance = choose(chance, before)
        asked = action is not None and self._ask(action, server)
        if disturbance:
            host = chance.choice(sorted(self._world.lab.hosts))
            time.sleep(chance.uniform(0, _LATEST_DISTURBANCE_S) * asked)
            self._say(f'  {disturbance.name.format(host=host)}')
            disturbance.do(self._world, host)
        known_faults = (action.nova_leaves if action else frozenset()) | (
            disturbance.nova_leaves if disturbance else frozenset())
        late_faults = known_faults & {soak_checks.ERROR}
        known_faults |= self._late_faults
        known_faults |= self._treat_computes(self._settled(before))
        self._treat(self._settled({}), known_faults)
        self._look(self._checks.after_step, LIMIT_S, known_faults)
        self._late_faults = late_faults
        self._say(f'  {time.monotonic() - began:.1f} s')

    def end(self) -> None:
        """Delete all servers, and look for what is left of them."""
        self._say('all servers are deleted')
        for uuid in self._settled({}):
            self._world.delete(uuid)
        known_faults = self._treat_computes(self._settled({}))
        self._treat(self._settled({}), known_faults)
        process.wait_until(lambda: not self._servers(), _SETTLE_LIMIT_S,
                           'the end of all servers', interval_s=_INTERVAL_S)
        self._world.cloud.delete_images(f'{soak_steps.IMAGE}-')
        self._look(self._checks.after_step, LIMIT_S, known_faults)
        self._look(self._checks.at_the_end, _END_LIMIT_S,
                   frozenset({soak_checks.INTERRUPTED}))

    def _ask(self, action: soak_steps.Action,
             server: soak_checks.Server | None) -> bool:
        self._say(f'  {action.name}: {server or "a new one"}')
        try:
            action.ask(self._world, server)
        except (soak_steps.Refused, process.LabError,
                keystone_exceptions.ClientException) as exc:
            self._say(f'  refused: {exc}')
            return False
        return True

    def _settled(self, before: dict[str, soak_checks.Server]
                 ) -> dict[str, soak_checks.Server]:
        """Wait until nothing is being done to any server, or for too long."""
        end = time.monotonic() + _SETTLE_LIMIT_S
        found: dict[str, soak_checks.Server] | None = None
        while time.monotonic() < end:
            # The database may have been away.
            with contextlib.suppress(client.CloudError,
                                     keystone_exceptions.ClientException):
                found = self._servers()
                if all(one.is_settled for one in found.values()):
                    break
            time.sleep(_INTERVAL_S)
        if found is None:
            raise process.LabError(
                f'Nova gave no answer for {_SETTLE_LIMIT_S} s')
        for uuid, server in found.items():
            if server != before.get(uuid, server):
                self._say(f'  now {server}')
        return found

    def _servers(self) -> dict[str, soak_checks.Server]:
        return soak_checks.servers(self._world.cloud)

    def _treat_computes(self, servers: dict[str, soak_checks.Server]
                        ) -> frozenset[str]:
        """Where something is stuck, start what stock Nova has locked out.

        :returns: kinds of violations that Nova leaves then
        """
        if all(one.is_settled for one in servers.values()):
            return frozenset()
        hosts = self._world.restart_locked_out()
        if not hosts:
            return frozenset()
        self._say('  left by Nova: locked out of libvirt, nova-compute of '
                  f'{", ".join(hosts)}')
        self._done.repairs += 1
        return soak_steps.BROKEN

    def _treat(self, servers: dict[str, soak_checks.Server],
               known_faults: frozenset[str]) -> bool:
        """Do what an administrator does about servers in error, or stuck.

        :returns: whether there were any
        """
        ill = [one for one in servers.values()
               if not one.is_settled or one.status == 'ERROR']
        for server in ill:
            try:
                fault = self._fault(server)
            except soak_steps.Refused:
                # It has been deleted meanwhile.
                continue
            self._say(f'  {server}: {fault}')
            is_refused = server.host is None and 'No valid host' in fault
            if not is_refused and soak_checks.ERROR not in known_faults:
                self._violated([soak_checks.Violation(
                    soak_checks.ERROR, f'{server}: {fault}')])
            self._done.repairs += server.host is not None
            try:
                self._world.mend(server)
            except soak_steps.Refused as exc:
                # It is in error in the next step, too, unless it has gone.
                self._say(f'  refused: {exc}')
            self._settled({})
        return bool(ill)

    def _fault(self, server: soak_checks.Server) -> str:
        shown = self._world.request('GET', f'/servers/{server.uuid}')
        return shown.body['server'].get('fault', {}).get('message', '')

    def _look(self, check: Callable[[], list[soak_checks.Violation]],
              limit_s: float, known_faults: frozenset[str] = frozenset()
              ) -> None:
        """Check until all is right, or the time is over."""
        wrong = soak_checks.wait_right(check, limit_s)
        # Nova may find late that a server is in error.
        if wrong and self._treat(self._settled({}), known_faults):
            wrong = soak_checks.wait_right(check, limit_s)
        if wrong and {one.kind for one in wrong} <= known_faults:
            for one in wrong:
                self._say(f'  left by Nova: {one.text}')
            self._done.repairs += 1
            self._world.repair()
            self._settled({})
            wrong = soak_checks.wait_right(check, limit_s)
        self._violated(wrong)

    def _violated(self, violations: list[soak_checks.Violation]) -> None:
        for one in violations:
            self._say(f'  VIOLATION ({one.kind}): {one.text}')
        self._done.violations += violations

    @staticmethod
    def _say(text: str) -> None:
        process.say(text)
