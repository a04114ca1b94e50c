# SPDX-License-Identifier: Apache-2.0
"""An upgrade of nova_vqos on the lab's cloud, while its servers run.

It is done as doc/source/admin/install.rst has it: the controller first, then
host by host. Between these steps both versions are in use. The way back is
the same in the opposite order.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import contextlib
import json
import os
import shutil
import tempfile
import typing as ty

from nova_vqos import policy
from nova_vqos.calibration import guest
from nova_vqos_lab import administrator
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import earlier
from nova_vqos_lab import node
from nova_vqos_lab import paths
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import services
from nova_vqos_lab import soak_checks
from nova_vqos_lab import watch

#: Of servers, their flavor and their image.
NAME = 'upgrade'
CU = 20
# Of a server whose flavor the earlier version may not know.
_LATER = f'{NAME}-later'
_LATER_SPECS = {policy.BURST_KEY: str(2 * CU), policy.BURST_SECONDS_KEY: '60'}
_RIGHT_LIMIT_S = 30
_INTERVAL_S = 0.5


class Step(ty.NamedTuple):
    """A step of the upgrade.

    :ivar problems: what did not hold during it and after it
    """

    name: str
    problems: tuple[str, ...]


class Upgraded(ty.NamedTuple):
    """What was done."""

    steps: tuple[Step, ...]

    @property
    def is_right(self) -> bool:
        """Whether all that must hold did, all the time."""
        return not any(step.problems for step in self.steps)

    def table(self) -> str:
        """:returns: lines for people"""
        lines = []
        for step in self.steps:
            lines.append(f'{"NO" if step.problems else "yes":4} {step.name}')
            lines += [f'     {problem}' for problem in step.problems]
        return '\n'.join(lines)


def run(lab: clouds.Lab, revision: str, *, is_return: bool = False
        ) -> Upgraded:
    """Make a cloud with an earlier nova_vqos, and upgrade it.

    :param lab: that is not up
    :param revision: of the earlier one, as Git names it
    :param is_return: whether to go back to it in the end
    :raises process.LabError: when a step fails
    """
    with tempfile.TemporaryDirectory() as extracted:
        # What is asked for is looked at before the minutes that it takes.
        earlier.extract(revision, extracted)
        lab.up()
        tree = shutil.copytree(extracted, paths.data('earlier'),
                               dirs_exist_ok=True)
    with _code_of(tree):
        with process.stage(f'nova_vqos of commit {revision}'):
            _restart_api(lab)
        lab.profiles.calibrate(profiles.FEWER_BENCHMARKS)
        lab.deploy()
    with lab.cloud() as cloud:
        upgrade = _Upgrade(lab, cloud, tree)
        upgrade.run()
        if is_return:
            with _code_of(tree):
                upgrade.go_back()
        return Upgraded(tuple(upgrade.steps))


@contextlib.contextmanager
def _code_of(tree: str) -> Iterator[None]:
    """Let what is started meanwhile have other code."""
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = tree
    try:
        yield
    finally:
        del os.environ['PYTHONPATH']
        if before is not None:
            os.environ['PYTHONPATH'] = before


def _restart_api(lab: clouds.Lab) -> None:
    with lab.controller_network():
        services.APIS['nova'].stop()
        services.start_api('nova')


class _Upgrade:
    """Does one step after the other, and looks after each."""

    def __init__(self, lab: clouds.Lab, cloud: client.Cloud,
                 tree: str) -> None:
        """:param tree: directory of the earlier code"""
        self._lab = lab
        self._cloud = cloud
        self._tree = tree
        self._checks = soak_checks.Checks(lab, cloud)
        self.steps: list[Step] = []
        self._image = ''
        self._servers: list[client.Server] = []

    def run(self) -> None:
        """Do it, with servers that are all on host slow in the end."""
        self._make_flavor(NAME, {})
        self._image = self._cloud.make_image(
            NAME, guest.find_kernel(), clouds.initramfs(),
            # It computes all the time.
            guest.command_line())
        on_fast, on_slow = servers = [
            self._boot('fast', f'{NAME}-one'),
            self._boot('slow', f'{NAME}-two')]
        self._end('a server is booted on each host, by the earlier version', [
            f'{name} has new code' for name, is_earlier in self._programs()
            if not is_earlier])
        self._step('nova-api and nova-scheduler are upgraded',
                   self._restart_controller, servers)
        new = self._boot('slow', f'{NAME}-three')
        self._end('a server is booted on a host of the earlier version', [])
        self._step('host slow is upgraded',
                   lambda: self._lab.upgrade_host('slow'), [on_slow, new])
        self._migrate(on_fast, 'slow', 'to a host of the new version')
        self._migrate(on_slow, 'fast', 'to a host of the earlier version')
        self._step('host fast is upgraded',
                   lambda: self._lab.upgrade_host('fast'), [on_slow])
        self._migrate(on_slow, 'slow', 'between hosts of the new version')
        self._look_from_outside()
        self._servers = [on_fast, on_slow]

    def go_back(self) -> None:
        """Go back to the earlier version, whose code programs get now."""
        moved, on_slow = self._servers
        self._make_flavor(_LATER, _LATER_SPECS)
        later = self._boot('fast', _LATER, _LATER)
        self._migrate(moved, 'fast', 'before the way back')
        self._step('host fast goes back',
                   lambda: self._lab.upgrade_host('fast'), [moved, later])
        self._migrate(moved, 'slow', 'from a host that went back')
        self._migrate(on_slow, 'fast', 'to a host that went back')
        self._step('host slow goes back',
                   lambda: self._lab.upgrade_host('slow'), [moved])
        self._step('nova-api and nova-scheduler go back',
                   self._restart_controller, [moved, on_slow, later])
        self._migrate(moved, 'fast', 'between hosts that went back')
        self._look_at_later(later)
        self._look_from_outside(is_earlier=True)

    def _look_at_later(self, later: client.Server) -> None:
        """What the earlier version does not know stays as it is."""
        name = 'a server with bursts is not migrated'
        problems = []
        with process.stage(name):
            try:
                later.migrate('slow')
            except client.CloudError as error:
                process.say(f'   {error}')
            else:
                problems.append(f'{later.name} migrated')
        self._end(name, problems)
        self._step('it is rebooted hard', lambda: self._reboot(later), [later])

    @staticmethod
    def _reboot(server: client.Server) -> None:
        answer = server.cloud.compute(
            'POST', f'/servers/{server.uuid}/action',
            {'reboot': {'type': 'HARD'}})
        if answer.status != 202:
            raise process.LabError(f'{server.name}: {answer.message}')
        server.wait_idle()

    def _make_flavor(self, name: str, more: Mapping[str, str]) -> None:
        self._cloud.make_flavor(name, {
            policy.UNITS_KEY: str(CU), policy.DD_BILLING_KEY: 'account',
            **more})

    def _boot(self, host: str, name: str, flavor: str = NAME
              ) -> client.Server:
        with process.stage(f'booting {name} on {host}'):
            server = self._cloud.boot(name, flavor, self._image, host)
            server.wait_active()
        return server

    def _step(self, name: str, do: Callable[[], None],
              servers: Sequence[client.Server] = ()) -> None:
        """:param servers: that stay where they are, with the cap they have"""
        with process.stage(name), contextlib.ExitStack() as stack:
            watches = [(server, host, stack.enter_context(watch.CapWatch(
                self._lab.hosts[host], server.domain)))
                for server in servers for host in [server.host]]
            do()
        self._end(name, [problem for one in watches
                         for problem in self._wrong_caps(*one)])

    def _migrate(self, server: client.Server, host: str, how: str) -> None:
        name = f'a live migration {how}'
        with process.stage(name), watch.CapWatch(
                self._lab.hosts[host], server.domain) as watched:
            server.migrate(host)
        self._end(name, list(self._wrong_caps(server, host, watched)))

    def _wrong_caps(self, server: client.Server, host: str,
                    watched: watch.CapWatch) -> Iterator[str]:
        right = self._lab.profiles.cap(host, CU)
        seen = watched.caps()
        if not seen:
            yield f'no cap of {server.name} was seen on {host}'
        for cap in seen:
            if cap != right:
                yield (f'{server.name} had a cap of {cap} on {host}, right is '
                       f'{right}')

    def _end(self, name: str, problems: Sequence[str]) -> None:
        """Look whether all holds now, or soon."""
        violations = soak_checks.wait_right(self._checks.after_step,
                                            _RIGHT_LIMIT_S)
        self.steps.append(Step(name, (*problems, *(
            f'{one.kind}: {one.text}' for one in violations))))

    def _restart_controller(self) -> None:
        _restart_api(self._lab)
        self._lab.restart_scheduler('refuse')

    def _look_from_outside(self, *, is_earlier: bool = False) -> None:
        """Ask all agents, and compare them with Nova and Placement.

        :param is_earlier: whether programs have the earlier code
        """
        hosts = process.wait_until(
            self._hosts, _RIGHT_LIMIT_S, 'an answer of all agents',
            interval_s=_INTERVAL_S)
        problems = [f'{name} has {"new" if is_earlier else "earlier"} code'
                    for name, found in self._programs()
                    if found != is_earlier]
        problems += [f'{one["host"]} has {one["wrong"]} wrong caps'
                     for one in hosts if one['wrong']]
        problems += [f'{one["kind"]}: {one["advice"]}'
                     for one in administrator.differences(self._lab)]
        self._end('all agents answer, and agree with Nova and Placement',
                  problems)

    def _hosts(self) -> list[dict[str, ty.Any]] | None:
        """:returns: the rows of host list; None: some agent does not answer
            yet
        """
        rows = json.loads(administrator.run(
            self._lab, 'nova-vqos-manage', 'host', 'list', '-f', 'json'))
        return (rows if all(one['agent'] == 'alive' for one in rows)
                else None)

    def _programs(self) -> Iterator[tuple[str, bool]]:
        """:returns: those on hosts, and whether each has the earlier code"""
        for name, one in self._lab.nodes.items():
            for program in node.COMPUTE, node.AGENT:
                running = one.process_of(program)
                if running is None:
                    raise process.LabError(f'no {program} runs on {name}')
                with open(f'/proc/{running.pid}/environ', 'rb') as stream:
                    yield (f'{program} on {name}',
                           self._tree.encode() in stream.read())
