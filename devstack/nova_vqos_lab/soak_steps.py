# SPDX-License-Identifier: Apache-2.0
"""What chance does to the lab's cloud: to its servers, and to its parts.

An action asks Nova for something about a server, and does not wait. A
disturbance breaks a part of the cloud, and mends it before it returns.
"""

from collections.abc import Callable, Iterator, Mapping
import contextlib
import dataclasses
import datetime
import os
import random
import shutil
import time
import typing as ty

import libvirt

from nova_vqos import policy
from nova_vqos.profile import cpu
from nova_vqos_lab import administrator
from nova_vqos_lab import cgroups
from nova_vqos_lab import changes
from nova_vqos_lab import client
from nova_vqos_lab import cloud as clouds
from nova_vqos_lab import locked_out
from nova_vqos_lab import node
from nova_vqos_lab import process
from nova_vqos_lab import profiles
from nova_vqos_lab import services
from nova_vqos_lab import soak_checks

_STATE = os.path.dirname(soak_checks.LEDGER_PATH)
# Enough for the ledger of a few servers, and soon full.
_DISK_SIZE = '4m'
_EVACUATION_LIMIT_S = 120
_MIGRATION_LIMIT_S = 20
# Of a host's profile: what a second calibration may differ by.
_RECALIBRATION = 0.04
_SLOW_KBIT_S = 256

#: Specs of the flavors beside their units, and number of vCPUs, by name.
FLAVORS: Mapping[str, tuple[int, int, Mapping[str, str]]] = {
    'soak-10': (10, 1, {}),
    'soak-20': (20, 1, {policy.DD_BILLING_KEY: 'account'}),
    'soak-30-2': (30, 2, {}),
    'soak-15-charged': (15, 1, {policy.DD_BILLING_KEY: 'charge'}),
}
IMAGE = 'soak'


class Refused(Exception):
    """Nova does not do it, and says why."""


@dataclasses.dataclass(frozen=True)
class Action:
    """Something that Nova is asked for.

    :ivar statuses: of servers that it can be asked of
    :ivar ask: sends the request, given a server of one of these statuses
    :ivar nova_leaves: kinds of violations that stock Nova leaves behind, too,
        and that an administrator mends
    """

    name: str
    statuses: tuple[str, ...]
    ask: Callable[['World', ty.Any], None]
    nova_leaves: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True)
class Disturbance:
    """A part of the cloud that breaks, and is mended.

    :ivar name: with ``{host}`` where it happens to one of the hosts
    :ivar do: does both, given the name of a host
    :ivar nova_leaves: as of actions
    """

    name: str
    do: Callable[['World', str], None]
    nova_leaves: frozenset[str] = frozenset()


class World:
    """The lab's cloud, and the chance that decides what happens to it.

    :ivar chance: of the step that is done
    :ivar interrupted: directories that libvirt or Nova may leave, since it
        was killed, or lost its host, while it was at work there
    """

    def __init__(self, lab: clouds.Lab, cloud: client.Cloud) -> None:
        self.lab = lab
        self.cloud = cloud
        self.chance = random.Random(0)
        self.interrupted: set[str] = set()
        self._booted = 0
        self._image = cloud.find_image(IMAGE)
        self._profiles = {name: lab.profiles.of(name) for name in lab.hosts}

    # Of Nova.

    def boot(self, _server: soak_checks.Server | None) -> None:
        """Of any flavor, on any host."""
        self._booted += 1
        self.cloud.boot(f'{IMAGE}-{self._booted}',
                        self.chance.choice(list(FLAVORS)), self._image)

    def other_host(self, server: soak_checks.Server) -> str:
        """:returns: the host that a server is not on"""
        (other,) = set(self.lab.hosts) - {server.host}
        return other

    def ask(self, server: soak_checks.Server, body: ty.Any) -> None:
        """Send an action to a server.

        :raises Refused: when Nova does not want to
        """
        self.request('POST', f'/servers/{server.uuid}/action', body)

    def request(self, method: str, path: str, body: ty.Any = None
                ) -> client.Answer:
        """Send a request to Nova.

        :raises Refused: when Nova does not want to
        """
        answer = self.cloud.compute(method, path, body)
        if answer.status >= 400:
            raise Refused(f'{answer.status} {answer.message}')
        return answer

    def live_migrate(self, server: soak_checks.Server) -> None:
        """To the other host, whether it fits there or not."""
        self.ask(server, {'os-migrateLive': {
            'host': self.other_host(server), 'block_migration': 'auto'}})

    def interfere(self, server: soak_checks.Server, abort: bool) -> None:
        """Migrate live, and abort that or force it to its end."""
        self.live_migrate(server)
        path = f'/servers/{server.uuid}/migrations'

        def running() -> list[dict[str, ty.Any]] | None:
            shown = self.request('GET', path).body['migrations']
            found = [one for one in shown if one['status'] == 'running']
            settled = not shown and soak_checks.servers(self.cloud)[
                server.uuid].is_settled
            return found or ([{}] if settled else None)

        migration = process.wait_until(
            running, _MIGRATION_LIMIT_S, 'the migration to run',
            interval_s=0.1)[0]
        # It may be over already.
        with contextlib.suppress(Refused):
            if migration and abort:
                self.request('DELETE', f'{path}/{migration["id"]}')
            elif migration:
                self.request('POST', f'{path}/{migration["id"]}/action',
                             {'force_complete': None})

    def resize(self, server: soak_checks.Server) -> None:
        """To another flavor, on either host."""
        now = self.request('GET', f'/servers/{server.uuid}').body[
            'server']['flavor']['original_name']
        self.ask(server, {'resize': {'flavorRef': self.chance.choice(
            [name for name in FLAVORS if name != now])}})

    def delete_in_migration(self, server: soak_checks.Server) -> None:
        """Migrate live, and delete the server some time after that."""
        self.live_migrate(server)
        time.sleep(self.chance.uniform(0, 3))
        self.request('DELETE', f'/servers/{server.uuid}')

    def snapshot(self, server: soak_checks.Server) -> None:
        """Make an image, which is removed with the others in the end."""
        self.ask(server, {'createImage': {'name': f'{IMAGE}-{server.name}'}})

    def rebuild(self, server: soak_checks.Server) -> None:
        """From the same image."""
        self.ask(server, {'rebuild': {'imageRef': self._image}})

    # Of hosts and services.

    def kill_agent(self, host: str) -> None:
        """Kill it, and start it some time later."""
        agent = self.lab.nodes[host].process_of(node.AGENT)
        if agent:
            agent.kill()
        time.sleep(self.chance.choice((0, self.chance.uniform(0, 8))))
        self.lab.nodes[host].start_agent_again()

    def kill_libvirtd(self, host: str) -> None:
        """Kill it, and start it."""
        running = self.lab.hosts[host].libvirtd
        if running:
            running.kill()
        # It finds no guest that it was about to start, nor its cgroup.
        self.interrupted.update(soak_checks.groups(self.lab.hosts[host]))
        self.lab.hosts[host].start_libvirtd()

    def kill_compute(self, host: str) -> None:
        """Kill nova-compute, and start it."""
        running = self.lab.nodes[host].process_of(node.COMPUTE)
        if running:
            running.kill()
        began = datetime.datetime.now(datetime.UTC)
        self.lab.nodes[host].start_compute()
        self.cloud.wait_for_compute(host, began)

    def kill_bus(self, _host: str) -> None:
        """Kill RabbitMQ, and start it."""
        services.RABBITMQ.kill()
        began = datetime.datetime.now(datetime.UTC)
        services.start_rabbitmq()
        for name in self.lab.hosts:
            self.cloud.wait_for_compute(name, began)
        # The API finds out when it asks: it waits in vain for an answer then.
        for server in soak_checks.servers(self.cloud).values():
            client.Server(self.cloud, server.uuid, server.name).console()

    def kill_database(self, _host: str) -> None:
        """Kill MariaDB, and start it."""
        services.MARIADB.kill()
        services.start_mariadb()

    def cut_network(self, host: str) -> None:
        """Of one host: from the bus, and from the other host."""
        began = datetime.datetime.now(datetime.UTC)
        with self.lab.network.cut(host):
            time.sleep(self.chance.uniform(1, 6))
        self.cloud.wait_for_compute(host, began)

    def slow_network(self, host: str) -> None:
        """Of one host."""
        with self.lab.network.slowed(host, _SLOW_KBIT_S):
            time.sleep(self.chance.uniform(2, 8))

    def fill_disk(self, host: str) -> None:
        """Of the ledger: full for some time."""
        path = f'{_STATE}/filler'
        self.lab.hosts[host].run(
            ['dd', 'if=/dev/zero', f'of={path}', 'bs=4k'], check=False)
        time.sleep(self.chance.uniform(1, 8))
        self.lab.hosts[host].run(['rm', '-f', path])

    def lose_host(self, host: str) -> None:
        """Evacuate what can be, and start the rest when it is back."""
        # An evacuation that fails leaves the disk that it made.
        self.interrupted.update(
            os.path.join(one.path('nova/instances'), server.uuid)
            for one in self.lab.hosts.values()
            for server in self._servers_on(host))
        with changes.lost(self.lab, host, self.cloud):
            evacuated = set()
            for server in self._servers_on(host):
                with contextlib.suppress(Refused):
                    self.ask(server, {'evacuate': {}})
                    evacuated.add(server.uuid)
            process.wait_until(
                lambda: all(one.task is None for one
                            in soak_checks.servers(self.cloud).values()
                            if one.uuid in evacuated),
                _EVACUATION_LIMIT_S, 'the evacuation', interval_s=0.25)
        for server in self._servers_on(host):
            if server.status in soak_checks.WITH_GUEST:
                # It may be deleted meanwhile.
                with contextlib.suppress(Refused):
                    # Nova would see it in some minutes only.
                    self.ask(server, {'os-resetState': {'state': 'active'}})
                    self.ask(server, {'reboot': {'type': 'HARD'}})

    def _servers_on(self, host: str) -> list[soak_checks.Server]:
        return [one for one in soak_checks.servers(self.cloud).values()
                if one.host == host]

    def tamper(self, host: str) -> None:
        """Write other caps, through libvirt."""
        uri = self.lab.hosts[host].libvirt_uri
        with contextlib.closing(libvirt.open(uri)) as connection:
            guests = connection.listAllDomains(
                libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
            for guest in sorted(guests, key=lambda one: one.UUIDString()):
                # It may end at any time.
                with contextlib.suppress(libvirt.libvirtError):
                    guest.setSchedulerParametersFlags(
                        {'vcpu_quota': self.chance.choice(
                            (-1, self.chance.randrange(2000, 90_000)))},
                        libvirt.VIR_DOMAIN_AFFECT_LIVE)

    def recalibrate(self, _host: str) -> None:
        """Replace a profile by one that is a little faster or slower."""
        # That of the reference is 1.
        (host,) = set(self.lab.hosts) - {profiles.REFERENCE}
        factor = self.chance.uniform(1 - _RECALIBRATION, 1 + _RECALIBRATION)
        profile = self._profiles[host]
        self.lab.profiles.store(host, profile._replace(cpu_classes=tuple(
            one._replace(alone=_scaled(one.alone, factor),
                         busy=_scaled(one.busy, factor))
            for one in profile.cpu_classes)))

    def push(self, _host: str) -> None:
        """Change the billing of a flavor, and push that to all hosts."""
        name = self.chance.choice(list(FLAVORS))
        kind = self.chance.choice(policy.CHOICES[policy.DD_BILLING_KEY])
        self.request('POST', f'/flavors/{name}/os-extra_specs',
                     {'extra_specs': {policy.DD_BILLING_KEY: kind}})
        administrator.run(self.lab, 'nova-vqos-manage', 'policy', 'push',
                          '--flavor', name)

    def repair(self) -> None:
        """Mend what stock Nova leaves, by the means of an administrator."""
        administrator.follow_audit(self.lab, self.cloud)
        # What does not run is no difference, such as the disk of a resize
        # that never came to its end.
        servers = soak_checks.servers(self.cloud).values()
        for host in self.lab.hosts.values():
            kept = {one.uuid for one in servers if (
                one.host == host.name or one.status == 'VERIFY_RESIZE')}
            with contextlib.closing(libvirt.open(host.libvirt_uri)) as one:
                for guest in one.listAllDomains(
                        libvirt.VIR_CONNECT_LIST_DOMAINS_INACTIVE):
                    if guest.UUIDString() not in kept:
                        guest.undefine()
            for directory in soak_checks.disks(host):
                # Of the source of a resize, too.
                uuid, _, _ = os.path.basename(directory).partition('_')
                if uuid not in kept:
                    shutil.rmtree(directory)
            for group in self.interrupted.intersection(
                    soak_checks.groups(host)):
                cgroups.remove_abandoned(group)

    def restart_locked_out(self) -> list[str]:
        """Start nova-compute anew where stock Nova has locked itself out.

        :returns: these hosts
        """
        found = []
        for host in self.lab.hosts:
            running = self.lab.nodes[host].process_of(node.COMPUTE)
            if running and locked_out.is_locked_out(running):
                self.kill_compute(host)
                found.append(host)
        return found

    def delete(self, uuid: str) -> None:
        """Delete a server, unless it has gone."""
        self.cloud.compute('DELETE', f'/servers/{uuid}')

    def mend(self, server: soak_checks.Server) -> None:
        """Start a server that Nova has given up, or delete it."""
        # Nova starts none that has never run.
        if (server.host is None or server.task == 'deleting'
                or not server.has_run):
            self.delete(server.uuid)
            return
        self.ask(server, {'os-resetState': {'state': 'active'}})
        if not any(server.uuid in soak_checks.guests(host)
                   for host in self.lab.hosts.values()):
            self.ask(server, {'reboot': {'type': 'HARD'}})

    @contextlib.contextmanager
    def small_disks(self) -> Iterator[None]:
        """Let each host keep its ledger where a disk is soon full."""
        for host in self.lab.hosts:
            self._move_state(host, ['mount', '-t', 'tmpfs', '-o',
                                    f'size={_DISK_SIZE},mode=755', 'tmpfs',
                                    _STATE])
        try:
            yield
        finally:
            for host in self.lab.hosts:
                self._move_state(host, ['umount', _STATE])
                self.lab.profiles.store(host, self._profiles[host])

    def _move_state(self, host: str, command: list[str]) -> None:
        """Have another file system below the agent's state."""
        machine = self.lab.hosts[host]
        kept = '/run/nova-vqos-kept'
        self.lab.nodes[host].stop(node.AGENT)
        machine.run(['cp', '-a', _STATE, kept])
        machine.run(command)
        machine.run(['cp', '-a', f'{kept}/.', _STATE])
        machine.run(['rm', '-r', kept])
        self.lab.nodes[host].start_agent_again()


def _scaled(measured: cpu.Measurement, factor: float) -> cpu.Measurement:
    def scaled(one: ty.Any) -> ty.Any:
        return one._replace(coefficient=one.coefficient * factor,
                            interval_low=one.interval_low * factor,
                            interval_high=one.interval_high * factor)

    return scaled(measured)._replace(
        scores=tuple(map(scaled, measured.scores)))


def _simple(name: str, status: str, body: ty.Any) -> Action:
    return Action(name, (status,), lambda world, server: world.ask(
        server, body))


_RUNNING = ('ACTIVE',)
#: Of Nova, when requests of its services to each other are lost.
BROKEN = frozenset({soak_checks.ERROR, soak_checks.GUEST, soak_checks.CLAIM})
BOOT = Action('boot', (), World.boot)
#: What can be asked of servers; those that are there twice are likelier.
ACTIONS: tuple[Action, ...] = (
    Action('live-migrate', _RUNNING, World.live_migrate),
    Action('live-migrate', _RUNNING, World.live_migrate),
    Action('live-migrate, abort', _RUNNING,
           lambda world, server: world.interfere(server, abort=True),
           # Since Nova 34: _live_migration() raises what the operation did,
           # after the server was rolled back.
           nova_leaves=frozenset({soak_checks.ERROR})),
    Action('live-migrate, force-complete', _RUNNING,
           lambda world, server: world.interfere(server, abort=False)),
    # The source forgets the server while the guest arrives at the destination.
    Action('live-migrate, delete', _RUNNING, World.delete_in_migration,
           nova_leaves=frozenset({soak_checks.GUEST, soak_checks.CLAIM})),
    Action('cold-migrate', ('ACTIVE', 'SHUTOFF'),
           lambda world, server: world.ask(server, {'migrate': None})),
    Action('resize', ('ACTIVE', 'SHUTOFF'), World.resize),
    Action('snapshot', ('ACTIVE', 'SHUTOFF'), World.snapshot),
    Action('rebuild', ('ACTIVE', 'SHUTOFF'), World.rebuild),
    Action('delete', ('ACTIVE', 'SHUTOFF', 'PAUSED', 'SUSPENDED', 'RESCUE',
                      'SHELVED_OFFLOADED', 'VERIFY_RESIZE'),
           lambda world, server: ty.cast(None, world.request(
               'DELETE', f'/servers/{server.uuid}'))),
    _simple('soft reboot', 'ACTIVE', {'reboot': {'type': 'SOFT'}}),
    _simple('hard reboot', 'ACTIVE', {'reboot': {'type': 'HARD'}}),
    _simple('stop', 'ACTIVE', {'os-stop': None}),
    _simple('start', 'SHUTOFF', {'os-start': None}),
    _simple('pause', 'ACTIVE', {'pause': None}),
    _simple('unpause', 'PAUSED', {'unpause': None}),
    _simple('suspend', 'ACTIVE', {'suspend': None}),
    _simple('resume', 'SUSPENDED', {'resume': None}),
    _simple('rescue', 'ACTIVE', {'rescue': {}}),
    _simple('unrescue', 'RESCUE', {'unrescue': None}),
    _simple('shelve', 'ACTIVE', {'shelve': None}),
    _simple('unshelve', 'SHELVED_OFFLOADED', {'unshelve': None}),
    _simple('confirm', 'VERIFY_RESIZE', {'confirmResize': None}),
    _simple('revert', 'VERIFY_RESIZE', {'revertResize': None}),
)

#: What can happen to the rest of the cloud.
DISTURBANCES: tuple[Disturbance, ...] = (
    Disturbance('the agent of {host} is killed', World.kill_agent),
    Disturbance('the agent of {host} is killed', World.kill_agent),
    Disturbance('libvirtd of {host} is killed', World.kill_libvirtd,
                BROKEN),
    Disturbance('nova-compute of {host} is killed', World.kill_compute,
                BROKEN),
    Disturbance('the host {host} is lost', World.lose_host, BROKEN),
    Disturbance('RabbitMQ is killed', World.kill_bus, BROKEN),
    Disturbance('MariaDB is killed', World.kill_database,
                BROKEN),
    Disturbance('the network of {host} is cut', World.cut_network, BROKEN),
    Disturbance('the network of {host} is slow', World.slow_network),
    Disturbance('the disk of the ledger of {host} is full', World.fill_disk),
    Disturbance('caps on {host} are tampered with', World.tamper),
    Disturbance('caps on {host} are tampered with', World.tamper),
    Disturbance('the faster host has another profile', World.recalibrate),
    Disturbance('a flavor is pushed', World.push),
)
